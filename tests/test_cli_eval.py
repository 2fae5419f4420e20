"""`rlnb eval`, and `rlnb results` of two evaluations, as a terminal sees them."""

import json
from pathlib import Path

import pytest
from plus_file import RECORDS

from rlnb import cli
from rlnb.mbpp.problems import load_mbpp


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_options_reach_the_parameters_of_the_notebook(capsys):
    for options, said in (
        ("--samples SELF --endpoint http://localhost:1/v1 --served-model m", "writer.samples_path"),
        ("--served-model m", "writer.served_model"),
        ("--samples SELF --adapters .", "model.adapters"),
        ("--plus no.jsonl", "evaluation.plus_path"),
    ):
        assert cli.main(["eval", "--profile", "tiny", *options.replace("SELF", __file__).split()]) == 2
        assert capsys.readouterr().err.startswith(f"rlnb: --set: {said} = ")


def test_a_server_that_is_not_there_is_refused_before_anything_is_loaded(capsys, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    command = "eval --profile tiny --endpoint http://127.0.0.1:9/v1 --served-model m --out new"
    assert cli.main(command.split()) == 2
    said = capsys.readouterr().err
    assert said.startswith("rlnb: --set: writer.base_url = ") and said.count("\n") == 1
    assert not Path("new").exists()
    words = ["run", "notebooks/grpo_code_game.ipynb", "--profile", "tiny", "--check"]
    words += ["--set", "opponent.base_url=http://127.0.0.1:9", "--set", "opponent.model_id=m"]
    monkeypatch.chdir(Path(cli.__file__).parents[1])
    assert cli.main(words) == 2
    assert capsys.readouterr().err.startswith("rlnb: --set: opponent.base_url = ")


def test_a_file_of_completions_is_evaluated_and_compared(capsys):
    """The whole way, by a real kernel: half of the references, compared with all of them."""
    problems = load_mbpp("builtin").split("test")
    programs = [problem.code if index < 20 else "pass" for index, problem in enumerate(problems)]
    write_lines("half.jsonl", [
        {"task_id": f"Mbpp/{problem.task_id}", "solution": program}
        for problem, program in zip(problems, programs, strict=True)
    ])  # fmt: skip
    options = ["--profile", "tiny", "--set", "evaluation.num_questions=0"]
    assert cli.main(["eval", *options, "--samples", "half.jsonl", "--out", "half"]) == 0
    results = json.loads(Path("half/results.json").read_text())
    assert results["summary"]["pass_at"]["1"]["value"] == 0.5
    assert results["settings"]["writer"]["file"] == "half.jsonl"
    assert "temperature" not in results["settings"]
    samples = [sample | {"passed": True, "outcome": "passed"} for sample in results["samples"]]
    Path("all.json").write_text(json.dumps(results | {"samples": samples}))
    capsys.readouterr()
    assert cli.main(["results", "half", "all.json"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "40 problems in both"
    assert said[2] == "gained 20: " + ", ".join(str(p.task_id) for p in problems[20:])
    assert said[3] == "lost 0: none"


def write_lines(path: str, records: list[dict]) -> None:
    Path(path).write_text("".join(json.dumps(record) + "\n" for record in records))


def test_a_wrong_file_of_completions_is_refused_before_anything_starts(capsys):
    for text in ("", "no JSON", '{"task_id": "HumanEval/1"}', '{"task_id": 1, "solution": ""}'):
        Path("mine.jsonl").write_text(text)
        assert cli.main(["eval", "--profile", "tiny", "--samples", "mine.jsonl", "--out", "new"]) == 2
        assert "mine.jsonl" in capsys.readouterr().err and not Path("new").exists()


def test_a_file_of_evalplus_is_evaluated_without_any_other_data():
    """Only what was made wrong on purpose is left out: the module of 801 is missing, an input of 800 is 0."""
    write_lines("MbppPlus.jsonl", RECORDS)
    solved = [{"task_id": each["task_id"], "solution": each["canonical_solution"]} for each in RECORDS]
    write_lines("samples.jsonl", solved)
    options = ["--profile", "cpu", "--samples", "samples.jsonl", "--plus", "MbppPlus.jsonl", "--out", "out"]
    assert cli.main(["eval", *options]) == 0
    results = json.loads(Path("out/results.json").read_text())
    settings, plus = results["settings"], results["summary"]["plus"]
    assert (settings["data"], settings["split"]) == ("MbppPlus.jsonl", "all")
    assert results["summary"]["num_problems"] == settings["num_questions"] == 2
    assert list(settings["left_out"]) == ["Mbpp/801"]
    assert all(sample["passed"] for sample in results["samples"])
    assert (plus["num_problems"], plus["num_inputs_skipped"]) == (2, 1)
    assert plus["base"]["value"] == plus["plus"]["value"] == 1.0
    assert [name for name in plus if "Mbpp" in name] == ["Mbpp/800"]


@pytest.mark.parametrize("option", ["--adapters", "--plus", "--samples", "--endpoint", "--checkpoint"])
def test_an_option_that_is_empty_is_refused(option, capsys, monkeypatch):
    monkeypatch.setattr("rlnb.run.headless.run_notebook", lambda *_, **__: 0)
    assert cli.main(["eval", option, ""]) == 2
    assert capsys.readouterr().err.startswith(f"rlnb: {option}: is empty")

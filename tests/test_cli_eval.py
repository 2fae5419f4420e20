"""`rlnb eval` and `rlnb compare` as a terminal sees them."""

import json
from pathlib import Path

import pytest
import yaml
from refusals import table

from rlnb import cli
from rlnb.mbpp.problems import load_mbpp


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.parametrize(
    "options, said",
    table("""
--samples a --endpoint b => --samples and --endpoint: both name where completions come from; give one of them
--served-model m => --served-model: is a model of a server; give --endpoint as well
--profile tiny --endpoint http://localhost:1/v1 => --set: writer.served_model = '' is needed by
  writer.kind = 'endpoint'; write it
--profile tiny --plus no.jsonl => --set: evaluation.plus_path = 'no.jsonl' is not a file in HERE
--profile tiny --samples no.jsonl => --set: writer.samples_path = 'no.jsonl' is not a file in HERE
"""),
)
def test_options_that_contradict_one_another_or_name_nothing_are_refused(options, said, capsys, tmp_path):
    assert cli.main(["eval", *options.split()]) == 2
    assert capsys.readouterr().err == f"rlnb: {said}\n".replace("HERE", str(tmp_path))


def test_a_file_of_completions_is_evaluated_and_compared(capsys):
    """The whole way, by a real kernel: half of the references, then all."""
    problems = load_mbpp("builtin").split("test")
    for name, solved in (("half", problems[:20]), ("all", problems)):
        rows = [
            {"task_id": f"Mbpp/{p.task_id}", "solution": p.code if p in solved else "pass"} for p in problems
        ]
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        options = ["--profile", "tiny", "--set", "evaluation.num_questions=0", "--set", "evaluation.k=[1]"]
        assert cli.main(["eval", *options, "--samples", f"{name}.jsonl", "--out", name]) == 0
    results = json.loads(Path("half/results.json").read_text())
    assert results["summary"]["pass_at"]["1"]["value"] == 0.5
    assert results["settings"]["writer"]["file"] == "half.jsonl"
    assert results["settings"]["temperature"] is None
    assert yaml.safe_load(Path("all/params.yaml").read_text())["writer"]["kind"] == "file"
    capsys.readouterr()
    assert cli.main(["compare", "half/results.json", "all/results.json"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "40 problems in both"
    assert said[2] == "gained 20: " + ", ".join(str(p.task_id) for p in problems[20:])
    assert said[3] == "lost 0: none"


def test_a_file_that_is_no_result_is_refused(capsys):
    Path("other.json").write_text("{}")
    assert cli.main(["compare", "other.json", "other.json"]) == 2
    assert capsys.readouterr().err == (
        "rlnb: other.json: is not a result of an evaluation on MBPP; name the results.json of two runs of "
        "mbpp_eval, or of gpt_oss_2048\n"
    )

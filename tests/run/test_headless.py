"""What `rlnb run` refuses before anything is written, and which directories it goes on in."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from notebook_files import write_notebook

from rlnb import cli
from rlnb.errors import ParamsError
from rlnb.params import dump_yaml, load_dotenv, load_params
from rlnb.policy.builtin import build_tiny
from rlnb.results import compare, save_results
from rlnb.run import directory as runs
from rlnb.run.disk import write_text
from rlnb.run.headless import describe_result, plan_run


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path, monkeypatch):
    """A machine without GPU, keys and a project's .env; in the directory lies one notebook."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(load_dotenv.__kwdefaults__, "project", tmp_path / "project")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("WANDB_API_KEY", "")
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    write_notebook(Path("grpo_code_execution.ipynb"), "print(output_dir, overrides)")


def run(*arguments: str) -> int:
    return cli.main(["run", "grpo_code_execution.ipynb", "--profile", "tiny", *arguments])


def left_behind() -> list[str]:
    return sorted(path.name for path in Path().iterdir() if path.name != "grpo_code_execution.ipynb")


def refused(capsys, *arguments: str) -> str:
    """The refusal of these arguments, which leaves nothing behind."""
    assert run(*arguments) == 2
    assert left_behind() == []
    return capsys.readouterr().err.removeprefix("rlnb: ").rstrip("\n")


def unfinished_run(directory: Path, overrides: Mapping[str, Any] | None = None) -> Path:
    """A directory as an attempt leaves it that was killed."""
    directory.mkdir(parents=True)
    overrides = {"output_dir": str(directory)} | dict(overrides or {})
    params = load_params("grpo_code_execution", profile="tiny", overrides=overrides, environ={})
    write_text(directory / "params.yaml", dump_yaml(params))
    (directory / "attempt-01.ipynb").write_text("{}")
    runs.end_attempt(directory, runs.start_attempt(directory, notebook=""), state="killed")
    return directory


@pytest.mark.parametrize("out", ["/proc/xx", "/dev/null/x", "grpo_code_execution.ipynb", "x" * 300, "/proc"])
def test_a_directory_that_cannot_be_made_or_written_to_is_refused(capsys, out):
    assert refused(capsys, "--out", out).startswith(f"{out}: ")


def test_a_run_that_was_moved_goes_on_where_it_is_now(capsys, tmp_path):
    unfinished_run(Path("before")).rename("after")
    Path("after/status.json").write_text('{"foo": 1}')  # damaged: attempts are counted by their files
    assert run("--out", str(tmp_path / "after")) == 0
    assert f"{tmp_path}/after {{}}" in capsys.readouterr().out
    assert left_behind() == ["after"]
    assert Path("after/attempt-02.ipynb").exists() and Path("after/attempt-01.ipynb").read_text() == "{}"


@pytest.mark.parametrize("content", [b"", bytes(90), b"model: {"])
def test_parameters_that_are_lost_are_said_to_be_lost(capsys, content):
    path = unfinished_run(Path("here")) / "params.yaml"
    path.write_bytes(content)
    assert run("--out", "here") == 2
    assert capsys.readouterr().err.startswith(f"rlnb: {path}:")
    assert run() == 0  # they are those of no unfinished run


def test_a_run_ends_with_its_result_and_any_other_with_its_metrics_so_far(tmp_path):
    rows = [{"step": 0, "heldout/new/reward": 0.25}, {"step": 1, "reward": 0.5}, {"step": 2, "reward": None}]
    assert describe_result(tmp_path, is_done=False) == []
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    so_far = describe_result(tmp_path, is_done=True)
    assert "reward: 0.500 at step 1" in so_far
    before, after = {"known": {"a": 0.0}, "new": {"b": 0.5}}, {"known": {"a": 1.0}, "new": {"b": 1.0}}
    comparison = compare({"rate": before}, {"rate": after})
    save_results(tmp_path / "results.json", params={}, comparison=comparison)
    assert describe_result(tmp_path, is_done=False) == so_far  # the file may be an earlier attempt's
    result = "\n".join(describe_result(tmp_path, is_done=True))
    assert "rate on all: 0.250 / 1.000; difference +0.750 [" in result


def test_what_begins_anew_does_so_once(capsys):
    unfinished = unfinished_run(Path("here"), {"training": {"resume": "never"}})
    assert run("--set", "training.resume=never", "--out", str(unfinished)) == 0
    assert capsys.readouterr().out.splitlines()[-2] == "here {'training.resume': 'auto'}"
    assert run("--set", "training.resume=never", "--out", "there") == 0
    assert capsys.readouterr().out.splitlines()[-2] == "there {}"


def test_what_is_edited_in_the_parameters_cell_is_what_runs_and_set_wins_over_it(capsys):
    cell = (
        'profile: str = "auto"\noutput_dir: str = "x"\nlearning_rate: float = 3e-4\nmax_steps: int = "auto"\n'
    )
    start = "from rlnb.notebook import start\nparams = start('grpo_code_execution', globals())[0].training\n"
    start += "print(params.learning_rate, params.max_steps)"
    write_notebook(Path("grpo_code_execution.ipynb"), start, parameters=cell)
    for out, *arguments in (
        ("cell",),
        ("set", "--set", "learning_rate=2e-4", "--set", "training.max_steps=3"),
    ):
        assert run("--out", out, *arguments) == 0
        saved = load_params("grpo_code_execution", profile=f"{out}/params.yaml", environ={}).training
        assert (saved.learning_rate, saved.max_steps) == ((3e-4, 2) if out == "cell" else (2e-4, 3))
        assert f"{saved.learning_rate} {saved.max_steps}" in capsys.readouterr().out.splitlines()
        status = runs.read_status(Path(out))  # of one attempt, not of another one in the kernel
        assert (status.state, status.attempt, status.notebook) == ("done", 1, "attempt-01.ipynb")
    assert not Path("outputs").exists()
    write_notebook(Path("grpo_code_execution.ipynb"), start, parameters=cell.replace("3e-4", "'3x'"))
    assert run() == 2
    assert capsys.readouterr().err.startswith("rlnb: parameters cell: learning_rate = '3x' should")


def test_a_check_does_not_reassure_where_a_run_does_not_fit(capsys, tmp_path):
    (tmp_path / "model").mkdir()
    build_tiny(tmp_path / "model")
    options = ["--check", "--set", f"model.id={tmp_path}/model", "--set"]
    too_large = ["training.per_device_train_batch_size=1000000", "--set"]
    assert run(*options, *too_large, "model.check_memory=true") == 2
    assert "does not fit" in capsys.readouterr().err
    for more, verdict in (([], "not refused"), (too_large, "would be tried")):
        assert run(*options, *more, "model.check_memory=false") == 0
        *memory, last = capsys.readouterr().out.splitlines()
        assert last.endswith(f": {verdict}") and memory[0].startswith("memory: ")


def test_a_value_that_the_parameters_cell_computes_is_refused(capsys):
    cell = 'profile: str = "auto"\noutput_dir: str = "x"\nmax_steps: int = 2 * 8\n'
    write_notebook(Path("grpo_code_execution.ipynb"), parameters=cell)
    assert "max_steps is computed" in refused(capsys, "--set", "max_steps=3")


def test_a_directory_of_somebody_else_is_refused(tmp_path, monkeypatch):
    theirs = PermissionError(13, "Permission denied", str(tmp_path / "params.yaml"))
    monkeypatch.setattr("rlnb.run.headless.is_finished", Mock(side_effect=theirs))
    notebook = Path(cli.__file__).parents[1] / "notebooks" / "ppo_openspiel.ipynb"
    with pytest.raises(
        ParamsError, match="params.yaml: cannot be read: Permission denied. Give another --out"
    ):
        plan_run(notebook, profile="tiny", out=tmp_path)

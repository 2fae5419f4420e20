"""The notebooks as readers and machines meet them: form of the essay, parameters cell, a run of each."""

import ast
import base64
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, get_args

import nbformat
import papermill
import pytest
from safetensors.numpy import load_file

from rlnb.params import load_params
from rlnb.params.loading import list_fields, load_model_class
from rlnb.params.reading import find_field, parse_yaml
from rlnb.params.sections import value_of
from rlnb.run.checkpoints import checkpoint_step, latest_checkpoint
from rlnb.run.tracking import read_metrics

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
START = "00_start"  # the start page, without parameters
GALLERY = sorted((ROOT / "docs" / "gallery").glob("*.ipynb"))
# Run by `make test`: GRPO by TRL, a loop of our own. `make slow` runs all; tests/test_cli_eval.py mbpp_eval.
QUICK = (START, "grpo_code_game", "ppo_openspiel")
GRPO = ("gpt_oss_2048", "grpo_code_execution", "grpo_code_game")
ASKS_MBPP = ("grpo_code_execution", "grpo_code_game", "ppo_openspiel", "spiral_self_play")
PARAMETER_LINE = re.compile(r"^(\w+): (str|int|float|bool|dict|list) = ([^#]+?)  # ([^#=]+)$")
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
each_with_parameters = pytest.mark.parametrize(
    "path", [path for path in NOTEBOOKS if path.stem != START], ids=lambda path: path.stem
)


def cells_of(path: Path) -> list[Any]:
    return nbformat.read(path, as_version=4).cells


def code_cells(path: Path) -> list[Any]:
    return [cell for cell in cells_of(path) if cell.cell_type == "code"]


def parameter_lines(path: Path) -> list[str]:
    (cell,) = [cell for cell in code_cells(path) if "parameters" in cell.metadata.get("tags", [])]
    return cell.source.splitlines()


@each_notebook
def test_a_notebook_is_an_essay_of_few_short_cells_without_output(path: Path) -> None:
    cells = cells_of(path)
    assert len(code_cells(path)) <= 10
    assert not [cell.id for cell in code_cells(path) if "fmt: skip" in cell.source]
    lengths = {cell.id: len(cell.source.splitlines()) for cell in code_cells(path)}
    editable = {cell.id for cell in code_cells(path)
                if {"reward", "estimator", "recipe"} & {*cell.metadata.get("tags", [])}}  # fmt: skip
    limits = {name: 60 if name in editable else 30 for name in lengths}
    assert {name: length for name, length in lengths.items() if length > limits[name]} == {}
    assert cells[0].cell_type == "markdown"
    bare = [after.source for before, after in zip(cells, cells[1:], strict=False)
            if after.cell_type == "code" and before.cell_type != "markdown"]  # fmt: skip
    assert bare == []
    assert all(not cell.outputs and cell.execution_count is None for cell in code_cells(path))


@each_notebook
def test_all_that_a_notebook_imports_from_the_library_is_there(path: Path) -> None:
    for cell in code_cells(path):
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rlnb"):
                for alias in node.names:
                    module = importlib.import_module(node.module or "")
                    if not hasattr(module, alias.name):
                        importlib.import_module(f"{node.module}.{alias.name}")


@each_with_parameters
def test_the_parameters_cell_has_short_names_with_their_types_and_the_values_of_profiles(path: Path) -> None:
    matches = list(map(PARAMETER_LINE.match, parameter_lines(path)))
    assert None not in matches, "papermill reads each line whole"
    fields = list_fields(load_model_class(path.stem))
    profiles = {file.stem: load_params(path.stem, profile=file.stem, environ={})
                for file in (ROOT / "params" / path.stem).glob("*.yaml")}  # fmt: skip
    assert {"profile", "output_dir", "overrides"} <= {match[1] for match in matches}
    for name, kind, help in ((match[1], match[2], match[4]) for match in matches):
        if name in ("profile", "overrides"):
            assert kind == ("str" if name == "profile" else "dict")
            continue
        field = find_field(name, fields)
        assert field in fields, name
        choices = [type(choice).__name__ for choice in get_args(fields[field].annotation)]
        assert kind in (*choices, type(fields[field].default).__name__.replace("tuple", "list")), name
        for profile, value in re.findall(rf"\b({'|'.join(profiles)}) ([^\s,;()]+)", help):
            assert parse_yaml(value) == value_of(profiles[profile], field), f"{name}: {profile}"


@each_with_parameters
def test_the_values_of_the_parameters_cell_and_its_examples_are_accepted(path: Path) -> None:
    matches = [match for match in map(PARAMETER_LINE.match, parameter_lines(path)) if match]
    values = {match[1]: ast.literal_eval(match[3]) for match in matches}
    assert values.pop("profile") == "auto"
    params = load_params(path.stem, profile="default", cell=values, environ={})
    assert params.seed == load_params(path.stem, profile="default", environ={}).seed
    for match in matches:
        _, _, example = match[4].partition("for example ")
        if example:
            load_params(path.stem, profile="default", cell={match[1]: ast.literal_eval(example)}, environ={})


@pytest.mark.parametrize("name", ["grpo_code_execution", "grpo_code_game"])
def test_trained_weights_are_saved_after_the_evaluation_that_refuses_untrained_ones(name: str) -> None:
    code = "".join(cell.source for cell in code_cells(ROOT / "notebooks" / f"{name}.ipynb"))
    assert code.index('.measure(policy, "after"') < code.index("save_adapters(policy")


def test_the_picture_of_the_readme_is_one_of_the_gallery() -> None:
    cells = code_cells(ROOT / "docs/gallery/grpo_code_execution.ipynb")
    pictures = [output.get("data", {}).get("image/png", "") for cell in cells for output in cell.outputs]
    picture = (ROOT / "docs/pictures/grpo_code_execution.png").read_bytes()
    assert picture in [base64.b64decode(each) for each in pictures]


@pytest.mark.parametrize("path", GALLERY, ids=lambda path: path.stem)
def test_the_gallery_shows_the_notebooks_and_parameters_as_they_are(path: Path) -> None:
    shown = [cell for cell in code_cells(path) if "injected-parameters" not in cell.metadata.get("tags", [])]
    template = ROOT / "notebooks" / path.name
    assert [cell.source for cell in shown] == [cell.source for cell in code_cells(template)]
    assert all(output.output_type != "error" for cell in shown for output in cell.outputs)
    values = load_params(path.stem, profile="default").model_dump()
    known = {f"{name}.{field}" for name, each in values.items() if isinstance(each, dict) for field in each}
    outputs = [output.get("data", {}) for cell in code_cells(path) for output in cell.outputs]
    (table,) = (data["text/html"] for data in outputs if " parameters</summary>" in data.get("text/html", ""))
    rows = re.findall(r"<tr><td[^>]*>([\w.]+)</td>", table)
    assert f"<summary>All {len(rows)} parameters<" in table
    assert {name for name in rows if "." in name} <= known


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=() if path.stem in QUICK else pytest.mark.slow)
        for path in NOTEBOOKS
    ],
)
def test_a_notebook_runs_under_nbval_at_its_tiny_profile(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / path.name
    parameters: dict[str, Any] = {"profile": "tiny", "output_dir": str(tmp_path / "run")}
    if path.stem == "compare_runs":
        parameters["directories"] = [str(make_sweep(tmp_path / "sweep"))]
    papermill.execute_notebook(path, copy, parameters=parameters, prepare_only=True, progress_bar=False)
    cells = nbformat.read(copy, as_version=4)
    cells.cells.append(nbformat.v4.new_code_cell(cells.cells[-1].source))  # a person tries it again
    nbformat.write(cells, copy)
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)),
        *("--nbval-lax", "--nbval-current-env"),
        *("--nbval-cell-timeout=300", "--nbval-kernel-startup-timeout=120"),
    ]
    finished = subprocess.run(
        [*command, str(copy)],
        cwd=ROOT, capture_output=True, text=True, timeout=600, env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout[-4000:]
    if path.stem in GRPO:
        assert_adapters_have_moved(tmp_path / "run")
    if path.stem in ASKS_MBPP:
        assert_mbpp_was_asked(tmp_path / "run")


def assert_mbpp_was_asked(out: Path) -> None:
    """The same problems before training, between its steps, and after."""
    answers = {path.stem: json.loads(path.read_text()) for path in out.glob("mbpp_*.json")}
    ids = {name: [sample["task_id"] for sample in each["samples"]] for name, each in answers.items()}
    assert {"mbpp_before", "mbpp_after"} < ids.keys()
    assert ids["mbpp_before"] and all(each == ids["mbpp_before"] for each in ids.values())


def make_sweep(folder: Path) -> Path:
    """Train two seeds of the smallest self-play, for the notebook that compares runs."""
    command = [sys.executable, "-m", "rlnb.cli", "sweep", str(ROOT / "notebooks/spiral_self_play.ipynb")]
    command += ["--profile", "tiny", "--seeds", "1-2", "--out", str(folder), "--set", "mbpp.enabled=false"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-2000:]
    return folder


@pytest.mark.slow
def test_the_2048_notebook_trains_a_step_on_the_published_rewards(tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = ["reward.preset=requirements", "training.max_steps=1", "sandbox.timeout_seconds=0.5",
                "evaluation.enabled=false", "save.formats=[lora]"]  # fmt: skip
    finish_run("gpt_oss_2048", out, *settings)
    (row,) = read_metrics(out / "metrics.jsonl")
    means = [row[f"rewards/{name}/mean"] for name in ("function_works", "no_cheating", "strategy_succeeds")]
    assert row["reward"] == pytest.approx(sum(means)) and means[0] >= -2.0


def start_run(notebook: str, out: Path, *settings: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "rlnb.cli", "run", str(ROOT / "notebooks" / f"{notebook}.ipynb")]
    options = ["--profile", "tiny", "--out", str(out), *(f"--set={setting}" for setting in settings)]
    return subprocess.Popen(
        [*command, *options], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def finish_run(notebook: str, out: Path, *settings: str) -> str:
    with start_run(notebook, out, *settings) as run:
        said = run.communicate(timeout=900)[0]
    assert run.returncode == 0, said
    return said


def rows_of(out: Path) -> list[dict[str, Any]]:
    """Return the metrics, except times."""
    rows = read_metrics(out / "metrics.jsonl") if (out / "metrics.jsonl").exists() else []
    return [{name: row[name] for name in row if not re.search(r"\btime\b|_time\b", name)} for row in rows]


def results_of(out: Path) -> Any:
    """Return results.json without times and the run's directory."""

    def without_times(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: without_times(v) for k, v in value.items() if k not in ("seconds", "output_dir")}
        return list(map(without_times, value)) if isinstance(value, list) else value

    return without_times(json.loads((out / "results.json").read_text()))


def assert_adapters_have_moved(out: Path, *, may_be_tied: bool = False) -> None:
    """A run whose groups are all tied has no gradient, and would hide a broken update."""
    steps = [row for row in read_metrics(out / "metrics.jsonl") if "grad_norm" in row]
    norms = [row["grad_norm"] for row in steps if not may_be_tied or row["frac_reward_zero_std"] < 1]
    assert norms and all(norm > 0 for norm in norms)
    weights = load_file(next(out.glob("*/adapter_model.safetensors")))
    assert sum(abs(weight).sum() for name, weight in weights.items() if "lora_B" in name) > 0


@pytest.mark.parametrize(
    "notebook, setting, num_before",  # how many files hold evaluations before training
    [
        ("grpo_code_execution", "mbpp.enabled=false", 1),
        pytest.param("grpo_code_game", "evaluation.control=false", 2, marks=pytest.mark.slow),
        pytest.param("gpt_oss_2048", "save.formats=[lora]", 1, marks=pytest.mark.slow),
        pytest.param("ppo_openspiel", "evaluation.eval_interval_steps=1", 2, marks=pytest.mark.slow),
        pytest.param("spiral_self_play", "seed=42", 2, marks=pytest.mark.slow),
    ],
)
def test_a_run_stopped_by_sigterm_goes_on_where_it_stopped_and_measures_the_same_once(
    notebook: str, setting: str, num_before: int, tmp_path: Path
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "stopped"
    settings = (setting, "training.max_steps=6")
    with start_run(notebook, out, *settings) as run:
        deadline = time.monotonic() + 900
        while len(rows_of(out)) < 3:
            assert run.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        run.send_signal(signal.SIGTERM)
        said = run.communicate(timeout=900)[0]
    assert run.returncode == 85, said
    status = json.loads((out / "status.json").read_text())
    assert (status["state"], status["signal"], status["attempt"]) == ("preempted", "SIGTERM", 1)
    stopped_at = rows_of(out)[-1]
    assert checkpoint_step(latest_checkpoint(out)) == stopped_at["step"]
    before = {path: path.stat().st_mtime_ns for path in out.glob("*_before.json")}
    assert stopped_at["step"] < 6 and not any("heldout/" in name or "arena/" in name for name in stopped_at)
    said = finish_run(notebook, out, *settings)
    assert len(before) == num_before
    for path, written in before.items():
        assert f"{path} has this evaluation of the same weights; it is not done again" in said
        assert path.stat().st_mtime_ns == written
    assert json.loads((out / "status.json").read_text())["state"] == "done"
    if notebook == "gpt_oss_2048":  # each run draws its own boards otherwise
        whole.mkdir()
        shutil.copy(out / "board_secret", whole)
    finish_run(notebook, whole, *settings)
    # The evaluation that the signal skipped is made up, like the others in each of the steps.
    assert [row["step"] for row in rows_of(out)] == list(range(7))
    assert rows_of(out) == rows_of(whole)
    assert results_of(out) == results_of(whole)
    if notebook in GRPO:
        assert_adapters_have_moved(out, may_be_tied=True)  # more steps than the profile has

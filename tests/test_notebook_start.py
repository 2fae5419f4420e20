"""The set-up cell that all notebooks share: what it refuses, returns and shows."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import papermill
import pytest
from fake_checkpoints import save_checkpoint
from huggingface_hub.utils import are_progress_bars_disabled
from IPython.core.interactiveshell import InteractiveShell
from nbclient import NotebookClient
from refusals import refused
from transformers.utils.logging import enable_progress_bar, is_progress_bar_enabled
from waiting import run_python

from rlnb import notebook
from rlnb.batch.overview import list_runs
from rlnb.display.tables import Table
from rlnb.machine import Machine
from rlnb.notebook import advise_on_memory_and_disk, compile_folder, finish, load_cell, start
from rlnb.params import load_params
from rlnb.run import directory as runs
from rlnb.run.checkpoints import checkpoint_to_resume
from rlnb.run.interactive import HELD, check_own

NOTEBOOK = "grpo_code_execution"
CPU = Machine("cpu", "", None, 16.0, 2, "workstation", "offline")


def cell(**values: object) -> dict[str, object]:
    """A notebook's globals() after a parameters cell with these values at the profile tiny."""
    values = {"profile": "tiny", **values}
    return {**values, "__annotations__": dict.fromkeys(values, object)}


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[object]]:
    """What the call displays; the machine is a CPU that is offline, whatever it is really."""
    contents: list[object] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(notebook, "display", lambda *items: contents.extend(items))
    monkeypatch.setattr("rlnb.run.prepare.probe", lambda ask_hub=True: CPU)
    for name in ("HF_HUB_OFFLINE", "WANDB_MODE", "HF_HUB_DISABLE_TELEMETRY", "WANDB_ERROR_REPORTING"):
        monkeypatch.setenv(name, "1")  # restored afterwards, although start() leaves variables set
    for name in [name for name in os.environ if name.startswith("RLNB_")]:
        monkeypatch.delenv(name)
    yield contents
    HELD.close()  # as the kernel does at its end


def test_objects_of_a_run_that_the_kernel_has_left_write_nothing_into_it(shown, tmp_path):
    for name in ("first", "second"):
        start(NOTEBOOK, cell(output_dir=name))
    with pytest.raises(
        RuntimeError, match="first/tasks_after.json is of an earlier run; run all cells above again"
    ):
        check_own(Path("first", "tasks_after.json"))
    check_own(Path("second", "tasks_after.json"))
    check_own(Path("second", "control", "game_control.json"))
    HELD.close()
    check_own(Path("first", "tasks_after.json"))  # of a process without a run, such as rlnb eval's


def test_an_error_is_told_before_anything_is_shown(shown):
    for values, problem in (
        ({"trainig": {"max_steps": 3}}, "trainig.max_steps is not a field; did you mean training.max_steps?"),
        ({"sandbox": object()}, "sandbox is now a object"),
        ({"model": {"load_in_4bit": True}}, "model.load_in_4bit = true needs"),
        ({"load_in_4bit": True}, "load_in_4bit = true needs"),
        ({"learnin_rate": 1e-5}, "learnin_rate is not a field; did you mean learning_rate?"),
        ({"temperature": 0.5}, "temperature is not a field; did you mean training_temperature or eval"),
        (
            {"overrides": {"training.max_step": 3}},
            "training.max_step is not a field; did you mean training.max_steps?",
        ),
        ({"overrides": 3}, "overrides = 3 is not a dictionary"),
        ({"max_steps": 0}, "max_steps = 0 should be greater than or equal to 1"),
        ({"num_generations": 7}, "num_generations = 7 does not divide"),
    ):
        told = refused(start, NOTEBOOK, cell(**values))
        assert told.startswith(f"parameters cell: {problem}"), told
    assert "profile '3' is not in" in refused(start, NOTEBOOK, cell(profile=3))
    assert refused(start, NOTEBOOK, {}).startswith("parameters cell: no cell assigns profile.")
    assert shown == [] and list(Path().iterdir()) == []


def run_cells(shell: InteractiveShell, *sources: str) -> None:
    for source in sources:
        shell.run_cell(source, store_history=True)


def test_only_the_last_form_of_the_parameters_cells_is_read(shown):
    """What was assigned by another cell, by a cell that was corrected, or by none that could run, is not."""
    shell = InteractiveShell(colors="nocolor")
    tiny, line = "profile: str = 'tiny'\n", "%config InlineBackend.figure_format = 'retina'\n"
    run_cells(shell, f"{line}import os\nmax_step = 3", "if True:\n        a = 1\n    b = 2")
    for written, told in (
        (f"{tiny}trainig: dict = {{'max_steps': 3}}", "trainig.max_steps is not a field"),
        (f"{tiny}training: dict = {{'max_steps': 3}}\n{line}sed: int = 1", "sed is not a field"),
        ("# Parameters\ntraining = {}\nsed = 3\n", "sed is not a field; did you mean seed?"),
    ):
        run_cells(shell, written)
        assert f"parameters cell: {told}" in refused(start, NOTEBOOK, shell.user_ns)
    run_cells(
        shell,
        tiny + "overrides: dict = {{'training.max_steps': 4}}",  # a TypeError
        f"{tiny}learning_rate: float = 'auto'\nmax_steps: int = 4\noverrides: dict = {{}}",
        "# Parameters\nprofile = 'tiny'\nlearning_rate = '3e-4'\noverrides = {'training.save_steps': 7}\n",
        "training = object()\nbeta: float = 0.5",
    )
    training = start(NOTEBOOK, shell.user_ns)[0].training
    values = (training.learning_rate, training.max_steps, training.save_steps, training.beta)
    assert values == (3e-4, 4, 7, 0.0)


def test_a_misspelt_parameter_ends_a_notebook_of_papermills_own_engine(tmp_path):
    path = Path(notebook.ROOT, "notebooks", f"{NOTEBOOK}.ipynb")
    wrong = {"profile": "tiny", "trainning": "x", "output_dir": str(tmp_path)}
    with pytest.raises(papermill.PapermillExecutionError) as error:
        papermill.execute_notebook(path, tmp_path / "out.ipynb", wrong, progress_bar=False, cwd=notebook.ROOT)
    assert error.value.evalue == "parameters cell: trainning is not a field; did you mean training?"


def test_a_python_without_docstrings_is_refused_by_notebooks_and_commands():
    notebook = "from rlnb.notebook import start; start('no_such_notebook', {})"
    for script, last in (
        (notebook, "rlnb.errors.ParamsError"),
        ("from rlnb.cli import main; main(['runs'])", "rlnb"),
    ):
        done = run_python(script, "-OO", timeout=60)
        assert done.stderr.splitlines()[-1].startswith(f"{last}: PYTHONOPTIMIZE = 2 (or -OO) removes"), done


def test_the_estimate_of_memory_is_printed_and_what_cannot_fit_is_refused(shown, tmp_path, capsys):
    sizes = {"hidden_size": 64, "vocab_size": 259, "num_hidden_layers": 2, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(sizes | {"intermediate_size": 64}))
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).touch()
    given = cell(model_id=str(tmp_path))
    start(NOTEBOOK, given)
    assert "memory: 1.0 of 16.0 GiB: fits" in capsys.readouterr().out
    (tmp_path / "config.json").write_text(json.dumps(sizes | {"intermediate_size": 10**9}))
    assert "memory: " in refused(start, NOTEBOOK, given)


def test_parameters_that_differ_from_default_come_first_and_all_others_are_folded(shown):
    params, machine = start(NOTEBOOK, {**cell(learning_rate=1e-5, max_steps="auto"), "training": "elsewhere"})
    assert (params.training.learning_rate, params.model.dtype, machine) == (1e-5, "float32", CPU)
    changed, folded, facts = shown
    assert isinstance(changed, Table)
    values = {field: (value, source) for field, value, source in changed.rows}
    assert values["training.learning_rate"] == ("1.0e-5", "parameters cell")
    assert values["model.id"] == ("'tiny_code'", f"params/{NOTEBOOK}/tiny.yaml:3")
    assert "training.temperature" not in values
    assert changed.caption.startswith(f"Profile tiny. {len(changed.rows)} of ")
    html = folded._repr_html_()
    assert "<details" in html and "training.temperature" in html and "Sampling temperature" in html
    assert len(facts.rows) == 5
    assert facts.rows[0][1] == "cpu, workstation, no GPU"


START = """
import matplotlib.pyplot as plt
from rlnb.display.plots import as_png
from rlnb.notebook import show_figures
from rlnb.params import load_params
show_figures(get_ipython(), "grpo_code_execution", load_params("grpo_code_execution", profile={profile!r}))
"""
DRAW = """
figure, _ = plt.subplots()
figure.suptitle("Rewards")
display(figure)
print(as_png(figure, stamp={stamp!r})[0]["image/png"])
plt.close()
"""


@pytest.mark.parametrize(
    ("profile", "stamp"), [("tiny", "tiny: shows that the cells run, not what is learned"), ("cpu", "")]
)
def test_a_kernel_shows_pictures_with_words_and_stamps_those_of_a_tiny_run(profile, stamp, monkeypatch):
    monkeypatch.delenv("MPLBACKEND", raising=False)  # the kernel's own
    codes = [code.format(profile=profile, stamp=stamp) for code in (START, DRAW, DRAW)]
    cells = list(map(nbformat.v4.new_code_cell, codes))
    NotebookClient(nbformat.v4.new_notebook(cells=cells), kernel_name="python3").execute()
    for shown, printed in (cell.outputs for cell in cells[1:]):
        assert shown.metadata == {"image/png": {"alt": "Rewards"}}
        assert shown.data["image/png"].strip() == printed.text.strip()


def test_weights_are_loaded_without_bars_and_downloads_keep_theirs(shown):
    enable_progress_bar()
    start(NOTEBOOK, cell())
    assert (is_progress_bar_enabled(), are_progress_bars_disabled()) == (False, False)


def test_unsloth_is_imported_only_where_it_is_the_engine(shown, monkeypatch, tmp_path):
    (tmp_path / "unsloth.py").touch()
    monkeypatch.setenv("HF_HUB_CACHE", "")  # restored afterwards
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "unsloth", raising=False)
    gpu = Machine("a100", "NVIDIA A100", (8, 0), 80.0, 8, "workstation", "offline")
    monkeypatch.setattr("rlnb.run.prepare.probe", lambda ask_hub=True: gpu)
    start(NOTEBOOK, cell(engine="transformers"))
    assert "unsloth" not in sys.modules
    for module in ("rlnb.params.resolving", "rlnb.notebook"):
        monkeypatch.setattr(f"{module}.installed_version", lambda package: "2026.10.7")
    start(NOTEBOOK, cell(engine="unsloth"))
    assert sys.modules.pop("unsloth").__file__ == str(tmp_path / "unsloth.py")
    params = load_params(NOTEBOOK, profile="tiny", overrides={"model": {"id": "me/mine"}}, environ={})
    assert compile_folder(params.model) == Path("model_cache/unsloth_cache/2026.10.7-me--mine").resolve()


START_BY_UNSLOTH = """
import rlnb.params.resolving, rlnb.run.prepare
from rlnb import notebook
from rlnb.machine import Machine
gpu = Machine("a100", "NVIDIA A100", (8, 0), 80.0, 8, "workstation", "offline")
rlnb.run.prepare.probe = lambda ask_hub=True: gpu
notebook.installed_version = rlnb.params.resolving.installed_version = lambda package: "2026.10.7"
values = {"profile": "tiny", "engine": "unsloth"}
notebook.start("grpo_code_execution", {**values, "__annotations__": dict.fromkeys(values, object)})
"""


def test_unsloth_finds_the_files_of_the_hub_where_they_were_fetched(tmp_path):
    """It reads a config.json from the hub's default folder, which huggingface_hub fixes at its import."""
    seen = "print('seen:', 'huggingface_hub' in sys.modules, os.environ['HF_HUB_CACHE'])"
    (tmp_path / "unsloth.py").write_text(f"import os, sys\n{seen}\n")
    environ = {"PYTHONPATH": f"{tmp_path}:{notebook.ROOT}", "RLNB_OFFLINE": "1"}
    printed = run_python(START_BY_UNSLOTH, cwd=tmp_path, env={**os.environ, **environ}).stdout
    assert f"seen: False {tmp_path / 'model_cache'}" in printed


def test_a_notebook_opened_in_its_folder_works_from_the_project_with_the_threads_asked_for(
    shown, monkeypatch, tmp_path
):
    threads = []
    monkeypatch.setattr(notebook, "set_threads", threads.append)
    monkeypatch.setattr(notebook, "ROOT", tmp_path)
    for folder in ("notebooks", "notebooks/mine"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        start(NOTEBOOK, cell(num_threads=3))
        assert (Path.cwd(), threads.pop()) == (tmp_path, 3)
    assert list(tmp_path.rglob("outputs")) == [tmp_path / "outputs"]


def test_a_run_begins_goes_on_and_ends_in_a_directory_that_the_cell_chooses(shown, capsys):
    first = Path(start(NOTEBOOK, cell())[0].output_dir)
    assert first == Path("outputs", NOTEBOOK, "tiny-001")
    saved = load_params(NOTEBOOK, profile=f"{first}/params.yaml", environ={})
    assert (saved.output_dir, saved.model.dtype) == (str(first), "auto")
    assert json.loads((first / "versions.json").read_text())["machine"]["name"] == "cpu"
    assert states() == {"tiny-001": "running"}
    with pytest.raises(runs.RunInUse), runs.locked(first):
        pass  # `rlnb run` and another notebook are kept out

    assert Path(start(NOTEBOOK, cell())[0].output_dir) == first
    assert runs.read_status(first).attempt == 2
    second, _ = start(NOTEBOOK, cell(seed=7))  # another seed is another run
    assert states() == {"tiny-001": "preempted", "tiny-002": "running"}
    Path(second.output_dir, "adapters").mkdir()
    files = finish(second)
    assert list(files)[0] == "adapters, the trained model" and "params.yaml" in files
    assert states()["tiny-002"] == "done"
    with runs.locked(Path(second.output_dir)):
        assert Path(start(NOTEBOOK, cell(seed=7))[0].output_dir).name == "tiny-003"


def test_a_finished_run_is_shown_again_or_goes_on_to_more_steps_and_nothing_else(shown, tmp_path, capsys):
    out = str(tmp_path / "run")
    params, _ = start(NOTEBOOK, cell(output_dir=out))
    save_checkpoint(tmp_path / "run", step=params.training.max_steps, params=params)
    finish(params)
    told = refused(start, NOTEBOOK, cell(output_dir=out, learning_rate=0.5))
    assert "finished" in told and "training.learning_rate" in told and "output_dir" in told
    start(NOTEBOOK, cell(output_dir=out))
    assert "finished" in capsys.readouterr().out
    status = runs.read_status(tmp_path / "run")
    assert (status.state, status.attempt) == ("done", 1)
    start(NOTEBOOK, cell(output_dir=out, max_steps=9))
    assert "attempt 2, from step 2" in capsys.readouterr().out


def test_what_a_checkpoint_does_not_allow_is_refused_before_anything_is_loaded_or_written(shown, tmp_path):
    out = tmp_path / "run"
    params, _ = start(NOTEBOOK, cell(output_dir=str(out)))
    save_checkpoint(out, step=1, params=params)
    HELD.close()
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert "reward.preset" in refused(start, NOTEBOOK, cell(output_dir=str(out), reward_preset="tests"))
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_what_begins_anew_does_so_once_however_often_its_cells_are_run(shown, tmp_path):
    out = tmp_path / "run"
    values = cell(output_dir=str(out), overrides={"training.resume": "never"})
    save_checkpoint(out, step=1, params=load_params(NOTEBOOK, profile="tiny", environ={}))
    params, _ = start(NOTEBOOK, values)
    assert checkpoint_to_resume(params, out) is None and (out / "checkpoints-1").is_dir()
    kept = save_checkpoint(out, step=1, params=params)
    assert checkpoint_to_resume(params, out) == str(kept)
    assert checkpoint_to_resume(start(NOTEBOOK, values)[0], out) == str(kept)


def test_a_kernel_that_is_closed_leaves_a_run_that_is_known_to_be_unfinished(tmp_path):
    values = {"profile": "tiny", "output_dir": str(tmp_path / "run")}
    given = {**values, "__annotations__": values}
    source = f"from rlnb.notebook import start; start({NOTEBOOK!r}, {given!r})"
    run_python(source, check=True, cwd=tmp_path, timeout=120)
    status = runs.read_status(tmp_path / "run")
    assert (status.state, status.exit) == ("preempted", 85) and "kernel" in status.reason
    assert not (tmp_path / "run" / runs.HEARTBEAT_FILE).exists()


def states() -> dict[str, str]:
    return {Path(row.run).name: row.state for row in list_runs([Path("outputs")])}


def test_a_cell_is_executed_by_its_tag(monkeypatch, tmp_path):
    tagged = {"tags": ["reward"]}
    cells = [
        {"cell_type": "markdown", "metadata": tagged, "source": ["no code"]},
        {"cell_type": "code", "metadata": {}, "source": ["raise SystemExit"]},
        {"cell_type": "code", "metadata": tagged, "source": ["def double(x):\n", "    return 2 * x + y"]},
    ]
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "one.ipynb").write_text(notebook.json.dumps({"cells": cells}))
    monkeypatch.setattr(notebook, "ROOT", tmp_path)
    assert load_cell("one", "reward", {"y": 1})["double"](3) == 7
    with pytest.raises(LookupError, match="0 code cells are tagged 'rewards'; tag exactly one"):
        load_cell("one", "rewards")


def test_an_out_of_memory_error_of_any_cell_says_what_to_lower_and_others_are_shown_as_they_were(capsys):
    shell = InteractiveShell(colors="nocolor")
    advise_on_memory_and_disk(shell, load_params("mbpp_eval", profile="default", environ={}))
    shell.run_cell("import torch\nraise torch.cuda.OutOfMemoryError('Tried to allocate 2 GiB')")
    told = capsys.readouterr().out
    assert "OutOfMemory: " in told and "evaluation.batch_size = 32" in told
    shell.run_cell("def broken():\n    raise RuntimeError('nothing about disks')\nbroken()")
    told = capsys.readouterr().out
    assert told.strip().endswith("RuntimeError: nothing about disks") and "rlnb" not in told


def test_a_full_disk_is_named(capsys, tmp_path):
    shell = InteractiveShell(colors="nocolor")
    params = load_params("mbpp_eval", overrides={"output_dir": str(tmp_path)}, environ={})
    advise_on_memory_and_disk(shell, params)
    half = tmp_path / "checkpoints" / ".checkpoint-3"
    half.mkdir(parents=True)
    shell.run_cell("file = open('/dev/full', 'w'); file.write('x'); file.flush()")
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last.startswith(f"DiskFull: {tmp_path}: ") and last.endswith("#disk-full)")
    assert not half.exists()


def test_the_folder_of_a_sweep_is_not_made_a_runs_directory(shown):
    Path("sweep").mkdir()
    Path("sweep/points.json").write_text("{}")
    assert "is the folder of a sweep" in refused(start, NOTEBOOK, cell(output_dir="sweep"))
    assert [path.name for path in Path("sweep").iterdir()] == ["points.json"]

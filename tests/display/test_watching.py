"""A run that goes on elsewhere is followed by its files until it ends."""

import json
from dataclasses import replace

import nbformat
import pytest
from nbclient import NotebookClient

from rlnb.display.watching import FIGURES, describe_run, watch
from rlnb.errors import ParamsError
from rlnb.params import load_params
from rlnb.params.loading import dump_yaml
from rlnb.run.directory import read_status, start_attempt

# In a kernel of its own: shows a run that goes on, by its path in the project as the notebooks print it, lets
# it end, and waits for the task to see it.
FOLLOW = """
import json, pathlib, rlnb
from rlnb.display import watching
from rlnb.run.directory import end_attempt, read_status
watching.ROOT = pathlib.Path({root!r})
for directory in {directories!r}:
    run = watching.ROOT / directory
    task = rlnb.watch(directory, seconds=0.01)
    status = read_status(run)
    print("meanwhile:", status.state, task.done())
    with open(run / "metrics.jsonl", "a") as file:
        print(json.dumps(dict(step=2, time=2.0)), file=file)
    end_attempt(run, status, state="done")
    await task
"""


def test_a_run_is_drawn_until_it_ends(tmp_path):
    for notebook in FIGURES:
        directory = tmp_path / notebook
        directory.mkdir()
        (directory / "params.yaml").write_text(dump_yaml(load_params(notebook, profile="tiny", environ={})))
        (directory / "metrics.jsonl").write_text(json.dumps({"step": 1, "time": 1.0}) + "\n")
        start_attempt(directory, notebook="attempt-01.ipynb")
        (directory / "attempt-01.ipynb").touch()
    cell = nbformat.v4.new_code_cell(FOLLOW.format(root=str(tmp_path), directories=list(FIGURES)))
    NotebookClient(nbformat.v4.new_notebook(cells=[cell]), timeout=120, kernel_name="python3").execute()
    texts = [output["text"] if "text" in output else output["data"]["text/plain"] for output in cell.outputs]
    assert "".join(text for text in texts if text.startswith("meanwhile")).split().count("running") == 5
    bars = [text for text in texts if text.startswith("training step 2/")]
    states = [text for text in texts if "notebook " in text]
    assert len(bars) == len(states) == len(FIGURES)
    for text in states:
        assert text.split()[:2] == ["state", "done"] and "kill" not in text


def test_a_job_is_stopped_by_a_signal_to_its_script_which_scancel_alone_leaves_out(tmp_path):
    """scancel(1): without --batch a signal other than SIGKILL is not sent to the batch step."""
    status = replace(start_attempt(tmp_path, notebook="attempt-01.ipynb"), job="17")
    assert describe_run(tmp_path, status)["stop and save"] == "scancel --batch --signal=TERM 17"


def test_a_run_in_jupyterlab_has_no_executed_copy(tmp_path):
    start_attempt(tmp_path, notebook="ppo_openspiel.ipynb")
    facts = describe_run(tmp_path, read_status(tmp_path))
    assert facts["state"] == "running" and "notebook" not in facts


@pytest.mark.parametrize(
    "content", [None, "notebook: mbpp_eval", "a: [", "notebook: ppo_openspiel\ntraining: {max_steps: x}"]
)
def test_a_directory_without_a_training_is_refused_by_its_name(tmp_path, content):
    if content is not None:
        (tmp_path / "params.yaml").write_text(content)
    with pytest.raises(ParamsError, match=f"^directory = '{tmp_path}' holds no training's params.yaml"):
        watch(tmp_path)

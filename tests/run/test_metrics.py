"""The tracker writes the same names to metrics.jsonl, TensorBoard and W&B, and survives kills and resumes."""

import json
import re

import numpy as np
import pytest
import wandb
from wandb_files import read_wandb_file

from rlnb.params import load_params
from rlnb.run.tracking import DamagedRows, open_run_tracker, read_metrics


def open_tracker(directory, *, step=0, **overrides):
    """Return the tracker of a run in this directory."""
    overrides = {"output_dir": str(directory), "model.id": "org/small", **overrides}
    return open_run_tracker(load_params("mbpp_eval", profile="tiny", overrides=overrides), step=step)


def rows_without_times(path):
    return [{k: v for k, v in row.items() if k != "time"} for row in read_metrics(path)]


def test_a_report_is_one_line_with_step_time_and_exact_names(tmp_path):
    with open_tracker(tmp_path) as tracker:
        tracker.report(1, {"reward/avg_batch_reward": np.float32(0.5), "kl": None, "loss": float("nan")})
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    row = json.loads(line)
    assert row.pop("time") > 1.7e9
    assert row == {"step": 1, "reward/avg_batch_reward": 0.5, "kl": None, "loss": None}


def test_a_line_torn_by_a_kill_is_dropped_and_reports_of_one_step_are_one_row(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "time": 0, "reward": 0.5}\n{"step": 2, "ti')
    assert rows_without_times(path) == [{"step": 1, "reward": 0.5}]
    with open_tracker(tmp_path, step=1) as tracker:
        tracker.report(2, {"reward": 1.0, "heldout/new/reward": 0.25})
        tracker.report(2, {"heldout/new/reward": 0.75})
    last = {"step": 2, "reward": 1.0, "heldout/new/reward": 0.75}
    assert rows_without_times(path) == [{"step": 1, "reward": 0.5}, last]


def test_a_damaged_line_is_left_out_with_a_warning_and_set_aside_by_a_run_that_goes_on(tmp_path, capsys):
    path, line = tmp_path / "metrics.jsonl", bytes(40)
    rows = b'{"step": 1, "reward": 0.5}\n' + line + b'\n{"step": 3, "reward": 1.5}\n'
    path.write_bytes(rows + b'{"step": 4, "reward": 2.5}\n' + line + b"\n")
    with pytest.warns(DamagedRows, match=re.escape(str(path))):
        assert [row["step"] for row in read_metrics(path)] == [1, 3, 4]
    with open_tracker(tmp_path, step=3) as tracker:
        tracker.report(4, {"reward": 3.5})
    aside = tmp_path / "metrics.jsonl.damaged"
    assert str(aside) in capsys.readouterr().out
    assert aside.read_bytes() == 2 * (line + b"\n")
    assert [row["reward"] for row in read_metrics(path)] == [0.5, 1.5, 3.5]


def test_tensorboard_reads_back_what_was_reported(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with open_tracker(tmp_path) as tracker:
        for step in (1, 2, 3):
            tracker.report(step, {"reward/avg_batch_reward": step / 2, "kl": None})
    with open_tracker(tmp_path, step=2) as tracker:
        tracker.report(3, {"reward/avg_batch_reward": 9.0})
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert sorted(events.Tags()["scalars"]) == ["reward/avg_batch_reward"]
    rewards = [(event.step, event.value) for event in events.Scalars("reward/avg_batch_reward")]
    assert rewards == [(1, 0.5), (2, 1.0), (3, 9.0)]


def test_wandb_offline_is_one_folder_a_run_with_exact_names_and_each_step_once(tmp_path, capfd):
    directory, offline = tmp_path / "tiny-003", {"tracking.wandb": "offline"}
    with open_tracker(directory, **offline) as tracker:
        tracker.report(7, {"reward/avg_batch_reward": 0.5, "kl": None})
        tracker.report(8, {"reward/avg_batch_reward": 0.25})  # killed before the checkpoint of this step
    run_id = (directory / "wandb_run_id.txt").read_text()
    with open_tracker(directory, **offline, step=7) as tracker:
        tracker.report(8, {"reward/avg_batch_reward": 0.75})
    with open_tracker(directory, **offline, step=8) as tracker:  # the evaluation after training
        tracker.report(8, {"mbpp_eval/pass_rate": 0.5})
    wandb.teardown()  # waits until all is on the disk
    (path,) = (directory / "wandb").glob("offline-run-*/*.wandb")
    rows, run = read_wandb_file(path)
    seen = [{k: v for k, v in row.items() if not k.startswith("_")} for row in rows]
    assert seen == [
        {"reward/avg_batch_reward": 0.5, "train/global_step": 7},
        {"reward/avg_batch_reward": 0.75, "train/global_step": 8},
        {"mbpp_eval/pass_rate": 0.5, "train/global_step": 8},
    ]
    times = [row["time"] for row in map(json.loads, (directory / "metrics.jsonl").open())]
    assert [row["_timestamp"] for row in rows[:2]] == times[:2], "of the report, not of its copy"
    assert run.run_id == run_id
    assert run.display_name == "mbpp_eval small tiny-003"
    assert (run.run_group, run.job_type) == ("mbpp_eval", "tiny")
    assert list(run.tags) == ["mbpp_eval", "tiny", "small"], "what one filters by"
    said = capfd.readouterr()
    assert said.out.count(f"wandb sync {directory}") == 3 and said.err == ""


def test_the_gpu_s_peak_memory_is_reported_where_there_is_a_gpu(tmp_path, monkeypatch):
    with open_tracker(tmp_path) as tracker:
        tracker.report(1, {"loss": 0.5})
        monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
        monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda: 3 * 2**30)
        tracker.report(2, {"loss": 0.5})
    peaks = [row.get("memory/peak_gib") for row in read_metrics(tmp_path / "metrics.jsonl")]
    assert peaks == [None, 3.0]


def test_an_empty_file_of_wandbs_id_is_written_again(tmp_path):
    (tmp_path / "wandb_run_id.txt").touch()
    with open_tracker(tmp_path, **{"tracking.wandb": "offline"}):
        pass
    wandb.teardown()
    assert (tmp_path / "wandb_run_id.txt").read_text().strip()


def test_completions_of_steps_that_are_made_again_are_dropped(tmp_path):
    folder = tmp_path / "checkpoints" / "completions"
    folder.mkdir(parents=True)
    for step in (30, 31, 45):
        (folder / f"completions_{step:05}.parquet").touch()
    open_tracker(tmp_path, step=30).close()
    assert [path.name for path in folder.iterdir()] == ["completions_00030.parquet"]

"""`rlnb runs` on directories as runs leave them: whole, dead, damaged, waiting, not begun."""

import csv
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from waiting import run_python

from rlnb import cli
from rlnb.batch.overview import list_runs
from rlnb.run import directory as runs


@pytest.fixture(autouse=True)
def outputs(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    Path("outputs").mkdir()
    return Path("outputs")


@pytest.fixture
def queue(tmp_path, stand_in) -> Path:
    """What `squeue` prints."""
    stand_in("squeue", f"cat {tmp_path}/queue")
    return tmp_path / "queue"


def make_run(directory: Path, state: str, **fields: object) -> Path:
    """A run at step 3, in this state."""
    directory.mkdir(parents=True)
    (directory / "params.yaml").touch()
    rows = [{"step": step, "time": time.time() + 60 * step} for step in (1, 2, 3)]
    rows.append({"step": 3, "time": time.time() + 999, "exact/nash_conv": 0.5})
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    status = runs.start_attempt(directory, notebook="attempt-01.ipynb")
    if state != "running":
        runs.end_attempt(directory, status, state=state)
    latest = json.loads((directory / "status.json").read_text()) | fields
    runs.write_status(directory, runs.Status(**latest))
    return directory


def states() -> dict[str, str]:
    return {row.run.removeprefix("outputs/"): row.state for row in list_runs([Path("outputs")])}


def test_each_run_is_found_however_deep_and_shown_as_it_is(outputs):
    make_run(outputs / "a" / "cpu-001", "done")
    make_run(outputs / "a" / "cpu-002", "failed", reason="cell 3 of 9: ValueError: no")
    make_run(outputs / "b", "running")
    make_run(outputs / "c", "running", pid=2**22 + 1)
    (outputs / "b" / "checkpoints" / "checkpoint-1").mkdir(parents=True)
    (outputs / "b" / "checkpoints" / "params.yaml").touch()
    checkpoint = outputs / "train" / "checkpoints" / "checkpoint-1"  # of a script, which has no params.yaml
    checkpoint.mkdir(parents=True)
    for name in ("params.yaml", "rlnb.json"):
        (checkpoint / name).touch()
    assert states() == {"a/cpu-001": "done", "a/cpu-002": "failed", "b": "running", "c": "died at step 3"}
    rows = {row.run: row for row in list_runs([outputs])}
    assert rows["outputs/b"].step == 3
    assert rows["outputs/c"].reason


def test_damaged_files_are_rows_too(outputs):
    make_run(outputs / "a", "running", pid=2**22 + 1)
    (outputs / "a" / "metrics.jsonl").write_bytes(b"\0\0\0\0\n{\n[]\n" + b'{"step": 7, "time": 1.0}\n{"step"')
    make_run(outputs / "b", "done")
    (outputs / "b" / "status.json").write_text("{")
    (outputs / "c" / "metrics.jsonl").mkdir(parents=True)
    (outputs / "c" / "params.yaml").touch()
    (outputs / "sweep").mkdir()
    (outputs / "sweep" / "points.json").write_text('{"points": [{"na')
    assert states() == {"a": "died at step 7", "b": "new", "c": "unreadable"}


def test_what_slurm_has_in_its_queue_is_waiting_and_points_that_have_not_begun_are_pending(outputs, queue):
    queue.write_text("17 PENDING\n18_1 PENDING\n18_2 RUNNING\n")
    make_run(outputs / "requeued", "preempted", job="17")
    make_run(outputs / "cancelled", "preempted", job="16")
    make_run(outputs / "again", "failed", job="15")
    (outputs / "again" / "job.json").write_text('{"job": "17"}')
    names = [{"name": f"seed={seed}"} for seed in range(5)]
    make_run(outputs / "sweep", "failed")  # a folder of a sweep that is also the directory of a run
    make_run(outputs / "sweep" / "seed=0", "done")
    (outputs / "sweep" / "points.json").write_text(json.dumps({"points": names}))
    (outputs / "sweep" / "job.json").write_text(json.dumps({"job": "18", "points": [0, 1, 2, 3]}))
    assert states() == {
        "requeued": "waiting",
        "cancelled": "preempted",
        "again": "waiting",
        "sweep": "failed",
        "sweep/seed=0": "done",
        "sweep/seed=1": "waiting",
        "sweep/seed=2": "waiting",  # its job has only just started
        "sweep/seed=3": "pending",
        "sweep/seed=4": "pending",
    }
    (outputs / "refused").mkdir()
    (outputs / "refused" / "job.json").write_text('{"job": "19"}')
    for log, job in (
        ("refused/cpu-19", "19"),
        ("sweep/name-18_3", "18_3"),
    ):  # it has begun no run, and is over
        text = f"rlnb: job {job} on node7\nrlnb: this job is for a GPU, and node7 shows it none\n"
        (outputs / f"{log}.log").write_text(text)
    told = {row.run.removeprefix("outputs/"): (row.state, row.reason) for row in list_runs([Path("outputs")])}
    refused = ("failed", "rlnb: this job is for a GPU, and node7 shows it none")
    assert told["refused"] == told["sweep/seed=3"] == refused
    assert told["sweep/seed=4"] == ("pending", "")


def test_the_command_prints_a_table_or_csv_and_refuses_a_folder_that_is_missing(outputs, capsys):
    make_run(outputs / "a", "done")
    make_run(outputs / "b", "preempted")
    assert cli.main(["runs"]) == 0
    table = capsys.readouterr().out
    assert "outputs/a" in table and "preempted" in table
    assert cli.main(["runs", "--csv", "outputs"]) == 0
    rows = csv.DictReader(io.StringIO(capsys.readouterr().out))
    first, second = sorted(rows, key=lambda row: row["run"])
    assert (first["run"], first["state"], first["step"], first["job"]) == ("outputs/a", "done", "3", "")
    assert second["state"] == "preempted"
    assert cli.main(["runs", "outputs", "nowhere"]) == 2
    assert capsys.readouterr().err.startswith("rlnb: nowhere: ")


def test_the_newest_run_comes_first_and_a_state_may_be_asked_for(outputs, queue, capsys):
    for name, state, month in (("a", "done", 2), ("b", "failed", 3), ("c", "running", 1), ("d", "done", 4)):
        pid = {"pid": 2**22 + 1} if state == "running" else {}
        make_run(outputs / name, state, started=f"2026-{month:02d}-01T00:00:00+00:00", **pid)
    (outputs / "new").mkdir()
    (outputs / "new" / "params.yaml").touch()

    def shown(*arguments: str) -> str:
        assert cli.main(["runs", "--csv", *arguments]) == 0
        return "".join(
            Path(row["run"]).name[0] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))
        )

    assert shown() == "dbacn"
    assert [shown("--state", each) for each in ("done", "died", "waiting")] == ["da", "c", ""]
    assert shown("--state", "failed", "--state", "died") == "bc"
    with pytest.raises(SystemExit):
        shown("--state", "lost")


def test_a_run_whose_memory_slurm_has_ended_says_so(outputs, queue):
    killed = {"pid": 2**22 + 1}
    make_run(outputs / "one", "running", job="17", **killed)
    log = outputs / "one" / "ppo-one-17.log"
    log.write_text(
        "2026-11-27 10:00:00 job 17 on n1\nslurmstepd: error: Detected 1 oom_kill event in StepId=17.batch.\n"
        "2026-11-27 11:00:00 job 17 on n1\n"
    )
    make_run(outputs / "sweep" / "seed=0", "running", job="18_0", **killed)
    (outputs / "sweep" / "ppo-sweep-18_0.log").write_text(
        "2026-11-27 10:00:00 job 18_0 on n1\n"
        "slurmstepd-n1: error: StepId=18.batch exceeded memory limit (2400 > 450), being killed\n"
    )
    first, point = list_runs([outputs])
    assert "is gone" in first.reason  # it was an earlier attempt whose memory had run out
    assert point.reason == "memory ran out: StepId=18.batch exceeded memory limit (2400 > 450), being killed"
    with log.open("a") as file:
        file.write("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=17.batch cgroup.\n")
    assert list_runs([outputs])[0].reason.startswith("memory ran out: Detected 1 oom-kill event")


def test_the_states_of_runs_are_told_without_what_draws_and_computes(outputs):
    make_run(outputs / "a", "done")
    code = "import sys; from rlnb import cli; cli.main(['runs']); print({'pandas', 'torch'} & {*sys.modules})"
    told = run_python(code, check=True).stdout
    assert "outputs/a" in told and told.endswith("set()\n")


def test_a_run_is_shown_once_by_the_path_that_was_given_first(outputs, queue):
    queue.write_text("18_0 PENDING\n")
    make_run(outputs / "sweep" / "seed=0", "preempted")
    (outputs / "sweep" / "points.json").write_text('{"points": [{"name": "seed=0"}]}')
    (outputs / "sweep" / "job.json").write_text('{"job": "18", "points": [0]}')
    assert [row.run for row in list_runs([outputs, outputs.absolute()])] == ["outputs/sweep/seed=0"]
    (row,) = list_runs([outputs.absolute() / "sweep" / "seed=0", outputs / "sweep"])
    assert (row.run, row.state) == (str((outputs / "sweep" / "seed=0").absolute()), "waiting")


def test_a_run_that_was_moved_behind_a_link_is_listed_and_a_link_that_leads_back_ends(outputs, tmp_path):
    make_run(tmp_path / "scratch" / "cpu-001", "done")
    (outputs / "a").mkdir()
    (outputs / "a" / "cpu-001").symlink_to(tmp_path / "scratch" / "cpu-001")
    (outputs / "a" / "back").symlink_to(outputs.absolute())
    assert states() == {"a/cpu-001": "done"}


def test_what_a_terminal_cannot_show_is_escaped(outputs):
    (outputs / "a").mkdir()
    (outputs / "a" / "params.yaml").touch()
    environ = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([sys.executable, "-m", "rlnb.cli", "runs"], capture_output=True, env=environ)
    assert done.returncode == 0 and rb"\u2013" in done.stdout


def test_a_controller_that_is_silent_is_asked_once(outputs, monkeypatch):
    make_run(outputs / "a", "running", host="node7", job="7")
    asked = Mock(return_value=None)
    monkeypatch.setattr("rlnb.batch.overview.jobs_in_queue", asked)
    monkeypatch.setattr("rlnb.run.directory.jobs_in_queue", asked)
    assert len(list_runs([outputs])) == 1 and asked.call_count == 1

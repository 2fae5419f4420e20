"""What status.json says of runs that are alive, dead or elsewhere, and which directory a run gets."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rlnb.run import directory as runs
from rlnb.run import heartbeat
from rlnb.run.heartbeat import Heartbeat


@pytest.fixture(autouse=True)
def outside_slurm(monkeypatch):
    for name in ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def queue(tmp_path, monkeypatch) -> Path:
    """What `squeue` prints: lines of a job and its state; without a line it knows no job."""
    jobs, command = tmp_path / "queue", tmp_path / "bin" / "squeue"
    jobs.write_text("")
    command.parent.mkdir()
    command.write_text(
        f'#!/bin/sh\n[ -s {jobs} ] || {{ echo "Invalid job id specified" >&2; exit 1; }}\ncat {jobs}\n'
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    return jobs


def left_behind(directory: Path, *, silent_seconds: float = 0, **fields: object) -> runs.Status:
    """The status that is read where one with these fields was left."""
    status = runs.start_attempt(directory, notebook="attempt-01.ipynb")
    runs.write_status(directory, dataclasses.replace(status, **fields))
    heard = time.time() - silent_seconds
    os.utime(directory / runs.HEARTBEAT_FILE, (heard, heard))
    status = runs.read_status(directory)
    assert status is not None
    return status


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_run_whose_process_is_gone_or_whose_number_another_has_was_killed(tmp_path):
    assert left_behind(tmp_path).state == "running"
    assert left_behind(tmp_path, pid=dead_process()).state == "killed"
    # Process 1 is alive, and so is ours; neither began in 1970.
    assert left_behind(tmp_path, pid=os.getppid(), process_started=1.0).reason == (
        f"process {os.getppid()} is gone without having said how it ended"
    )


def test_a_process_that_nobody_has_waited_for_is_gone(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", ""])
    try:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert left_behind(tmp_path, pid=process.pid, process_started=None).state == "killed"
    finally:
        process.wait()


def test_a_run_on_another_host_lives_as_long_as_it_is_heard_of(tmp_path):
    assert left_behind(tmp_path, host="elsewhere", silent_seconds=100).state == "running"
    silent = left_behind(tmp_path, host="elsewhere", silent_seconds=200)
    assert silent.state == "killed"
    assert silent.reason.startswith("nothing was heard of it on elsewhere")


@pytest.mark.parametrize(
    ("line", "state"),
    [("17 RUNNING", "running"), ("17 SUSPENDED", "running"), ("17 PENDING", "killed"), ("", "killed")],
)
def test_where_slurm_answers_the_heartbeat_is_not_asked(tmp_path, queue, line, state):
    queue.write_text(line)
    for silent_seconds in (5, 1000):
        left = left_behind(tmp_path, host="elsewhere", silent_seconds=silent_seconds, job="17")
        assert left.state == state


def test_a_job_that_slurm_has_started_again_knows_that_its_former_node_is_dead(tmp_path, monkeypatch, queue):
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    queue.write_text("17 RUNNING")
    assert left_behind(tmp_path, host="elsewhere").state == "running"  # another of its nodes
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert left_behind(tmp_path, host="elsewhere", restarts=0).state == "killed"


def test_where_a_file_system_has_no_locks_the_status_keeps_a_second_run_out(tmp_path, monkeypatch, queue):
    queue.write_text("17 RUNNING")

    def no_locks(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    left_behind(tmp_path, host="elsewhere", job="17", pid=5)
    with (
        pytest.raises(runs.RunInUse, match=r"process 5 on elsewhere \(job 17\) is running here"),
        runs.locked(tmp_path),
    ):
        pass
    left_behind(tmp_path, host="elsewhere", silent_seconds=1000)
    with runs.locked(tmp_path):
        pass


def test_the_heartbeat_is_a_file_that_a_thread_touches_until_the_attempt_has_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "HEARTBEAT_SECONDS", 0.0)
    monkeypatch.setattr(heartbeat, "SIGNAL_SECONDS", 0.02)
    status = runs.start_attempt(tmp_path, notebook="attempt-01.ipynb")
    file = tmp_path / runs.HEARTBEAT_FILE
    os.utime(file, (0, 0))
    with Heartbeat(tmp_path, status, signal=lambda: ""):
        wait_for(lambda: file.stat().st_mtime > 0)
    runs.end_attempt(tmp_path, status, state="done")
    assert not file.exists()


def test_the_pace_is_that_of_this_attempt_and_rows_without_sense_are_left_out(tmp_path):
    now = time.time()
    rows = [{"step": 8, "time": now - 9999}, {"step": 9, "time": now}, {"step": 11, "time": now + 60}]
    torn = ['{"step": Infinity, "time": 1.0}', f'{{"step": 1, "time": {10**400}}}', "[" * 9999, '{"step": 12']
    lines = ["\0\0", *map(json.dumps, rows), *torn]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    read = heartbeat.read_last_rows(tmp_path)
    assert [row.step for row in read] == [8, 9, 11]
    assert heartbeat.measure_pace(read, since=runs.now()[:-10] + "00+00:00") == 120.0  # two steps in a minute


def test_a_signal_is_on_record_before_the_next_heartbeat_so_that_a_kill_looks_like_the_preemption_it_is(
    tmp_path,
):
    signals: list[str] = []
    status = runs.start_attempt(tmp_path, notebook="attempt-01.ipynb")
    with Heartbeat(tmp_path, status, signal=lambda: "".join(signals)):
        signals.append("SIGTERM")
        wait_for(lambda: runs.read_status(tmp_path).signal == "SIGTERM")
        killed = dataclasses.replace(runs.read_status(tmp_path), state="killed")  # what a SIGKILL leaves
    assert runs.count_idle_attempts(killed, 0) == 0


def test_the_heartbeat_outlasts_an_error_that_passes(tmp_path, monkeypatch, capfd):
    errors = [OSError("once")]

    def write(*arguments: object) -> None:
        if errors:
            raise errors.pop()
        runs.write_status(*arguments)

    monkeypatch.setattr(heartbeat, "write_status", write)
    monkeypatch.setattr(heartbeat, "SIGNAL_SECONDS", 0.02)
    status = runs.start_attempt(tmp_path, notebook="attempt-01.ipynb")
    with Heartbeat(tmp_path, status, signal=lambda: "SIGTERM"):
        wait_for(lambda: runs.read_status(tmp_path).signal == "SIGTERM")
    assert not errors
    assert "once" in capfd.readouterr().err


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


CLAIM = """
import sys, time
from pathlib import Path
from rlnb.run import directory as runs

def choose(in_use):
    return runs.choose_directory(Path("outputs"), "tiny", params_text=lambda _: sys.argv[1], without=in_use)

Path(f"ready-{sys.argv[2]}").touch()
while len(list(Path().glob("ready-*"))) < 4:
    time.sleep(0.001)
with runs.claimed_directory(choose) as directory:
    time.sleep(0.05)
    (directory / "params.yaml").write_text(sys.argv[1])
    while len(list(Path("outputs").glob("*/params.yaml"))) < 4:
        time.sleep(0.01)
    print(directory.name)
"""


@pytest.mark.parametrize("texts", ["abcd", "aaaa"], ids=["other parameters", "the same parameters"])
def test_runs_that_start_at_the_same_time_get_a_directory_each(tmp_path, texts):
    commands = [[sys.executable, "-c", CLAIM, text, str(index)] for index, text in enumerate(texts)]
    started = [subprocess.Popen(each, cwd=tmp_path, stdout=subprocess.PIPE, text=True) for each in commands]
    try:
        names = [process.communicate(timeout=120)[0].strip() for process in started]
    finally:
        for process in started:
            process.kill()
    assert sorted(names) == ["tiny-001", "tiny-002", "tiny-003", "tiny-004"]


def test_a_job_that_is_started_again_goes_on_in_its_own_directory(tmp_path, monkeypatch):
    for name, job in [("tiny-001", "17"), ("tiny-002", "18")]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "params.yaml").write_text("same")
        monkeypatch.setenv("SLURM_JOB_ID", job)
        runs.end_attempt(tmp_path / name, runs.start_attempt(tmp_path / name, notebook=""), state="preempted")

    def chosen(job: str, restarts: str) -> str:
        monkeypatch.setenv("SLURM_JOB_ID", job)
        monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
        return runs.choose_directory(tmp_path, "tiny", params_text=lambda _: "same").name

    assert (chosen("17", "1"), chosen("18", "1")) == ("tiny-001", "tiny-002")
    assert (chosen("17", "0"), chosen("19", "0")) == ("tiny-002", "tiny-002")  # the newest


def test_a_job_is_ended_after_two_attempts_in_a_row_that_save_no_step(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "17")

    def idle_after(*, restarts: int, begins_at: int, signal: str) -> int:
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
        status = runs.start_attempt(tmp_path, notebook="", saved_step=begins_at)
        runs.end_attempt(tmp_path, status, state="preempted", signal=signal)
        return runs.count_idle_attempts(runs.read_status(tmp_path), 4)

    assert idle_after(restarts=0, begins_at=0, signal="SIGUSR1") == 0
    assert idle_after(restarts=1, begins_at=4, signal="SIGUSR1") == 1
    assert idle_after(restarts=2, begins_at=4, signal="SIGTERM") == 1  # preempted: it was not given its time
    assert idle_after(restarts=3, begins_at=4, signal="") == 2  # killed at the limit
    monkeypatch.setenv("SLURM_RESTART_COUNT", "4")
    last = runs.read_status(tmp_path)
    with pytest.raises(runs.NoProgress, match="^job 17: 2 attempts in a row have ended without a further"):
        runs.check_progress(tmp_path, last, 4, idle=runs.idle_before(last, 4))
    assert runs.read_status(tmp_path).state == "failed"
    assert runs.idle_before(last, 5) == 0
    monkeypatch.setenv("SLURM_JOB_ID", "18")  # submitted again, with more time perhaps
    monkeypatch.setenv("SLURM_RESTART_COUNT", "0")
    assert runs.idle_before(last, 4) == 0

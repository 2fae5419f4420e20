"""What status.json says of runs that are alive, dead or elsewhere, and which directory a run gets."""

import dataclasses
import json
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
from waiting import wait_for

from rlnb.machine import Machine
from rlnb.run import directory as runs
from rlnb.run.directory import read_last_step


@pytest.fixture(autouse=True)
def outside_slurm(monkeypatch):
    for name in ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def queue(tmp_path, stand_in) -> Path:
    """What `squeue` prints: lines of a job and its state; without a line it knows no job."""
    jobs = tmp_path / "queue"
    jobs.write_text("")
    stand_in("squeue", f'[ -s {jobs} ] || {{ echo "Invalid job id specified" >&2; exit 1; }}\ncat {jobs}')
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


def test_a_run_whose_process_is_gone_or_whose_number_another_has_was_killed(tmp_path):
    assert left_behind(tmp_path).state == "running"
    # Its number is not that of this process, which began earlier: a parent may have begun in the same tick.
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert process.stdin is not None
    try:
        assert left_behind(tmp_path, pid=process.pid).state == "killed"  # alive, but not this process
        assert left_behind(tmp_path, pid=process.pid, process="").state == "running"  # of an older version
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert left_behind(tmp_path, pid=process.pid, process="").state == "killed"  # a zombie
    finally:
        process.kill()
        process.wait()
    killed = left_behind(tmp_path, pid=process.pid)
    assert killed.state == "killed" and str(process.pid) in killed.reason


def test_a_run_goes_on_when_its_hosts_clock_is_set(tmp_path, monkeypatch):
    """The kernel's time of the host's start moves by as much, and with it every process's start."""
    real = psutil.boot_time()
    for hours in (-24, 24):
        monkeypatch.setattr(psutil._pslinux, "boot_time", lambda hours=hours: real + 3600 * hours)
        assert left_behind(tmp_path).state == "running"
        monkeypatch.undo()
        status = runs.read_status(tmp_path)
        assert status is not None and status.state == "running"


def test_a_run_on_another_host_lives_as_long_as_it_is_heard_of(tmp_path):
    assert left_behind(tmp_path, host="elsewhere", silent_seconds=100).state == "running"
    assert left_behind(tmp_path, host="elsewhere", silent_seconds=200).state == "killed"


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("17 RUNNING", "running"),
        ("17 SIGNALING", "running"),
        ("17 SUSPENDED", "running"),
        ("17 PENDING", "killed"),
        ("", "killed"),
    ],
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


LOCK = """
from pathlib import Path
from rlnb.machine import Machine
from rlnb.run import directory as runs

with runs.locked(Path("run")):
    print(flush=True)
    input()
"""


def test_a_process_that_has_only_locked_the_directory_is_named_with_its_job(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    command, pipe = [sys.executable, "-c", LOCK], subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, stdin=pipe, stdout=pipe, text=True) as holder:
        holder.stdout.readline()
        for _ in range(2):  # who is refused leaves the name
            with (
                pytest.raises(runs.RunInUse, match=rf"process {holder.pid} on .* \(job 17\) is running here"),
                runs.locked(tmp_path / "run"),
            ):
                pass
        holder.communicate("\n")
    with runs.locked(tmp_path / "run"):
        pass


def test_a_thread_touches_the_heartbeat_and_outlasts_an_error_that_passes(tmp_path, monkeypatch, capfd):
    errors, real = [OSError("once")], runs.touch_heartbeat

    def touch(directory: Path) -> None:
        if errors:
            raise errors.pop()
        real(directory)

    monkeypatch.setattr(runs, "HEARTBEAT_SECONDS", 0.02)
    status = runs.start_attempt(tmp_path, notebook="attempt-01.ipynb")
    monkeypatch.setattr(runs, "touch_heartbeat", touch)
    file = tmp_path / runs.HEARTBEAT_FILE
    os.utime(file, (0, 0))
    with runs.heartbeat(tmp_path):
        wait_for(lambda: file.stat().st_mtime > 0)
    assert not errors and "once" in capfd.readouterr().err
    runs.end_attempt(tmp_path, status, state="done")
    assert not file.exists()


def test_the_last_step_is_that_of_the_last_whole_row(tmp_path):
    assert read_last_step(tmp_path) is None
    torn = ['{"step": Infinity, "time": 1.0}', "\0\0", "[" * 9999, "[]", '{"step": 12']
    (tmp_path / "metrics.jsonl").write_text("\n".join(['{"step": 8}', '{"step": 9, "time": 1.0}', *torn]))
    assert read_last_step(tmp_path) == 9


CLAIM = """
import sys, time
from pathlib import Path
from rlnb.machine import Machine
from rlnb.run import directory as runs

Path(f"ready-{sys.argv[2]}").touch()
while len(list(Path().glob("ready-*"))) < 4:
    time.sleep(0.001)
directories = runs.find_directories(Path("outputs"), "tiny", lambda _: sys.argv[1])
with runs.claimed_directory(directories) as directory:
    time.sleep(0.05)
    (directory / "params.yaml").write_text(sys.argv[1])
    while len(list(Path("outputs").glob("*/params.yaml"))) < 4:
        time.sleep(0.01)
    print(directory.name)
"""


def test_runs_that_start_at_the_same_time_get_a_directory_each(tmp_path):
    commands = [[sys.executable, "-c", CLAIM, text, str(index)] for index, text in enumerate("aaab")]
    started = [subprocess.Popen(each, cwd=tmp_path, stdout=subprocess.PIPE, text=True) for each in commands]
    try:
        names = [process.communicate(timeout=120)[0].strip() for process in started]
    finally:
        for process in started:
            process.kill()
    assert sorted(names) == ["tiny-001", "tiny-002", "tiny-003", "tiny-004"]


def test_the_newest_unfinished_run_with_the_same_parameters_comes_first(tmp_path):
    for name, params in (("tiny-001", "same"), ("tiny-002", "same"), ("tiny-003", "other")):
        directory = tmp_path / name
        directory.mkdir()
        (directory / "params.yaml").write_text(params)
        runs.end_attempt(directory, runs.start_attempt(directory, notebook=""), state="killed")
    found = runs.find_directories(tmp_path, "tiny", lambda _: "same")
    assert [next(found).name for _ in range(4)] == ["tiny-002", "tiny-001", "tiny-004", "tiny-005"]
    runs.end_attempt(tmp_path / "tiny-002", runs.read_status(tmp_path / "tiny-002"), state="done")
    found = runs.find_directories(tmp_path, "tiny", lambda _: "same")
    assert next(found).name == "tiny-001"


@pytest.fixture
def attempt(tmp_path, monkeypatch, stand_in):
    """A function that makes an attempt of job 17 that ends so, and returns how many idle ones it counts."""
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    stand_in("scontrol", f"cat {tmp_path}/facts")
    (tmp_path / "facts").write_text("JobId=17 JobState=RUNNING Reason=None PreemptTime=None")

    def attempt(restarts: int, *, signal: str, begins_at: int = 4, is_killed: bool = False) -> int:
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
        status = runs.start_attempt(tmp_path, notebook="", first_step=begins_at)
        if not is_killed:
            runs.end_attempt(tmp_path, status, state="preempted", signal=signal)
        elif signal:
            runs.note_signal(tmp_path, status, signal)
        return status.idle_attempts

    return attempt


def test_a_job_is_ended_after_attempts_in_a_row_that_reach_their_limit_and_save_no_step(
    tmp_path, monkeypatch, attempt
):
    assert attempt(0, signal="SIGUSR1", begins_at=0) == 0
    assert attempt(1, signal="SIGUSR1") == 0  # it began with a further step
    assert attempt(2, signal="SIGUSR1", is_killed=True) == 1  # a step that is longer than the warning
    assert attempt(3, signal="SIGUSR1") == 2
    with pytest.raises(runs.NoProgress):
        attempt(4, signal="")
    assert runs.read_status(tmp_path).state == "failed"
    assert attempt(5, signal="SIGUSR1", begins_at=5) == 0
    monkeypatch.setenv("SLURM_JOB_ID", "18")  # submitted again, with more time perhaps
    assert attempt(0, signal="", begins_at=5) == 0


def test_attempts_that_were_not_given_their_time_are_not_counted(tmp_path, attempt):
    assert attempt(0, signal="SIGUSR1") == 0
    for restarts in (1, 4, 7):
        assert attempt(restarts, signal="SIGTERM") == 1  # preempted, or cancelled
        assert attempt(restarts + 1, signal="", is_killed=True) == 1  # its node has failed
        (tmp_path / "facts").write_text("JobId=17 JobState=RUNNING PreemptTime=2026-11-27T10:00:00")
        assert attempt(restarts + 2, signal="SIGUSR1") == 1  # preempted by the signal of the limit


def test_a_run_of_somebody_else_is_passed_over(tmp_path, monkeypatch):
    for name in ("tiny-001", "tiny-002"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "params.yaml").write_text("same")
    read = runs.read_status

    def refuse(directory, *arguments, **options):
        if directory.name == "tiny-002":
            raise PermissionError(13, "Permission denied", str(directory / "status.json"))
        return read(directory, *arguments, **options)

    monkeypatch.setattr(runs, "read_status", refuse)
    directories = runs.find_directories(tmp_path, "tiny", lambda _: "same")
    assert [next(directories).name for _ in range(2)] == ["tiny-001", "tiny-003"]
    monkeypatch.setattr(runs, "read_status", read)
    monkeypatch.setattr(os, "access", lambda path, _: path.name != "tiny-001")  # it may be read alone
    directories = runs.find_directories(tmp_path, "tiny", lambda _: "same")
    assert [next(directories).name for _ in range(2)] == ["tiny-002", "tiny-003"]


def test_rows_are_cut_in_little_memory(tmp_path):
    path, row = tmp_path / "games.jsonl", {"step": 1, "moves": [list(range(40))] * 5}
    path.write_text(f"{json.dumps(row)}\n" * 3000 + "{")
    tracemalloc.start()
    runs.cut_rows(path, after=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(path.read_bytes().splitlines()) == 3000
    assert peak < 3 * path.stat().st_size


def test_a_package_without_metadata_does_not_end_a_run(tmp_path, monkeypatch):
    (tmp_path / "gone-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    runs.write_versions(tmp_path, machine=Machine("cpu", "", None, 8.0, 2, "workstation", "offline"))
    assert "pydantic" in json.loads((tmp_path / "versions.json").read_text())["packages"]


def test_a_new_directory_is_found_without_a_question_to_slurm(tmp_path, monkeypatch):
    folder = tmp_path / "tiny-001"
    folder.mkdir()
    (folder / "params.yaml").write_text("other")
    status = runs.start_attempt(folder, notebook="")
    runs.write_status(folder, dataclasses.replace(status, host="node7", job="7"))
    monkeypatch.setattr(runs, "jobs_in_queue", Mock(side_effect=AssertionError))
    assert next(runs.find_directories(tmp_path, "tiny", lambda _: "same")).name == "tiny-002"

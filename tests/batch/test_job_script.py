"""slurm/run.sbatch with stand-ins for SLURM and for the run: signals, the queue, the log."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import wait_for

SCRIPT = Path(__file__).parents[2] / "slurm" / "run.sbatch"
RUN = """\
import signal, sys, time
from pathlib import Path
Path('started').write_text(' '.join(sys.argv[1:]))
if '--quick' in sys.argv:
    print('two\\nlines')
    sys.exit(0)
while '--slow' in sys.argv and not Path('has-handlers').exists():
    time.sleep(0.05)
def stop(number, frame):
    time.sleep(0.3)  # saving
    Path('stopped').write_text(signal.Signals(number).name)
    sys.exit(85)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGUSR1, stop)
Path('ready').touch()
time.sleep(60)
"""

SRUN = """\
import signal, subprocess, sys
task = subprocess.Popen(sys.argv[1:])
signal.signal(signal.SIGTERM, lambda number, frame: task.kill())
signal.signal(signal.SIGUSR1, lambda number, frame: task.send_signal(number))
sys.exit(task.wait() % 256)
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """A submit directory with an rlnb that exits 85 on a signal and an scontrol that notes its arguments."""
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    scontrol = '#!/bin/sh\nif [ "$1" = show ]; then cat reason; else echo "$@" >> requests; fi\n'
    for name, text in [(".venv/bin/rlnb", f"#!{sys.executable}\n{RUN}"), ("scontrol", scontrol)]:
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "reason").write_text("JobState=COMPLETING Reason=None Restarts=0")
    return tmp_path


def start_job(
    cluster: Path, *arguments: str, waits_for: str = "ready", script: Path = SCRIPT, **slurm: str
) -> subprocess.Popen[str]:
    slurm = {"SLURM_SUBMIT_DIR": str(cluster), "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"} | slurm
    environ = {"PATH": f"{cluster}:{os.environ['PATH']}", **slurm}
    job = subprocess.Popen(
        ["bash", script, "notebooks/a.ipynb", *arguments],
        cwd=cluster, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    if waits_for:
        wait_for((cluster / waits_for).exists)
    return job


def end_of(job: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code and the log."""
    log = job.communicate(timeout=60)[0]
    return job.returncode, log


def requests(cluster: Path) -> str:
    return (cluster / "requests").read_text() if (cluster / "requests").exists() else ""


def test_a_job_whose_time_is_nearly_up_saves_and_goes_back_into_the_queue(cluster):
    job = start_job(cluster, "--profile", "tiny")
    job.send_signal(signal.SIGUSR1)
    assert (end_of(job)[0], requests(cluster)) == (85, "requeue 7\n")
    assert (cluster / "started").read_text() == "run notebooks/a.ipynb --profile tiny"
    assert (cluster / "stopped").read_text() == "SIGUSR1"


def test_a_job_that_is_cancelled_saves_and_stays_out_of_the_queue(cluster):
    job = start_job(cluster)
    job.send_signal(signal.SIGUSR1)  # warned already
    job.send_signal(signal.SIGTERM)
    assert end_of(job)[0] == 85
    assert requests(cluster) == ""


def test_a_job_of_several_nodes_that_is_cancelled_saves_although_srun_makes_a_kill_of_term(cluster):
    (cluster / "srun").write_text(f"#!{sys.executable}\n{SRUN}")
    (cluster / "srun").chmod(0o755)
    script = cluster / "job.sbatch"
    script.write_text(SCRIPT.read_text().replace("command=(", "command=(srun "))
    job = start_job(cluster, script=script)
    job.send_signal(signal.SIGTERM)
    assert end_of(job)[0] == 85
    assert (cluster / "stopped").exists()
    assert requests(cluster) == ""


def test_a_job_whose_step_outlasts_the_limit_goes_back_before_it_is_killed(cluster):
    (cluster / "reason").write_text("JobState=COMPLETING Reason=TimeLimit Restarts=0")
    job = start_job(cluster, SLURM_ARRAY_JOB_ID="9", SLURM_ARRAY_TASK_ID="2")
    job.send_signal(signal.SIGTERM)
    assert end_of(job)[0] == 85
    assert requests(cluster) == "requeue 9_2\n"  # requeue 9 would be the whole array


def test_a_warning_that_comes_before_the_run_can_hear_it_reaches_it_later(cluster):
    job = start_job(cluster, "--slow", waits_for="started")
    job.send_signal(signal.SIGUSR1)
    time.sleep(0.2)
    assert job.poll() is None  # it is not dead of it
    (cluster / "has-handlers").touch()
    assert end_of(job)[0] == 85
    assert requests(cluster) == "requeue 7\n"


def test_a_job_that_ends_by_itself_hands_its_exit_code_on_and_its_log_is_dated(cluster):
    code, log = end_of(start_job(cluster, "--quick", waits_for="started", SLURM_RESTART_COUNT="1"))
    assert (code, requests(cluster)) == (0, "")
    first, *others = log.splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d job 7 on n1", first)
    assert others == ["two", "lines"]


def test_a_job_from_another_folder_says_so_in_a_sentence(cluster, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    code, log = end_of(start_job(cluster, waits_for="", SLURM_SUBMIT_DIR=str(elsewhere)))
    assert code == 2
    assert f"{elsewhere}: has no .venv/bin/rlnb" in log

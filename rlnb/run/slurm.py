"""What SLURM says about jobs: which one this process runs in, and which ones are in the queue."""

import os
import re
import subprocess
from collections.abc import Collection, MutableMapping

SECONDS = 20  # a busy controller answers late
RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT")


def own_job() -> str:
    """Return the id of the job that this process runs in, 31_2 in an array; "" outside SLURM."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID", ""), os.environ.get("SLURM_ARRAY_TASK_ID", "")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID", "")


def num_restarts() -> int:
    """Return how often SLURM has put this job back into the queue."""
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0)


def own_step() -> str:
    """Return what tells this step of srun from all others, also of the same job; "" outside srun."""
    step = os.environ.get("SLURM_STEP_ID", "")
    return f"{own_job()}.{step}.{num_restarts()}" if step else ""


def join_tasks(environ: MutableMapping[str, str] | None = None) -> None:
    """Give a task of srun torchrun's environment: where srun has started several, each of them is a rank.

    What torchrun or accelerate has set in a task stays.
    """
    environ = os.environ if environ is None else environ
    num_tasks = int(environ.get("SLURM_STEP_NUM_TASKS", "1"))
    if num_tasks == 1 or "RANK" in environ or "SLURM_PTY_PORT" in environ:  # a shell: `srun -n 8 --pty bash`
        return
    step = int(environ.get("SLURM_STEP_ID", "0"))  # a job may run several at once
    # The first node of node[01-04,7] is node01.
    first = re.sub(r"\[(\d+).*|,.*", r"\1", environ["SLURM_STEP_NODELIST"])
    environ.update(
        RANK=environ["SLURM_PROCID"],
        LOCAL_RANK=environ["SLURM_LOCALID"],
        WORLD_SIZE=str(num_tasks),
        MASTER_ADDR=first,
        MASTER_PORT=str(20000 + (int(environ["SLURM_JOB_ID"]) + 7919 * step) % 20000),
    )


def jobs_in_queue(jobs: Collection[str]) -> dict[str, str] | None:
    """Return {job: state} of those of these jobs that are running or waiting; None where SLURM is not here.

    An array's id stands for its tasks: {"31_1": "PENDING", ...}.
    """
    wanted = sorted({job for job in jobs if job})
    if not wanted:
        return {}
    command = ["squeue", "--noheader", "--array", f"--jobs={','.join(wanted)}", "--format=%i %T"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    if answer.returncode:  # a job that is over for long is an unknown one
        return {} if "Invalid job id" in answer.stderr else None
    rows = (line.split() for line in answer.stdout.splitlines())
    return {row[0]: row[1] for row in rows if len(row) == 2}


def is_preempted() -> bool:
    """Return whether SLURM makes room by this job: some clusters tell it so by the limit's SIGUSR1."""
    command = ["scontrol", "show", "job", "--oneliner", own_job()]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return re.search(r"\bPreemptTime=\d", answer.stdout) is not None


def how_to_go_on() -> str:
    """Return what takes up a run that was stopped, as the end of a message."""
    if not own_job():
        return "run the same command again to go on"
    return "it goes on if SLURM puts the job back into the queue, or if the same command is submitted again"

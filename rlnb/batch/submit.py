"""`rlnb submit`: a run, or the points of a sweep, as a job of SLURM, checked before it waits in a queue.

The script is slurm/run.sbatch with other options and another command. It is kept in the folder of the run or
the sweep with its log, and job.json there tells which job it was submitted as.
"""

import argparse
import json
import math
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import rlnb
from rlnb.batch.machines import job_machine
from rlnb.batch.overview import JOB_FILE, refuse_queued, waits_for_job
from rlnb.batch.sweeps import prepare_sweep, write_sweep
from rlnb.errors import ParamsError
from rlnb.machine import Machine, installed_version
from rlnb.params import dump_yaml, parse_set
from rlnb.params.sections import NotebookParams
from rlnb.run import directory as runs
from rlnb.run.disk import telling_full_disk, write_text
from rlnb.run.headless import make_directory, plan_run
from rlnb.run.memory import estimate_host_memory

TEMPLATE = Path(rlnb.__file__).resolve().parents[1] / "slurm" / "run.sbatch"
SCRIPT_FILE = "job.sbatch"
OPTION = re.compile(r"^#SBATCH --([\w-]+)(?:=(.*))?$", re.MULTILINE)
HOW_IT_ENDS = ("open-mode", "signal", "requeue")  # options that ask for nothing of the cluster's
COUNTS = ("nodes", "ntasks-per-node", "cpus-per-task")
MEMORY_OPTIONS = ("mem", "mem-per-cpu", "mem-per-gpu")
GIB_OF_UNIT = {"K": 2**-20, "": 2**-10, "M": 2**-10, "G": 1.0, "T": 1024.0}  # in their values
MEMORY_MARGIN = 1.5  # times the estimate
# Ranks on several nodes: a task of SLURM each.
SRUN = """\
tasks=(--ntasks={num_ranks} --kill-on-bad-exit=0 --cpus-per-task="$((SLURM_CPUS_PER_TASK / {ranks_on_node}))")
command=(srun "${{tasks[@]}}" bash -c {task})
"""
TASK = ' --point "$SLURM_ARRAY_TASK_ID"'

Header = dict[str, str | None]  # {option of sbatch: its value, None for one without}


@dataclass(frozen=True)
class Job:
    """A job to submit. command: lines that set `command` in the script. points: of an array, in order."""

    folder: Path
    notebook: Path
    header: Header
    command: str
    points: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.notebook.stem}-{self.folder.name}"

    def log(self, number: str) -> Path:
        """Return the log of the job with this number; number: "%j", "%A_%a" or what they stand for."""
        return self.folder / f"{self.name}-{number}.log"

    def script(self) -> str:
        """Return slurm/run.sbatch with this header and command, to be run in this folder."""
        log = str(self.log("%A_%a" if self.points else "%j").absolute())
        options = "".join(
            f"#SBATCH --{name}" + (f"={shlex.quote(value)}" if value else "") + "\n"
            for name, value in {"job-name": self.name, "output": log, **self.header}.items()
        )
        lines = TEMPLATE.read_text(encoding="utf-8").splitlines(keepends=True)
        first = next(index for index, line in enumerate(lines) if line.startswith("#SBATCH"))
        replaced = {"project": f"project={shlex.quote(str(Path.cwd()))}\n", "command": self.command}
        body = "".join(
            replaced.get(line.partition("=")[0], line)
            for line in lines[first:]
            if not line.startswith("#SBATCH")
        )
        return f"#!/bin/bash\n# Written by `rlnb submit` from slurm/run.sbatch.\n{options}{body}"


def submit(options: argparse.Namespace) -> int:
    """Submit a run, or a sweep, by the options of `rlnb submit`, and return the exit code.

    Raises ParamsError for all that the job would refuse, and for a folder whose job is in the queue already.
    """
    if options.machine is None and options.profile in (None, "auto"):
        raise ParamsError(
            f"--profile: is {options.profile or 'missing'}, which does not tell what machine the job will "
            "get; name one, or write --machine v100, a100, h100, gb10 or cpu as well"
        )
    machine = job_machine(options.profile, options.machine, options.gpu_memory)
    header = make_header(options.sbatch, machine)
    if not machine.capability:
        machine = replace(machine, memory_gib=count_memory(header))  # it is not this machine that runs it
    if options.sweep is None and options.seeds is None:
        return _submit_run(options, machine, header)
    return _submit_sweep(options, machine, header)


def _submit_run(request: argparse.Namespace, machine: Machine, header: Header) -> int:
    num_gpus, num_nodes = count_gpus(header), int(header["nodes"] or 1)
    if num_nodes > 1 and num_gpus > int(header["cpus-per-task"] or 1):  # srun takes no task without a core
        raise ParamsError(f"--cpus-per-task={header['cpus-per-task']}: write at least {num_gpus}, one a GPU")
    plan = plan_run(
        request.notebook,
        profile=request.profile,
        overrides=parse_set(*request.assignments),
        out=request.out,
        num_ranks=max(1, num_gpus) * num_nodes,
        machine=machine,
    )
    ask_memory(header, [plan.params], machine, num_ranks=max(1, num_gpus))
    words = ["run", str(request.notebook), "--out", str(plan.directory)]
    command = _command(words, machine, ranks_on_node=max(1, num_gpus), num_nodes=num_nodes)
    job = Job(plan.directory, request.notebook, header, command)

    def write() -> None:
        write_text(job.folder / "params.yaml", dump_yaml(plan.params))

    return _submit(job, machine, plan.memory, write, is_dry=request.dry_run)


def _submit_sweep(request: argparse.Namespace, machine: Machine, header: Header) -> int:
    """Submit the points that are not done as an array; the option --array=%10 lets ten run at a time."""
    if int(header["nodes"] or 1) > 1 or count_gpus(header) > 1:
        raise ParamsError("--nodes and GPUs: a point of a sweep has one node and at most one GPU; ask for 1")
    prepared = prepare_sweep(
        request.notebook, profile=request.profile, sweep=request.sweep, seeds=request.seeds,
        assignments=request.assignments, out=request.out, machine=machine,
    )  # fmt: skip
    points = sorted(prepared.unfinished())
    if not points:
        print(f"{prepared.directory}: all {len(prepared.params)} points are done")
        return runs.EXIT_DONE
    ask_memory(header, [prepared.params[index] for index in points], machine)
    header["array"] = _ranges(points) + (header.get("array") or "")
    command = _command(["sweep", str(prepared.directory)], machine)
    job = Job(prepared.directory, request.notebook, header, command, tuple(points))
    return _submit(job, machine, prepared.memory, lambda: write_sweep(prepared), is_dry=request.dry_run)


def make_header(given: Sequence[str], machine: Machine) -> Header:
    """Return the options of sbatch: those of slurm/run.sbatch, and over them those given.

    Raises ParamsError for options not written as --NAME or --NAME=VALUE, and for counts that are no number.
    """
    header: Header = {name: value or None for name, value in OPTION.findall(TEMPLATE.read_text())}
    del header["job-name"], header["output"]
    if not machine.capability:
        del header["gres"]
    for text in given:
        match = re.fullmatch(r"--([a-z][\w-]*)(?:=(.+))?", text)
        if match is None:
            raise ParamsError(f"{text}: write an option of sbatch as --NAME=VALUE, such as --time=08:00:00")
        if match[1] == "output" or match[1] == "array" and not (match[2] or "").startswith("%"):
            raise ParamsError(
                f"{text}: is computed; of an array write only how many run at a time, --array=%10"
            )
        if match[1].startswith(("gpus-per-socket", "tres-per-")):
            raise ParamsError(f"{text}: ask for the GPUs of a node by --gres=gpu:N, or --gres=gpu:volta:N")
        if match[1] in COUNTS and not re.fullmatch(r"[1-9]\d*", match[2] or ""):
            raise ParamsError(f"{text}: is not a number of 1 or more; write --{match[1]}=2")
        header[match[1]] = match[2]
    _write_gpus_as_gres(header)
    if count_gpus(header) and not machine.capability:
        raise ParamsError("--gres: asks for a GPU that the profile does not tell; add --machine v100")
    return header


def _write_gpus_as_gres(header: Header) -> None:
    """Write GPUs that are asked for by other options as those of a node: SLURM takes no two of them."""
    num_tasks, num_nodes = (int(header.get(name) or 1) for name in ("ntasks-per-node", "nodes"))
    for name, share in (("gpus", 1 / num_nodes), ("gpus-per-node", 1.0), ("gpus-per-task", float(num_tasks))):
        if name in header:
            text = header.pop(name) or ""
            match = re.fullmatch(r"(|[^:,]+:)(\d+)", text)
            on_node = int(match[2]) * share if match else 0.0
            if match is None or not on_node.is_integer():
                raise ParamsError(f"--{name}={text}: is not a number for each node; write --gres=gpu:volta:2")
            others = re.sub(r"(^|,)(gres[:/])?gpu\b[^,]*", "", header.get("gres") or "").strip(",")
            header["gres"] = f"gpu:{match[1]}{on_node:.0f}" + (f",{others}" if others else "")


def count_gpus(header: Mapping[str, str | None]) -> int:
    """Return the GPUs of a node: 2 for gres=gpu:volta:2."""
    num_gpus = 0
    for resource in (header.get("gres") or "").split(","):
        name, *parts = re.sub(r"^gres[:/]|\(.*", "", resource).split(":")
        if name == "gpu":
            num_gpus += int(parts[-1]) if parts and parts[-1].isdecimal() else 1
    return num_gpus


def count_memory(header: Mapping[str, str | None]) -> float:
    """Return the GiB of a node that the options tell, 0 where they do not, or ask for all of it."""
    for name, count in (("mem", 1), ("mem-per-cpu", int(header["cpus-per-task"] or 1))):
        if match := re.fullmatch(r"(\d+)([KMGT]?)B?", (header.get(name) or "").upper()):
            return int(match[1]) * count * GIB_OF_UNIT[match[2]]
    return 0.0


def ask_memory(
    header: Header, params: Iterable[NotebookParams], machine: Machine, *, num_ranks: int = 1
) -> None:
    """Ask for the memory that the largest of these runs needs on a node, unless the options tell it."""
    if any(name in header for name in MEMORY_OPTIONS):
        return
    num_workers = int(header["cpus-per-task"] or 1) // num_ranks
    needed = max(estimate_host_memory(each, machine, num_workers=num_workers) for each in params)
    if needed:
        header["mem"] = f"{math.ceil(MEMORY_MARGIN * needed * num_ranks)}G"


def _command(
    arguments: Sequence[str], machine: Machine, *, ranks_on_node: int = 1, num_nodes: int = 1
) -> str:
    """Return the lines of a script that set `command` to `rlnb` with these arguments."""
    # The job chooses as was checked, also on a GPU with more memory.
    memory = f"export RLNB_GPU_MEMORY={machine.memory_gib:g}\n" if machine.capability else ""
    nproc = ["--nproc", str(ranks_on_node)] if ranks_on_node > 1 and num_nodes == 1 else []
    program = shlex.join([str(runs.PROGRAM), *arguments, *nproc])
    if arguments[0] == "sweep":
        program += TASK
    if num_nodes == 1:
        return f"{memory}command=({program})\n"
    task = shlex.quote(f"trap '' USR1; exec {program}")
    num_ranks = num_nodes * ranks_on_node
    return memory + SRUN.format(task=task, num_ranks=num_ranks, ranks_on_node=ranks_on_node)


def _ranges(points: Sequence[int]) -> str:
    """Return 0-3,7 for 0, 1, 2, 3, 7."""
    parts = []
    for _, pairs in groupby(enumerate(points), key=lambda pair: pair[1] - pair[0]):
        part = [point for _, point in pairs]
        parts.append(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]))
    return ",".join(parts)


def _submit(job: Job, machine: Machine, memory: str, write: Callable[[], None], *, is_dry: bool) -> int:
    """Submit a job and say how to watch it, or print the script of a dry run; return the exit code.

    memory: of the run, in a line. write: writes what the job reads. Raises ParamsError where the folder has a
    job in the queue, and for what SLURM refuses; nothing is written then.
    """
    if machine.capability and (installed_version("torch") or "").endswith("+cpu"):
        kind = "volta" if machine.name == "v100" else "cuda"
        print(f"warning: torch here is a CPU's; ./setup.sh {kind} installs the job's", file=sys.stderr)
    if memory:
        print(memory, file=sys.stderr)  # a script that is printed stays whole
    # One of a chain, for clusters that put no job back into the queue.
    is_next = waits_for_job(job.folder, job.header.get("dependency") or "")
    if not is_next:
        refuse_queued(job.folder)
    if is_dry:
        print(job.script(), end="")
        return runs.EXIT_DONE
    _call_sbatch(job, "--test-only", script=job.script())
    make_directory(job.folder)
    with telling_full_disk(job.folder), ExitStack() as stack:
        if not is_next:  # else the run that it waits for has the lock
            stack.enter_context(runs.locked(job.folder))
            refuse_queued(job.folder)
        is_new = not any(job.folder.glob("[!.]*"))
        write()
        path = job.folder / SCRIPT_FILE
        write_text(path, job.script())
        try:
            job_id = _call_sbatch(job, "--parsable", str(path)).split(";")[0]
        except ParamsError:
            if is_new:
                shutil.rmtree(job.folder)
            raise
        content = {"job": job_id, "points": list(job.points)}
        write_text(job.folder / JOB_FILE, json.dumps(content) + "\n")
    log = job.log(f"{job_id}_{job.points[0]}" if job.points else job_id)
    program = shlex.quote(str(runs.PROGRAM))
    what = f"job {job_id}, {len(job.points)} points" if job.points else f"job {job_id}"
    print(f"submitted {what}: {job.folder}")
    print(f"  log:    tail -F {shlex.quote(str(log))}")
    print(f"  state:  {program} runs {shlex.quote(str(job.folder))}")
    print(f"  end it: scancel {job_id}   (the same command again goes on)")
    return runs.EXIT_DONE


def _call_sbatch(job: Job, *arguments: str, script: str = "") -> str:
    """Return what sbatch prints. Raises ParamsError with its reason where it refuses."""
    try:
        answer = subprocess.run(["sbatch", *arguments], input=script, capture_output=True, text=True)
    except FileNotFoundError:
        raise ParamsError(
            "sbatch: not found here; submit on a login node of the cluster, or write --dry-run"
        ) from None
    if answer.returncode:
        lines = (answer.stderr or answer.stdout).splitlines()
        reason = "; ".join(re.sub("^(sbatch: )?(error: )?", "", line) for line in lines)
        resources = " ".join(
            f"--{name}={value}" if value else f"--{name}"
            for name, value in job.header.items()
            if name not in HOW_IT_ENDS
        )
        raise ParamsError(
            f"sbatch: {reason}. The job asks for {resources}; write other options after --, such as "
            "-- --account=NAME --partition=NAME. `sinfo` and `sacctmgr show associations` list what there is."
        )
    return answer.stdout.strip()

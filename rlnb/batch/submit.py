"""`rlnb submit`: a run, or the points of a sweep, as a job of SLURM, checked before it waits in a queue.

The script is slurm/run.sbatch with other options and another command. It is kept in the folder of the run or
the sweep with its log, and job.json there tells which job it was submitted as.
"""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

import rlnb
from rlnb.batch.machines import describe_missing, job_machine
from rlnb.batch.overview import JOB_FILE, refuse_queued
from rlnb.batch.sweeps import Sweep, prepare_sweep, write_sweep
from rlnb.errors import ParamsError
from rlnb.machine import Machine, installed_version, recommend
from rlnb.params import dump_yaml, parse_set
from rlnb.params.loading import choose_profile
from rlnb.params.sections import NotebookParams
from rlnb.run import directory as runs
from rlnb.run.headless import (
    check_params,
    choose_run_directory,
    is_finished,
    make_directory,
    move_run,
    plan_run,
)

TEMPLATE = Path(rlnb.__file__).resolve().parents[1] / "slurm" / "run.sbatch"
SCRIPT_FILE = "job.sbatch"
OPTION = re.compile(r"^#SBATCH --([\w-]+)(?:=(.*))?$", re.MULTILINE)
WARNING_SECONDS = 300  # before the time limit, unless --signal says otherwise
TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<parts>\d+(?::\d+){0,2})")
GPUS = ("gres", "gpus", "gpus-per-node", "gpus-per-task")  # options of sbatch that ask for GPUs
# Ranks on several nodes: a task of SLURM each.
SRUN = """\
tasks=(--ntasks={num_ranks} --kill-on-bad-exit=0 --cpus-per-task="$((SLURM_CPUS_PER_TASK / {ranks_on_node}))")
command=(srun "${{tasks[@]}}" bash -c {task})
"""
TASK = ' --point "$SLURM_ARRAY_TASK_ID"'

Header = dict[str, str | None]  # {option of sbatch: its value, None for one without}


@dataclass(frozen=True)
class JobRequest:
    """A run or a sweep to submit, as `rlnb submit` is given it. sbatch: options such as "--time=08:00:00"."""

    notebook: Path
    profile: str | None = None
    assignments: Sequence[str] = ()
    out: Path | None = None
    machine: str | None = None
    gpu_memory: float | None = None
    sbatch: Sequence[str] = ()
    dry_run: bool = False

    def find_machine(self) -> Machine:
        """Return the machine that the job will get. Raises ParamsError where nothing tells its kind."""
        if self.machine is None and self.profile in (None, "auto"):
            raise ParamsError(
                f"--profile: is {self.profile or 'missing'}, which does not tell what machine the job will "
                "get; name one, or write --machine v100, a100, h100, gb10 or cpu as well"
            )
        return job_machine(self.profile, self.machine, self.gpu_memory)


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


def submit_run(request: JobRequest) -> int:
    """Submit one run and return the exit code.

    Raises ParamsError for all that the job would refuse, and for a run whose job is in the queue already.
    """
    machine = request.find_machine()
    header = make_header(request.sbatch, machine)
    num_gpus, num_nodes = count_gpus(header), int(header["nodes"] or 1)
    plan = plan_run(
        request.notebook,
        profile=request.profile,
        overrides=parse_set(*request.assignments),
        out=request.out,
        num_ranks=max(1, num_gpus) * num_nodes,
        machine=machine,
        is_memory_known=request.gpu_memory is not None,
    )

    def make(directory: Path) -> Job:
        words = ["run", str(request.notebook), "--out", str(directory)]
        command = _command(words, machine, ranks_on_node=max(1, num_gpus), num_nodes=num_nodes)
        return Job(directory, request.notebook, header, command)

    _print_checks(plan.params, machine, plan.memory)
    if not _try(make(plan.directory), is_dry=request.dry_run):
        return runs.EXIT_DONE
    with ExitStack() as stack:
        if request.out is None:
            make_directory(plan.directory.parent)
            chosen = stack.enter_context(runs.claimed_directory(partial(choose_run_directory, plan)))
            plan = move_run(plan, chosen)
        else:
            make_directory(plan.directory)
            stack.enter_context(runs.locked(plan.directory))
        refuse_queued(plan.directory)
        runs.write_text(plan.directory / "params.yaml", dump_yaml(plan.params))
        return _submit(make(plan.directory))


def submit_sweep(request: JobRequest, *, sweep: Path | None, seeds: str | None) -> int:
    """Submit the points of a sweep that are not done as an array, and return the exit code.

    The option --array=%10 of sbatch lets ten of them run at a time.
    """
    machine, profile = request.find_machine(), request.profile
    header = make_header(request.sbatch, machine)
    if int(header["nodes"] or 1) > 1 or count_gpus(header) > 1:
        raise ParamsError("--nodes and GPUs: a point of a sweep has one node and at most one GPU; ask for 1")
    if profile in (None, "auto"):
        profile = choose_profile(request.notebook.stem, recommend(machine).profile)
    prepared = prepare_sweep(
        request.notebook,
        profile=profile,
        sweep=sweep,
        seeds=seeds,
        assignments=request.assignments,
        out=request.out,
    )
    points = sorted(index for index in prepared.params if not _is_done(prepared, index))
    if not points:
        print(f"{prepared.directory}: all {len(prepared.params)} points are done")
        return runs.EXIT_DONE
    memory = _check_points(prepared, points, machine, is_memory_known=request.gpu_memory is not None)
    _print_checks(prepared.params[points[0]], machine, memory)
    header["array"] = _ranges(points) + (header.get("array") or "")
    command = _command(["sweep", str(prepared.directory)], machine)
    job = Job(prepared.directory, request.notebook, header, command, tuple(points))
    if not _try(job, is_dry=request.dry_run):
        return runs.EXIT_DONE
    make_directory(prepared.directory)
    with runs.locked(prepared.directory):
        refuse_queued(prepared.directory)
        write_sweep(prepared)
        return _submit(job)


def _is_done(sweep: Sweep, index: int) -> bool:
    directory = sweep.run_directory(index)
    return directory.is_dir() and is_finished(directory, sweep.params[index])


def _check_points(sweep: Sweep, indices: Sequence[int], machine: Machine, *, is_memory_known: bool) -> str:
    """Check what the points need of the machine, once for those that differ in the seed alone.

    Returns the memory of the first point in a line.
    """
    distinct: dict[str, NotebookParams] = {}
    for index in indices:
        params = sweep.params[index].model_copy(update={"output_dir": str(sweep.directory)})
        distinct.setdefault(params.model_copy(update={"seed": 0}).model_dump_json(), params)
    lines = [check_params(params, machine, is_memory_known=is_memory_known) for params in distinct.values()]
    return lines[0]


def make_header(given: Sequence[str], machine: Machine) -> Header:
    """Return the options of sbatch: those of slurm/run.sbatch, and over them those given.

    Without a --signal the warning comes 300 s before the time limit, or at the last quarter of a shorter one.
    Raises ParamsError for options that are not written as --NAME or --NAME=VALUE.
    """
    header: Header = {name: value or None for name, value in OPTION.findall(TEMPLATE.read_text())}
    del header["job-name"], header["output"]
    if not machine.capability:
        del header["gres"]
    options: Header = {}
    for text in given:
        match = re.fullmatch(r"--([a-z][\w-]*)(?:=(.+))?", text)
        if match is None:
            raise ParamsError(f"{text}: write an option of sbatch as --NAME=VALUE, such as --time=08:00:00")
        if match[1] == "output" or match[1] == "array" and not (match[2] or "").startswith("%"):
            raise ParamsError(
                f"{text}: is computed; of an array write only how many run at a time, --array=%10"
            )
        options[match[1]] = match[2]
    if any(name in options for name in GPUS):
        header.pop("gres", None)
    header |= options
    if count_gpus(header) and not machine.capability:
        raise ParamsError("GPUs: are asked for, of a kind that the profile does not tell; add --machine v100")
    if "signal" not in options:
        seconds = _seconds(header["time"] or "") or 4 * WARNING_SECONDS
        header["signal"] = f"B:USR1@{min(WARNING_SECONDS, seconds // 4)}"
    return header


def count_gpus(header: Mapping[str, str | None]) -> int:
    """Return the GPUs of a node: 2 for gres=gpu:volta:2, for gpus-per-node=2 and for gpus=4 on two nodes."""
    for name in GPUS:
        parts = (header.get(name) or "").split(",")
        asked_for = next((part for part in parts if part.startswith("gpu" if name == "gres" else "")), "")
        if asked_for:
            last = asked_for.rpartition(":")[2]
            count = int(last) if last.isdigit() else 1
            return count // int(header["nodes"] or 1) if name == "gpus" else count
    return 0


def _seconds(time: str) -> int | None:
    """Return the seconds of a time as sbatch takes it, None for other text: 5 and 5:00 are minutes."""
    match = TIME.fullmatch(time)
    if match is None:
        return None
    parts = [int(part) for part in match["parts"].split(":")]
    has_hours = match["days"] is not None or len(parts) == 3
    hours, minutes, seconds = ([*parts, 0, 0] if has_hours else [0, *parts, 0])[:3]
    return 86_400 * int(match["days"] or 0) + 3600 * hours + 60 * minutes + seconds


def _command(
    arguments: Sequence[str], machine: Machine, *, ranks_on_node: int = 1, num_nodes: int = 1
) -> str:
    """Return the lines of a script that set `command` to `rlnb` with these arguments."""
    # The job chooses as was checked, also on a GPU with more memory.
    memory = f"export RLNB_GPU_MEMORY={machine.memory_gib:g}\n" if machine.capability else ""
    nproc = ["--nproc", str(ranks_on_node)] if ranks_on_node > 1 and num_nodes == 1 else []
    program = shlex.join([str(Path(sys.executable).with_name("rlnb")), *arguments, *nproc])
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


def _print_checks(params: NotebookParams, machine: Machine, memory: str) -> None:
    if machine.capability and (installed_version("torch") or "").endswith("+cpu"):
        kind = "volta" if machine.name == "v100" else "cuda"
        print(f"warning: torch here is a CPU's; ./setup.sh {kind} installs the job's", file=sys.stderr)
    if memory:
        print(memory, file=sys.stderr)  # a script that is printed stays whole
    if missing := describe_missing(params, machine):
        print(f"On a node without a network this would be refused:\n{missing}", file=sys.stderr)


def _try(job: Job, *, is_dry: bool) -> bool:
    """Return whether to submit a job that SLURM would take; print the script of a dry run instead.

    Raises ParamsError where its folder has a job in the queue, and for what SLURM refuses. Writes nothing.
    """
    refuse_queued(job.folder)
    if is_dry:
        print(job.script(), end="")
        print("Not submitted. To submit it leave out --dry-run.", file=sys.stderr)
    else:
        _call_sbatch("--test-only", script=job.script())
    return not is_dry


def _submit(job: Job) -> int:
    """Write the script, submit it and say how to watch it."""
    path = job.folder / SCRIPT_FILE
    runs.write_text(path, job.script())
    job_id = _call_sbatch("--parsable", str(path)).split(";")[0]
    log = job.log(f"{job_id}_{job.points[0]}" if job.points else job_id)
    content = {"job": job_id, "points": list(job.points), "log": str(log), "submitted": runs.now()}
    runs.write_text(job.folder / JOB_FILE, json.dumps(content) + "\n")
    what = f"job {job_id}, {len(job.points)} points" if job.points else f"job {job_id}"
    program = shlex.quote(str(Path(sys.executable).with_name("rlnb")))
    print(f"submitted {what}: {job.folder}")
    print(f"  script: {path}")
    print(f"  log:    tail -F {shlex.quote(str(log))}")
    print(f"  state:  {program} runs {shlex.quote(str(job.folder))}")
    print(f"  end it: scancel {job_id}   (the same command again goes on)")
    return runs.EXIT_DONE


def _call_sbatch(*arguments: str, script: str = "") -> str:
    """Return what sbatch prints. Raises ParamsError with its reason where it refuses."""
    command = ["sbatch", *arguments]
    try:
        answer = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ParamsError(
            "sbatch: not found here; submit on a login node of the cluster, or write --dry-run"
        ) from None
    if answer.returncode:
        reason = " ".join((answer.stderr or answer.stdout).split())
        raise ParamsError(
            f"sbatch: {reason}. Ask for what the cluster has, as options of sbatch after --: "
            "-- --partition=gpu --gres=gpu:volta:1"
        )
    return answer.stdout.strip()

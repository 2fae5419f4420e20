"""`rlnb submit`: a run, or the points of a sweep, as a job of SLURM, checked before it waits in a queue.

The script is slurm/run.sbatch with other options and another command. It is kept in the folder of the run or
the sweep with its log, and job.json there tells which job it was submitted as.
"""

import functools
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import rlnb
from rlnb.batch.machines import describe_missing, job_machine
from rlnb.batch.overview import JOB_FILE, refuse_queued
from rlnb.batch.sweeps import check_unchanged, prepare_sweep
from rlnb.errors import ParamsError
from rlnb.machine import Machine, installed_version, recommend
from rlnb.params import dump_yaml, parse_set, resolve
from rlnb.params.loading import choose_profile
from rlnb.params.sections import value_of
from rlnb.run import directory as runs
from rlnb.run.headless import Plan, choose_run_directory, is_finished, make_directory, move_run, plan_run
from rlnb.run.launcher import Ranks

TEMPLATE = Path(rlnb.__file__).resolve().parents[1] / "slurm" / "run.sbatch"
SCRIPT_FILE = "job.sbatch"
OPTION = re.compile(r"^#SBATCH --([\w-]+)(?:=(.*))?$", re.MULTILINE)
DEFAULT_TIME = "04:00:00"
WARNING_SECONDS = 300
TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<parts>\d+(?::\d+){0,2})")
# Options of sbatch that others of the script depend on: the options of `rlnb submit` that set them.
OWN_OPTIONS = {
    "time": "--time", "signal": "--warning-seconds", "nodes": "--nodes", "array": "--sweep and --seeds",
    "cpus-per-task": "--cpus-per-task",
}  # fmt: skip
# Ranks on several nodes: one task of SLURM a node, which starts that node's ranks.
RENDEZVOUS = """\
master=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):$((20000 + SLURM_JOB_ID % 20000))
on_node={on_node}
tasks=({share} --kill-on-bad-exit=0 --cpus-per-task="$SLURM_CPUS_PER_TASK")
command=(srun "${{tasks[@]}}" bash -c "$on_node" "$master")
"""
# The last node of the job writes completions for the trainer on the others. The address in the parameters is
# the same for each attempt; the node is not.
VLLM_PORT, VLLM_ADDRESS = 8000, "http://$VLLM_NODE:8000"
VLLM_SECONDS = 3600  # until it answers: a large model is read from a slow disk
VLLM_SERVER = """\
export VLLM_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | tail -n 1)
srun --nodes=1 --ntasks=1 --nodelist="$VLLM_NODE" --cpus-per-task="$SLURM_CPUS_PER_TASK" {serve} >{log} 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null' EXIT
give_up() {{
    echo "$1: $(tail -n 1 {log})"
    finish "$2"
}}
trap 'give_up "stopped before vLLM was ready" 85' TERM
echo "waiting for vLLM on $VLLM_NODE"
until curl --silent --fail --output /dev/null --max-time 5 "http://$VLLM_NODE:{port}/health"; do
    kill -0 "$server" 2>/dev/null || give_up "vLLM has ended before it was ready" 1
    [ -z "$warned" ] || give_up "the time limit is near and vLLM is not ready" 1
    [ "$SECONDS" -lt {seconds} ] || give_up "vLLM is not ready after {seconds} seconds" 1
    sleep 2
done
# When the server ends, the run cannot go on: it is told to save.
(while kill -0 "$server"; do sleep 2; done; kill -USR2 $$) >/dev/null 2>&1 &
trap "kill $! $server 2>/dev/null" EXIT
vllm_has_ended() {{
    echo "vLLM has ended: $(tail -n 1 {log})"
    [ -z "$run" ] || stop
}}
trap vllm_has_ended USR2
"""


@dataclass(frozen=True)
class JobOptions:
    """What is asked of SLURM; None leaves what slurm/run.sbatch says.

    nodes: that train; vllm_node: the job has one more. gpus: of a node; None means 1 for a profile that is
    for a GPU, else 0. others: any option of sbatch, "qos=long". array_parallel: the points of a sweep that
    run at the same time.
    """

    time: str | None = None
    gpus: int | None = None
    nodes: int = 1
    cpus_per_task: int | None = None
    partition: str | None = None
    warning_seconds: int | None = None
    array_parallel: int | None = None
    vllm_node: bool = False
    others: tuple[str, ...] = ()

    @property
    def warning(self) -> int:
        """The seconds before the limit at which the job is to save: a quarter of a short job, at most 300."""
        if self.warning_seconds is not None:
            return self.warning_seconds
        return min(WARNING_SECONDS, (_seconds(self.time or DEFAULT_TIME) or 4 * WARNING_SECONDS) // 4)

    def check(self) -> None:
        """Raise ParamsError for numbers that cannot be, and options that are not written as NAME=VALUE."""
        limit = _seconds(self.time or DEFAULT_TIME)
        if limit is None:
            raise ParamsError(f"--time {self.time}: is not a time of SLURM; write 08:00:00, or 2-00:00:00")
        if 0 < limit <= self.warning:
            raise ParamsError(f"--warning-seconds {self.warning}: is all of --time {self.time}; write less")
        least = {"gpus": 0, "nodes": 1, "cpus_per_task": 1, "warning_seconds": 0, "array_parallel": 1}
        for name, lowest in least.items():
            value = getattr(self, name)
            if value is not None and value < lowest:
                raise ParamsError(f"--{name.replace('_', '-')} {value}: is at least {lowest}")
        for other in self.others:
            if not re.fullmatch(r"(--)?[a-z][\w-]*(=.*)?", other):
                raise ParamsError(
                    f"--sbatch-option {other}: write NAME=VALUE, as in --sbatch-option qos=long"
                )
            name = other.removeprefix("--").partition("=")[0]
            if name in OWN_OPTIONS:
                raise ParamsError(
                    f"--sbatch-option {other}: is computed from {OWN_OPTIONS[name]}; write that"
                )


def _seconds(time: str) -> int | None:
    """Return the seconds of a time as sbatch takes it, None where it is none: 5 and 5:00 are minutes.

    0 is no limit of the job's own.
    """
    match = TIME.fullmatch(time)
    if match is None:
        return None
    parts = [int(part) for part in match["parts"].split(":")]
    has_hours = match["days"] is not None or len(parts) == 3
    hours, minutes, seconds = ([*parts, 0, 0] if has_hours else [0, *parts, 0])[:3]
    return 86_400 * int(match["days"] or 0) + 3600 * hours + 60 * minutes + seconds


@dataclass(frozen=True)
class Job:
    """A script to submit: its folder, its name and its lines. points: of an array, in their order."""

    folder: Path
    name: str
    script: str
    points: tuple[int, ...] = ()

    @property
    def path(self) -> Path:
        return self.folder / SCRIPT_FILE

    def log(self, number: str) -> Path:
        """Return the log of the job with this number; number: "%j", "%A_%a" or what they stand for."""
        return self.folder / f"{self.name}-{number}.log"


def submit_run(
    notebook: Path,
    *,
    profile: str | None,
    overrides: Mapping[str, object],
    out: Path | None,
    options: JobOptions,
    machine: str | None = None,
    gpu_memory: float | None = None,
    is_dry: bool = False,
) -> int:
    """Submit one run and return the exit code; the arguments are those of `rlnb submit`.

    Raises ParamsError for all that the job would refuse, and for a run whose job is in the queue already.
    """
    options.check()
    if options.array_parallel is not None:
        raise ParamsError(
            f"--array-parallel {options.array_parallel}: is for a sweep; give --sweep or --seeds"
        )
    target = _check_target(profile, options, machine, gpu_memory)
    num_gpus = _count_gpus(options, target)
    ranks = Ranks(max(1, num_gpus), options.nodes)
    if options.vllm_node:
        given = overrides.get("vllm")
        server = {"enabled": True, "server_base_url": VLLM_ADDRESS}
        overrides = {**overrides, "vllm": {**(given if isinstance(given, dict) else {}), **server}}
    plan = plan_run(
        notebook, profile=profile, overrides=overrides, out=out,
        ranks=ranks, machine=target, is_memory_known=gpu_memory is not None,
    )  # fmt: skip
    with ExitStack() as stack:
        if out is None:
            make_directory(plan.directory.parent)

            def choose(without: Collection[Path]) -> Path:
                return choose_run_directory(plan, without)

            plan = move_run(plan, stack.enter_context(runs.claimed_directory(choose)))
        else:
            make_directory(plan.directory)
            stack.enter_context(runs.locked(plan.directory))
        refuse_queued(plan.directory)
        is_ready = _write(plan.directory / "params.yaml", dump_yaml(plan.params), is_dry=is_dry)
        command = ["run", str(notebook), "--out", str(plan.directory)]
        name = f"{notebook.stem}-{plan.directory.name}"
        before = _fix_memory(target)
        before += _vllm_server(plan, num_gpus=num_gpus) if options.vllm_node else ""
        job = _make_job(plan.directory, name, command, options, num_gpus=num_gpus, before=before)
        _print_checks(plan)
        return _print_script(job, is_ready=is_ready) if is_dry else _submit(job)


def submit_sweep(
    notebook: Path,
    *,
    profile: str | None,
    sweep: Path | None,
    seeds: str | None,
    assignments: Sequence[str],
    out: Path | None,
    options: JobOptions,
    machine: str | None = None,
    gpu_memory: float | None = None,
    is_dry: bool = False,
) -> int:
    """Submit the points of a sweep that are not done as an array; the arguments are as in `submit_run`."""
    options.check()
    target = _check_target(profile, options, machine, gpu_memory)
    if profile in (None, "auto"):
        profile = choose_profile(notebook.stem, recommend(target).profile)
    num_gpus = _count_gpus(options, target)
    if options.vllm_node:
        raise ParamsError("--vllm-node: is for one run; write a submit for each point")
    if options.nodes > 1 or num_gpus > 1:
        raise ParamsError("--nodes and --gpus: a point of a sweep has one node and one GPU; write 1")
    prepared = prepare_sweep(
        notebook, profile=profile, sweep=sweep, seeds=seeds, assignments=assignments, out=out
    )
    check = functools.partial(plan_run, notebook, machine=target, is_memory_known=gpu_memory is not None)
    points: dict[int, Plan] = {}
    for index in prepared.selected:
        overrides = parse_set(*prepared.points[index].assignments())
        plan = check(profile=prepared.profile, overrides=overrides, out=prepared.run_directory(index))
        if not is_finished(plan.directory, plan.params):
            points[index] = plan
    if not points:
        print(f"{prepared.directory}: all {len(prepared.selected)} points are done")
        return runs.EXIT_DONE
    command = ["sweep", str(prepared.directory)]
    name = f"{notebook.stem}-{prepared.directory.name}"
    job = _make_job(
        prepared.directory, name, command, options,
        num_gpus=num_gpus, points=list(points), before=_fix_memory(target),
    )  # fmt: skip
    make_directory(prepared.directory)
    with runs.locked(prepared.directory):
        refuse_queued(prepared.directory)
        check_unchanged(prepared)
        is_ready = _write(prepared.directory / runs.POINTS_FILE, prepared.text(), is_dry=is_dry)
        _print_checks(next(iter(points.values())))
        return _print_script(job, is_ready=is_ready) if is_dry else _submit(job)


def _check_target(
    profile: str | None, options: JobOptions, machine: str | None, gpu_memory: float | None
) -> Machine:
    if machine is None and profile in (None, "auto"):
        raise ParamsError(
            f"--profile: is {profile or 'missing'}, which does not tell what machine the job will get; name "
            "one, or write --machine v100, a100, h100, gb10 or cpu as well"
        )
    target = job_machine(profile, machine, gpu_memory)
    if options.gpus and target.capability is None:
        raise ParamsError(
            f"--gpus {options.gpus}: profile {profile} does not tell which GPU that is; "
            "write --machine v100, a100, h100 or gb10 as well"
        )
    return target


def _count_gpus(options: JobOptions, target: Machine) -> int:
    """Return the GPUs of a node."""
    return (1 if target.capability else 0) if options.gpus is None else options.gpus


def _write(path: Path, text: str, *, is_dry: bool) -> bool:
    """Write what the job will read, and return whether it is there: a dry run changes no file that is."""
    if is_dry and path.exists():
        return path.read_text(encoding="utf-8") == text
    runs.write_text(path, text)
    return True


def _fix_memory(target: Machine) -> str:
    """Return the line by which the job chooses as was checked, also on a GPU with more memory."""
    return f"export RLNB_GPU_MEMORY={target.memory_gib:g}\n" if target.capability else ""


def _make_job(
    folder: Path,
    name: str,
    arguments: Sequence[str],
    options: JobOptions,
    *,
    num_gpus: int,
    points: Sequence[int] = (),
    before: str = "",
) -> Job:
    """Return the script that runs `rlnb` with these arguments.

    points: of the array, () for one job. before: lines that come before the command.
    """
    job = Job(folder, name, "", tuple(points))
    program = [str(Path(sys.executable).with_name("rlnb")), *arguments]
    if num_gpus > 1:
        program += ["--nproc", str(num_gpus)]
    command = f"command=({shlex.join(program)}{_TASK if points else ''})\n"
    if options.nodes > 1:
        rank = f'--nnodes {options.nodes} --node-rank "$SLURM_PROCID" --master "$0"'
        # All nodes, but for the one of vLLM.
        share = f"--nodes={options.nodes} --ntasks={options.nodes}" if options.vllm_node else ""
        on_node = f"trap '' USR1; exec {shlex.join(program)} {rank}"
        command = RENDEZVOUS.format(on_node=shlex.quote(on_node), share=share)
    header = _header(job, options, num_gpus=num_gpus)
    return Job(folder, name, _fill_in(header, before + command), job.points)


def _vllm_server(plan: Plan, *, num_gpus: int) -> str:
    """Return the lines that start a server of the run's model on the last node and wait for it."""
    params = resolve(plan.params.complete(), recommend(plan.machine))
    model, cache_dir = (str(value_of(params, f"model.{name}")) for name in ("id", "cache_dir"))
    trl = shlex.join([str(Path(sys.executable).with_name("trl")), "vllm-serve", "--model", model])
    serve = (
        f"env HF_HUB_CACHE={shlex.quote(str(Path(cache_dir).absolute()))} {trl} --host 0.0.0.0 "
        f"--port {VLLM_PORT} --tensor_parallel_size {max(1, num_gpus)} "
        f"--max_model_len {value_of(params, 'vllm.max_model_len')}"
    )
    log = shlex.quote(str((plan.directory / "vllm.log").absolute()))
    return VLLM_SERVER.format(serve=serve, log=log, port=VLLM_PORT, seconds=VLLM_SECONDS)


_TASK = ' --point "$SLURM_ARRAY_TASK_ID"'


def _header(job: Job, options: JobOptions, *, num_gpus: int) -> dict[str, str | None]:
    """Return {option of sbatch: value}, None for one without a value."""
    header: dict[str, str | None] = dict(OPTION.findall(TEMPLATE.read_text()))
    header = {name: value or None for name, value in header.items()}
    header |= {"job-name": job.name, "output": str(job.log("%A_%a" if job.points else "%j").absolute())}
    header |= {"gres": f"gpu:{num_gpus}", "nodes": str(options.nodes + options.vllm_node)}
    if not num_gpus:
        del header["gres"]
    if job.points:
        limit = f"%{options.array_parallel}" if options.array_parallel else ""
        header["array"] = _ranges(job.points) + limit
    given = {
        "time": options.time or DEFAULT_TIME,
        "cpus-per-task": options.cpus_per_task,
        "partition": options.partition,
        "signal": f"B:USR1@{options.warning}",
    }
    header |= {name: str(value) for name, value in given.items() if value is not None}
    for other in options.others:
        name, _, value = other.removeprefix("--").partition("=")
        header[name] = value or None
    return header


def _ranges(numbers: Sequence[int]) -> str:
    """Return 0-3,7 for 0, 1, 2, 3, 7."""
    parts: list[list[int]] = []
    for point in sorted(numbers):
        if parts and parts[-1][-1] == point - 1:
            parts[-1].append(point)
        else:
            parts.append([point])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def _fill_in(header: Mapping[str, str | None], command: str) -> str:
    """Return slurm/run.sbatch with this header and command, to be run in this folder."""
    lines = TEMPLATE.read_text(encoding="utf-8").splitlines(keepends=True)
    first = next(index for index, line in enumerate(lines) if line.startswith("#SBATCH"))
    body = "".join(line for line in lines[first:] if not line.startswith("#SBATCH"))
    options = "".join(
        f"#SBATCH --{name}" + (f"={shlex.quote(value)}" if value else "") + "\n"
        for name, value in header.items()
    )
    body = re.sub(
        r"^project=.*\n", lambda _: f"project={shlex.quote(str(Path.cwd()))}\n", body, flags=re.MULTILINE
    )
    body = re.sub(r"^command=.*\n", lambda _: command, body, count=1, flags=re.MULTILINE)
    return f"#!/bin/bash\n# Written by `rlnb submit` from slurm/run.sbatch.\n{options}{body}"


def _print_checks(plan: Plan) -> None:
    if plan.machine.capability and (installed_version("torch") or "").endswith("+cpu"):
        kind = "volta" if plan.machine.name == "v100" else "cuda"
        print(f"warning: torch here is a CPU's; ./setup.sh {kind} installs the job's", file=sys.stderr)
    if plan.memory:
        print(plan.memory, file=sys.stderr)  # a script that is printed stays whole
    if missing := describe_missing(plan):
        print(f"On a node without a network this would be refused:\n{missing}", file=sys.stderr)


def _print_script(job: Job, *, is_ready: bool) -> int:
    """Print the script; write it where the files that it reads are as it needs them."""
    print(job.script, end="")
    if is_ready:
        runs.write_text(job.path, job.script)
        end = (
            "To submit it leave out --dry-run, or by hand, of which a second submit does not know: "
            f"sbatch {shlex.quote(str(job.path))}"
        )
    else:
        end = (
            f"{job.folder} keeps its settings, which are others; to change and submit it leave out --dry-run"
        )
    print(f"Not submitted. {end}", file=sys.stderr)
    return runs.EXIT_DONE


def _submit(job: Job) -> int:
    """Write the script, submit it and say how to watch it."""
    runs.write_text(job.path, job.script)
    _call_sbatch("--test-only", str(job.path))
    job_id = _call_sbatch("--parsable", str(job.path)).split(";")[0]
    log = job.log(f"{job_id}_{job.points[0]}" if job.points else job_id)
    content = {"job": job_id, "points": list(job.points), "log": str(log), "submitted": runs.now()}
    runs.write_text(job.folder / JOB_FILE, json.dumps(content) + "\n")
    what = f"job {job_id}, {len(job.points)} points" if job.points else f"job {job_id}"
    print(f"submitted {what}: {job.folder}")
    for line in _how_to_watch(job, job_id, log):
        print(line)
    return runs.EXIT_DONE


def _how_to_watch(job: Job, job_id: str, log: Path) -> Iterator[str]:
    program = shlex.quote(str(Path(sys.executable).with_name("rlnb")))
    yield f"  script: {job.path}"
    yield f"  log:    tail -F {shlex.quote(str(log))}"
    yield f"  state:  {program} runs {shlex.quote(str(job.folder))}"
    yield f"  end it: scancel {job_id}   (the same command again goes on)"


def _call_sbatch(*arguments: str) -> str:
    """Return what sbatch prints. Raises ParamsError with its reason where it refuses."""
    try:
        answer = subprocess.run(["sbatch", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ParamsError(
            "sbatch: not found here; submit on a login node of the cluster, or write --dry-run"
        ) from None
    if answer.returncode:
        reason = " ".join((answer.stderr or answer.stdout).split())
        raise ParamsError(
            f"sbatch: {reason}. Ask for what the cluster has: --partition, --time, --cpus-per-task, --gpus, "
            "or any option of sbatch by --sbatch-option gres=gpu:volta:1"
        )
    return answer.stdout.strip()

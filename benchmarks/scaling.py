"""How much two workers do of twice what one does: ranks that train, and workers of the sandbox.

    python benchmarks/scaling.py --json       # measures; minutes
    python benchmarks/scaling.py --tables     # the estimates of docs/scaling.md; seconds

One and two take turns, so that whatever else the machine does hits both alike; each round gives a ratio, and
the median of the ratios is reported. On a machine whose cores others use, two cannot be faster than one.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import run

from rlnb.machine import Machine, recommend
from rlnb.machine.table import MACHINES as TABLE
from rlnb.params import load_params, resolve
from rlnb.params.loading import choose_profile
from rlnb.params.sections import NotebookParams, value_of
from rlnb.run.memory import estimate_memory
from rlnb.run.model_sizes import ModelSizes, load_model_sizes
from rlnb.run.scaling import Hardware, estimate_efficiency, estimate_step
from rlnb.run.tracking import read_metrics
from rlnb.sandbox import Sandbox

ROOT = Path(__file__).parents[1]
NOWHERE = {"HF_HOME": "/nowhere"}  # sizes as the models were published, the same everywhere
V100 = Machine("v100", "V100", (7, 0), 32.0, 8, "workstation", "unasked")
GB10 = Machine("gb10", "GB10", (12, 1), 119.7, 8, "workstation", "unasked")
H100 = Machine("h100", "H100", (9, 0), 79.6, 8, "workstation", "unasked")
# Peak figures as NVIDIA publishes them; sources are on the page.
MACHINES = (
    (V100, Hardware("1 V100", tflops=112, memory=900)),
    (GB10, Hardware("1 GB10", tflops=125, memory=273)),
    (H100, Hardware("8 H100", tflops=989, memory=3350, gpus=8, link=450)),
    (H100, Hardware("4 x 8 H100", tflops=989, memory=3350, gpus=8, nodes=4, link=450, network=50)),
)
PIPELINES = (
    "grpo_code_execution", "grpo_code_game", "gpt_oss_2048", "spiral_self_play", "ppo_openspiel",
)  # fmt: skip
STEPS = ("training.max_steps=4", "training.num_threads=1", "training.games_per_step=256")
QUIET = (
    "evaluation.enabled=false",
    "mbpp.enabled=false",
    "training.save_steps=100",
    "tracking.tensorboard=false",
)


def load_profile(notebook: str, machine: Machine) -> NotebookParams | None:
    """Return the parameters that a machine takes by itself; None where the model is refused there."""
    by_unsloth = notebook == "gpt_oss_2048"
    if by_unsloth and not any(row.unsloth for row in TABLE if row.name == machine.name):
        return None
    profile = choose_profile(notebook, recommend(machine, environ={}).profile)
    overrides = {"model": {"cache_dir": "nowhere", "engine": "transformers"}}
    params = load_params(notebook, profile=profile, overrides=overrides, environ={})
    if by_unsloth:  # it need not be installed here
        model = value_of(params, "model").model_copy(update={"engine": "unsloth"})
        params = params.model_copy(update={"model": model})
    return resolve(params, recommend(machine, environ={}), environ={})


def render_rows() -> list[str]:
    """Return the rows of the page's table, all of them estimates."""
    rows = []
    for notebook in PIPELINES:
        for machine, hardware in MACHINES:
            params = load_profile(notebook, machine)
            if params is None:
                rows.append(f"| {notebook} | {hardware.name} |" + " - |" * 11)
                continue
            model_id = value_of(params, "model.id")
            sizes = load_model_sizes(model_id, "nowhere", environ=NOWHERE)
            memory = estimate_memory(params, machine, environ=NOWHERE)
            if sizes is None or memory is None:
                raise SystemExit(f"{model_id}: its sizes are not known")
            step, efficiency = (
                estimate_step(params, sizes, hardware),
                estimate_efficiency(params, sizes, hardware),
            )
            parts = (step.reward, step.worst_reward, step.update, step.exchange, step.seconds)
            cells = [Path(model_id).name, f"{step.tokens:,}", f"{memory.total_gib:.0f}"]
            cells += [show_seconds(step.generation), generate_by_vllm(params, sizes, machine, hardware)]
            cells += [*map(show_seconds, parts), step.bound, f"{efficiency:.0%}"]
            rows.append(f"| {notebook} | {hardware.name} | {' | '.join(cells)} |")
    return rows


def generate_by_vllm(params: NotebookParams, sizes: ModelSizes, machine: Machine, hardware: Hardware) -> str:
    """Return the seconds of generation by vLLM, a dash where the notebook or the machine does not have it."""
    vllm = getattr(params, "vllm", None)
    if vllm is None or not any(row.vllm for row in TABLE if row.name == machine.name):
        return "-"
    enabled = params.model_copy(update={"vllm": vllm.model_copy(update={"enabled": True})})
    return show_seconds(estimate_step(enabled, sizes, hardware).generation)


def show_seconds(seconds: float) -> str:
    """Return two digits that count: 0.012, 3.4, 120."""
    if seconds == 0:
        return "0"
    return f"{seconds:.2g}" if seconds < 100 else f"{float(f'{seconds:.2g}'):.0f}"


def time_training(num_ranks: int) -> float:
    """Return the seconds of an update of SPIRAL by ranks that share its games, start-up left out."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        settings = [word for field in (*STEPS, *QUIET) for word in ("--set", field)]
        notebook = [
            "run",
            "notebooks/spiral_self_play.ipynb",
            "--profile",
            "tiny",
            "--out",
            str(out),
            *settings,
        ]
        command = [sys.executable, "-m", "rlnb.cli", *notebook, "--nproc", str(num_ranks)]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "RLNB_OFFLINE": "1"}
        done = run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        rows = [row for row in read_metrics(out / "metrics.jsonl") if "time/update_seconds" in row]
        return statistics.median(row["time/rollout_seconds"] + row["time/update_seconds"] for row in rows[1:])


def measure_ratio(time_one: Callable[[], float], time_two: Callable[[], float], *, rounds: int) -> float:
    """Return how many times as fast two are as one, the median of the rounds: one two, one two."""
    return statistics.median(time_one() / time_two() for _ in range(rounds))


def measure_sandbox(*, rounds: int, count: int = 400) -> float:
    """Return the ratio for the workers of two sandboxes."""
    programs = [f"print(sum(range({number})))" for number in range(count)]
    with Sandbox(num_workers=1) as one, Sandbox(num_workers=2) as two:

        def time_programs(sandbox: Sandbox) -> float:
            started = time.perf_counter()
            executions = sandbox.run_many(programs)
            if [execution.stdout for execution in executions] != [f"{sum(range(n))}\n" for n in range(count)]:
                raise SystemExit("an output is wrong")
            return time.perf_counter() - started

        time_programs(one), time_programs(two)  # warm
        return measure_ratio(lambda: time_programs(one), lambda: time_programs(two), rounds=rounds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", action="store_true", help="print the estimates and measure nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.tables:
        print(*render_rows(), sep="\n")
        return
    sandbox = measure_sandbox(rounds=3 * options.rounds)
    ranks = measure_ratio(lambda: time_training(1), lambda: time_training(2), rounds=options.rounds)
    load, _, _ = os.getloadavg()
    figures = {
        "sandbox_2_over_1": sandbox, "sandbox_efficiency": sandbox / 2,
        "ranks_2_over_1": ranks, "ranks_efficiency": ranks / 2, "rounds": options.rounds,
        "cores": len(os.sched_getaffinity(0)), "load_average": load,
    }  # fmt: skip
    for name, value in figures.items():
        print(f"{name}: {value:.3g}")
    if options.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()

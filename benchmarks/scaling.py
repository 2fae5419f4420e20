"""How much two workers do of twice what one does: ranks that train, and workers of the sandbox.

    python benchmarks/scaling.py --json       # measures; minutes
    python benchmarks/scaling.py --tables     # prints the estimates; docs/many_ranks.md shows the steps

The estimates: a token takes 2 operations a parameter forwards and 4 backwards (Kaplan et al. 2020,
arXiv:2001.08361), with frozen weights 2 of the 4; decoding reads the weights and the keys and values for each
token (Pope et al. 2022, arXiv:2211.05102).

The measurements: one and two take turns, so that whatever else the machine does hits both alike; each round
gives a ratio, and the median of the ratios is reported. On a machine whose cores others use, two cannot be
faster than one.
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
from typing import NamedTuple

from rlnb.machine import Machine, recommend
from rlnb.machine.table import MACHINES as TABLE
from rlnb.params import load_params, resolve
from rlnb.params.loading import choose_profile
from rlnb.params.sections import ModelParams, NotebookParams, value_of
from rlnb.run.memory import (
    BYTES,
    ModelSizes,
    estimate_memory,
    get_value,
    load_model_sizes,
    longest_prompt,
    weight_bytes,
)
from rlnb.run.tracking import read_metrics
from rlnb.sandbox import Sandbox

ROOT = Path(__file__).parents[1]
# Shares of the peak that a run gets, assumed, and what a layer's launches take of a decoded token: by
# transformers, with adapters on all linear layers, measured (docs/results.md#on-a-gpu); by vLLM assumed.
COMPUTE_SHARE, READ_SHARE = 0.35, 0.6
LAUNCH_SECONDS, GRAPH_SECONDS = 2.0e-3, 0.03e-3  # of a layer, by transformers and by vLLM
PROGRAMS_PER_SECOND = 520.0  # trivial ones in the sandbox, a worker: docs/results.md#the-sandbox, measured
WORKERS = 8  # cores of a GPU's share of its node
PLIES = 7  # of a game of tic-tac-toe, both seats


class Hardware(NamedTuple):
    """The peak figures of a GPU: dense 16-bit TFLOP/s, GB/s of its memory, GB/s one way to other GPUs.

    link, network: in the node, and for each GPU between nodes; 0 where there is one GPU, or one node.
    """

    name: str
    tflops: float
    memory: float
    gpus: int = 1
    nodes: int = 1
    link: float = 0.0
    network: float = 0.0

    @property
    def num_ranks(self) -> int:
        return self.gpus * self.nodes


V100 = Machine("v100", "V100", (7, 0), 32.0, 8, "workstation", "unasked")
GB10 = Machine("gb10", "GB10", (12, 1), 95.8, 8, "workstation", "unasked")
H100 = Machine("h100", "H100", (9, 0), 79.6, 8, "workstation", "unasked")
# What config.json of the models of the profiles says, of a whole list of repositories.
NAMES = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "vocab_size",
)  # fmt: skip
GPT_OSS = {"num_local_experts": 32, "num_experts_per_tok": 4}
TIED = {"tie_word_embeddings": True}
PUBLISHED = {
    "tiny-2x128": ((128, 384, 2, 4, 4, 32, 259), {}),
    "tiny-code-2x128": ((128, 384, 2, 4, 4, 32, 711), {}),
    "SmolLM2-135M-Instruct": ((576, 1536, 30, 9, 3, 64, 49_152), TIED),
    "Qwen/Qwen2.5-1.5B": ((1536, 8960, 28, 12, 2, 128, 151_936), TIED),
    "Qwen/Qwen2.5-3B": ((2048, 11_008, 36, 16, 2, 128, 151_936), TIED),
    "Qwen/Qwen3-4B": ((2560, 9728, 36, 32, 8, 128, 151_936), TIED),
    "unsloth/gpt-oss-20b": ((2880, 2880, 24, 64, 8, 64, 201_088), GPT_OSS),
    "unsloth/gpt-oss-20b-BF16": ((2880, 2880, 24, 64, 8, 64, 201_088), GPT_OSS),
}
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
QUIET = ("evaluation.enabled=false", "mbpp.enabled=false", "training.save_steps=100")


class StepEstimate(NamedTuple):
    """Seconds of one step, and the tokens of all ranks that it learns from.

    worst_reward: if every program runs into its time limit. exchange: of gradients between the ranks.
    """

    tokens: int
    generation: float
    reward: float
    update: float
    exchange: float
    worst_reward: float

    @property
    def seconds(self) -> float:
        return self.generation + self.reward + self.update + self.exchange

    @property
    def bound(self) -> str:
        """The part that takes longest."""
        parts = ("generation", "reward", "update", "exchange")
        return max(parts, key=lambda part: float(getattr(self, part)))


class StepBatch(NamedTuple):
    """What a rank writes and learns from in a step; prompts and answers are the longest that are allowed.

    at_once: rows that are decoded together. passes: times that the update reads a row. updates: optimizer
    steps. programs: that are run for the reward.
    """

    rows: int
    prompt: int
    answer: int
    at_once: int
    passes: int = 1
    updates: int = 1
    programs: int = 0


def estimate_step(params: NotebookParams, sizes: ModelSizes, hardware: Hardware) -> StepEstimate:
    """Return the time of a training step. params: without "auto"."""
    model: ModelParams = value_of(params, "model")
    batch = count_batch(params, hardware)
    flops = hardware.tflops * 1e12 * COMPUTE_SHARE
    # Of experts those that a token is sent to.
    parameters = sizes.parameters - sizes.experts
    parameters += 3 * sizes.layers * sizes.width * sizes.mlp if sizes.experts else 0
    # Of each answer's token: the weights, and the keys and values of half of the answer on average.
    cached = (
        batch.at_once * (batch.prompt + batch.answer / 2) * sizes.layers * 2 * sizes.keys * BYTES[model.dtype]
    )
    num_bytes = weight_bytes(model, sizes) + cached
    read = num_bytes / (hardware.memory * 1e9 * READ_SHARE)
    launches = sizes.layers * (GRAPH_SECONDS if get_value(params, "vllm.enabled") else LAUNCH_SECONDS)
    token = max(read, 2 * parameters * batch.at_once / flops) + launches
    # An answer of one token is read off the prompt's pass.
    decoding = -(-batch.rows // batch.at_once) * (batch.answer - 1) * token
    generation = 2 * parameters * batch.rows * batch.prompt / flops + decoding
    operations = 4 if model.lora_rank or model.adapters else 6
    operations += 2 if get_value(params, "training.gradient_checkpointing") else 0
    tokens = batch.rows * (batch.prompt + batch.answer)
    return StepEstimate(
        tokens=tokens * hardware.num_ranks,
        generation=generation,
        reward=batch.programs / (PROGRAMS_PER_SECOND * WORKERS),
        update=operations * parameters * tokens * batch.passes / flops,
        exchange=batch.updates * exchange_seconds(gradient_bytes(model, sizes), hardware),
        worst_reward=batch.programs * get_value(params, "sandbox.timeout_seconds") / WORKERS,
    )


def estimate_efficiency(params: NotebookParams, sizes: ModelSizes, hardware: Hardware) -> float:
    """Return the tokens a second and rank, over those of one such GPU alone with these parameters."""
    alone = estimate_step(params, sizes, hardware._replace(gpus=1, nodes=1))
    together = estimate_step(params, sizes, hardware)
    return together.tokens / together.seconds / hardware.num_ranks / (alone.tokens / alone.seconds)


def count_batch(params: NotebookParams, hardware: Hardware) -> StepBatch:
    """Return what a rank does in a step: its share of self-play's games, or a batch of GRPO of its own."""
    prompt = longest_prompt(params)
    if get_value(params, "training.games_per_step"):
        games = -(-value_of(params, "training.games_per_step") // hardware.num_ranks)
        epochs, parts = (
            get_value(params, "training.num_epochs"),
            get_value(params, "training.num_mini_batches"),
        )
        is_free = value_of(params, "game.acting") == "free"
        answer = value_of(params, "game.max_new_tokens") if is_free else 1
        at_once = min(games, value_of(params, "game.batch_size")) if is_free else games
        return StepBatch(games * PLIES, prompt, answer, at_once, passes=epochs, updates=epochs * parts)
    rows = value_of(params, "training.per_device_train_batch_size")
    rows *= value_of(params, "training.gradient_accumulation_steps")
    answer = value_of(params, "training.max_completion_length")
    # A strategy for 2048 plays on several boards.
    programs = rows * max(1, get_value(params, "reward.num_boards"))
    return StepBatch(rows, prompt, answer, at_once=rows, programs=programs)


def gradient_bytes(model: ModelParams, sizes: ModelSizes) -> int:
    """Return the bytes of gradients that the ranks exchange: adapters are float32."""
    if model.lora_rank or model.adapters:
        return 4 * sizes.count_adapters(model)
    return BYTES[model.dtype] * sizes.parameters


def exchange_seconds(num_bytes: float, hardware: Hardware) -> float:
    """Return the time of an all-reduce in a ring: 2 (k - 1) / k times the bytes over the slowest link."""
    ranks = hardware.num_ranks
    slowest = hardware.network if hardware.nodes > 1 else hardware.link
    return 2 * (ranks - 1) / ranks * num_bytes / (slowest * 1e9) if ranks > 1 else 0.0


def write_published(cache_dir: Path) -> None:
    """Write the config.json of each model of the profiles into a model cache."""
    for name, (sizes, others) in PUBLISHED.items():
        folder = cache_dir / ("models--" + name.replace("/", "--")) / "snapshots" / "published"
        folder = folder if "/" in name else cache_dir / name
        folder.mkdir(parents=True)
        if "/" in name:
            (reference := folder.parents[1] / "refs" / "main").parent.mkdir()
            reference.write_text("published")
        (folder / "config.json").write_text(json.dumps(dict(zip(NAMES, sizes, strict=True)) | others))


def load_profile(notebook: str, machine: Machine, cache_dir: Path) -> NotebookParams | None:
    """Return the parameters that a machine takes by itself; None where the model is refused there."""
    by_unsloth = notebook == "gpt_oss_2048"
    if by_unsloth and not any(row.unsloth for row in TABLE if row.name == machine.name):
        return None
    profile = choose_profile(notebook, recommend(machine, environ={}).profile)
    overrides = {"model": {"cache_dir": str(cache_dir), "engine": "transformers"}}
    params = load_params(notebook, profile=profile, overrides=overrides, environ={})
    if by_unsloth:  # it need not be installed here
        model = value_of(params, "model").model_copy(update={"engine": "unsloth"})
        params = params.model_copy(update={"model": model})
    return resolve(params, recommend(machine, environ={}), environ={})


def render_table(cache_dir: Path) -> list[str]:
    """Return the lines of a Markdown table of estimates; memory in GiB a rank, times in seconds."""
    rows = [
        "| pipeline | machine | model | tokens | memory | generation | by vLLM | reward | all hang | update "
        "| exchange | step | bound by | efficiency |",
        "|---" * 14 + "|",
    ]
    for notebook in PIPELINES:
        for machine, hardware in MACHINES:
            params = load_profile(notebook, machine, cache_dir)
            if params is None:
                rows.append(f"| {notebook} | {hardware.name} |" + " - |" * 11)
                continue
            model_id = value_of(params, "model.id")
            sizes = load_model_sizes(model_id, cache_dir)
            memory = estimate_memory(params, machine)
            if sizes is None or memory is None:
                raise SystemExit(f"{model_id}: its sizes are not known")
            step, efficiency = (
                estimate_step(params, sizes, hardware),
                estimate_efficiency(params, sizes, hardware),
            )
            parts = (step.reward, step.worst_reward, step.update, step.exchange, step.seconds)
            cells = [Path(model_id).name, f"{step.tokens:,}", f"{sum(memory.values()):.0f}"]
            cells += [show_seconds(step.generation), generate_by_vllm(params, sizes, machine, hardware)]
            cells += [*map(show_seconds, parts), step.bound, f"{efficiency:.0%}"]
            rows.append(f"| {notebook} | {hardware.name} | {' | '.join(cells)} |")
    return rows


def generate_by_vllm(params: NotebookParams, sizes: ModelSizes, machine: Machine, hardware: Hardware) -> str:
    """Return the seconds of generation by vLLM, a dash where the notebook or the machine does not have it."""
    vllm = getattr(params, "vllm", None)
    if vllm is None or machine.name == "v100":  # for which it has no kernels
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
        with tempfile.TemporaryDirectory() as folder:
            write_published(Path(folder))
            print(*render_table(Path(folder)), sep="\n")
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

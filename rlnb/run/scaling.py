"""An estimate of a training step's time on machines that nobody has measured, from peak figures.

A token takes 2 operations a parameter forwards and 4 backwards (Kaplan et al. 2020, arXiv:2001.08361); with
frozen weights 2 of the 4. Decoding reads the weights and the cache of keys and values for every token
(Pope et al. 2022, arXiv:2211.05102). docs/scaling.md has the tables and what they leave out.
"""

from typing import NamedTuple

from rlnb.params.sections import ModelParams, NotebookParams, value_of
from rlnb.run.disk import GIB
from rlnb.run.memory import BYTES, count_adapters, estimate_weights, get_value, longest_prompt
from rlnb.run.model_sizes import ModelSizes

# Shares of the peak that a run gets, and what a layer's launches take of a decoded token: all assumed.
COMPUTE_SHARE, READ_SHARE = 0.35, 0.6
LAUNCH_SECONDS, GRAPH_SECONDS = 0.7e-3, 0.03e-3  # of a layer, by transformers and by vLLM
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
    parameters, number_bytes = sizes.active_parameters, BYTES[model.dtype]
    # Of each answer's token: the weights, and the keys and values of half of the answer on average.
    cached = batch.at_once * (batch.prompt + batch.answer / 2) * sizes.cache_bytes(number_bytes)
    num_bytes = estimate_weights(model, sizes).gib * GIB + cached
    read = num_bytes / (hardware.memory * 1e9 * READ_SHARE)
    launches = sizes.num_layers * (GRAPH_SECONDS if get_value(params, "vllm.enabled") else LAUNCH_SECONDS)
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
        return 4 * count_adapters(model, sizes)
    return BYTES[model.dtype] * sizes.num_parameters


def exchange_seconds(num_bytes: float, hardware: Hardware) -> float:
    """Return the time of an all-reduce in a ring: 2 (k - 1) / k times the bytes over the slowest link."""
    ranks = hardware.num_ranks
    slowest = hardware.network if hardware.nodes > 1 else hardware.link
    return 2 * (ranks - 1) / ranks * num_bytes / (slowest * 1e9) if ranks > 1 else 0.0

"""Rows that load, read and write: log-probabilities, their noise, exports and speed."""

import dataclasses
import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from rlnb.policy import Policy, generate, load_policy
from rlnb.policy.export import Form, compare_logits, compute_logits, reload, save_in_format
from rlnb.policy.generation import generate_ids
from rlnb.policy.scoring import score
from rlnb.selfplay.acting import ActorCritic
from rlnb.selfplay.rollouts import Choice, Turn
from rlnb.selfplay.update import (
    MAX_FIRST_CLIP_SHARE,
    MAX_FIRST_DEVIATION,
    Batch,
    compute_batch_logprobs,
    compute_logprobs,
    make_batch,
)
from rlnb.selftest.arithmetic import dtypes_of
from rlnb.selftest.models import TEXTS, build_and_read, model_params
from rlnb.selftest.rows import Outcome, Setting

# Mean distance (nats) between a model's log-probabilities and those of float32 on the CPU.
MAX_MEAN_GAP = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}
CLIP = 0.2  # training.clip's default
NUM_NEW_TOKENS = 8
NUM_NOISE_ROWS, NUM_NOISE_TOKENS = 32, 63  # 2,000 tokens
NUM_SPEED_ROWS, NUM_SPEED_TOKENS = 64, 64
MAX_EXPORT_GAP = 0.3  # mean gap of logits as a share of what the adapters change: 16 bits round
PROMPTS = [prompt for prompt, _ in TEXTS]


def check_families(setting: Setting) -> Outcome:
    """Load three kinds of models in this machine's number format; compare what they read with float32."""
    return compare_families(setting, "transformers", build_and_read(setting).measured)


def compare_families(
    setting: Setting, engine: str, references: Mapping[str, Sequence[Sequence[float]]]
) -> Outcome:
    """Compare what an engine's models read with the references of the families."""
    measured: dict[str, dict[str, float]] = {}
    faults = []
    for family, reference in references.items():
        policy = load_policy(model_params(setting, family, engine=engine))
        gaps = measure_gaps(policy, reference)
        measured[family] = {"mean_gap": float(gaps.mean()), "largest_gap": float(gaps.max())}
        faults += [f"{family}: {fault}" for fault in find_reading_faults(policy, gaps)]
    means = ", ".join(f"{part['mean_gap']:.2g} ({family})" for family, part in measured.items())
    return Outcome(
        f"{means} nats from the CPU's float32 in {setting.choices.dtype}", "; ".join(faults), measured
    )


def measure_gaps(policy: Policy, reference: Sequence[Sequence[float]]) -> np.ndarray:
    """Return the distances of the policy's log-probabilities from the reference, token by token, in nats."""
    scores = score(policy, PROMPTS, [continuation for _, continuation in TEXTS])
    return np.abs(np.concatenate([each.logprobs for each in scores]) - np.concatenate(reference))


def find_reading_faults(policy: Policy, gaps: np.ndarray) -> list[str]:
    """Return what is wrong with log-probabilities and with a generation."""
    bound, faults = MAX_MEAN_GAP[policy.dtype], []
    if not gaps.mean() <= bound:  # also where it is not a number
        faults.append(
            f"log-probabilities are {gaps.mean():.2g} nats from the CPU's in the mean, more than {bound:g}"
        )
    completions = generate_ids(
        policy, PROMPTS, max_new_tokens=NUM_NEW_TOKENS, temperature=1.0, row_seeds=range(len(PROMPTS))
    )
    lengths = {len(completion) for completion in completions}
    if lengths != {NUM_NEW_TOKENS}:
        faults.append(f"generated {sorted(lengths)} tokens where {NUM_NEW_TOKENS} were asked")
    return faults


def check_noise(setting: Setting) -> Outcome:
    """Read the same tokens in batches of 1, 8 and 32, in each number format: what PPO's ratios start with."""
    measured: dict[str, dict[str, dict[str, float]]] = {}
    faults = []
    first, *others = dtypes_of(setting.machine)
    policy = load_policy(model_params(setting, dtype=first))
    batch = sample_batch(policy)
    for dtype in (first, *others):
        policy = policy if dtype == first else load_policy(model_params(setting, dtype=dtype))
        noise = measured[dtype] = measure_noise(policy, batch)
        faults += [f"{dtype}: {fault}" for fault in find_noise_faults(noise, policy.dtype)]
    worst = {dtype: max(part["mean"] for part in noise.values()) for dtype, noise in measured.items()}
    means = ", ".join(f"{mean:.2g} in {dtype}" for dtype, mean in worst.items())
    return Outcome(f"mean |ratio - 1| {means}", "; ".join(faults), measured)


def sample_batch(policy: Policy) -> Batch:
    """Return completions of the policy as the turns of an update."""
    prompts = [f"{text} {row}" for row in range(NUM_NOISE_ROWS // len(PROMPTS)) for text in PROMPTS]
    completions = generate_ids(
        policy, prompts, max_new_tokens=NUM_NOISE_TOKENS, temperature=1.0, row_seeds=range(len(prompts))
    )
    turns = [
        Turn(tuple(prompt), tokens, choices_of(len(prompt), tokens), (), None, (), 0)
        for prompt, tokens in zip(policy.tokenizer(prompts)["input_ids"], completions, strict=True)
    ]
    return make_batch(turns, np.ones(len(turns)), np.zeros(len(turns)))


def choices_of(num_prompt_tokens: int, tokens: Sequence[int]) -> tuple[Choice, ...]:
    return tuple(Choice(num_prompt_tokens + place, token) for place, token in enumerate(tokens))


def measure_noise(policy: Policy, batch: Batch) -> dict[str, dict[str, float]]:
    """Return how far ratios of equal weights are from 1, by how the tokens were read the second time."""
    actor = ActorCritic(policy, has_value=False)
    longest = max(map(len, batch.sequences))
    alone, eight, many = (
        compute_batch_logprobs(actor, batch, temperature=1.0, max_tokens=rows * longest).token_logprobs
        for rows in (1, 8, NUM_NOISE_ROWS)
    )
    with_gradients = torch.zeros_like(alone)
    for part in batch.micro_batches(range(len(batch.sequences)), max_tokens=8 * longest):
        logprobs = compute_logprobs(actor, batch, part, temperature=1.0).token_logprobs
        with_gradients[part.tokens] = logprobs.detach()
    reads = {"8 rows": eight, f"{NUM_NOISE_ROWS} rows": many, "8 rows with gradients": with_gradients}
    return {name: describe_ratios(torch.expm1(read - alone).abs().cpu()) for name, read in reads.items()}


def describe_ratios(gaps: torch.Tensor) -> dict[str, float]:
    """Return figures of the distances of ratios from 1, (num_tokens,)."""
    return {
        "num_tokens": len(gaps),
        "mean": float(gaps.mean()),
        "percentile_99": float(gaps.quantile(0.99)),
        "largest": float(gaps.max()),
        "share_beyond_clip": float((gaps > CLIP).float().mean()),
    }


def find_noise_faults(noise: Mapping[str, Mapping[str, float]], dtype: torch.dtype) -> list[str]:
    """Return what the check of the first ratio would refuse in a training."""
    bound = MAX_FIRST_DEVIATION[dtype]
    return [
        f"{name}: mean {figures['mean']:.2g} (at most {bound:g}), {figures['share_beyond_clip']:.1%} beyond "
        f"{CLIP} (at most {MAX_FIRST_CLIP_SHARE:.0%}), so self-play and PPO would stop at their first update"
        for name, figures in noise.items()
        if not (figures["mean"] <= bound and figures["share_beyond_clip"] <= MAX_FIRST_CLIP_SHARE)
    ]


def check_export(setting: Setting) -> Outcome:
    """Write adapters, a merged model and gpt-oss in MXFP4; load each and compare it with the policy."""
    forms: tuple[tuple[str, Form], ...] = (
        ("qwen2", "lora"), ("qwen2", "merged_16bit"), ("gpt_oss", "merged_16bit"), ("gpt_oss_mxfp4", "mxfp4"),
    )  # fmt: skip
    measured: dict[str, dict[str, float]] = {}
    faults = []
    for family, form in forms:
        params = model_params(setting, family)
        policy = load_policy(params)
        move_adapters(policy)
        directory = save_in_format(policy, setting.folder / f"{family}-{form}", form, params)
        written = compute_logits(policy, PROMPTS)
        effect = compare_logits(compute_logits(policy, PROMPTS, reference=True), written).mean
        gap = compare_logits(compute_logits(reload(directory, form, params), PROMPTS), written)
        measured[f"{family} {form}"] = dataclasses.asdict(gap) | {"effect_of_adapters": effect}
        faults += [f"{family} as {form}: {fault}" for fault in find_export_faults(gap.mean, effect)]
    largest = max(part["mean"] for part in measured.values())
    return Outcome(f"logits of what was written are {largest:.2g} away", "; ".join(faults), measured)


def find_export_faults(gap: float, effect: float) -> list[str]:
    """Return what is wrong with an export. gap, effect: of logits, by writing and by the adapters."""
    if gap <= MAX_EXPORT_GAP * effect:
        return []
    return [f"logits are {gap:.2g} away, where the adapters change them by {effect:.2g}"]


def move_adapters(policy: Policy) -> None:
    """Give fresh adapters, whose output is 0, weights as after a training."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.05 * torch.randn(parameter.shape, generator=generator))


def check_speed(setting: Setting) -> Outcome:
    """Measure tokens per second in batches of 1 and 64, and the memory's bandwidth."""
    policy = load_policy(model_params(setting))
    generate(policy, PROMPTS[:1], max_new_tokens=4, temperature=1.0)  # compiles, and takes the first memory
    rates = {rows: measure_rate(policy, rows) for rows in (1, NUM_SPEED_ROWS)}
    bandwidth = measure_bandwidth(policy.device)
    few, many = rates.values()
    fault = "" if many > few else f"{NUM_SPEED_ROWS} rows at once are no faster than 1"
    measured = {f"tokens_per_second_{rows}_rows": rate for rows, rate in rates.items()}
    measured |= {"copy_gib_per_second": bandwidth}
    return Outcome(
        f"{few:.0f} tokens/s in 1 row, {many:.0f} in {NUM_SPEED_ROWS}; copies {bandwidth:.0f} GiB/s",
        fault,
        measured,
    )


def measure_rate(policy: Policy, num_rows: int) -> float:
    """Return the tokens per second of a generation in one batch."""
    started = time.perf_counter()
    completions = generate_ids(
        policy, ["2048 is"] * num_rows, max_new_tokens=NUM_SPEED_TOKENS, temperature=1.0,
        row_seeds=range(num_rows), batch_size=num_rows,
    )  # fmt: skip
    return sum(map(len, completions)) / (time.perf_counter() - started)


def measure_bandwidth(device: torch.device) -> float:
    """Return GiB read and written per second by copies of 128 MiB (of 1 GiB on a GPU)."""
    num_bytes = 2**30 if device.type == "cuda" else 2**27
    source, target = (torch.zeros(num_bytes, dtype=torch.uint8, device=device) for _ in range(2))
    target.copy_(source)
    synchronize(device)
    started = time.perf_counter()
    for _ in range(5):
        target.copy_(source)
    synchronize(device)
    return 5 * 2 * num_bytes / 2**30 / (time.perf_counter() - started)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

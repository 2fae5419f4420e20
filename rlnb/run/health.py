"""Health checks of a training run: warnings, alarms that end it, and advice about memory and disk.

Every pipeline uses this module. It imports neither torch nor transformers.
"""

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, Protocol

from rlnb.errors import OutOfMemory, TrainingDiverged, see
from rlnb.machine import rank
from rlnb.params.loading import list_fields
from rlnb.params.problems import show
from rlnb.params.sections import NotebookParams, value_of
from rlnb.run.checkpoints import latest_checkpoint
from rlnb.run.directory import write_text

MAX_KL = 0.01
MAX_TIED_SHARE = 0.5  # of the groups of a window
MAX_CUT_SHARE = 0.2  # of the completions of the first step, or of a window
MAX_INVALID_SHARE = 0.5
MIN_WINDOW_STEPS = 5
CUT_REMEDY = f"raise training.max_completion_length{see('completions-cut')}"
TIED_REMEDY = "raise training.num_generations or training.temperature, or change the reward" + see(
    "groups-tied"
)
# A policy that plays games raises an alarm above MAX_INVALID_SHARE of invalid answers, below this entropy
# (nats a token), and if answers get shorter than this share of the first update's. The same alarm in
# ALARM_PATIENCE updates in a row ends the run, and so does one update whose approximate KL is ALARM_KL_FACTOR
# times training.target_kl.
ALARM_PATIENCE, ALARM_ENTROPY, ALARM_LENGTH_SHARE = 5, 1e-4, 0.1
ALARM_KL_FACTOR = 10.0
# Metrics that count completions without valid code, and the settings to try when there are many of them.
INVALID_CODE: dict[str, dict[str, object]] = {
    "strategy/no_code_share": {"prompt.preset": "api", "prompt.prefilled": True},
    "game/no_code_share": {"game.form": "seeded"},
    "game/syntax_error_share": {"game.form": "seeded"},
    "status/no_code_share": {"tasks.prompt": "prefilled"},
    "status/syntax_error_share": {"tasks.prompt": "prefilled"},
}


class Health:
    """Warnings about a run that learns nothing.

    max_steps: of the run. Tied groups and cut completions are counted over windows of a twentieth of it, at
    least MIN_WINDOW_STEPS. params: of the run, so that no advice names a setting that is made.
    """

    def __init__(self, *, max_steps: int = 200, params: NotebookParams | None = None) -> None:
        window = max(MIN_WINDOW_STEPS, max_steps // 20)
        self.params = params
        self.given: set[str] = set()
        self._is_first = True
        self._tied_shares: deque[float] = deque(maxlen=window)
        self._cut_shares: deque[float] = deque(maxlen=window)

    def after_step(self, step: int, metrics: Mapping[str, float | None]) -> list[str]:
        """Return the lines to print: a summary of the first step with a reward, and each warning once."""
        if metrics.get("reward") is None:
            return []
        if "frac_reward_zero_std" in metrics:
            self._tied_shares.append(_value(metrics, "frac_reward_zero_std"))
            self._cut_shares.append(_value(metrics, "completions/clipped_ratio"))
        is_first, self._is_first = self._is_first, False
        warnings = self._find_warnings(metrics)
        if is_first:
            warnings |= find_first_step_warnings(metrics, self.params)
        new = [f"warning: step {step}: {text}" for name, text in warnings.items() if name not in self.given]
        self.given |= set(warnings)
        return [f"step {step}: {summarise_step(metrics)}", *new] if is_first else new

    def _find_warnings(self, metrics: Mapping[str, float | None]) -> dict[str, str]:
        warnings = {}
        kl = _value(metrics, "kl")
        if kl > MAX_KL:
            warnings["kl"] = (
                f"kl is {kl:.3f}, above {MAX_KL}: the policy moves far from the untrained model; "
                f"lower training.learning_rate or raise training.beta"
            )
        if _value(metrics, "completions/clipped_ratio") >= 1.0:
            warnings["cut"] = f"all completions were cut; {CUT_REMEDY}"
        count = len(self._cut_shares)
        if count == self._cut_shares.maxlen and fmean(self._cut_shares) > MAX_CUT_SHARE:
            share = f"{fmean(self._cut_shares):.0%}"
            warnings["cut"] = f"{share} of the completions of the last {count} steps were cut; {CUT_REMEDY}"
        if count == self._tied_shares.maxlen and fmean(self._tied_shares) > MAX_TIED_SHARE:
            warnings["tied"] = (
                f"{fmean(self._tied_shares):.0%} of the groups of the last {count} steps were tied, so they "
                f"taught nothing; {TIED_REMEDY}"
            )
        return warnings


def summarise_step(metrics: Mapping[str, float | None]) -> str:
    reward = f"mean reward {_value(metrics, 'reward'):+.2f}"
    if "play/completion_tokens" in metrics:
        return (
            f"{reward}, {_value(metrics, 'play/completion_tokens'):.0f} tokens an answer, "
            f"{_value(metrics, 'play/invalid_share'):.0%} of the answers without a legal move"
        )
    return (
        f"{reward}, {_value(metrics, 'completions/mean_length'):.0f} tokens a completion, "
        f"{_value(metrics, 'completions/clipped_ratio'):.0%} cut, "
        f"{_value(metrics, 'frac_reward_zero_std'):.0%} of the groups tied, "
        f"{_invalid_code_share(metrics):.0%} without valid code"
    )


def find_first_step_warnings(
    metrics: Mapping[str, float | None], params: NotebookParams | None = None
) -> dict[str, str]:
    """Return {check: what is wrong and what to change} where the first step learned from next to nothing."""
    warnings = {}
    cut, tied = _value(metrics, "completions/clipped_ratio"), _value(metrics, "frac_reward_zero_std")
    invalid_code, invalid_moves = _invalid_code_share(metrics), _value(metrics, "play/invalid_share")
    if MAX_CUT_SHARE < cut < 1:
        warnings["cut"] = f"{cut:.0%} of the completions were cut; {CUT_REMEDY}"
    if tied >= 1:
        warnings["all tied"] = f"all groups tied, so nothing was learned; {TIED_REMEDY}"
    if metrics.get("advantage/std") == 0:
        remedy = f"raise training.games_per_step or game.temperature{see('groups-tied')}"
        warnings["all tied"] = f"all advantages are 0, so nothing was learned; {remedy}"
    if invalid_code > MAX_INVALID_SHARE:
        settings = next(settings for name, settings in INVALID_CODE.items() if name in metrics)
        remedies = [*unmade_settings(settings, params), "a model made for chat"]
        warnings["invalid"] = (
            f"{invalid_code:.0%} of the completions hold no valid code; try {', or '.join(remedies)}"
            f"{see('answers-invalid')}"
        )
    if invalid_moves > MAX_INVALID_SHARE:
        warnings["invalid"] = _describe_invalid_moves(invalid_moves)
    return warnings


def _describe_invalid_moves(share: float) -> str:
    return (
        f"{share:.0%} of the answers hold no legal move; write game.acting = constrained, or take a model "
        f"made for chat{see('answers-invalid')}"
    )


def unmade_settings(settings: Mapping[str, object], params: NotebookParams | None) -> list[str]:
    """Return "field = value" of those settings that the parameters do not have already."""
    return [
        f"{field} = {value if isinstance(value, str) else show(value)}"
        for field, value in settings.items()
        if params is None or value_of(params, field) != value
    ]


def _value(metrics: Mapping[str, float | None], name: str) -> float:
    return metrics.get(name) or 0.0


def _invalid_code_share(metrics: Mapping[str, float | None]) -> float:
    return sum(_value(metrics, name) for name in INVALID_CODE)


def find_alarms(
    metrics: Mapping[str, float], *, first_length: float, params: NotebookParams | None = None
) -> dict[str, str]:
    """Return {alarm: what is wrong and what to change} after an update of a policy that plays games.

    first_length: mean tokens of an answer at the first update, with which later ones are compared. params: of
    the run, as in `Health`.
    """
    alarms = {}
    invalid_share, entropy = metrics["play/invalid_share"], metrics["entropy"]
    length = metrics["play/completion_tokens"]
    if invalid_share > MAX_INVALID_SHARE:
        alarms["invalid"] = _describe_invalid_moves(invalid_share)
    if entropy < ALARM_ENTROPY:
        alarms["entropy"] = (
            f"the entropy is {entropy:.2g} nats: the policy no longer tries anything; "
            f"raise training.entropy_coef{see('reward-flat')}"
        )
    if length < ALARM_LENGTH_SHARE * first_length:
        has_kinds = params is None or hasattr(params, "advantage")  # PPO's are always by GAE
        remedies = unmade_settings({"advantage.kind": "rae"} if has_kinds else {}, params)
        alarms["length"] = (
            f"answers have shrunk from {first_length:.0f} to {length:.0f} tokens; "
            f"{', or '.join(['lower training.learning_rate', *remedies])}{see('reward-flat')}"
        )
    return alarms


def count_alarms(
    counts: Mapping[str, int], metrics: Mapping[str, float], *, first_length: float
) -> dict[str, int]:
    """Return for each alarm in how many consecutive updates it has been raised; counts: before this one."""
    return {name: counts.get(name, 0) + 1 for name in sorted(find_alarms(metrics, first_length=first_length))}


def check_alarms(
    counts: Mapping[str, int],
    metrics: Mapping[str, float],
    *,
    first_length: float,
    params: NotebookParams | None = None,
) -> None:
    """Raise TrainingDiverged where an alarm has been raised in ALARM_PATIENCE consecutive updates."""
    for name, reason in find_alarms(metrics, first_length=first_length, params=params).items():
        if counts.get(name, 0) >= ALARM_PATIENCE:
            raise TrainingDiverged(f"for {counts[name]} updates in a row {reason}")


class HasRecord(Protocol):
    """A game that can be written as JSON: `rlnb.selfplay.rollouts`."""

    def as_record(self) -> Mapping[str, object]: ...


@contextmanager
def save_games_when_diverged(games: Sequence[HasRecord], output_dir: str | Path) -> Iterator[None]:
    """On TrainingDiverged write the games to diverged.jsonl; the message names it and the last checkpoint."""
    try:
        yield
    except TrainingDiverged as error:
        path = Path(output_dir) / ("diverged.jsonl" if rank() == 0 else f"diverged-{rank()}.jsonl")
        write_text(path, "".join(json.dumps(game.as_record()) + "\n" for game in games))
        checkpoint = latest_checkpoint(output_dir)
        remedy = f"; then run again, which goes on from {checkpoint}" if checkpoint else ""
        raise TrainingDiverged(f"{error}{remedy}. The games of this update are in {path}") from error


@contextmanager
def memory_advice(
    params: NotebookParams, *, doing: Literal["training", "evaluation"] = "evaluation"
) -> Iterator[None]:
    """Turn CUDA's out-of-memory error into OutOfMemory: the settings to change, with their present values."""
    import torch

    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        remedies = find_memory_remedies(params, doing=doing)[:3]
        listed = [
            f"{place}. {field} = {show(value_of(params, field))}: {remedy}"
            for place, (field, remedy) in enumerate(remedies, 1)
        ]
        order = f"Change, in this order: {'; '.join(listed)}"
        advice = order if listed else "Take a smaller model, or another GPU"
        raise OutOfMemory(f"the GPU's memory is used up. {advice}{see('out-of-memory')}") from error


def find_memory_remedies(
    params: NotebookParams, *, doing: Literal["training", "evaluation"]
) -> list[tuple[str, str]]:
    """Return [(field, what to write)], cheapest first: what this notebook reads in what it was doing.

    What is already set, or as small as it should be, is left out.
    """
    values: dict[str, Any] = {field: value_of(params, field) for field in list_fields(type(params))}

    def halve(field: str, least: int = 1) -> dict[str, str]:
        half = (values.get(field) or 0) // 2
        return {field: f"write {half}"} if half >= least else {}

    def switch(field: str, value: object, *, only_if: bool = True) -> dict[str, str]:
        is_open = only_if and field in values and values[field] != value
        return {field: f"write {value if isinstance(value, str) else show(value)}"} if is_open else {}

    has_adapters, has_mbpp = bool(values.get("model.lora_rank")), values.get("mbpp.enabled", True)
    is_training, is_free = doing == "training", values.get("game.acting") == "free"
    is_constrained = "game.acting" in values and not is_free
    remedies: dict[str, str] = {}
    if values.get("vllm.enabled") and not values["vllm.server_base_url"]:
        less = f"{values['vllm.gpu_memory_utilization'] / 2:.2g}"
        remedies["vllm.gpu_memory_utilization"] = f"write {less}, which leaves more to the rest"
    if is_training:
        remedies |= halve("training.tokens_per_pass", least=128) | _smaller_batch(values)
        remedies |= switch("training.gradient_checkpointing", True)
    else:
        is_free = "game.acting" in values  # arenas measure free answers as well
        remedies |= halve("evaluation.batch_size") | halve("game.batch_size" if is_free else "")
        remedies |= halve("mbpp.batch_size" if has_mbpp else "")
        remedies |= halve("training.tokens_per_pass", least=128)
    remedies |= halve("opponent.batch_size" if not values.get("opponent.base_url") else "")
    remedies |= switch("model.load_in_4bit", True, only_if=has_adapters)
    remedies |= switch("model.offload_embedding", True, only_if=values.get("model.engine") == "unsloth")
    remedies |= switch("model.lora_rank", 16, only_if=not has_adapters)
    remedies |= halve("game.batch_size" if is_training and is_free else "")
    remedies |= switch("game.style", "compact", only_if=is_training and is_constrained)
    remedies |= halve("game.max_new_tokens" if is_free else "", least=32)
    remedies |= halve("training.max_completion_length", least=32)
    remedies |= halve("mbpp.max_completion_length" if has_mbpp and not is_training else "", least=32)
    return list(remedies.items())


def _smaller_batch(values: Mapping[str, Any]) -> dict[str, str]:
    """Return a smaller batch with as many more passes, so that the completions of a step stay the same."""
    batch, passes = "training.per_device_train_batch_size", "training.gradient_accumulation_steps"
    now = values.get(batch, 1)
    smaller = next((size for size in range(now // 2, 0, -1) if now % size == 0), now)
    if smaller == now:
        return {}
    return {batch: f"write {smaller}, and {passes} = {values[passes] * now // smaller}"}

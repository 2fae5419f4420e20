"""Health checks of a training run: warnings, alarms that end it, and advice about memory and disk.

Every pipeline uses this module. It imports neither torch nor transformers.
"""

import json
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, linear_regression
from typing import Any, Literal, NamedTuple, Protocol

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
MIN_BEST_SHARE = 0.05  # of a step's completions: rarer rewards are not missed when they stay away
MAX_INVALID_SHARE = 0.5
MIN_WINDOW_STEPS = 5
MIN_TREND_STEPS = 10
MIN_RISE = 0.15  # of the range of rewards, over the whole run: a reward that rises less is flat
# Metrics that count completions without valid code, and the settings to try when there are many of them.
INVALID_CODE: dict[str, dict[str, object]] = {
    "strategy/no_code_share": {"prompt.preset": "api", "prompt.prefilled": True},
    "game/no_code_share": {"game.form": "seeded"},
    "game/syntax_error_share": {"game.form": "seeded"},
    "status/no_code_share": {"tasks.prompt": "prefilled"},
    "status/syntax_error_share": {"tasks.prompt": "prefilled"},
}


class BestReward(NamedTuple):
    """The highest reward so far. share: of the completions that earned it in the step in which it first came.

    Only a reward that came in several steps is an outcome that can be lost; a score hardly comes twice.
    """

    reward: float
    share: float
    num_times: int = 1
    steps_since: int = 0


class Health:
    """Warnings about a run that learns nothing, or something else than intended.

    max_steps: of the run. Tied groups, cut completions and a lost best reward are counted over windows of a
    twentieth of it, at least MIN_WINDOW_STEPS. The reward counts as flat when a line through all its steps,
    continued to the end of the run, rises by less than MIN_RISE even at two standard errors above its slope,
    and at two below not at all. has_reward_trend: False where the mean reward is constant by definition, as
    in self-play of a zero-sum game. params: of the run, so that no advice names a setting that is made.
    """

    def __init__(
        self, *, max_steps: int = 200, has_reward_trend: bool = True, params: NotebookParams | None = None
    ) -> None:
        window = max(MIN_WINDOW_STEPS, max_steps // 20)
        self.params = params
        self.max_steps = max_steps
        self.has_reward_trend = has_reward_trend
        self.given: set[str] = set()
        self._is_first = True
        self._tied_shares: deque[float] = deque(maxlen=window)
        self._cut_shares: deque[float] = deque(maxlen=window)
        self._mean_rewards: list[float] = []
        self._lowest, self._highest = math.inf, -math.inf  # rewards
        self._best: BestReward | None = None

    def after_step(
        self, step: int, metrics: Mapping[str, float | None], *, rewards: Sequence[float] = ()
    ) -> list[str]:
        """Return the lines to print: a summary of the first step with a reward, and each warning once.

        rewards: of the step's completions, where there are some.
        """
        reward = metrics.get("reward")
        if reward is None:
            return []
        self._mean_rewards.append(reward)
        self._lowest, self._highest = (
            min(self._lowest, reward, *rewards),
            max(self._highest, reward, *rewards),
        )
        if "frac_reward_zero_std" in metrics:
            self._tied_shares.append(_value(metrics, "frac_reward_zero_std"))
            self._cut_shares.append(_value(metrics, "completions/clipped_ratio"))
        self._note_best(rewards)
        lines = []
        warnings = self._find_warnings(metrics)
        if self._is_first:
            lines = [f"step {step}: {summarise_step(metrics)}"]
            warnings = find_first_step_warnings(metrics, self.params) | warnings
            self._is_first = False
        lines += [
            f"warning: step {step}: {text}" for name, text in warnings.items() if name not in self.given
        ]
        self.given |= set(warnings)
        return lines

    def _note_best(self, rewards: Sequence[float]) -> None:
        if not rewards:
            return
        highest, best = max(rewards), self._best
        share = sum(math.isclose(reward, highest) for reward in rewards) / len(rewards)
        if best and math.isclose(highest, best.reward):
            self._best = best._replace(num_times=best.num_times + 1, steps_since=0)
        elif share >= MIN_BEST_SHARE and (best is None or highest > best.reward):
            self._best = BestReward(highest, share)
        elif best:
            self._best = best._replace(steps_since=0 if highest > best.reward else best.steps_since + 1)

    def _find_warnings(self, metrics: Mapping[str, float | None]) -> dict[str, str]:
        warnings = {}
        if _value(metrics, "completions/clipped_ratio") >= 1.0:
            warnings["all cut"] = (
                f"all completions were cut; raise training.max_completion_length{see('completions-cut')}"
            )
        kl = _value(metrics, "kl")
        if kl > MAX_KL:
            warnings["kl"] = (
                f"kl is {kl:.3f}, above {MAX_KL}: the policy moves far from the untrained model; "
                f"lower training.learning_rate or raise training.beta"
            )
        tied_shares, cut_shares = self._tied_shares, self._cut_shares
        if len(cut_shares) == cut_shares.maxlen and MAX_CUT_SHARE < fmean(cut_shares) < 1.0:
            warnings["cut"] = (
                f"{fmean(cut_shares):.0%} of the completions of the last {len(cut_shares)} steps were cut; "
                f"raise training.max_completion_length{see('completions-cut')}"
            )
        best = self._best
        if best and best.num_times > 1 and best.steps_since >= (tied_shares.maxlen or 0):
            warnings["lost best"] = (
                f"no completion has earned {best.reward:+.2f} for {best.steps_since} steps, the most there "
                f"was, once earned by {best.share:.0%}: the policy settles for less; lower "
                f"training.temperature, or raise training.num_generations{see('reward-flat')}"
            )
        if len(tied_shares) == tied_shares.maxlen and fmean(tied_shares) > MAX_TIED_SHARE:
            warnings["tied"] = (
                f"{fmean(tied_shares):.0%} of the groups of the last {len(tied_shares)} steps were tied and "
                "taught nothing; raise training.num_generations or training.temperature, or change the "
                f"reward{see('groups-tied')}"
            )
        if self._is_flat():
            samples = "games" if "play/completion_tokens" in metrics else "samples"
            warnings["flat"] = (
                f"the reward has stayed at {fmean(self._mean_rewards):+.3f} for {len(self._mean_rewards)} "
                f"steps; look at the {samples}, then at training.learning_rate and the reward"
                f"{see('reward-flat')}"
            )
        return warnings

    def _is_flat(self) -> bool:
        count = len(self._mean_rewards)
        if not self.has_reward_trend or count < max(MIN_TREND_STEPS, self.max_steps // 6):
            return False
        steps = range(count)
        line = linear_regression(steps, self._mean_rewards)
        residuals = (
            reward - line.slope * step - line.intercept
            for step, reward in zip(steps, self._mean_rewards, strict=True)
        )
        variance = math.fsum(residual**2 for residual in residuals) / (count - 2)
        margin = 2 * math.sqrt(
            variance * 12 / (count**3 - count)
        )  # sum of squares of the steps: n(n^2 - 1)/12
        largest = (line.slope + margin) * self.max_steps
        return line.slope <= margin and largest <= MIN_RISE * (self._highest - self._lowest)


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
        warnings["cut"] = (
            f"{cut:.0%} of the completions were cut; raise training.max_completion_length"
            f"{see('completions-cut')}"
        )
    if tied >= 1:
        warnings["all tied"] = (
            "all groups tied, so nothing was learned; raise training.num_generations or change the reward"
            f"{see('groups-tied')}"
        )
    if metrics.get("advantage/std") == 0:
        warnings["all tied"] = (
            "all advantages are 0, so nothing was learned; raise training.games_per_step or game.temperature"
            f"{see('groups-tied')}"
        )
    if invalid_code > MAX_INVALID_SHARE:
        settings = next(settings for name, settings in INVALID_CODE.items() if name in metrics)
        remedies = [*unmade_settings(settings, params), "a model made for chat"]
        warnings["invalid"] = (
            f"{invalid_code:.0%} of the completions hold no valid code; try {', or '.join(remedies)}"
            f"{see('answers-invalid')}"
        )
    if invalid_moves > MAX_INVALID_SHARE:
        warnings["invalid"] = (
            f"{invalid_moves:.0%} of the answers hold no legal move; write game.acting = constrained, "
            f"or take a model made for chat{see('answers-invalid')}"
        )
    return warnings


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


class AlarmLimits(Protocol):
    """The limits that `find_alarms` compares with: `rlnb.selfplay.params.AlarmParams`."""

    patience: int
    invalid_share: float
    entropy: float
    length_share: float


def find_alarms(
    metrics: Mapping[str, float],
    limits: AlarmLimits,
    *,
    first_length: float,
    params: NotebookParams | None = None,
) -> dict[str, str]:
    """Return {alarm: what is wrong and what to change} after an update of a policy that plays games.

    first_length: mean tokens of an answer at the first update, with which later ones are compared. params: of
    the run, as in `Health`.
    """
    alarms = {}
    invalid_share, entropy = metrics["play/invalid_share"], metrics["entropy"]
    length = metrics["play/completion_tokens"]
    if invalid_share > limits.invalid_share:
        alarms["invalid"] = (
            f"{invalid_share:.0%} of the answers hold no legal move (alarms.invalid_share = "
            f"{limits.invalid_share}); write game.acting = constrained, or take a model made for chat"
            f"{see('answers-invalid')}"
        )
    if entropy < limits.entropy:
        alarms["entropy"] = (
            f"the entropy is {entropy:.2g} nats (alarms.entropy = {limits.entropy}): the policy no longer "
            f"tries anything; raise training.entropy_coef{see('reward-flat')}"
        )
    if length < limits.length_share * first_length:
        has_kinds = params is None or hasattr(params, "advantage")  # PPO's are always by GAE
        remedies = unmade_settings({"advantage.kind": "rae"} if has_kinds else {}, params)
        alarms["length"] = (
            f"answers have shrunk from {first_length:.0f} to {length:.0f} tokens (alarms.length_share = "
            f"{limits.length_share}); {', or '.join(['lower training.learning_rate', *remedies])}"
            f"{see('reward-flat')}"
        )
    return alarms


def count_alarms(
    counts: Mapping[str, int], metrics: Mapping[str, float], limits: AlarmLimits, *, first_length: float
) -> dict[str, int]:
    """Return for each alarm in how many consecutive updates it has been raised; counts: before this one."""
    alarms = find_alarms(metrics, limits, first_length=first_length)
    return {name: counts.get(name, 0) + 1 for name in sorted(alarms)}


def check_alarms(
    counts: Mapping[str, int],
    metrics: Mapping[str, float],
    limits: AlarmLimits,
    *,
    first_length: float,
    params: NotebookParams | None = None,
) -> None:
    """Raise TrainingDiverged where an alarm has been raised in `limits.patience` consecutive updates."""
    for name, reason in find_alarms(metrics, limits, first_length=first_length, params=params).items():
        if counts.get(name, 0) >= limits.patience:
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
        advice = list_remedies((field, show(value_of(params, field)), remedy) for field, remedy in remedies)
        advice = advice or "Take a smaller model, or another GPU"
        raise OutOfMemory(f"the GPU's memory is used up. {advice}{see('out-of-memory')}") from error


def list_remedies(remedies: Iterable[tuple[str, str, str]]) -> str:
    """Return a sentence with all of them, "" for none. remedies: field, its present value, what to write."""
    listed = [f"{place}. {field} = {now}: {remedy}" for place, (field, now, remedy) in enumerate(remedies, 1)]
    return f"Change, in this order: {'; '.join(listed)}" if listed else ""


def find_memory_remedies(
    params: NotebookParams, *, doing: Literal["training", "evaluation"]
) -> list[tuple[str, str]]:
    """Return [(field, what to write)], cheapest first: what this notebook reads in what it was doing.

    What is already set, or as small as it should be, is left out.
    """
    values: dict[str, Any] = {
        ".".join(path): value_of(params, ".".join(path)) for path in list_fields(type(params))
    }

    def halve(field: str, least: int = 1) -> dict[str, str]:
        half = (values.get(field) or 0) // 2
        return {field: f"write {half}"} if half >= least else {}

    def switch(field: str, value: object, *, only_if: bool = True) -> dict[str, str]:
        is_open = only_if and field in values and values[field] != value
        return {field: f"write {value if isinstance(value, str) else show(value)}"} if is_open else {}

    has_adapters, is_free = bool(values.get("model.lora_rank")), values.get("game.acting") == "free"
    plays_games = "game.acting" in values
    remedies: dict[str, str] = {}
    if values.get("vllm.enabled") and not values["vllm.server_base_url"]:
        less = f"{values['vllm.gpu_memory_utilization'] / 2:.2g}"
        remedies["vllm.gpu_memory_utilization"] = f"write {less}, which leaves more to the rest"
    if doing == "training":
        remedies |= halve("training.tokens_per_pass", least=128) | _smaller_batch(values)
        remedies |= switch("training.gradient_checkpointing", True)
    else:
        # Arenas measure free answers as well.
        remedies |= halve("evaluation.batch_size") | halve("game.batch_size" if plays_games else "")
        remedies |= halve("mbpp.batch_size" if values.get("mbpp.enabled", True) else "")
        remedies |= halve("training.tokens_per_pass", least=128)
    remedies |= halve("opponent.batch_size" if values.get("opponent.kind") != "endpoint" else "")
    remedies |= switch("model.load_in_4bit", True, only_if=has_adapters)
    remedies |= switch("model.offload_embedding", True, only_if=values.get("model.engine") == "unsloth")
    remedies |= switch("model.lora_rank", 16, only_if=not has_adapters)
    if doing == "training":
        remedies |= halve("game.batch_size" if is_free else "")
        remedies |= switch("game.style", "compact", only_if=plays_games and not is_free)
    remedies |= halve("game.max_new_tokens" if is_free else "", least=32)
    remedies |= halve("training.max_completion_length", least=32)
    if doing == "evaluation" and values.get("mbpp.enabled", True):
        remedies |= halve("mbpp.max_completion_length", least=32)
    return list(remedies.items())


def _smaller_batch(values: Mapping[str, Any]) -> dict[str, str]:
    """Return a smaller batch with as many more passes, so that the completions of a step stay the same."""
    batch, passes = "training.per_device_train_batch_size", "training.gradient_accumulation_steps"
    now = values.get(batch, 1)
    smaller = next((size for size in range(now // 2, 0, -1) if now % size == 0), now)
    if smaller == now:
        return {}
    return {batch: f"write {smaller}, and {passes} = {values[passes] * now // smaller}"}

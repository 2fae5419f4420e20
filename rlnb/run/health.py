"""Health checks of a training run: warnings, and alarms that end it.

Every pipeline uses this module. It imports neither torch nor transformers.
"""

import re
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import NamedTuple

from rlnb.errors import TrainingDiverged, see

MAX_KL = 0.01
MAX_INVALID_SHARE = 0.5
WINDOW_STEPS = 10
MAX_CUT_SHARE = 0.05  # of an evaluation's answers
# Outcomes of programs that work, and of those that are merely wrong.
USUAL = ("passed", "wrong", "ok_with_output", "ok_without_output", "valid", "success", "failed")
# What an outcome of most answers may mean, by the first pattern that fits the outcome and its error.
MEANINGS = {
    "NameError|no_result": "words next to the code are read as code, or the function has another name than "
    "the prompt asks for",
    "SyntaxError|no_code": "the answers are prose or cut programs; begin the answer for the model, or take "
    "one made for chat",
    "timeout|memory|output": "the limits in sandbox and evaluation are too small",
    "AssertionError": "they end in an assert of their own, which fails: they are wrong",
    "": "they share one mistake; read some in the notebook",
}
# What to change where all completions earn the most, and so all groups tie.
SATURATED = {
    "reward/best_share": "tasks.source = mbpp or a file, or reward.preset = tests",
    "strategy/win_share": "larger ones in board.kinds",
    "game/win_share": "a better opponent by opponent.base_url and opponent.model_id",
    "play/success_share": "other opponents or games in curriculum.stages",
}
INVALID_MOVES = (
    "of the answers hold no legal move; write game.acting = constrained, raise game.max_new_tokens "
    "where they are cut, or take a model made for chat" + see("answers-invalid")
)
CUT_MOVES = "of the answers were cut before their box; raise game.max_new_tokens" + see("completions-cut")
# {what is wrong: (its metric, the share above which it is told, the sentence)}
CHECKS: dict[str, tuple[str, float, str]] = {
    "cut": (
        "completions/clipped_ratio",
        0.2,
        "of the completions were cut; raise training.max_completion_length" + see("completions-cut"),
    ),
    "cut moves": ("play/cut_share", 0.2, CUT_MOVES),
    "tied": (
        "frac_reward_zero_std",
        0.5,
        "of the groups were tied, so they taught nothing; raise training.num_generations or "
        "training.temperature, or change the reward" + see("groups-tied"),
    ),
    "invalid moves": ("play/invalid_share", MAX_INVALID_SHARE, INVALID_MOVES),
}
# A policy that plays games raises an alarm above MAX_INVALID_SHARE of invalid answers, below this entropy
# (nats a token), and if answers get shorter than this share of the first update's. The same alarm in
# ALARM_PATIENCE updates in a row ends the run.
ALARM_PATIENCE, ALARM_ENTROPY, ALARM_LENGTH_SHARE = 5, 1e-4, 0.1


class AnswerEnd(NamedTuple):
    """How an answer ended: its outcome, such as "passed" or "runtime_error", and why, such as its error.

    is_cut: by the limit of its length, before its program was complete.
    """

    outcome: str
    reason: str = ""
    is_cut: bool = False


def find_shared_outcome(ends: Sequence[AnswerEnd]) -> str:
    """Return a sentence about an outcome, not among USUAL, of more than half of the answers; else ""."""
    invalid = dict.fromkeys(("no_code", "syntax_error"), "no valid code")
    outcomes = [invalid.get(end.outcome, end.outcome) for end in ends]
    (outcome, count), *_ = [*Counter(outcomes).most_common(1), ("", 0)]
    if outcome in USUAL or count <= len(ends) / 2:
        return ""
    # Errors of one kind name other functions and tests in each task.
    kinds: dict[str, list[AnswerEnd]] = {}
    for end in (end for end, other in zip(ends, outcomes, strict=True) if other == outcome):
        kinds.setdefault(re.sub(r"^assert .*: (?=\w+: )|'.*?'|\d+", "", end.reason), []).append(end)
    most = max(kinds.values(), key=len)
    error = Counter(re.sub(r"^assert .*: (?=\w+: )", "", end.reason) for end in most).most_common(1)[0][0]
    often = f", most often ({len(most)} of {len(ends)}): {error[:200]}" if error and len(most) > 1 else ""
    known = f"{most[0].outcome} {error}"
    meaning = next(text for pattern, text in MEANINGS.items() if re.search(pattern, known))
    shared = f"{count / len(ends):.0%} of the answers ended as {outcome.replace('_', ' ')}{often}"
    meaning = meaning if len(most) > 1 else "each has a mistake of its own; read some in the notebook"
    return f"{shared.rstrip('.')}. Perhaps {meaning}{see('answers-invalid')}"


def describe_ends(
    ends: Sequence[AnswerEnd], *, length_field: str = "training.max_completion_length"
) -> list[str]:
    """Return warnings about the answers of an evaluation, a line each.

    length_field: the parameter that cuts them.
    """
    cut = sum(end.is_cut for end in ends)
    lines = [shared] if (shared := find_shared_outcome(ends)) else []
    if cut > MAX_CUT_SHARE * len(ends):
        remedy = f"raise {length_field}{see('completions-cut')}"
        lines.append(
            f"{cut / len(ends):.0%} of the answers were cut before their program was complete; {remedy}"
        )
    return [f"warning: {line}" for line in lines]


class Health:
    """Warnings about a run that learns nothing, each once.

    Shares are means over up to WINDOW_STEPS steps. Some tied groups are told when these have passed.
    """

    def __init__(self) -> None:
        self.given: set[str] = set()
        names = (*SATURATED, *(metric for metric, _, _ in CHECKS.values()))
        self._shares = {name: deque[float](maxlen=WINDOW_STEPS) for name in names}
        self._ends = deque[Sequence[AnswerEnd]](maxlen=WINDOW_STEPS)

    def after_step(
        self, step: int, metrics: Mapping[str, float | None], ends: Sequence[AnswerEnd] = ()
    ) -> list[str]:
        """Return the warnings that have not been given before, a line each. ends: of the completions."""
        if metrics.get("reward") is None:
            return []
        self._ends.append(ends)
        for name, shares in self._shares.items():
            shares.extend([value] if (value := metrics.get(name)) is not None else [])
        means = {name: fmean(shares or [0.0]) for name, shares in self._shares.items()}
        shared = find_shared_outcome(list(chain.from_iterable(self._ends)))
        warnings = {"shared outcome": shared} if shared else {}
        for name, (metric, most, text) in CHECKS.items():
            share, is_full = means[metric], len(self._shares[metric]) == WINDOW_STEPS
            if share > most and (name != "tied" or share >= 1 or is_full):
                warnings[name] = f"{share:.0%} {text}"
        if metrics.get("advantage/std") == 0:
            remedy = f"raise training.games_per_step or game.temperature{see('groups-tied')}"
            warnings["tied"] = f"all advantages are 0, so nothing was learned; {remedy}"
        for name, fields in SATURATED.items() if "tied" in warnings else ():
            won, tied = means[name], means["frac_reward_zero_std"] or 1.0  # in self-play all
            if 1 - won < tied / 2:  # most of the tied groups have won
                already = "every completion already earns" if won == 1 else f"{won:.0%} already earn"
                warnings["tied"] = f"{already} the most, so groups are tied: take harder tasks, {fields}"
        if (kl := metrics.get("kl") or 0.0) > MAX_KL:
            warnings["kl"] = (
                f"kl is {kl:.3f}, above {MAX_KL}: the policy moves far from the untrained model; "
                "lower training.learning_rate or raise training.beta"
            )
        new = [f"warning: step {step}: {text}" for name, text in warnings.items() if name not in self.given]
        self.given |= set(warnings)
        return new


def find_alarms(metrics: Mapping[str, float], *, first_length: float) -> dict[str, str]:
    """Return {alarm: what is wrong and what to change} after an update of a policy that plays games.

    first_length: mean tokens of an answer at the first update, with which later ones are compared.
    """
    alarms = {}
    invalid_share, entropy = metrics["play/invalid_share"], metrics["entropy"]
    length = metrics["play/completion_tokens"]
    if invalid_share > MAX_INVALID_SHARE:
        alarms["invalid"] = f"{invalid_share:.0%} {INVALID_MOVES}"
    if entropy < ALARM_ENTROPY:
        alarms["entropy"] = (
            f"the entropy is {entropy:.2g} nats: the policy no longer tries anything; "
            f"raise training.entropy_coef{see('reward-flat')}"
        )
    if length < ALARM_LENGTH_SHARE * first_length:
        alarms["length"] = (
            f"answers have shrunk from {first_length:.0f} to {length:.0f} tokens; "
            f"lower training.learning_rate{see('reward-flat')}"
        )
    return alarms


def check_alarms(counts: Mapping[str, int], metrics: Mapping[str, float], *, first_length: float) -> None:
    """Raise TrainingDiverged where an alarm has been raised in ALARM_PATIENCE consecutive updates."""
    for name, reason in find_alarms(metrics, first_length=first_length).items():
        if counts.get(name, 0) >= ALARM_PATIENCE:
            raise TrainingDiverged(f"for {counts[name]} updates in a row {reason}")

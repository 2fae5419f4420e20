"""How hard to predict the programs of a policy are, on values that it was never trained on.

A rising share of wins says little: against a reader that cannot compute, any program that runs wins. So win =
valid x (1 - right on valid) is shown with both factors, under the opponent and under a judge that was never
trained against, beside what makes a program predictable or merely odd.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rlnb.evaluation.compare import Estimate, bootstrap_ratio, wilson_interval
from rlnb.machine import rank
from rlnb.metrics import INVALID_KINDS
from rlnb.params.grpo_code_game import GrpoCodeGameParams
from rlnb.policy import Policy, generate
from rlnb.rewards.code_game import (
    GameReferee,
    GameRound,
    Reading,
    game_metrics,
    judged,
    reading_of,
)
from rlnb.rewards.opponents import ModelOpponent, Opponent, Verdict, as_it_is
from rlnb.runs import write_text
from rlnb.sandbox import FailureCount
from rlnb.tasks.game_programs import CONSTRUCTS
from rlnb.tasks.game_prompts import GameQuestion, build_game_prompt, game_questions
from rlnb.tasks.prediction_set import prediction_set

# Of each measure its numerator and denominator, of one played round.
SHARES: Mapping[str, tuple[Callable[["Played"], bool], Callable[["Played"], bool]]] = {
    "win": (lambda one: one.round.is_win, lambda one: True),
    "valid": (lambda one: one.round.is_valid, lambda one: True),
    "opponent right on valid": (lambda one: one.is_right, lambda one: one.round.is_valid),
    "win under the second judge": (lambda one: one.beats_second, lambda one: one.has_second),
    "second judge right on valid": (
        lambda one: one.second is not None and one.second.is_right,
        lambda one: one.second is not None,
    ),
    "trivial": (lambda one: one.reads("is_trivial"), lambda one: one.round.is_valid),
    "echo": (lambda one: one.reads("is_echo"), lambda one: one.round.is_valid),
    "false comment": (lambda one: one.reads("states_false"), lambda one: one.round.is_valid),
}


@dataclass(frozen=True)
class Played:
    """One completion of an evaluation.

    second: the second judge's verdict, None where it was not asked or the program is not valid. has_second:
    it counts for that judge, as a program that is judged or one that is not valid.
    """

    question: GameQuestion
    completion: str
    round: GameRound
    reading: Reading | None = None
    second: Verdict | None = None
    has_second: bool = False

    @property
    def is_right(self) -> bool:
        return self.round.verdict is not None and self.round.verdict.is_right

    @property
    def beats_second(self) -> bool:
        return self.second is not None and not self.second.is_right

    def reads(self, name: str) -> bool:
        return self.reading is not None and bool(getattr(self.reading, name))


@dataclass(frozen=True)
class GameEvaluation:
    """What is asked of a policy at every evaluation: the same held-out questions and seeds each time."""

    params: GrpoCodeGameParams
    referee: GameReferee
    opponent: Opponent
    second: Opponent | None

    def __call__(
        self,
        policy: Policy,
        *,
        num_prompts: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Played]:
        """Play `num_programs` rounds with each of the first held-out questions; keeps the random state."""
        asked, form = self.params.evaluation, self.params.game.form
        topics = self.params.game.topics if form == "topic" else ()
        questions = [
            question
            for question in game_questions(topics)["held_out"][:num_prompts]
            for _ in range(asked.num_programs)
        ]
        prompts = [build_game_prompt(question, form, policy.tokenizer) for question in questions]
        completions = generate(
            policy, [prompt.text for prompt in prompts],
            max_new_tokens=self.params.training.max_completion_length, temperature=asked.program_temperature,
            seed=0, batch_size=asked.batch_size, progress=progress,
        )  # fmt: skip
        rounds = judged(
            self.referee.rounds(completions, [prompt.prefix for prompt in prompts]), self.opponent
        )
        failed = [one.message for one in rounds if one.kind == "sandbox_error"]
        FailureCount().add(len(rounds), failed)
        played = [
            Played(question, completion, one, reading_of(one) if one.is_valid else None)
            for question, completion, one in zip(questions, completions, rounds, strict=True)
            if one.kind != "sandbox_error"
        ]
        return self.with_second(played) if self.second else played

    def predictor_metrics(self, policy: Policy) -> dict[str, float]:
        """How well the policy itself predicts the fixed programs, in the two-sided game; else nothing."""
        if not self.params.game.two_sided:
            return {}
        reader = ModelOpponent(policy, as_it_is, num_shots=self.params.opponent.num_shots)
        return {"heldout/game/predictor_right": opponent_by_level(reader)[-1]["share"].value}

    def with_second(self, played: Sequence[Played]) -> list[Played]:
        """The same with the second judge's verdicts.

        Where it had fewer outputs to pick from than it should, chance is another: such programs count not.
        """
        valid = [one.round for one in played if one.round.is_valid]
        verdicts = iter(
            self.second.judge([one.shown for one in valid], [one.output for one in valid])
            if self.second and valid
            else []
        )
        judged_twice = []
        for one in played:
            verdict = next(verdicts) if one.round.is_valid else None
            is_fair = verdict is None or verdict.num_options in (0, self.params.reward.num_choices)
            judged_twice.append(replace(one, has_second=is_fair, second=verdict if is_fair else None))
        return judged_twice


def counts_of(played: Sequence[Played], name: str) -> tuple[list[float], list[float]]:
    """Numerators and denominators of a measure, one a question, sorted: the same order for any two times."""
    has, of = SHARES[name]
    questions = sorted({one.question for one in played}, key=lambda question: question.id)
    top, bottom = dict.fromkeys(questions, 0.0), dict.fromkeys(questions, 0.0)
    for one in played:
        bottom[one.question] += of(one)
        top[one.question] += has(one) and of(one)
    return list(top.values()), list(bottom.values())


def share_of(played: Sequence[Played], name: str) -> Estimate | None:
    """A measure with its interval, questions drawn anew; None where nothing is counted.

    Where all or none have it nothing varies between draws: then Wilson's interval, with the questions as
    trials, since programs of one question are alike.
    """
    top, bottom = counts_of(played, name)
    if not sum(bottom):
        return None
    if sum(top) in (0, sum(bottom)):
        return wilson_interval(sum(top) / sum(bottom), sum(count > 0 for count in bottom))
    return bootstrap_ratio(top, bottom)


def measure_game(played: Sequence[Played]) -> dict[str, Estimate | float | None]:
    """Every measure, None where nothing tells of it; those that are no shares without an interval."""
    metrics = game_metrics([one.round for one in played])
    others = {
        "distinct shapes a valid program": metrics["distinct_shapes"],
        "probability of an output token": metrics["token_probability"],
        "characters of an output": metrics["output_characters"],
    }
    return {name: share_of(played, name) for name in SHARES} | {
        name: None if math.isnan(value) else value for name, value in others.items()
    }


def game_heldout_metrics(played: Sequence[Played]) -> dict[str, float]:
    """The means under their metric names, `heldout/game/<measure>`."""
    if not played:
        return {}
    metrics = game_metrics([one.round for one in played])
    names = ("win_share", "valid_share", "opponent_right", "trivial_share", "echo_share", "distinct_shapes")
    values = {name: metrics[name] for name in names}
    second = share_of(played, "second judge right on valid")
    if second is not None:
        values["second_right"] = second.value
    return {f"heldout/game/{name}": value for name, value in values.items()}


def compare_game(played: Mapping[str, Sequence[Played]]) -> list[dict[str, Any]]:
    """A row a measure: its value at each time, and the differences of the last ones to the first.

    played: "before", "after" and perhaps "control", each with the same questions; empty ones are left out.
    "after - before" and "after - control" have intervals over questions, drawn alike for both.
    """
    times = {name: own for name, own in played.items() if own}
    measures = {name: measure_game(own) for name, own in times.items()}
    rows: list[dict[str, Any]] = []
    for measure in next(iter(measures.values()), {}):
        row: dict[str, Any] = {"measure": measure} | {name: own[measure] for name, own in measures.items()}
        for former in ("before", "control"):
            if "after" in times and former in times and measure in SHARES:
                row[f"after - {former}"] = difference(times["after"], times[former], measure)
        if any(value is not None for name, value in row.items() if name != "measure"):
            rows.append(row)
    return rows


def difference(played: Sequence[Played], former: Sequence[Played], name: str) -> Estimate | None:
    """A measure minus what it was, over the questions of both.

    Where a side is 0 or 1, and so does not vary, the interval is made of those of the sides, as if they were
    independent (Newcombe, Interval estimation for the difference between independent proportions, 1998,
    method 10).
    """
    common = {one.question for one in played} & {one.question for one in former}
    sides = [[one for one in own if one.question in common] for own in (played, former)]
    new, old = (share_of(side, name) for side in sides)
    if new is None or old is None:
        return None
    counts = [counts_of(side, name) for side in sides]
    if not {new.value, old.value} & {0.0, 1.0}:
        return bootstrap_ratio(*counts[0], minus=counts[1])
    value = new.value - old.value
    low = value - math.hypot(new.value - new.low, old.high - old.value)
    return Estimate(value, low, value + math.hypot(new.high - new.value, old.value - old.low))


def invalid_kinds(played: Mapping[str, Sequence[Played]]) -> list[dict[str, Any]]:
    """A row a kind of invalid program that occurs: its share of all completions at each time."""
    shares = {time: game_metrics([one.round for one in own]) for time, own in played.items() if own}
    rows = [
        {"kind": kind} | {time: own[f"{kind}_share"] for time, own in shares.items()}
        for kind in INVALID_KINDS
    ]
    return [row for row in rows if any(value for name, value in row.items() if name != "kind")]


def by_construct(played: Mapping[str, Sequence[Played]]) -> list[dict[str, Any]]:
    """A row a construct: at each time how many valid programs hold it, and how many the opponent predicts."""
    rows = []
    for construct in CONSTRUCTS:
        row: dict[str, Any] = {"construct": construct}
        for time, own in played.items():
            holding = [one for one in own if one.reading and construct in one.reading.constructs]
            row[time] = (sum(one.is_right for one in holding), len(holding))
        if any(count for name, (_, count) in list(row.items())[1:]):
            rows.append(row)
    return rows


def opponent_by_level(opponent: Opponent) -> list[dict[str, Any]]:
    """The opponent on the fixed programs, a row a level and one for all: right, count, Wilson interval."""
    programs = prediction_set()
    verdicts = opponent.judge([one.code for one in programs], [one.output for one in programs])
    rows = []
    for level in [*sorted({one.level for one in programs}), "all"]:
        right = [
            verdict.is_right
            for one, verdict in zip(programs, verdicts, strict=True)
            if level in ("all", one.level)
        ]
        share = wilson_interval(sum(right) / len(right), len(right))
        rows.append({"level": level, "right": sum(right), "count": len(right), "share": share})
    return rows


def hardest(played: Sequence[Played], opponent: Opponent, *, limit: int = 10) -> list[dict[str, Any]]:
    """The distinct valid programs that the opponent failed on most, with its decoded predictions.

    Most: its mean log-probability of the output's tokens was lowest, or just failed, where it has none.
    """
    wins = {one.round.shown: one for one in played if one.round.is_win}
    ordered = sorted(wins.values(), key=lambda one: probability_of(one.round) or 0.0)[:limit]
    predictions = opponent.predict([one.round.shown for one in ordered]) if ordered else []
    return [
        {
            "program": one.round.shown,
            "output": one.round.output,
            "prediction": prediction,
            "token_probability": probability_of(one.round),
        }
        for one, prediction in zip(ordered, predictions, strict=True)
    ]


def probability_of(one: GameRound) -> float | None:
    """The geometric mean of the output's token probabilities, None where it is unknown."""
    return one.verdict.token_probability if one.verdict and one.verdict.num_tokens else None


def save_game(path: str | Path, params: GrpoCodeGameParams, played: Mapping[str, Sequence[Played]]) -> None:
    """Write parameters, comparison and every round as JSON, whole or not at all; rank 0 alone does."""
    results = {
        "params": params.model_dump(mode="json"),
        "comparison": [
            {name: asdict(value) if isinstance(value, Estimate) else value for name, value in row.items()}
            for row in compare_game(played)
        ],
        "rounds": {time: [record_of(one) for one in own] for time, own in played.items()},
    }
    if rank() == 0:
        write_text(Path(path), json.dumps(results, indent=1) + "\n")


def record_of(one: Played) -> dict[str, Any]:
    """A played round as plain data."""
    return {
        "question": one.question.id,
        "completion": one.completion,
        "kind": one.round.kind,
        "message": one.round.message,
        "program": one.round.shown,
        "output": one.round.output,
        "opponent_right": one.is_right if one.round.is_valid else None,
        "token_probability": probability_of(one.round),
        "second_right": one.second.is_right if one.second else None,
    }

"""How hard to predict the programs of a policy are, on values that it was never trained on.

A rising share of wins says little: against a reader that cannot compute, any program that runs wins. So win =
valid x (1 - right on valid) is shown with both factors, under the opponent and under a judge that was never
trained against, next to what makes a program predictable or merely odd.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from statistics import fmean

import pandas

from rlnb.code_game.opponents import Judge, PredictionVerdict
from rlnb.code_game.params import GrpoCodeGameParams
from rlnb.code_game.prediction import PREDICTION_LEVELS, load_prediction_set
from rlnb.code_game.programs import is_echo, is_trivial
from rlnb.code_game.prompts import GameQuestion, build_game_prompt, game_questions
from rlnb.code_game.reward import GameReferee, GameRound, game_metrics, judge_rounds
from rlnb.evaluations import measure_once
from rlnb.policy import Policy, Progress, generate
from rlnb.results import Comparison
from rlnb.run.health import AnswerEnd, describe_ends
from rlnb.sandbox import FailureCount
from rlnb.source_code.extraction import ends_of_answers
from rlnb.statistics import Estimate, bootstrap_ratio, wilson_interval

NUM_PROGRAMS = 4  # sampled for each question
INTERVAL_SHARE = 1 / 8  # of the questions, at the evaluations during training
HELD_OUT_METRICS = (
    "win_share", "valid_share", "opponent_right", "trivial_share", "echo_share", "distinct_shapes"
)  # fmt: skip


@dataclass(frozen=True)
class EvaluatedProgram:
    """One completion of an evaluation.

    is_cut: by the limit of tokens. second: the second judge's verdict, None where it was not asked or the
    program is not valid.
    """

    question: GameQuestion
    completion: str
    is_cut: bool
    round: GameRound
    second: PredictionVerdict | None = None


Times = Mapping[str, Sequence[EvaluatedProgram]]  # evaluations by their time: before, after, control
Measures = dict[str, dict[str, Estimate | float | None]]  # {time: {measure: value}}
# Whether a program counts for each measure; None where it is not eligible for it.
SHARES: Mapping[str, Callable[[EvaluatedProgram], bool | None]] = {
    "win": lambda p: p.round.is_win,
    "valid": lambda p: p.round.is_valid,
    "cut": lambda p: p.is_cut,
    "opponent right on valid": lambda p: p.round.is_predicted if p.round.is_valid else None,
    "second judge right on valid": lambda p: p.second.is_right if p.second else None,
    "trivial": lambda p: is_trivial(p.round.shown) if p.round.is_valid else None,
    "echo": lambda p: is_echo(p.round.shown, p.round.output) if p.round.is_valid else None,
}
# Measures that are not shares, and so have no interval, by their names in `game_metrics`.
OTHER_MEASURES = {
    "distinct shapes a valid program": "distinct_shapes",
    "probability of an output token": "token_probability",
    "characters of an output": "output_characters",
}


@dataclass(frozen=True)
class GameEvaluation:
    """An evaluation that uses the same held-out questions and seeds each time."""

    params: GrpoCodeGameParams
    referee: GameReferee
    judge: Judge
    second: Judge | None

    def __call__(
        self, policy: Policy, *, is_interval: bool = False, progress: Progress | None = None
    ) -> list[EvaluatedProgram]:
        """Play NUM_PROGRAMS rounds with each of the first held-out questions; keeps the random state.

        is_interval: during training, with INTERVAL_SHARE of `num_prompts` questions.
        """
        evaluation, form = self.params.evaluation, self.params.game.form
        share = INTERVAL_SHARE if is_interval else 1
        held_out = game_questions(form)["held_out"][: max(1, round(share * evaluation.num_prompts))]
        questions = [question for question in held_out for _ in range(NUM_PROGRAMS)]
        prompts = [build_game_prompt(question, form, policy.chat) for question in questions]
        written = generate(
            policy,
            [prompt.text for prompt in prompts],
            max_new_tokens=self.params.training.max_completion_length,
            temperature=1.0,
            seed=0,
            batch_size=evaluation.batch_size,
            is_complete=ends_of_answers([prompt.prefix for prompt in prompts], [""] * len(prompts)),
            progress=progress,
        )
        texts = [completion.text for completion in written]
        rounds = self.referee.play(texts, [prompt.prefix for prompt in prompts])
        rounds = judge_rounds(rounds, self.judge)
        FailureCount().add(len(rounds), [game.message for game in rounds if game.kind == "sandbox_error"])
        programs = [
            EvaluatedProgram(question, *completion, played)
            for question, completion, played in zip(questions, written, rounds, strict=True)
            if played.kind != "sandbox_error"
        ]
        if self.second is None:
            return programs
        judged_again = judge_rounds([program.round for program in programs], self.second)
        return [
            replace(program, second=played.verdict if played.is_valid else None)
            for program, played in zip(programs, judged_again, strict=True)
        ]

    def measure(
        self, policy: Policy, label: str, *, is_interval: bool = False, progress: Progress | None = None
    ) -> list[EvaluatedProgram]:
        """Return the programs of a policy in training, kept in game_<label>.json; see `measure_once`.

        label: "before", "step-20", "after" or "control". Nothing where `evaluation.enabled` is false.
        """
        if not self.params.evaluation.enabled:
            return []
        sections = {"seed", "model", "game", "opponent", "sandbox", "evaluation", "reward"}
        return measure_once(
            Path(self.params.output_dir, f"game_{label}.json"),
            lambda: self(policy, is_interval=is_interval, progress=progress),
            kind=list[EvaluatedProgram],
            policy=policy,
            params=self.params,
            settings={
                **self.params.model_dump(mode="json", include=sections, exclude={"opponent": {"base_url"}}),
                "max_completion_length": self.params.training.max_completion_length,
                "isolation": self.referee.reruns.level,
            },
            warn=lambda programs: describe_ends(
                [AnswerEnd(each.round.kind, each.round.message, each.is_cut) for each in programs]
            ),
        )


def count_by_question(programs: Sequence[EvaluatedProgram], measure: str) -> tuple[list[float], list[float]]:
    """Return numerators and denominators of a measure, one each a question, in the order of questions."""
    values = [SHARES[measure](program) for program in programs]
    series = pandas.Series(values, [program.question.id for program in programs], dtype=float)
    by_question = series.groupby(level=0)
    return by_question.sum().tolist(), by_question.count().tolist()


def estimate_share(programs: Sequence[EvaluatedProgram], measure: str) -> Estimate | None:
    """Return a measure with its interval over questions, None where no program is eligible.

    The interval is a bootstrap over questions. Where the share is 0 or 1 resampling does not vary it: then it
    is Wilson's, with the questions as trials, since programs of one question are alike.
    """
    numerators, denominators = count_by_question(programs, measure)
    counted, eligible = sum(numerators), sum(denominators)
    if not eligible:
        return None
    if counted in (0, eligible):
        return wilson_interval(counted / eligible, sum(count > 0 for count in denominators))
    return bootstrap_ratio(numerators, denominators)


def measure_game(times: Times) -> Measures:
    """Return {time: {measure: value}} of the times with programs; None where a measure is not defined."""
    measures: Measures = {}
    for time, programs in times.items():
        if programs:
            metrics = game_metrics([program.round for program in programs])
            others = {measure: metrics[name] for measure, name in OTHER_MEASURES.items()}
            measures[time] = {measure: estimate_share(programs, measure) for measure in SHARES}
            measures[time] |= {name: None if math.isnan(value) else value for name, value in others.items()}
    return measures


def game_heldout_metrics(programs: Sequence[EvaluatedProgram]) -> dict[str, float]:
    """Return the means under their metric names, `heldout/game/<measure>`."""
    if not programs:
        return {}
    metrics = game_metrics([program.round for program in programs])
    values = {f"heldout/game/{name}": metrics[name] for name in HELD_OUT_METRICS}
    values["heldout/game/cut_share"] = fmean(program.is_cut for program in programs)
    second = estimate_share(programs, "second judge right on valid")
    return values if second is None else values | {"heldout/game/second_right": second.value}


def compare_game(times: Times) -> list[Comparison]:
    """Return the differences of "after" to "before" and to "control" in each share that both define."""
    comparisons = [
        compare_share(measure, times.get(time, ()), times.get("after", ()), split=f"after - {time}")
        for time in ("before", "control")
        for measure in SHARES
    ]
    return [comparison for comparison in comparisons if comparison is not None]


def compare_share(
    measure: str, before: Sequence[EvaluatedProgram], after: Sequence[EvaluatedProgram], *, split: str
) -> Comparison | None:
    """Return the change of a share over the common questions; None where a side does not define it.

    Where a side is 0 or 1, and so does not vary, the interval combines those of the two sides as if they were
    independent (Newcombe, Interval estimation for the difference between independent proportions, 1998,
    method 10).
    """
    common = {program.question for program in before} & {program.question for program in after}
    before, after = ([p for p in side if p.question in common] for side in (before, after))
    old, new = estimate_share(before, measure), estimate_share(after, measure)
    if old is None or new is None:
        return None
    if {new.value, old.value} & {0.0, 1.0}:
        value = new.value - old.value
        below = math.hypot(new.value - new.low, old.high - old.value)
        above = math.hypot(new.high - new.value, old.value - old.low)
        change = Estimate(value, value - below, value + above)
    else:
        minus = count_by_question(before, measure)
        change = bootstrap_ratio(*count_by_question(after, measure), minus=minus)
    return Comparison(measure, split, len(common), old.value, new.value, change)


def measure_levels(judge: Judge) -> dict[str, str]:
    """Return how many fixed programs a judge is right on, such as "9 of 15", for each level and for all."""
    levels, codes, outputs = zip(*map(astuple, load_prediction_set()), strict=True)
    is_right = pandas.Series([verdict.is_right for verdict in judge.judge(codes, outputs)], levels)
    by_level = {words: is_right[level] for level, words in PREDICTION_LEVELS.items()} | {"all": is_right}
    return {words: f"{values.sum()} of {len(values)}" for words, values in by_level.items()}

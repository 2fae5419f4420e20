"""How hard to predict the programs of a policy are, on values that it was never trained on.

A rising share of wins says little: against a reader that cannot compute, any program that runs wins. So win =
valid x (1 - right on valid) is shown with both factors, under the opponent and under a judge that was never
trained against, next to what makes a program predictable or merely odd.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas

from rlnb.code_game.opponents import Judge, ModelOpponent, PredictionVerdict, Predictor
from rlnb.code_game.params import GrpoCodeGameParams
from rlnb.code_game.prediction import load_prediction_set
from rlnb.code_game.programs import CONSTRUCTS, find_constructs, is_echo, is_trivial
from rlnb.code_game.prompts import GameQuestion, build_game_prompt, game_questions
from rlnb.code_game.reward import GameReferee, GameRound, game_metrics, judge_rounds
from rlnb.evaluations import PlainForm, measure_once
from rlnb.policy import Policy, generate
from rlnb.results import Comparison, save_results
from rlnb.run.metrics import INVALID_KINDS
from rlnb.sandbox import FailureCount
from rlnb.statistics import Estimate, bootstrap_ratio, wilson_interval

HELD_OUT_METRICS = (
    "win_share", "valid_share", "opponent_right", "trivial_share", "echo_share", "distinct_shapes"
)  # fmt: skip


@dataclass(frozen=True)
class EvaluatedProgram:
    """One completion of an evaluation.

    second: the second judge's verdict, None where it was not asked or the program is not valid.
    counts_for_second: it counts in that judge's measures, as a program that it judged or that is not valid.
    """

    question: GameQuestion
    completion: str
    round: GameRound
    second: PredictionVerdict | None = None
    counts_for_second: bool = False


Times = Mapping[str, Sequence[EvaluatedProgram]]  # evaluations by their time: before, after, control
# Whether a program counts for each measure; None where it is not eligible for it.
SHARES: Mapping[str, Callable[[EvaluatedProgram], bool | None]] = {
    "win": lambda program: program.round.is_win,
    "valid": lambda program: program.round.is_valid,
    "opponent right on valid": lambda program: of_valid(program, program.round.is_predicted),
    "win under the second judge": lambda program: (
        program.second is not None and not program.second.is_right if program.counts_for_second else None
    ),
    "second judge right on valid": lambda program: program.second.is_right if program.second else None,
    "trivial": lambda program: of_valid(program, is_trivial(program.round.shown)),
    "echo": lambda program: of_valid(program, is_echo(program.round.shown, program.round.output)),
}
# Measures that are not shares, and so have no interval, by their names in `game_metrics`.
OTHER_MEASURES = {
    "distinct shapes a valid program": "distinct_shapes",
    "probability of an output token": "token_probability",
    "characters of an output": "output_characters",
}


def of_valid(program: EvaluatedProgram, value: bool) -> bool | None:
    return value if program.round.is_valid else None


@dataclass(frozen=True)
class GameEvaluation:
    """An evaluation that uses the same held-out questions and seeds each time."""

    params: GrpoCodeGameParams
    referee: GameReferee
    judge: Judge
    second: Judge | None

    def __call__(
        self, policy: Policy, *, is_interval: bool = False, progress: Callable[[int, int], None] | None = None
    ) -> list[EvaluatedProgram]:
        """Play `num_programs` rounds with each of the first held-out questions; keeps the random state.

        is_interval: during training, with `interval_prompts` questions instead of `num_prompts`.
        """
        evaluation, game = self.params.evaluation, self.params.game
        num_prompts = evaluation.interval_prompts if is_interval else evaluation.num_prompts
        held_out = game_questions(game.topics if game.form == "topic" else ())["held_out"][:num_prompts]
        questions = [question for question in held_out for _ in range(evaluation.num_programs)]
        prompts = [
            build_game_prompt(question, game.form, policy.tokenizer, thinking=policy.thinking)
            for question in questions
        ]
        completions = generate(
            policy,
            [prompt.text for prompt in prompts],
            max_new_tokens=self.params.training.max_completion_length,
            temperature=evaluation.program_temperature,
            seed=0,
            batch_size=evaluation.batch_size,
            progress=progress,
        )
        rounds = self.referee.play(completions, [prompt.prefix for prompt in prompts])
        rounds = judge_rounds(rounds, self.judge)
        FailureCount().add(len(rounds), [game.message for game in rounds if game.kind == "sandbox_error"])
        programs = [
            EvaluatedProgram(question, completion, played)
            for question, completion, played in zip(questions, completions, rounds, strict=True)
            if played.kind != "sandbox_error"
        ]
        return self.judge_again(programs, self.second) if self.second else programs

    def measure(
        self,
        policy: Policy,
        label: str,
        *,
        is_interval: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[EvaluatedProgram]:
        """Return the programs of a policy in training, kept in game_<label>.json; see `measure_once`.

        label: "before", "step-20", "after" or "control".
        """
        sections = {"seed", "model", "game", "opponent", "sandbox", "evaluation"}
        return measure_once(
            Path(self.params.output_dir, f"game_{label}.json"),
            lambda: self(policy, is_interval=is_interval, progress=progress),
            form=PlainForm(list[EvaluatedProgram]),
            policy=policy,
            params=self.params,
            settings={
                **self.params.model_dump(mode="json", include=sections),
                "preset": self.params.reward.preset,
                "num_choices": self.params.reward.num_choices,
                "max_completion_length": self.params.training.max_completion_length,
                "isolation": self.referee.reruns.level,
            },
        )

    def judge_again(self, programs: Sequence[EvaluatedProgram], second: Judge) -> list[EvaluatedProgram]:
        """Return the programs with the second judge's verdicts.

        Programs for which it had fewer outputs to pick from than it should are excluded, since the chance
        level differs for them.
        """
        judged_again = []
        for program, played in zip(programs, judge_rounds([p.round for p in programs], second), strict=True):
            verdict = played.verdict if played.is_valid else None
            is_fair = verdict is None or verdict.num_options in (0, self.params.reward.num_choices)
            second_verdict = verdict if is_fair else None
            judged_again.append(replace(program, counts_for_second=is_fair, second=second_verdict))
        return judged_again

    def predictor_metrics(self, policy: Policy) -> dict[str, float]:
        """Return how well the policy itself predicts the fixed programs, in the two-sided game only."""
        if not self.params.game.two_sided:
            return {}
        reader = ModelOpponent(policy, nullcontext, num_shots=self.params.opponent.num_shots)
        return {"heldout/game/predictor_right": measure_levels(reader)[-1].share.value}


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


def measure_game(programs: Sequence[EvaluatedProgram]) -> dict[str, Estimate | float | None]:
    """Return every measure, None where it is not defined."""
    metrics = game_metrics([program.round for program in programs])
    shares = {measure: estimate_share(programs, measure) for measure in SHARES}
    return shares | {measure: known_value(metrics[name]) for measure, name in OTHER_MEASURES.items()}


def game_heldout_metrics(programs: Sequence[EvaluatedProgram]) -> dict[str, float]:
    """Return the means under their metric names, `heldout/game/<measure>`."""
    if not programs:
        return {}
    metrics = game_metrics([program.round for program in programs])
    values = {f"heldout/game/{name}": metrics[name] for name in HELD_OUT_METRICS}
    second = estimate_share(programs, "second judge right on valid")
    return values if second is None else values | {"heldout/game/second_right": second.value}


@dataclass(frozen=True)
class GameComparison:
    """One measure at each time, and the differences of the last evaluation to the earlier ones.

    differences: by name, "after - before" and "after - control"; None without common questions.
    """

    measure: str
    values: dict[str, Estimate | float | None]
    differences: dict[str, Estimate | None] = field(default_factory=dict)


def compare_game(times: Times) -> list[GameComparison]:
    """Return a comparison for each measure that is defined at some time.

    times: "before", "after" and perhaps "control", each with the same questions; empty ones are left out.
    """
    measures = {time: measure_game(programs) for time, programs in times.items() if programs}
    former_times = [time for time in ("before", "control") if {time, "after"} <= measures.keys()]
    comparisons = []
    for measure in [*SHARES, *OTHER_MEASURES]:
        values = {time: of_time[measure] for time, of_time in measures.items()}
        if any(value is not None for value in values.values()):
            differences = {
                f"after - {time}": estimate_difference(times["after"], times[time], measure)
                for time in former_times
                if measure in SHARES
            }
            comparisons.append(GameComparison(measure, values, differences))
    return comparisons


def estimate_difference(
    programs: Sequence[EvaluatedProgram], former: Sequence[EvaluatedProgram], measure: str
) -> Estimate | None:
    """Return a measure minus its former value, over the questions of both, with its interval.

    Where a side is 0 or 1, and so does not vary, the interval combines those of the two sides as if they were
    independent (Newcombe, Interval estimation for the difference between independent proportions, 1998,
    method 10).
    """
    common = {program.question for program in programs} & {program.question for program in former}
    sides = [[program for program in side if program.question in common] for side in (programs, former)]
    new, old = (estimate_share(side, measure) for side in sides)
    if new is None or old is None:
        return None
    if not {new.value, old.value} & {0.0, 1.0}:
        numerators, denominators = count_by_question(sides[0], measure)
        return bootstrap_ratio(numerators, denominators, minus=count_by_question(sides[1], measure))
    value = new.value - old.value
    below = math.hypot(new.value - new.low, old.high - old.value)
    above = math.hypot(new.high - new.value, old.value - old.low)
    return Estimate(value, value - below, value + above)


def count_invalid_kinds(times: Times) -> dict[str, dict[str, float]]:
    """Return {kind: {time: share of all completions}} of the kinds of invalid programs that occur."""
    metrics = {time: game_metrics([p.round for p in played]) for time, played in times.items() if played}
    return {
        kind: {time: values[f"{kind}_share"] for time, values in metrics.items()}
        for kind in INVALID_KINDS
        if any(values[f"{kind}_share"] for values in metrics.values())
    }


def count_constructs(times: Times) -> dict[str, dict[str, tuple[int, int]]]:
    """Return {construct: {time: (predicted, valid)}}: counts of the valid programs that show a construct."""
    counts = {construct: dict.fromkeys(times, (0, 0)) for construct in CONSTRUCTS}
    for time, programs in times.items():
        for played in (program.round for program in programs if program.round.is_valid):
            for construct in find_constructs(played.shown):
                predicted, valid = counts[construct][time]
                counts[construct][time] = predicted + played.is_predicted, valid + 1
    return {name: by_time for name, by_time in counts.items() if set(by_time.values()) != {(0, 0)}}


@dataclass(frozen=True)
class LevelResult:
    """Right predictions of the fixed programs of one level. share: with Wilson's interval."""

    level: str
    num_right: int
    num_programs: int
    share: Estimate


def measure_levels(judge: Judge) -> list[LevelResult]:
    """Return a judge's results on the fixed programs, level by level, and on all of them last."""
    programs = load_prediction_set()
    verdicts = judge.judge([program.code for program in programs], [program.output for program in programs])
    results = []
    for level in [*sorted({program.level for program in programs}), "all"]:
        judged = zip(programs, verdicts, strict=True)
        right = [verdict.is_right for program, verdict in judged if level in ("all", program.level)]
        share = wilson_interval(sum(right) / len(right), len(right))
        results.append(LevelResult(level, sum(right), len(right), share))
    return results


def find_hardest(
    programs: Sequence[EvaluatedProgram], predictor: Predictor, *, limit: int = 10
) -> list[tuple[GameRound, str]]:
    """Return (round, decoded prediction) of the distinct valid programs that the opponent failed on most.

    Those are the ones whose output it found least likely; where probabilities are unknown, any it failed on.
    """
    wins = {program.round.shown: program.round for program in programs if program.round.is_win}
    hardest = sorted(wins.values(), key=lambda played: known_value(played.token_probability) or 0.0)[:limit]
    predictions = predictor.predict([played.shown for played in hardest]) if hardest else []
    return list(zip(hardest, predictions, strict=True))


def known_value(value: float) -> float | None:
    return None if math.isnan(value) else value


def save_game(path: str | Path, params: GrpoCodeGameParams, times: Times) -> None:
    """Write parameters, comparison and every round as JSON; see `rlnb.results.save_results`."""
    rounds = {time: list(map(make_record, programs)) for time, programs in times.items()}
    measures = compare_game(times)
    num_questions = len({program.question for program in times.get("after", ())})
    comparison = to_comparisons(measures, num_questions=num_questions)
    save_results(path, params=params, comparison=comparison, measures=measures, rounds=rounds)


def to_comparisons(rows: Sequence[GameComparison], *, num_questions: int) -> list[Comparison]:
    """Return the differences for tables of several runs: to the time before, and to the control run."""
    comparisons = []
    for row in rows:
        for name, difference in row.differences.items():
            former, after = row.values[name.removeprefix("after - ")], row.values["after"]
            if difference and isinstance(former, Estimate) and isinstance(after, Estimate):
                values = (former.value, after.value, difference)
                comparisons.append(Comparison(row.measure, name, num_questions, *values))
    return comparisons


def make_record(program: EvaluatedProgram) -> dict[str, str | bool | float | None]:
    played = program.round
    return {
        "question": program.question.id,
        "completion": program.completion,
        "kind": played.kind,
        "message": played.message,
        "program": played.shown,
        "output": played.output,
        "opponent_right": played.is_predicted if played.is_valid else None,
        "token_probability": known_value(played.token_probability),
        "second_right": program.second.is_right if program.second else None,
    }

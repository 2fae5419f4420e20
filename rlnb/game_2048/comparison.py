"""Measures of 2048 strategies, and the comparison of two results; it loads no library of models."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rlnb.errors import ParamsError
from rlnb.game_2048.board import BoardKind
from rlnb.game_2048.reward import StrategyResult, compute_strategy_shares
from rlnb.results import Comparison, load_results
from rlnb.statistics import Estimate, bootstrap_two_way

SCORE_MEASURES = ("score", "skill", "greedy_score", "greedy_skill")  # skill: of honest completions only
# {what two runs must agree in to be compared: the reason if they do not}
MUST_AGREE = {
    "board_fingerprint": "were measured on different boards",
    "prompt.preset": "were asked different questions",
    "board.four_probability": "played by different rules",
    "board.patience": "played by different rules",
    "board.play_on": "played by different rules",
    "reward.random_games": "are measured from different random play",
    "evaluation.num_boards": "played different numbers of games",
    "evaluation.num_greedy_boards": "played different numbers of games",
}


@dataclass(frozen=True)
class JudgedCompletion:
    """A completion with its result. greedy: decoded at temperature 0, and played on more boards."""

    kind: BoardKind
    greedy: bool
    completion: str
    result: StrategyResult


@dataclass(frozen=True)
class StrategyComparison:
    """A measure before and after, None if it could not be taken.

    difference: after - before with its interval, for means over boards that were measured both times. boards:
    the kinds of boards compared, "" for all; num_boards: their number.
    """

    measure: str
    before: Estimate | float | None
    after: Estimate | float | None
    difference: Estimate | None = None
    boards: str = ""
    num_boards: int = 0


def score_matrices(
    judged: Sequence[JudgedCompletion], measure: str
) -> dict[BoardKind, list[tuple[float, ...]]]:
    """Return, for each kind of board, what a measure of SCORE_MEASURES is taken of: (completions, boards).

    Completions with a game in which the sandbox failed are left out.
    """
    rows: dict[BoardKind, list[tuple[float, ...]]] = {}
    for completion in judged:
        result = completion.result
        is_whole = len(result.board_scores) == len(result.baselines)
        is_counted = result.is_honest or not measure.endswith("skill")
        if is_whole and is_counted and completion.greedy == measure.startswith("greedy"):
            rows.setdefault(completion.kind, []).append(result.board_scores)
    return rows


def measure_strategies(judged: Sequence[JudgedCompletion]) -> dict[str, Estimate]:
    """Return SCORE_MEASURES with intervals over boards and completions, without those of no completion."""
    matrices = {name: score_matrices(judged, name) for name in SCORE_MEASURES}
    return {name: bootstrap_two_way(list(kinds.values())) for name, kinds in matrices.items() if kinds}


def measure_shares(judged: Sequence[JudgedCompletion]) -> dict[str, float]:
    """Return the shares and counts of the sampled completions."""
    return compute_strategy_shares([completion.result for completion in judged if not completion.greedy])


def compare_strategies(
    before: Sequence[JudgedCompletion], after: Sequence[JudgedCompletion]
) -> list[StrategyComparison]:
    """Return a comparison for each measure; [] if nothing was judged before or after.

    Skill is compared on the kinds of boards on which some completion was honest both times.
    """
    if not before or not after:
        return []
    rows = []
    num_kinds = len({completion.kind for completion in before})
    for name in SCORE_MEASURES:
        old, new = score_matrices(before, name), score_matrices(after, name)
        common = [kind for kind in new if kind in old]
        old_scores, new_scores = ([scores[kind] for kind in common or scores] for scores in (old, new))
        measured = common or list(old) or list(new)
        rows.append(
            StrategyComparison(
                measure=name,
                before=bootstrap_two_way(old_scores) if old else None,
                after=bootstrap_two_way(new_scores) if new else None,
                difference=bootstrap_two_way(new_scores, old_scores) if common else None,
                boards=", ".join(map(str, measured)) if len(measured) < num_kinds else "",
                num_boards=sum(len(new[kind][0]) for kind in common),
            )
        )
    shares = zip(measure_shares(before).items(), measure_shares(after).values(), strict=True)
    return rows + [StrategyComparison(name, old_share, new_share) for (name, old_share), new_share in shares]


def to_comparisons(rows: Sequence[StrategyComparison]) -> list[Comparison]:
    """Return the rows that have a difference, for results files and pictures; items are boards."""
    return [
        Comparison(
            measure=row.measure,
            split=row.boards or "all boards",
            num_items=row.num_boards,
            before=row.before.value,
            after=row.after.value,
            difference=row.difference,
        )
        for row in rows
        if isinstance(row.before, Estimate) and isinstance(row.after, Estimate) and row.difference
    ]


class StrategyResultsFile(BaseModel):
    """The parts of a results file of gpt_oss_2048 that a comparison reads."""

    board_fingerprint: str
    params: dict[str, Any]
    completions: dict[str, list[JudgedCompletion]]


def holds_strategies(path: str | Path) -> bool:
    """Return whether a file holds results of gpt_oss_2048."""
    with suppress(ParamsError):
        return "board_fingerprint" in load_results(path)
    return False


def read_strategies(path: str | Path) -> tuple[dict[str, Any], list[JudgedCompletion]]:
    """Return a file's values of MUST_AGREE, and its completions after training. Raises ParamsError."""
    results = load_results(path)
    try:
        file = StrategyResultsFile.model_validate(results)
        values: dict[str, Any] = {**file.params, "board_fingerprint": file.board_fingerprint}
        settings = {
            name: reduce(lambda section, key: section[key], name.split("."), values) for name in MUST_AGREE
        }
        judged = file.completions["after"]
        measure_strategies(judged)  # raises ValueError for games without baselines
    except (ValueError, KeyError, TypeError) as error:
        raise ParamsError(
            f"{path}: is not a result of gpt_oss_2048; name the results.json in a run's directory"
        ) from error
    if not judged:
        raise ParamsError(f"{path}: holds no held-out games; run with evaluation.enabled = true")
    return settings, judged


def compare_runs(first: str | Path, second: str | Path) -> list[StrategyComparison]:
    """Return the comparison of two trained models, from their results files, on the boards of both.

    Raises ParamsError for other files, and if the two did not play the same boards by the same rules.
    """
    (old, before), (new, after) = read_strategies(first), read_strategies(second)
    for name, reason in MUST_AGREE.items():
        if old[name] != new[name]:
            setting = f"{name} = {old[name]}"
            if name == "board_fingerprint":
                setting = f"board.same_as={Path(first).parent}"
            raise ParamsError(
                f"{first} and {second}: {reason}: {name} is {old[name]!r} and {new[name]!r}; run the second "
                f"again, in a new directory, with {setting}"
            )
    kinds = {completion.kind for completion in before} & {completion.kind for completion in after}
    if not kinds:
        raise ParamsError(f"{first} and {second}: have no kind of board in common; run both with the same")
    old_part, new_part = ([c for c in judged if c.kind in kinds] for judged in (before, after))
    return compare_strategies(old_part, new_part)


def describe_strategies(rows: Sequence[StrategyComparison]) -> str:
    """Return a comparison as lines for a terminal; differences are the second's minus the first's."""
    lines = []
    for row in rows:
        before, after = (f"{v:.3f}" if isinstance(v, float) else v or "none" for v in (row.before, row.after))
        name = row.measure + (f" on {row.boards}" if row.boards else "")
        difference = f"; difference {row.difference}" if row.difference else ""
        lines.append(f"{name}: {before} / {after}{difference}")
    return "\n".join(lines)


def collect_figures(judged: Sequence[JudgedCompletion]) -> Mapping[str, Estimate | float]:
    """Return all measures of judged completions by name."""
    return {**measure_strategies(judged), **measure_shares(judged)} if judged else {}

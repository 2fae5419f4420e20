"""What strategies for 2048 reached, and whether two results differ; no model's libraries are loaded."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlnb.errors import ParamsError
from rlnb.evaluation.compare import Estimate, bootstrap_two_way
from rlnb.games.board2048 import BoardKind
from rlnb.rewards.strategy_2048 import StrategyResult
from rlnb.rewards.strategy_play import PlayedGame

# {what two runs must agree in to be compared: what is wrong where they do not}
MUST_AGREE = {
    "board_fingerprint": "were measured on different boards",
    "prompt.preset": "were asked different questions",
    **dict.fromkeys(
        ("board.four_probability", "board.patience", "board.play_on"), "played by different rules"
    ),
    "reward.random_games": "are measured from different random play",
    **dict.fromkeys(
        ("evaluation.num_boards", "evaluation.num_greedy_boards"), "played different numbers of games"
    ),
}


@dataclass(frozen=True)
class Played:
    """A judged completion. greedy: decoded at temperature 0, and played on more boards."""

    kind: BoardKind
    greedy: bool
    completion: str
    result: StrategyResult


def score_matrices(
    played: Sequence[Played], *, greedy: bool, honest: bool = False
) -> dict[BoardKind, np.ndarray]:
    """For each kind of board the scores, float (num_completions, num_boards); of honest ones alone if asked.

    Completions with a game that the sandbox failed are left out, and kinds without any completion.
    """
    rows: dict[BoardKind, list[tuple[float, ...]]] = {}
    for one in played:
        is_whole = len(one.result.board_scores) == len(one.result.baselines)
        if one.greedy == greedy and is_whole and (one.result.is_honest or not honest):
            rows.setdefault(one.kind, []).append(one.result.board_scores)
    return {kind: np.asarray(own, dtype=float) for kind, own in rows.items()}


def measure_strategies(played: Sequence[Played]) -> dict[str, Estimate]:
    """What was measured, each with its interval: score, skill (of honest ones), greedy score; no more apart.

    "skill" and "greedy_skill" are missing where nothing was honest.
    """
    matrices = {
        "score": score_matrices(played, greedy=False),
        "skill": score_matrices(played, greedy=False, honest=True),
        "greedy_score": score_matrices(played, greedy=True),
        "greedy_skill": score_matrices(played, greedy=True, honest=True),
    }
    return {name: bootstrap_two_way(list(scores.values())) for name, scores in matrices.items() if scores}


def strategy_shares(played: Sequence[Played]) -> dict[str, float]:
    """Shares and counts of the sampled completions: valid, honest, won, distinct programs."""
    results = [one.result for one in played if not one.greedy]
    total = max(1, len(results))
    return {
        "valid_share": sum(result.is_valid for result in results) / total,
        "honest_share": sum(result.is_honest for result in results) / total,
        "win_share": sum(result.win_share for result in results) / total,
        "distinct_programs": float(len({result.code for result in results if result.code})),
    }


def compare_strategies(before: Sequence[Played], after: Sequence[Played]) -> list[dict[str, Any]]:
    """A row a measure: before, after, and where it is a mean over boards the difference with its interval.

    Of skill only the kinds of boards on which something was honest both times are compared; `boards` names
    the kinds where they are not all.
    """
    rows: list[dict[str, Any]] = []
    if not before or not after:
        return rows
    for name in ("score", "skill", "greedy_score", "greedy_skill"):
        greedy, honest = name.startswith("greedy"), name.endswith("skill")
        old, new = (score_matrices(one, greedy=greedy, honest=honest) for one in (before, after))
        common = [kind for kind in new if kind in old]
        row: dict[str, Any] = {"measure": name}
        for time, scores in (("before", old), ("after", new)):
            shown = [scores[kind] for kind in common or scores]
            row[time] = bootstrap_two_way(shown) if shown else None
        if common:
            row["difference"] = bootstrap_two_way([new[k] for k in common], [old[k] for k in common])
        measured = common or old or new
        if 0 < len(measured) < len({one.kind for one in before}):
            row["boards"] = ", ".join(map(str, measured))
        rows.append(row)
    first, second = strategy_shares(before), strategy_shares(after)
    rows += [{"measure": name, "before": first[name], "after": second[name]} for name in first]
    return rows


def as_list(value: Any) -> Any:
    """An estimate as [value, low, high]; anything else as it is."""
    return [value.value, value.low, value.high] if isinstance(value, Estimate) else value


def record_of(played: Played) -> dict[str, Any]:
    """A judged completion as plain data; `replay` rebuilds each game from its seed and moves."""
    result = played.result
    return {
        "board": str(played.kind),
        "greedy": played.greedy,
        "completion": played.completion,
        "code": result.code,
        "problem": result.problem,
        "score": result.score,
        "board_scores": list(result.board_scores),
        "baselines": list(result.baselines),
        "endings": dict(Counter(game.ending for game in result.games)),
        "games": [[game.seed, game.ending, game.largest, game.moves] for game in result.games],
    }


def played_of(record: Mapping[str, Any]) -> Played:
    """Return the judged completion that `record_of` wrote, without the games' scores, errors and times."""
    kind = BoardKind.parse(record["board"])
    games = tuple(
        PlayedGame(kind, seed, ending, largest, 0, moves, "", 0.0)
        for seed, ending, largest, moves in record["games"]
    )
    result = StrategyResult(record["code"], record["problem"], "", games, tuple(record["baselines"]))
    return Played(kind, record["greedy"], record["completion"], result)


def holds_strategies(path: str | Path) -> bool:
    """Whether a file looks like results of gpt_oss_2048."""
    try:
        return "board_fingerprint" in json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def read_strategies(path: str | Path) -> tuple[dict[str, Any], list[Played]]:
    """Return what a file of `save_strategies` says of MUST_AGREE, and its completions after training.

    Raises ParamsError for any other file.
    """
    try:
        results = json.loads(Path(path).read_text(encoding="utf-8"))
        sections = {"": {"board_fingerprint": results["board_fingerprint"]}, **results["params"]}
        settings = {name: sections[name.rpartition(".")[0]][name.rpartition(".")[2]] for name in MUST_AGREE}
        played = [played_of(record) for record in results["completions"]["after"]]
        measure_strategies(played)  # what cannot be measured is not a result
    except OSError as error:
        raise ParamsError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ParamsError(
            f"{path}: is not a result of gpt_oss_2048; name the results.json in a run's directory"
        ) from error
    if not played:
        raise ParamsError(f"{path}: holds no held-out games; run with evaluation.enabled = true")
    return settings, played


def compare_runs(first: str | Path, second: str | Path) -> list[dict[str, Any]]:
    """Return the rows of `compare_strategies` for two trained models: from files, on the boards of both.

    Raises ParamsError for files that are not results, and where the two did not play the same boards.
    """
    (old, before), (new, after) = read_strategies(first), read_strategies(second)
    for name, reason in MUST_AGREE.items():
        if old[name] != new[name]:
            remedy = f"run the second again, in a new directory, with {name} = {old[name]}"
            if name == "board_fingerprint":
                remedy = f"run the second again, in a new directory, with board.same_as={Path(first).parent}"
            raise ParamsError(
                f"{first} and {second}: {reason}: {name} is {old[name]!r} and {new[name]!r}; {remedy}"
            )
    kinds = {one.kind for one in before} & {one.kind for one in after}
    if not kinds:
        raise ParamsError(f"{first} and {second}: have no kind of board in common; run both with the same")
    return compare_strategies(*([one for one in played if one.kind in kinds] for played in (before, after)))


def comparison_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what `compare_runs` found, for a terminal; a difference is the second's minus the first's."""
    lines = []
    for row in rows:
        first, second = (
            f"{row[at]:.3f}" if isinstance(row[at], float) else str(row[at] or "none")
            for at in ("before", "after")
        )
        name = row["measure"] + (f" on {row['boards']}" if "boards" in row else "")
        difference = f"; difference {row['difference']}" if "difference" in row else ""
        lines.append(f"{name}: {first} / {second}{difference}")
    return "\n".join(lines)

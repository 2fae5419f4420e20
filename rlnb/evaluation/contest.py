"""Policies side by side: the same opponents, seeds and seats, and the difference game by game."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlnb.evaluation.arena import Arena, ArenaRow, arena_rows
from rlnb.evaluation.compare import Estimate, student_mean
from rlnb.evaluation.many_games import Arenas
from rlnb.policy.adapters import AdapterValues
from rlnb.rollouts import LEARNER
from rlnb.runs import write_text
from rlnb.trajectories import PlayedGame

WAYS = {"constrained": (("constrained", False), ("constrained", True)), "free": (("free", False),)}


@dataclass(frozen=True)
class Difference:
    """Score of the first contender minus that of the second, on the same seeds from the same seats.

    score: mean over pairs of games with its interval, Student's; NaN bounds for fewer than two pairs. A pair
    is a seed played from both seats: these two are alike, so they count once. num_pairs: of them.
    """

    game: str
    opponent: str
    acting: str
    greedy: bool
    score: Estimate
    num_pairs: int


@dataclass(frozen=True)
class Contest:
    """rows: of each contender, by its name. differences: the first contender's to the second, if any."""

    rows: Mapping[str, tuple[ArenaRow, ...]]
    differences: tuple[Difference, ...]


def play_contest(
    arenas: Arenas,
    contenders: Mapping[str, AdapterValues],
    *,
    num_games: int,
    modes: Sequence[str],
    progress: Callable[[int, int], None] | None = None,
) -> Contest:
    """Every contender against the opponents of every arena, in each way to answer.

    contenders: values of the trained weights by name, one or two. Constrained answers are played sampled and
    greedy, free ones sampled.
    """
    rows: dict[str, list[ArenaRow]] = {name: [] for name in contenders}
    differences = []
    ways = [way for mode in modes for way in WAYS[mode]]
    matches = [
        (arena, name, opponent, *way)
        for arena in arenas.arenas
        for name, opponent in arena.opponents().items()
        for way in ways
    ]
    for number, (arena, name, opponent, acting, greedy) in enumerate(matches):
        played = {}
        for contender, values in contenders.items():
            with values.at_work(arena.actor.policy):
                played[contender] = arena.games_against(
                    name, opponent, num_games, acting=acting, greedy=greedy
                )
            rows[contender] += arena_rows(
                played[contender], arena.game, acting=acting, greedy=greedy, weights="average"
            )
        if len(played) == 2:
            differences.append(difference(arena, name, *played.values(), acting=acting, greedy=greedy))
        if progress:
            progress(number + 1, len(matches))
    return Contest({name: tuple(own) for name, own in rows.items()}, tuple(differences))


def difference(
    arena: Arena,
    opponent: str,
    first: Sequence[PlayedGame],
    second: Sequence[PlayedGame],
    *,
    acting: str,
    greedy: bool,
) -> Difference:
    """Of games that pair: the same seeds in the same order, each from seat 0 and then from seat 1."""
    one, other = (np.array([scored(game) for game in games]) for games in (first, second))
    by_pair = (one - other).reshape(-1, 2).mean(axis=1)
    known = len(by_pair) > 1
    nothing = Estimate(float(by_pair.mean()), float("nan"), float("nan"))
    score = student_mean(by_pair) if known else nothing
    return Difference(arena.game.name, opponent, acting, greedy, score, len(by_pair))


def scored(game: PlayedGame) -> float:
    """The learner's score."""
    return game.score(game.players.index(LEARNER))


def save_contest(path: str | Path, params: Any, contest: Contest) -> None:
    """{"params": ..., "rows": {contender: [...]}, "differences": [...]} as JSON."""
    text = {
        "params": params.model_dump(mode="json"),
        "rows": {name: [asdict(row) for row in rows] for name, rows in contest.rows.items()},
        "differences": [asdict(one) for one in contest.differences],
    }
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_text(Path(path), json.dumps(text, indent=1) + "\n")

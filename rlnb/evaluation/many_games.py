"""One policy at several games: the arena of each, their tables and figures together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rlnb.evaluation.arena import Arena, ArenaRow
from rlnb.evaluation.standing import Standing, take_standing
from rlnb.evaluation.tictactoe import TicTacToeResult
from rlnb.games.opponents import refusals
from rlnb.games.text_games import TextGame
from rlnb.policy.adapters import AdapterValues


@dataclass(frozen=True)
class Arenas:
    """The arenas of one policy, a game each; figures have the game's name in front."""

    arenas: tuple[Arena, ...]

    def measure(self, average: AdapterValues, *, num_games: int) -> dict[str, float]:
        """`Arena.measure` of each game: {"kuhn_poker/exact/nash_conv": 0.2, ...}."""
        return {
            f"{arena.game.name}/{name}": value
            for arena in self.arenas
            for name, value in arena.measure(average, num_games=num_games).items()
        }

    def standing(
        self,
        average: AdapterValues,
        *,
        num_games: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> Standing:
        """`take_standing` of each game in one; exact results of tic-tac-toe alone."""
        rows: list[ArenaRow] = []
        metrics: dict[str, float] = {}
        exact: dict[str, TicTacToeResult] = {}
        for number, arena in enumerate(self.arenas):
            found = take_standing(arena, average, num_games=num_games)
            rows += found.rows
            metrics |= {f"{arena.game.name}/{name}": value for name, value in found.metrics.items()}
            exact |= found.exact
            if progress:
                progress(number + 1, len(self.arenas))
        return Standing(tuple(rows), exact, metrics)


def able_opponents(game: TextGame, names: Sequence[str]) -> tuple[str, ...]:
    """Those of the opponents that can play the game, in their order; a checkpoint's directory always can."""
    reasons = refusals(game)
    return tuple(name for name in names if not reasons.get("mcts:N" if name.startswith("mcts:") else name))


def score_table(rows: Sequence[ArenaRow]) -> tuple[list[str], list[str], np.ndarray]:
    """Games, opponents, and float (num_games, num_opponents): mean score of both seats, NaN for none.

    Of the rows given, each seat the same weight; give rows of one way to act and of the same weights.
    """
    games = list(dict.fromkeys(row.game for row in rows))
    opponents = list(dict.fromkeys(row.opponent for row in rows))
    table = np.full((len(games), len(opponents)), np.nan)
    for y, game in enumerate(games):
        for x, opponent in enumerate(opponents):
            own = [row.score.value for row in rows if (row.game, row.opponent) == (game, opponent)]
            if own:
                table[y, x] = float(np.mean(own))
    return games, opponents, table


def as_trained(rows: Sequence[ArenaRow], acting: str) -> list[ArenaRow]:
    """Those of the averaged weights, sampled in that way of acting."""
    return [row for row in rows if row.weights == "average" and row.acting == acting and not row.greedy]


class StageScore(NamedTuple):
    """A stage after training. score: mean over its games and both seats, NaN where nothing was played.

    missing: its games that were not played against its opponents here.
    """

    name: str
    score: float
    num_games: int
    final_score: float
    missing: tuple[str, ...] = ()

    @property
    def is_success(self) -> bool:
        """Whether the score is above what the stage asks for; never where a game of it was not played."""
        return self.score > self.final_score and not self.missing


def stage_scores(
    rows: Sequence[ArenaRow], stages: Mapping[str, tuple[Sequence[tuple[str, str]], float]]
) -> list[StageScore]:
    """How each stage ended. stages: {name: ([(game, opponent), ...], the score that it asks for)}.

    Of the rows given; give those of one way to act and of the same weights. Each game weighs the same.
    """
    found = []
    for name, (pairings, final_score) in stages.items():
        own = [row for row in rows if (row.game, row.opponent) in pairings]
        by_pairing = [
            np.mean([row.score.value for row in own if (row.game, row.opponent) == pairing])
            for pairing in dict.fromkeys((row.game, row.opponent) for row in own)
        ]
        score = float(np.mean(by_pairing)) if by_pairing else float("nan")
        played = {(row.game, row.opponent) for row in own}
        missing = tuple(
            f"{game} against {opponent}" for game, opponent in pairings if (game, opponent) not in played
        )
        found.append(StageScore(name, score, sum(row.num_games for row in own), final_score, missing))
    return found

"""Tables of self-play: Kuhn poker beside its equilibria, the arena, ablations, tic-tac-toe exactly."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import pyspiel

from rlnb.display.code_game import number, table_of
from rlnb.display.tables import Table
from rlnb.evaluation.nash import KuhnFamily
from rlnb.evaluation.tictactoe import TicTacToeResult
from rlnb.games.text_games import TextGame

SEATS = ("first", "second")
Results = Mapping[str, Mapping[Any, Mapping[str, Sequence[float]]]]


def show_kuhn(family: KuhnFamily, nash_conv: float) -> Table:
    """Kuhn poker's twelve decisions: `rlnb.evaluation.nash.kuhn_family` and `nash_conv`."""
    return Table(
        ["player", "card", "situation", "learned", "equilibrium", "difference"],
        [
            (
                SEATS[row.player],
                row.card,
                row.situation,
                row.learned,
                row.equilibrium,
                f"{row.difference:+.3f}",
            )
            for row in family.rows
        ],
        caption=f"Probability of betting (of calling, after a bet). The equilibria are a family; the one of "
        f"alpha = {family.alpha:.3f}, the share of Jacks that open with a bet (0 to 0.333), is nearest. "
        f"NashConv {nash_conv:.4f}; an equilibrium has 0.",
    )


def show_arena(rows: Sequence[Any]) -> Table:
    """Results against opponents, a line a game, opponent, seat and way to play.

    rows: of the arena: game, opponent, seat, role, acting, greedy, weights, num_games, wins, draws, losses,
    score (an Estimate), mean_return, random_score, ceiling (None where unknown), invalid_share and
    distinct_share.
    """
    headers = ["game", "opponent", "seat", "policy", "games", "won", "drawn", "lost", "score (95% interval)"]
    return table_of(
        [*headers, "return", "random scores", "ceiling", "invalid answers", "distinct games"],
        [
            (
                row.game,
                row.opponent,
                seat_words(row.seat, row.role),
                f"{row.acting}, {'greedy' if row.greedy else 'sampled'}, {row.weights} weights",
                *(row.num_games, row.wins, row.draws, row.losses),
                *(number(value) for value in (row.score, row.mean_return, row.random_score, row.ceiling)),
                *(percent(value) for value in (row.invalid_share, row.distinct_share)),
            )
            for row in rows
        ],
        caption="Score: wins and half the draws, from 0 to 1. Random scores: random play in that seat "
        "against random play. Ceiling: what the best play gets against this opponent.",
        empty="No game was played in the arena.",
    )


def seat_words(seat: int, role: str) -> str:
    """ "first, X"; a role that is the seat's own name is not said twice."""
    return SEATS[seat] if role.endswith("player") or role == f"player {seat}" else f"{SEATS[seat]}, {role}"


def percent(share: float | None) -> str:
    return "–" if share is None or math.isnan(share) else f"{share:.1%}"


def show_ablation(results: Results, verdicts: Mapping[str, str], *, measure: str = "value") -> Table:
    """The last value of each arm and seed, their mean, and the caller's verdict on the arm.

    results: as of `draw_ablation`. verdicts: {arm: words}.
    """
    seeds = list(dict.fromkeys(seed for arm in results.values() for seed in arm))
    rows = []
    for arm, curves in results.items():
        ends = {seed: float(one["values"][-1]) for seed, one in curves.items() if one["values"]}
        mean = statistics.mean(ends.values()) if ends else None
        rows.append((arm, *(number(ends.get(seed)) for seed in seeds), number(mean), verdicts.get(arm)))
    caption = f"Final {measure}: of the last checkpoint, never of the best one."
    headers = ["arm", *(f"seed {seed}" for seed in seeds), "mean", "verdict"]
    return table_of(headers, rows, caption=caption, empty="Nothing was measured.")


def show_exact(before: Mapping[str, TicTacToeResult], after: Mapping[str, TicTacToeResult]) -> Table:
    """Tic-tac-toe's exact results, a line a way to play, seat and time.

    before, after: {"sampled", "greedy", "average" or whatever else: a result}.
    """
    rows = []
    for way in dict.fromkeys([*before, *after]):
        for seat, role in enumerate(("X", "O")):
            for time, results in (("before", before), ("after", after)):
                if way in results:
                    one = results[way].seats[seat]
                    rows.append(
                        (way, f"{SEATS[seat]}, {role}", time, *map(percent, (one.loss, one.draw, one.win)))
                        + (
                            one.score_against_random,
                            f"{one.best_response_value:+.3f}",
                            percent(one.blunder_rate),
                        )
                    )
    headers = ["play", "seat", "time", "lost to perfect play", "drawn", "won", "score against random"]
    return table_of(
        [*headers, "best-response value", "blunders"],
        rows,
        caption="Exact. Best-response value: -1 loses to who knows the policy, 0 cannot be "
        "beaten. Blunders: decisions against perfect play that lower the position's value.",
        empty="Nothing was measured.",
    )


def show_answers(game: TextGame, state: pyspiel.State, answers: Sequence[str]) -> Table:
    """What becomes of answers in a position: the move that they are read as, or why they are none."""
    words = game.legal_words(state)
    rows = []
    for answer in answers:
        parsed = game.parse(answer, state)
        move = None if parsed.action is None else f"{parsed.action}: {words[parsed.action]}"
        rows.append((answer, move, parsed.problem, parsed.reason))
    return Table(["answer", "read as", "problem", "why"], rows)

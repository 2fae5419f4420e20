"""Self-play in notebooks: the live figure, the arena and exact results.

Played games are in `rlnb.selfplay.display_games`, play against the model in `rlnb.selfplay.display_person`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import zip_longest

import numpy as np
import pandas
import pyspiel
import seaborn
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlnb.display.live import LiveFigure
from rlnb.display.plots import (
    COLOURS,
    Row,
    draw_intervals,
    draw_line,
    known,
    make_panels,
    put_legend,
)
from rlnb.display.tables import Table, as_percent
from rlnb.games.exact import KuhnFamily, TicTacToeResult
from rlnb.games.text_games import TextGame
from rlnb.selfplay.arena import SEATS, Match

LINES = ("-", "--", "-.", ":")
SEAT_MEASURES = {
    "loss": ("Games lost to perfect play (exact)", "share of games"),
    "random_score": ("Score against random play (exact)", "wins and half the draws"),
}
SMALLEST = 1e-4  # a smaller NashConv is drawn there: a logarithmic axis has no zero


def draw_self_play(rows: Sequence[Row], *, max_steps: int) -> Figure:
    """Draw a panel for each measure from outside of self-play, and a last one for self-play itself.

    rows: of a run's metrics.jsonl. Tic-tac-toe: losses to perfect play, NashConv, score against random. Other
    games with exact measures: NashConv. Games without any: scores in the arena.
    """
    names = {name for row in rows for name in row if known(row, name)}
    conditions: list[tuple[Callable[[Axes, Sequence[Row]], None], str]] = [
        (partial(draw_both_seats, measure="loss"), "exact/loss_first"),
        (draw_nash_conv, "exact/nash_conv"),
        (partial(draw_both_seats, measure="random_score"), "exact/random_score_first"),
    ]
    panels = [draw for draw, measure in conditions if measure in names]
    panels = [*(panels or [draw_arena_scores]), draw_own_play]
    num_rows, num_columns = (2, 2) if len(panels) == 4 else (1, len(panels))
    size = (5.5 * num_columns, 4.4 * num_rows)
    figure, grid = make_panels(num_columns, size=size, num_rows=num_rows, max_steps=max_steps)
    for axes, draw in zip(grid, panels, strict=True):
        draw(axes, rows)
    return figure


# What a run's policy is worth by outside measures, and what self-play says of itself, redrawn after every
# step; called with the run's directory.
LiveSelfPlay = partial(LiveFigure, draw=draw_self_play)


def draw_both_seats(axes: Axes, rows: Sequence[Row], *, measure: str) -> None:
    """Draw each seat: the averaged weights thick, the last weights pale, greedy play thin and dashed."""
    for seat, colour in zip(SEATS, COLOURS, strict=False):
        average, label = f"exact/average/{measure}_{seat}", f"{seat} seat, average"
        has_average = draw_line(axes, rows, average, color=colour, linewidth=2.5, label=label)
        style = {"alpha": 0.45, "linewidth": 1} if has_average else {"linewidth": 2.5}
        label = f"{seat} seat, last weights"
        draw_line(axes, rows, f"exact/{measure}_{seat}", color=colour, label=label, **style)
        greedy = f"exact/{'average/' if has_average else ''}greedy_{measure}_{seat}"
        label = f"{seat} seat, greedy"
        draw_line(axes, rows, greedy, color=colour, label=label, linestyle="--", linewidth=1)
    put_legend(axes, 2)
    title, label = SEAT_MEASURES[measure]
    axes.set(ylim=(-0.02, 1.02), title=title, ylabel=label)


def draw_nash_conv(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw NashConv, from a decade on with a logarithmic axis; values below SMALLEST are at its foot."""
    measures = {"exact/average/nash_conv": "averaged weights", "exact/nash_conv": "last weights"}
    for (name, label), colour in zip(measures.items(), COLOURS, strict=False):
        shown = [{**row, name: max(row[name], SMALLEST)} for row in rows if known(row, name)]
        draw_line(axes, shown, name, color=colour, label=label, linewidth=1 if axes.lines else 2.5)
    low, high = axes.dataLim.intervaly
    if high >= 10 * low:
        axes.set_yscale("log")
    put_legend(axes, 2)
    axes.set(title="NashConv (exact; 0 is an equilibrium)", ylabel="what best responses gain")


def draw_arena_scores(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw the scores of the averaged weights against each opponent from both seats."""
    names = {name for row in rows for name in row if re.fullmatch("arena/.*/average_.*_score", name)}
    for index, opponent in enumerate(sorted({name.split("/")[1] for name in names})):
        for seat, line in zip(SEATS, LINES, strict=False):
            style = {"color": COLOURS[index % len(COLOURS)], "linestyle": line, "linewidth": 2}
            measure = f"arena/{opponent}/average_{seat}_score"
            draw_line(axes, rows, measure, label=f"{opponent}, {seat} seat", **style)
    axes.axhline(0.5, color="#999999", linewidth=1, zorder=0)
    if not axes.get_legend_handles_labels()[1]:
        axes.text(0.5, 0.6, "not measured yet", ha="center", transform=axes.transAxes)
    put_legend(axes, 2)
    title = "Averaged weights in the arena (sampled games)"
    axes.set(ylim=(-0.02, 1.02), title=title, ylabel="wins and half the draws")


def draw_own_play(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw what self-play says of itself, with the entropy on its own axis at the right."""
    draw_line(axes, rows, "play/draw_share", color=COLOURS[0], label="draws")
    draw_line(axes, rows, "play/first_score", color=COLOURS[1], label="score of the first seat")
    axes.set(ylim=(-0.02, 1.02), ylabel="share of games, score", title="Self-play alone (it misleads)")
    twin = axes.twinx()
    draw_line(twin, rows, "entropy", color="#555555", linestyle=":", label="entropy")
    twin.set_ylabel("entropy (nats)", color="#555555")
    twin.set_ylim(bottom=0)
    put_legend(axes, 3, also=twin)


def draw_arena(results: Mapping[str, Sequence[Match]]) -> Figure:
    """Draw the score of each match with its 95% interval, next to random play's and the ceiling where known.

    results: {name, such as "before" or a contender's: its matches}. Names differ in colour; a panel is a
    game, a line of it an opponent and seat. Of runs with averaged weights only those are drawn.
    """
    is_averaged = any(match.weights == "average" for rows in results.values() for match in rows)
    weights = "average" if is_averaged else "last"
    results = {name: [row for row in rows if row.weights == weights] for name, rows in results.items()}
    matches = [match for rows in results.values() for match in rows]
    lines: dict[str, set[str]] = {}
    for match in matches:
        lines.setdefault(match.game, set()).add(match_label(match))
    num_columns, height = min(2, len(lines)) or 1, 1.2 + 0.4 * max(map(len, lines.values()), default=0)
    num_rows = -(-len(lines) // 2) or 1
    figure, grid = make_panels(num_columns, size=(11, height * num_rows + 0.8), num_rows=num_rows)
    for axes, game in zip_longest(grid, lines):
        if game is None:
            axes.set_axis_off()
            continue
        scores = {
            name: {match_label(row): row.score for row in rows if row.game == game}
            for name, rows in results.items()
        }
        labels = draw_intervals(axes, scores)
        draw_limits(axes, [match for match in matches if match.game == game], labels)
        axes.set_title(game)
    figure.suptitle(f"Scores in the arena, {weights} weights: wins and half the draws")
    named = {
        label: line for axes in grid for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=4)
    return figure


def draw_limits(axes: Axes, matches: Sequence[Match], labels: Sequence[str]) -> None:
    """Draw the scores of random and of the best play in the lines of the matches."""
    for field, marker, name in (("random_score", "|", "random play"), ("ceiling", ">", "best possible")):
        points = {(getattr(match, field), labels.index(match_label(match))) for match in matches}
        points = {point for point in points if point[0] is not None}
        if points:
            axes.plot(*zip(*points, strict=True), marker, color="#777777", markersize=7, zorder=0, label=name)


def match_label(match: Match) -> str:
    return f"{match.opponent}, {SEATS[match.seat]}"


def show_first_moves(result: TicTacToeResult) -> Figure:
    """Draw the nine probabilities on the empty board."""
    numbers = range(1, 4)
    values = pandas.DataFrame(np.reshape(result.first_moves, (3, 3)), numbers, numbers)
    figure, (axes,) = make_panels(size=(4.5, 3.5))
    axes.grid(visible=False)
    label = {"label": "probability"}
    seaborn.heatmap(values, annot=True, fmt=".1%", vmin=0, cmap="Blues", cbar_kws=label, ax=axes)
    axes.set(xlabel="column", ylabel="row", title="The first move of tic-tac-toe")
    return figure


def show_kuhn(family: KuhnFamily, nash_conv: float) -> Table:
    """Return Kuhn poker's twelve decisions: `kuhn_family` and `nash_conv` of `rlnb.games.exact`."""
    return Table(
        ["player", "card", "situation", "learned", "equilibrium", "difference"],
        [
            (SEATS[row.player], row.card, row.situation, row.learned, row.equilibrium)
            + (f"{row.learned - row.equilibrium:+.3f}",)
            for row in family.rows
        ],
        f"Probability of betting (of calling, after a bet). The equilibria are a family; the nearest has "
        f"alpha = {family.alpha:.3f}, the share of Jacks that open with a bet (0 to 0.333). "
        f"NashConv {nash_conv:.4f}; an equilibrium has 0.",
    )


def show_arena(matches: Sequence[Match]) -> Table:
    """Return the results against opponents, a line for each game, opponent, seat and set of weights."""
    headers = ["game", "opponent", "seat", "weights", "games", "won", "drawn", "lost", "score (95% interval)"]
    return Table(
        [*headers, "return", "random scores", "ceiling", "invalid answers", "distinct games"],
        [
            (
                *(row.game, row.opponent, format_seat(row.seat, row.role), row.weights),
                *(row.num_games, row.wins, row.draws, row.losses),
                *(row.score, row.mean_return, row.random_score, row.ceiling),
                *map(as_percent, (row.invalid_share, row.distinct_share)),
            )
            for row in matches
        ],
        "Score: wins and half the draws, from 0 to 1. Random scores: random play in that seat "
        "against this opponent (against mcts:25 where it is a stronger MCTS). Ceiling: what the best play "
        "gets against this opponent.",
        empty="No game was played in the arena.",
    )


def format_seat(seat: int, role: str) -> str:
    """Return "first, X", or the seat alone where the role only repeats it."""
    return SEATS[seat] if role.endswith("player") or role == f"player {seat}" else f"{SEATS[seat]}, {role}"


def show_exact(before: Mapping[str, TicTacToeResult], after: Mapping[str, TicTacToeResult]) -> Table:
    """Return tic-tac-toe's exact results, a line for each way to play, seat and time.

    before, after: {"sampled", "greedy", "average" or any other way to play: its result}.
    """
    rows = [
        (
            *(way, f"{SEATS[seat]}, {role}", time),
            *map(as_percent, (result.loss, result.draw, result.win)),
            result.score_against_random,
            f"{result.best_response_value:+.3f}",
            as_percent(result.blunder_rate),
        )
        for way in dict.fromkeys([*before, *after])
        for seat, role in enumerate(("X", "O"))
        for time, results in (("before", before), ("after", after))
        if way in results
        for result in [results[way].seats[seat]]
    ]
    headers = ["play", "seat", "time", "lost to perfect play", "drawn", "won", "score against random"]
    return Table(
        [*headers, "best-response value", "blunders"],
        rows,
        "Exact. Best-response value: -1 always loses to a best responder, 0 cannot be beaten. "
        "Blunders: decisions against perfect play that lower the position's value.",
        empty="Nothing was measured.",
    )


def show_answers(game: TextGame, state: pyspiel.State, answers: Sequence[str]) -> Table:
    """Return how answers in a position are read: the move of each, or why it has none."""
    words = game.legal_words(state)
    rows = []
    for answer in answers:
        parsed = game.parse(answer, state)
        move = None if parsed.action is None else f"{parsed.action}: {words[parsed.action]}"
        rows.append((answer, move, parsed.problem, parsed.reason))
    return Table(["answer", "read as", "problem", "why"], rows)

"""Self-play in notebooks: its live figure, first moves, ablations and cross-play; the calls of a notebook.

Tables are in `rlnb.display.self_play_tables`, replays in `rlnb.display.self_play_boards`, their
pictures in `rlnb.display.self_play_pictures`, play against the model in `rlnb.display.self_play_person`.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pyspiel
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlnb.display.board2048 import known, series
from rlnb.display.plots import LiveFigure
from rlnb.display.self_play_person import PlayAgainst
from rlnb.display.self_play_pictures import show_game
from rlnb.display.self_play_tables import (
    SEATS,
    Results,
    show_ablation,
    show_arena,
    show_exact,
    show_kuhn,
)
from rlnb.evaluation.nash import Probabilities, legal_probabilities
from rlnb.evaluation.tictactoe import TicTacToeResult
from rlnb.games.text_games import TextGame

__all__ = [
    "LiveSelfPlay", "PlayAgainst", "draw_ablation", "draw_matrix", "draw_self_play", "show_ablation",
    "show_arena", "show_exact", "show_first_actions", "show_first_moves", "show_game", "show_kuhn",
]  # fmt: skip

# Okabe and Ito's colours, which the colour-blind tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
LINES = ("-", "--", "-.", ":")
MOST_OPENINGS, MOST_ACTIONS = 12, 20
SMALLEST = 1e-4  # NashConv below it is drawn there: a logarithmic axis has no zero


class LiveSelfPlay(LiveFigure):
    """What a run's policy is worth, beside what its self-play says of itself."""

    def __init__(self, output_dir: str | Path, title: str = "") -> None:
        super().__init__(output_dir, self.draw_with_title)
        self.title = title

    def draw_with_title(self, rows: Sequence[Mapping[str, Any]], *, max_steps: int) -> Figure:
        return draw_self_play(rows, max_steps=max_steps, title=self.title)


def draw_self_play(rows: Sequence[Mapping[str, Any]], *, max_steps: int, title: str = "") -> Figure:
    """Panels of what was measured outside of self-play, and last self-play itself.

    rows: of a run's metrics.jsonl. Tic-tac-toe: losses to perfect play, NashConv, score against random. Other
    games with exact figures: NashConv. Without either: scores in the arena.
    """
    names = {name for row in rows for name in row if known_number(row, name)}
    panels = [draw_losses] if any(f"exact/loss_{seat}" in names for seat in SEATS) else []
    if names & {"exact/nash_conv", "exact/average/nash_conv"}:
        panels.append(draw_nash_conv)
    if any(f"exact/random_score_{seat}" in names for seat in SEATS):
        panels.append(draw_random_scores)
    panels = panels or [draw_arena]
    num_rows, num_columns = (2, 2) if len(panels) == 3 else (1, len(panels) + 1)
    size = (5.5 * num_columns, 4.4 * num_rows)
    figure, grid = plt.subplots(num_rows, num_columns, figsize=size, constrained_layout=True, squeeze=False)
    max_steps = max(max_steps, 1)
    for axes, draw in zip(grid.flat, [*panels, draw_own_play], strict=True):
        axes.set(xlabel="step", xlim=(-0.02 * max_steps, 1.02 * max_steps))
        draw(axes, rows)
        axes.grid(alpha=0.3)
    if title:
        figure.suptitle(title, parse_math=False)
    plt.close(figure)  # the notebook shows what is returned, not a second copy
    return figure


def known_number(row: Mapping[str, Any], name: str) -> bool:
    return isinstance(row[name], int | float) and known(row, name)


def draw_line(axes: Axes, rows: Sequence[Mapping[str, Any]], name: str, **style: Any) -> bool:
    """A measure where it was measured; whether it was. A single point is seen by its marker."""
    steps, values = series(rows, name)
    if steps:
        axes.plot(steps, values, marker=".", markersize=4, **style)
    return bool(steps)


def draw_both_seats(axes: Axes, rows: Sequence[Mapping[str, Any]], measure: str) -> None:
    """Of each seat: the averaged weights thick, the last ones pale, greedy play thin and dashed."""
    for seat, colour in zip(SEATS, COLOURS, strict=False):
        has_average = draw_line(
            axes,
            rows,
            f"exact/average/{measure}_{seat}",
            color=colour,
            linewidth=2.5,
            label=f"{seat} seat, average",
        )
        style = {"alpha": 0.45, "linewidth": 1} if has_average else {"linewidth": 2.5}
        label = f"{seat} seat, last weights"
        draw_line(axes, rows, f"exact/{measure}_{seat}", color=colour, label=label, **style)
        prefix = "exact/average/" if has_average else "exact/"
        label, thin = f"{seat} seat, greedy", {"linestyle": "--", "linewidth": 1}
        draw_line(axes, rows, f"{prefix}greedy_{measure}_{seat}", color=colour, label=label, **thin)
    put_legend(axes, 2)
    axes.set(ylim=(-0.02, 1.02))


def draw_losses(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    draw_both_seats(axes, rows, "loss")
    axes.set(title="Games lost to perfect play (exact)", ylabel="share of games")


def draw_random_scores(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    draw_both_seats(axes, rows, "random_score")
    axes.set(title="Score against random play (exact)", ylabel="wins and half the draws")


def draw_nash_conv(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """On a logarithmic axis, values below SMALLEST at its foot."""
    floored = [
        {
            name: max(value, SMALLEST) if "nash_conv" in name and known(row, name) else value
            for name, value in row.items()
        }
        for row in rows
    ]
    axes.set_yscale("log")
    has_average = draw_line(
        axes, floored, "exact/average/nash_conv", color=COLOURS[0], linewidth=2.5, label="averaged weights"
    )
    style = {"alpha": 0.6, "linewidth": 1} if has_average else {"linewidth": 2.5}
    draw_line(axes, floored, "exact/nash_conv", color=COLOURS[1], label="last weights", **style)
    put_legend(axes, 2)
    axes.set(title="NashConv (exact; 0 is an equilibrium)", ylabel="what best responses gain")


def draw_arena(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """Scores against each opponent from both seats."""
    names = {name for row in rows for name in row}
    opponents = sorted(
        {name.split("/")[1] for name in names if name.startswith("arena/") and name.endswith("_score")}
    )
    for at, opponent in enumerate(opponents):
        for seat, line in zip(SEATS, LINES, strict=False):
            style = {"color": COLOURS[at % len(COLOURS)], "linestyle": line, "linewidth": 2}
            draw_line(axes, rows, f"arena/{opponent}/{seat}_score", label=f"{opponent}, {seat} seat", **style)
    axes.axhline(0.5, color="#999999", linewidth=1, zorder=0)
    if not axes.get_legend_handles_labels()[1]:
        axes.text(0.5, 0.6, "not measured yet", ha="center", transform=axes.transAxes)
    put_legend(axes, 2)
    axes.set(ylim=(-0.02, 1.02), title="Score in the arena (sampled games)", ylabel="wins and half the draws")


def draw_own_play(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """What self-play says of itself, with the entropy on an axis of its own at the right."""
    draw_line(axes, rows, "play/draw_share", color=COLOURS[0], linewidth=1.5, label="draws")
    draw_line(
        axes, rows, "play/first_score", color=COLOURS[1], linewidth=1.5, label="score of the first seat"
    )
    axes.set(ylim=(-0.02, 1.02), ylabel="share of games, score", title="Self-play alone (it misleads)")
    twin = axes.twinx()
    grey = "#555555"
    draw_line(twin, rows, "entropy", color=grey, linewidth=1.5, linestyle=":", label="entropy")
    twin.set_ylabel("entropy (nats)", color=grey)
    twin.set_ylim(bottom=0)
    put_legend(axes, 3, also=twin)


def put_legend(axes: Axes, num_columns: int, *, also: Axes | None = None) -> None:
    """Below the axes, where no line runs; none without lines."""
    parts = [one.get_legend_handles_labels() for one in (axes, also) if one is not None]
    handles = [handle for part in parts for handle in part[0]]
    if handles:
        labels = [label for part in parts for label in part[1]]
        place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.15)}
        axes.legend(handles, labels, ncols=num_columns, fontsize=8, **place)


def heat_map(
    axes: Axes, values: np.ndarray, *, low: float, high: float, colours: str, as_percent: bool
) -> Any:
    """Squares with their numbers, a dash where there is none; the text is white on what is dark."""
    image = axes.imshow(np.ma.masked_invalid(values), cmap=colours, vmin=low, vmax=high)
    for (row, column), value in np.ndenumerate(values):
        if not math.isfinite(value):
            axes.text(column, row, "–", ha="center", va="center", color="#555555")
            continue
        red, green, blue, _ = image.to_rgba(value)
        text = f"{value:.1%}" if as_percent else f"{value:.2f}"
        colour = "#111111" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 else "white"
        axes.text(column, row, text, ha="center", va="center", color=colour)
    return image


def show_first_moves(result: TicTacToeResult, *, title: str = "The first move of tic-tac-toe") -> Figure:
    """The nine probabilities on the empty board."""
    figure, axes = plt.subplots(figsize=(4, 3.6), constrained_layout=True)
    values = np.reshape(result.first_moves, (3, 3))
    image = heat_map(axes, values, low=0, high=max(result.first_moves), colours="Blues", as_percent=True)
    axes.set(xticks=range(3), yticks=range(3), xticklabels=range(1, 4), yticklabels=range(1, 4))
    axes.set(xlabel="column", ylabel="row", title=title)
    figure.colorbar(image, ax=axes, label="probability")
    plt.close(figure)
    return figure


def first_decisions(game: TextGame) -> list[pyspiel.State]:
    """The first states in which somebody is to move, one a thing that its mover can know."""
    found: dict[str, pyspiel.State] = {}
    waiting = [game.new_state()]
    while waiting:
        state = waiting.pop()
        if state.is_chance_node():
            waiting += [state.child(action) for action in reversed(state.legal_actions())]
        else:
            found.setdefault(game.prompt(state), state)
    return list(found.values())


def show_first_actions(game: TextGame, probabilities: Probabilities, *, title: str = "") -> Figure:
    """A bar for each legal first action, in words; where cards are dealt, a panel for each hand.

    Of more than MOST_OPENINGS hands the first are shown, of more than MOST_ACTIONS actions the likeliest.
    """
    states = first_decisions(game)[:MOST_OPENINGS]
    num_bars = min(MOST_ACTIONS, max(len(state.legal_actions()) for state in states))
    num_columns = min(3, len(states))
    num_rows = -(-len(states) // num_columns)
    height = (1 + 0.25 * num_bars) * num_rows + 0.4
    figure = plt.figure(figsize=(max(6.0, 3.8 * num_columns), height), constrained_layout=True)
    grid = figure.subplots(num_rows, num_columns, squeeze=False)
    for axes in grid.flat[len(states) :]:
        axes.set_axis_off()
    shares = legal_probabilities(states, probabilities)
    widest = 1.25 * max(share.max() for share in shares)
    for axes, state, share in zip(grid.flat, states, shares, strict=False):
        pairs = sorted(zip(share, game.legal_words(state).values(), strict=True), key=lambda pair: -pair[0])
        pairs = pairs[:MOST_ACTIONS]
        bars = axes.barh(range(len(pairs)), [one for one, _ in pairs], color=COLOURS[0])
        axes.bar_label(bars, [f"{one:.1%}" for one, _ in pairs], padding=3, fontsize=8)
        axes.set_yticks(range(len(pairs)), [words for _, words in pairs], fontsize=8, parse_math=False)
        axes.set(xlim=(0, widest), ylim=(num_bars - 0.4, -0.6))
        if len(states) > 1:
            known_text = game.rendering.full(state, state.current_player()).split("\n")[0]
            axes.set_title(known_text.split(". ")[0].rstrip("."), fontsize=9, parse_math=False)
    figure.suptitle(title or f"First actions in {game.name}", parse_math=False)
    plt.close(figure)
    return figure


def draw_ablation(results: Results, *, measure: str = "value", title: str = "Ablation") -> Figure:
    """Of each arm the mean over seeds and the band from the least to the most; at the right each seed's last.

    results: {arm: {seed: {"steps": [...], "values": [...]}}}. The mean is over steps that all seeds
    of the arm measured.
    """
    figure, axes = plt.subplots(figsize=(8, 4.4), constrained_layout=True)
    last = max(
        (step for seeds in results.values() for one in seeds.values() for step in one["steps"]), default=1
    )
    for at, (arm, seeds) in enumerate(results.items()):
        colour = COLOURS[at % len(COLOURS)]
        curves = [dict(zip(one["steps"], one["values"], strict=True)) for one in seeds.values()]
        steps = sorted(set.intersection(*map(set, curves))) if curves else []
        values = np.array([[curve[step] for step in steps] for curve in curves], float)
        if steps:
            label = f"{arm} ({len(curves)} seed{'s' if len(curves) != 1 else ''})"
            axes.fill_between(
                steps, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0
            )
            axes.plot(
                steps, values.mean(axis=0), LINES[at % len(LINES)], color=colour, linewidth=2, label=label
            )  # fmt: skip
        ends = [curve[max(curve)] for curve in curves if curve]
        axes.plot([last * (1.03 + 0.03 * at)] * len(ends), ends, "o", color=colour, markersize=5, alpha=0.75)
    if results:
        axes.plot([], [], "o", color="#777777", label="last value of a seed")
    axes.set(xlabel="step", ylabel=measure, title=title)
    axes.grid(alpha=0.3)
    put_legend(axes, 3)
    plt.close(figure)
    return figure


def draw_matrix(
    names: Sequence[str], scores: Sequence[Sequence[float]], *, title: str = "Cross-play"
) -> Figure:
    """Who scores how much against whom: the mean score of each row's player against each column's, 0 to 1."""
    side = 1.6 + 0.75 * len(names)
    figure, axes = plt.subplots(figsize=(side + 1.2, side), constrained_layout=True)
    image = heat_map(axes, np.array(scores, float), low=0, high=1, colours="PuOr", as_percent=False)
    axes.set_xticks(
        range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor", parse_math=False
    )
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.set(xlabel="against", ylabel="player", title=title)
    figure.colorbar(image, ax=axes, label="score of the row's player")
    plt.close(figure)
    return figure

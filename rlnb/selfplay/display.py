"""Self-play in notebooks: the live figure, the arena, exact results, ablations and cross-play.

Played games are in `rlnb.selfplay.display_games`, play against the model in `rlnb.selfplay.display_person`.
"""

import statistics
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pyspiel
import seaborn
from matplotlib.axes import Axes
from matplotlib.collections import Collection
from matplotlib.figure import Figure

from rlnb.display.plots import LiveFigure, Row, known, put_legend, series
from rlnb.display.tables import Table, format_number, format_percent
from rlnb.games.exact import KuhnFamily, Probabilities, TicTacToeResult, legal_probabilities
from rlnb.games.text_games import TextGame
from rlnb.selfplay.arena import SEATS, Match

# Okabe and Ito's colours, which the colour-blind tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
LINES = ("-", "--", "-.", ":")
MOST_HANDS, MOST_ACTIONS = 12, 20
SMALLEST = 1e-4  # a smaller NashConv is drawn there: a logarithmic axis has no zero
Curves = Mapping[str, Mapping[Hashable, Mapping[str, Sequence[float]]]]  # {arm: {seed: {"steps", "values"}}}


class LiveSelfPlay(LiveFigure):
    """What a run's policy is worth by outside measures, and what self-play says of itself."""

    def __init__(self, output_dir: str | Path, title: str = "") -> None:
        super().__init__(
            output_dir, lambda rows, *, max_steps: draw_self_play(rows, max_steps=max_steps, title=title)
        )


def draw_self_play(rows: Sequence[Row], *, max_steps: int, title: str = "") -> Figure:
    """Draw a panel for each measure from outside of self-play, and a last one for self-play itself.

    rows: of a run's metrics.jsonl. Tic-tac-toe: losses to perfect play, NashConv, score against random. Other
    games with exact measures: NashConv. Games without any: scores in the arena.
    """
    names = {name for row in rows for name in row if known(row, name)}
    panels = [draw_losses] if any(f"exact/loss_{seat}" in names for seat in SEATS) else []
    if names & {"exact/nash_conv", "exact/average/nash_conv"}:
        panels.append(draw_nash_conv)
    if any(f"exact/random_score_{seat}" in names for seat in SEATS):
        panels.append(draw_random_scores)
    panels = [*(panels or [draw_arena_scores]), draw_own_play]
    num_rows, num_columns = (2, 2) if len(panels) == 4 else (1, len(panels))
    figure, grid = plt.subplots(
        num_rows,
        num_columns,
        figsize=(5.5 * num_columns, 4.4 * num_rows),
        constrained_layout=True,
        squeeze=False,
    )
    max_steps = max(max_steps, 1)
    for axes, draw in zip(grid.flat, panels, strict=True):
        axes.set(xlabel="step", xlim=(-0.02 * max_steps, 1.02 * max_steps))
        draw(axes, rows)
        axes.grid(alpha=0.3)
    if title:
        figure.suptitle(title, parse_math=False)
    plt.close(figure)  # the notebook shows what is returned, not a second copy
    return figure


def draw_line(axes: Axes, rows: Sequence[Row], name: str, **style: Any) -> bool:
    """Draw a measure where it was taken, and return whether it ever was. A marker shows a single point."""
    steps, values = series(rows, name)
    if steps:
        axes.plot(steps, values, marker=".", markersize=4, **style)
    return bool(steps)


def draw_both_seats(axes: Axes, rows: Sequence[Row], measure: str) -> None:
    """Draw each seat: the averaged weights thick, the last weights pale, greedy play thin and dashed."""
    for seat, colour in zip(SEATS, COLOURS, strict=False):
        average = f"exact/average/{measure}_{seat}"
        label = f"{seat} seat, average"
        has_average = draw_line(axes, rows, average, color=colour, linewidth=2.5, label=label)
        style = {"alpha": 0.45, "linewidth": 1} if has_average else {"linewidth": 2.5}
        label = f"{seat} seat, last weights"
        draw_line(axes, rows, f"exact/{measure}_{seat}", color=colour, label=label, **style)
        greedy = f"exact/{'average/' if has_average else ''}greedy_{measure}_{seat}"
        label = f"{seat} seat, greedy"
        draw_line(axes, rows, greedy, color=colour, label=label, linestyle="--", linewidth=1)
    put_legend(axes, 2)
    axes.set(ylim=(-0.02, 1.02))


def draw_losses(axes: Axes, rows: Sequence[Row]) -> None:
    draw_both_seats(axes, rows, "loss")
    axes.set(title="Games lost to perfect play (exact)", ylabel="share of games")


def draw_random_scores(axes: Axes, rows: Sequence[Row]) -> None:
    draw_both_seats(axes, rows, "random_score")
    axes.set(title="Score against random play (exact)", ylabel="wins and half the draws")


def draw_nash_conv(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw NashConv on a logarithmic axis, values below SMALLEST at its foot."""
    axes.set_yscale("log")
    measures = {"exact/average/nash_conv": "averaged weights", "exact/nash_conv": "last weights"}
    for (name, label), colour in zip(measures.items(), COLOURS, strict=False):
        steps, values = series(rows, name)
        if steps:
            (line,) = axes.plot(steps, np.maximum(values, SMALLEST), marker=".", color=colour, label=label)
            line.set(markersize=4, linewidth=2.5 if len(axes.lines) == 1 else 1)
    put_legend(axes, 2)
    axes.set(title="NashConv (exact; 0 is an equilibrium)", ylabel="what best responses gain")


def draw_arena_scores(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw the scores against each opponent from both seats."""
    names = {name for row in rows for name in row}
    opponents = sorted(
        {name.split("/")[1] for name in names if name.startswith("arena/") and name.endswith("_score")}
    )
    for index, opponent in enumerate(opponents):
        for seat, line in zip(SEATS, LINES, strict=False):
            style = {"color": COLOURS[index % len(COLOURS)], "linestyle": line, "linewidth": 2}
            draw_line(axes, rows, f"arena/{opponent}/{seat}_score", label=f"{opponent}, {seat} seat", **style)
    axes.axhline(0.5, color="#999999", linewidth=1, zorder=0)
    if not axes.get_legend_handles_labels()[1]:
        axes.text(0.5, 0.6, "not measured yet", ha="center", transform=axes.transAxes)
    put_legend(axes, 2)
    axes.set(ylim=(-0.02, 1.02), title="Score in the arena (sampled games)", ylabel="wins and half the draws")


def draw_own_play(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw what self-play says of itself, with the entropy on its own axis at the right."""
    draw_line(axes, rows, "play/draw_share", color=COLOURS[0], linewidth=1.5, label="draws")
    label = "score of the first seat"
    draw_line(axes, rows, "play/first_score", color=COLOURS[1], linewidth=1.5, label=label)
    axes.set(ylim=(-0.02, 1.02), ylabel="share of games, score", title="Self-play alone (it misleads)")
    twin = axes.twinx()
    draw_line(twin, rows, "entropy", color="#555555", linewidth=1.5, linestyle=":", label="entropy")
    twin.set_ylabel("entropy (nats)", color="#555555")
    twin.set_ylim(bottom=0)
    put_legend(axes, 3, also=twin)


def draw_arena(results: Mapping[str, Sequence[Match]], *, title: str = "Scores in the arena") -> Figure:
    """Draw the score of each match with its 95% interval, next to random play's and the ceiling where known.

    results: {name, such as "before" or a contender's: its matches}. Names differ in colour; a line of the
    picture is a game, opponent, seat and way to play.
    """
    matches = [match for rows in results.values() for match in rows]
    labels = {label: index for index, label in enumerate(dict.fromkeys(map(match_label, matches)))}
    figure, axes = plt.subplots(figsize=(9, 1.6 + 0.4 * len(labels)), constrained_layout=True)
    for index, (name, rows) in enumerate(results.items()):
        offset = 0.6 * (index + 1) / (len(results) + 1) - 0.3
        heights = [labels[match_label(row)] + offset for row in rows]
        values = np.array([row.score.value for row in rows])
        widths = np.abs(np.array([[row.score.low, row.score.high] for row in rows]).reshape(-1, 2).T - values)
        style = {"color": COLOURS[index % len(COLOURS)], "markersize": 5, "capsize": 2}
        axes.errorbar(values, heights, xerr=widths, fmt="o", label=name, **style)
    for field, marker, name in (("random_score", "|", "random play"), ("ceiling", ">", "best possible")):
        points = {(getattr(match, field), labels[match_label(match)]) for match in matches}
        points = {point for point in points if point[0] is not None}
        if points:
            axes.plot(*zip(*points, strict=True), marker, color="#777777", markersize=7, zorder=0, label=name)
    axes.set_yticks(range(len(labels)), list(labels), parse_math=False, fontsize=8)
    axes.set(xlim=(-0.02, 1.02), ylim=(len(labels) - 0.4, -0.6), title=title)
    axes.set_xlabel("score: wins and half the draws")
    axes.grid(alpha=0.3)
    put_legend(axes, 4)
    plt.close(figure)
    return figure


def match_label(match: Match) -> str:
    return f"{match.game}, {match.opponent}, {SEATS[match.seat]} seat ({describe_policy(match)})"


def describe_policy(match: Match) -> str:
    return f"{match.acting}, {'greedy' if match.greedy else 'sampled'}, {match.weights} weights"


def heat_map(
    axes: Axes,
    values: np.ndarray,
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    limits: tuple[float, float],
    colours: str = "PuOr",
    form: str = ".2f",
) -> Collection:
    """Draw numbers as labelled squares, a dash where there is none, and return the mesh for a colour bar."""
    low, high = limits
    style = {"cmap": colours, "vmin": low, "vmax": high, "cbar": False}
    seaborn.heatmap(values, annot=True, fmt=form, ax=axes, xticklabels=False, yticklabels=False, **style)
    for row, column in np.argwhere(~np.isfinite(values)):
        axes.text(column + 0.5, row + 0.5, "–", ha="center", va="center", color="#555555")
    axes.set_xticks(np.arange(len(columns)) + 0.5, columns, parse_math=False)
    axes.set_yticks(np.arange(len(rows)) + 0.5, rows, parse_math=False)
    return axes.collections[0]


def show_first_moves(result: TicTacToeResult, *, title: str = "The first move of tic-tac-toe") -> Figure:
    """Draw the nine probabilities on the empty board."""
    figure, axes = plt.subplots(figsize=(4, 3.6), constrained_layout=True)
    values, numbers = np.reshape(result.first_moves, (3, 3)), "123"
    limits = (0.0, max(result.first_moves))
    mesh = heat_map(axes, values, rows=numbers, columns=numbers, limits=limits, colours="Blues", form=".1%")
    axes.set(xlabel="column", ylabel="row", title=title)
    figure.colorbar(mesh, ax=axes, label="probability")
    plt.close(figure)
    return figure


def draw_matrix(
    names: Sequence[str], scores: Sequence[Sequence[float]], *, title: str = "Cross-play"
) -> Figure:
    """Draw the mean score of each row's player against each column's, 0 to 1."""
    side = 1.6 + 0.75 * len(names)
    figure, axes = plt.subplots(figsize=(side + 1.2, side), constrained_layout=True)
    mesh = heat_map(axes, np.array(scores, float), rows=names, columns=names, limits=(0, 1))
    axes.tick_params(axis="x", rotation=30)
    axes.set(xlabel="against", ylabel="player", title=title)
    figure.colorbar(mesh, ax=axes, label="score of the row's player")
    plt.close(figure)
    return figure


def first_decisions(game: TextGame) -> list[pyspiel.State]:
    """Return the first states in which a player is to move, one for each prompt."""
    states: dict[str, pyspiel.State] = {}
    waiting = [game.new_state()]
    while waiting:
        state = waiting.pop()
        if state.is_chance_node():
            waiting += [state.child(action) for action in reversed(state.legal_actions())]
        else:
            states.setdefault(game.prompt(state), state)
    return list(states.values())


def show_first_actions(game: TextGame, probabilities: Probabilities, *, title: str = "") -> Figure:
    """Draw a bar for each legal first action, in words, with a panel for each hand where cards are dealt.

    At most MOST_HANDS hands, the first ones, and MOST_ACTIONS actions, the likeliest ones, are drawn.
    """
    states = first_decisions(game)[:MOST_HANDS]
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
        bars = axes.barh(range(len(pairs)), [probability for probability, _ in pairs], color=COLOURS[0])
        axes.bar_label(bars, fmt="{:.1%}", padding=3, fontsize=8)
        axes.set_yticks(range(len(pairs)), [words for _, words in pairs], fontsize=8, parse_math=False)
        axes.set(xlim=(0, widest), ylim=(num_bars - 0.4, -0.6))
        if len(states) > 1:
            hand = game.rendering.full(state, state.current_player()).split("\n")[0]
            axes.set_title(hand.split(". ")[0].rstrip("."), fontsize=9, parse_math=False)
    figure.suptitle(title or f"First actions in {game.name}", parse_math=False)
    plt.close(figure)
    return figure


def draw_ablation(results: Curves, *, measure: str = "value", title: str = "Ablation") -> Figure:
    """Draw the mean over seeds of each arm, the band from the least to the most, and each seed's last value.

    The mean is over the steps that all seeds of the arm measured.
    """
    figure, axes = plt.subplots(figsize=(8, 4.4), constrained_layout=True)
    steps_of_all = [step for seeds in results.values() for curve in seeds.values() for step in curve["steps"]]
    last = max(steps_of_all, default=1)
    for index, (arm, seeds) in enumerate(results.items()):
        colour, line = COLOURS[index % len(COLOURS)], LINES[index % len(LINES)]
        curves = [dict(zip(curve["steps"], curve["values"], strict=True)) for curve in seeds.values()]
        steps = sorted(set.intersection(*map(set, curves))) if curves else []
        values = np.array([[curve[step] for step in steps] for curve in curves], float)
        if steps:
            low, high = values.min(axis=0), values.max(axis=0)
            axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
            label = f"{arm} ({len(curves)} seed{'s' if len(curves) != 1 else ''})"
            axes.plot(steps, values.mean(axis=0), line, color=colour, linewidth=2, label=label)
        ends = [curve[max(curve)] for curve in curves if curve]
        position = last * (1.03 + 0.03 * index)
        axes.plot([position] * len(ends), ends, "o", color=colour, markersize=5, alpha=0.75)
    if results:
        axes.plot([], [], "o", color="#777777", label="last value of a seed")
    axes.set(xlabel="step", ylabel=measure, title=title)
    axes.grid(alpha=0.3)
    put_legend(axes, 3)
    plt.close(figure)
    return figure


def show_ablation(results: Curves, verdicts: Mapping[str, str], *, measure: str = "value") -> Table:
    """Return the last value of each arm and seed, their mean, and the verdict on the arm, {arm: words}."""
    seeds = list(dict.fromkeys(seed for arm in results.values() for seed in arm))
    rows = []
    for arm, curves in results.items():
        ends = {seed: float(curve["values"][-1]) for seed, curve in curves.items() if curve["values"]}
        mean = statistics.mean(ends.values()) if ends else None
        rows.append((arm, *(ends.get(seed) for seed in seeds), mean, verdicts.get(arm)))
    caption = f"Final {measure}: of the last checkpoint, never of the best one."
    headers = ["arm", *(f"seed {seed}" for seed in seeds), "mean", "verdict"]
    return Table(headers, rows, caption, empty="Nothing was measured.")


def show_kuhn(family: KuhnFamily, nash_conv: float) -> Table:
    """Return Kuhn poker's twelve decisions: `kuhn_family` and `nash_conv` of `rlnb.games.exact`."""
    return Table(
        ["player", "card", "situation", "learned", "equilibrium", "difference"],
        [
            (
                *(SEATS[row.player], row.card, row.situation),
                *(row.learned, row.equilibrium, f"{row.difference:+.3f}"),
            )
            for row in family.rows
        ],
        f"Probability of betting (of calling, after a bet). The equilibria are a family; the nearest has "
        f"alpha = {family.alpha:.3f}, the share of Jacks that open with a bet (0 to 0.333). "
        f"NashConv {nash_conv:.4f}; an equilibrium has 0.",
    )


def show_arena(matches: Sequence[Match]) -> Table:
    """Return the results against opponents, a line for each game, opponent, seat and way to play."""
    headers = ["game", "opponent", "seat", "policy", "games", "won", "drawn", "lost", "score (95% interval)"]
    return Table(
        [*headers, "return", "random scores", "ceiling", "invalid answers", "distinct games"],
        [
            (
                *(row.game, row.opponent, format_seat(row.seat, row.role), describe_policy(row)),
                *(row.num_games, row.wins, row.draws, row.losses),
                *map(format_number, (row.score, row.mean_return, row.random_score, row.ceiling)),
                *map(format_percent, (row.invalid_share, row.distinct_share)),
            )
            for row in matches
        ],
        "Score: wins and half the draws, from 0 to 1. Random scores: random play in that seat "
        "against random play. Ceiling: what the best play gets against this opponent.",
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
            *map(format_percent, (result.loss, result.draw, result.win)),
            result.score_against_random,
            f"{result.best_response_value:+.3f}",
            format_percent(result.blunder_rate),
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

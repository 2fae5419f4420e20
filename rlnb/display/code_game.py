"""The code game in notebooks: its live figure, the comparison with a control, tables of rounds."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlnb.display.board2048 import known, series
from rlnb.display.plots import OUTCOME_COLOURS, LiveFigure, running_mean
from rlnb.display.tables import Table
from rlnb.evaluation.compare import Estimate
from rlnb.metrics import INVALID_KINDS
from rlnb.rewards.code_game import GamePreset, GameRound
from rlnb.tasks.prediction_set import PREDICTION_LEVELS

LONGEST_CODE, LONGEST_TEXT = 600, 200  # characters
WIN, VALID, RIGHT = "#2a7f3f", "#1f77b4", "#d95f02"
KIND_COLOURS: dict[str, str] = {
    "win": WIN,
    "predicted": "#a9cbe8",
    **{kind: OUTCOME_COLOURS[kind] for kind in INVALID_KINDS if kind in OUTCOME_COLOURS},
    "silent": OUTCOME_COLOURS["ok_without_output"],
    "long_code": "#8c6d46",
    "long_output": "#4c5fb1",
    "unreadable": "#f4a6c6",
    "not_deterministic": "#d62728",
}
# Of each time its marker, fillstyle and colour.
TIMES = {"before": ("o", "none", "#666666"), "after": ("o", "full", VALID), "control": ("^", "full", RIGHT)}
GAPS = 0.25  # between the times of one measure; measures are 1 apart
DIFFERENCES = ("after - before", "after - control")


class LiveGame(LiveFigure):
    """Wins, valid programs and right predictions of a run, and what its completions were.

    control: rows of the control's metrics.jsonl, once there are any.
    """

    def __init__(self, output_dir: str | Path, *, control: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(output_dir, self.draw_with_control)
        self.control = control

    def draw_with_control(self, rows: Sequence[Mapping[str, Any]], *, max_steps: int) -> Figure:
        return draw_game(rows, max_steps=max_steps, control=self.control)


def draw_game(
    rows: Sequence[Mapping[str, Any]], *, max_steps: int, control: Sequence[Mapping[str, Any]] = ()
) -> Figure:
    """Left: shares a step, thin, with running means; held-out points hollow. Right: what completions were.

    rows: of a run's metrics.jsonl. control: of another run's, of which the share that the opponent predicts
    is drawn, dashed. A step in which nothing was valid leaves a gap there.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), constrained_layout=True)
    for name, label, colour in [
        ("game/win_share", "wins", WIN),
        ("game/valid_share", "valid", VALID),
        ("game/opponent_right", "opponent right on valid", RIGHT),
    ]:
        draw_share(left, played_steps(rows), name, label=label, color=colour)
    if played_steps(control):
        label = "control: opponent right on valid"
        draw_share(
            left, played_steps(control), "game/opponent_right", label=label, color=RIGHT, linestyle="--"
        )
    for name, label, marker, colour in [
        ("heldout/game/win_share", "held out: wins", "o", WIN),
        ("heldout/game/opponent_right", "held out: opponent right on valid", "s", RIGHT),
    ]:
        steps, values = series(rows, name)
        if steps:
            left.plot(
                steps, values, marker, color=colour, fillstyle="none", label=label, zorder=3, clip_on=False
            )
    limits = (-0.02 * max_steps, 1.02 * max_steps)
    left.set(xlabel="step", xlim=limits, ylim=(-0.02, 1.02), title="The game while training")
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, fontsize=8)
    left.grid(alpha=0.3)
    draw_kinds(right, played_steps(rows), max_steps)
    plt.close(figure)  # the notebook shows what is returned, not a second copy
    return figure


def played_steps(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows of steps in which rounds were counted."""
    return [row for row in rows if known(row, "game/valid_share")]


def draw_share(axes: Axes, rows: Sequence[Mapping[str, Any]], name: str, *, label: str, **style: Any) -> None:
    """A share a step with small dots, since one between two gaps has no line, and its running mean.

    The mean is over the steps before that have a value.
    """
    steps = [row["step"] for row in rows]
    values = [row[name] if known(row, name) else math.nan for row in rows]
    means = iter(running_mean([value for value in values if math.isfinite(value)]))
    smooth = [next(means) if math.isfinite(value) else math.nan for value in values]
    axes.plot(steps, values, marker=".", markersize=2, alpha=0.3, linewidth=1, **style)
    axes.plot(steps, smooth, linewidth=2, label=label, **style)


def draw_kinds(axes: Axes, rows: Sequence[Mapping[str, Any]], max_steps: int) -> None:
    """Shares of all completions, stacked: wins, valid but predicted, and the invalid kinds that occur."""
    wins = [row["game/win_share"] if known(row, "game/win_share") else 0.0 for row in rows]
    shares = {
        "win": wins,
        "predicted": [max(0.0, row["game/valid_share"] - win) for row, win in zip(rows, wins, strict=True)],
    }
    for kind in INVALID_KINDS:
        name = f"game/{kind}_share"
        shares[kind] = [row[name] if known(row, name) else 0.0 for row in rows]
    seen = {kind: values for kind, values in shares.items() if any(values)}
    if seen:
        labels = ["valid, but predicted" if kind == "predicted" else words(kind) for kind in seen]
        colours = [KIND_COLOURS[kind] for kind in seen]
        axes.stackplot([row["step"] for row in rows], list(seen.values()), labels=labels, colors=colours)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3, fontsize=8)
    axes.set(xlabel="step", xlim=(0, max_steps), ylim=(0, 1), title="What the completions were")


def draw_game_comparison(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """A line a share: before, after and control under each other, with their 95% intervals as thin bars.

    rows: of `rlnb.evaluation.code_game.compare_game`; measures without an interval are left out.
    """
    measured = [row for row in rows if any(isinstance(row.get(time), Estimate) for time in TIMES)]
    times = [time for time in TIMES if any(isinstance(row.get(time), Estimate) for row in measured)]
    figure, axes = plt.subplots(figsize=(9, 0.5 * len(measured) + 1.2), constrained_layout=True)
    for number, time in enumerate(times):
        marker, fillstyle, colour = TIMES[time]
        shift = (number - (len(times) - 1) / 2) * GAPS
        points = [
            (position + shift, row[time])
            for position, row in enumerate(measured)
            if isinstance(row.get(time), Estimate)
        ]
        places = [place for place, _ in points]
        axes.hlines(
            places, [e.low for _, e in points], [e.high for _, e in points], color=colour, linewidth=1
        )
        face = "white" if fillstyle == "none" else colour  # white, so that no bar runs through a hollow one
        axes.plot(
            [estimate.value for _, estimate in points], places, marker, color=colour,
            markerfacecolor=face, markersize=6, label=time, zorder=3,
        )  # fmt: skip
    for position in range(0, len(measured), 2):
        axes.axhspan(position - 0.5, position + 0.5, color="#000000", alpha=0.04, linewidth=0)
    labels = [visible(row["measure"]) for row in measured]
    axes.set_yticks(range(len(measured)), labels, parse_math=False)
    axes.set(xlim=(-0.02, 1.02), ylim=(max(len(measured), 1) - 0.5, -0.5), xlabel="share, 95% interval")
    axes.grid(alpha=0.3, axis="x")
    if times:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)
    else:
        axes.text(0.5, 0, "nothing was measured", ha="center", va="center")
    plt.close(figure)
    return figure


def show_game(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Each measure at each time, and its differences: `rlnb.evaluation.code_game.compare_game`."""
    columns = [name for name in (*TIMES, *DIFFERENCES) if any(name in row for row in rows)]
    return table_of(
        ["measure", *columns],
        [
            (
                visible(row["measure"]),
                *(number(row.get(name), signed=name in DIFFERENCES) for name in columns),
            )
            for row in rows
        ],
        caption="Held-out questions; 95% intervals over questions, a difference's over the same ones. "
        "win = valid x (1 - opponent right on valid).",
        empty="Nothing was measured.",
    )


def show_rounds(rounds: Sequence[GameRound]) -> Table:
    """Programs as they were written, what became of them, and what they earn under two presets."""
    return table_of(
        ["program", "became", "why", "output", "opponent", "required", "graded", "probability of a token"],
        [
            (
                code_cell(one.code or "(no code)"),
                words(one.kind),
                visible(one.message)[:LONGEST_TEXT],
                code_cell(one.output, longest=LONGEST_TEXT),
                ("right" if one.verdict.is_right else "wrong") if one.verdict else None,
                earned(one, "required"),
                earned(one, "graded"),
                number(one.verdict.token_probability if one.verdict else None),
            )
            for one in rounds
        ],
        caption="The opponent reads the program without comments and docstrings; the probability is its own, "
        "of a token of the true output.",
        empty="No round was played.",
    )


def earned(one: GameRound, preset: GamePreset) -> str:
    """The reward, a dash where there is none: the sandbox failed, or nobody judged a valid program."""
    if one.is_valid and one.verdict is None:
        return number(None)
    return number(one.reward(preset), signed=True)


def show_hardest(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Programs with their output and the opponent's prediction: `rlnb.evaluation.code_game.hardest`."""
    return table_of(
        ["program", "output", "prediction", "probability of a token"],
        [
            (
                code_cell(row["program"]),
                *(code_cell(row[name], longest=LONGEST_TEXT) for name in ("output", "prediction")),
                number(row["token_probability"]),
            )
            for row in rows
        ],
        caption=f"The {len(rows)} distinct programs that the opponent failed on most, as it read them.",
        empty="The opponent failed on no valid program.",
    )


def show_counts(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Right predictions by construct: `rlnb.evaluation.code_game.by_construct`."""
    return table_by_time(
        rows,
        "construct",
        lambda counts: f"{counts[0]} of {counts[1]}" if counts and counts[1] else number(None),
        caption="Of the valid programs that hold a construct, how many the opponent predicts.",
        empty="No program was valid.",
    )


def show_kinds(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Shares of all completions that were no round: `rlnb.evaluation.code_game.invalid_kinds`."""
    return table_by_time(
        rows,
        "kind",
        lambda share: number(None) if share is None or math.isnan(share) else f"{share:.1%}",
        caption="Completions that were no round, of all completions.",
        empty="Every completion was valid, or there was none.",
    )


def show_levels(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The opponent on the fixed programs: `rlnb.evaluation.code_game.opponent_by_level`."""
    return table_of(
        ["level", "programs", "right", "share"],
        [
            (
                row["level"],
                PREDICTION_LEVELS.get(row["level"], ""),
                f"{row['right']} of {row['count']}",
                number(row["share"]),
            )
            for row in rows
        ],
        caption="Programs that no policy wrote; 95% intervals by Wilson's score.",
        empty="The opponent was not asked.",
    )


def table_by_time(
    rows: Sequence[Mapping[str, Any]], key: str, cell: Callable[[Any], str], *, caption: str, empty: str
) -> Table:
    """A table with a column a time, in the order in which the rows name them."""
    times = list(dict.fromkeys(name for row in rows for name in row if name != key))
    cells = [(words(row[key]), *(cell(row.get(time)) for time in times)) for row in rows]
    return table_of([key, *times], cells, caption=caption, empty=empty)


def table_of(headers: Sequence[str], rows: Sequence[Sequence[Any]], *, caption: str, empty: str) -> Table:
    """A table that says `empty` where it has no rows."""
    return Table(headers, rows, caption=caption if rows else empty)


def number(value: Estimate | float | None, *, signed: bool = False) -> str:
    """Three decimals, of an estimate its interval too; a dash where nothing was measured."""
    sign = "+" if signed else ""
    if isinstance(value, Estimate):
        return f"{value.value:{sign}.3f} ({value.low:{sign}.3f} to {value.high:{sign}.3f})"
    return "–" if value is None or math.isnan(value) else f"{value:{sign}.3f}"


def code_cell(text: str, *, longest: int = LONGEST_CODE) -> str:
    """Text that a table shows as code, with its blanks, cut where it is longer."""
    cut = text if len(text) <= longest else text[:longest] + " …"
    return visible(cut.rstrip("\n")) + "\n" if cut else ""


def visible(text: str) -> str:
    """Text in which what would change the page's own is written out: control characters, turned writing."""
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else ascii(letter)[1:-1] for letter in text
    )


def words(name: str) -> str:
    return name.replace("_", " ")

"""The code game in notebooks: its live figure, the comparison with a control, tables of rounds."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from rlnb.code_game.evaluation import GameComparison, LevelResult
from rlnb.code_game.prediction import PREDICTION_LEVELS
from rlnb.code_game.reward import GameRound
from rlnb.display.plots import (
    OUTCOME_COLOURS,
    LiveFigure,
    Row,
    draw_heldout,
    draw_shares,
    draw_trend,
    known,
    put_legend,
)
from rlnb.display.tables import Table, format_number, format_percent, visible_text
from rlnb.run.metrics import INVALID_KINDS
from rlnb.statistics import Estimate

LONGEST_CODE, LONGEST_TEXT = 600, 200  # characters
WIN, VALID, RIGHT, PREDICTED = "#2a7f3f", "#1f77b4", "#d95f02", "#a9cbe8"
KIND_COLOURS: dict[str, str] = {
    **{kind: OUTCOME_COLOURS[kind] for kind in INVALID_KINDS if kind in OUTCOME_COLOURS},
    "silent": OUTCOME_COLOURS["ok_without_output"],
    "long_code": "#8c6d46",
    "long_output": "#4c5fb1",
    "unreadable": "#f4a6c6",
    "not_deterministic": "#d62728",
}
# Marker, its fill and colour of each time.
TIMES = {"before": ("o", "white", "#666666"), "after": ("o", VALID, VALID), "control": ("^", RIGHT, RIGHT)}
GAP = 0.25  # between the times of one measure; measures are 1 apart


class LiveGame(LiveFigure):
    """Wins, valid programs and right predictions of a run, and the kinds of its completions.

    control: rows of the control's metrics.jsonl, once there are any.
    """

    def __init__(self, output_dir: str | Path) -> None:
        super().__init__(output_dir, lambda rows, **more: draw_game(rows, control=self.control, **more))
        self.control: Sequence[Row] = ()


def draw_game(rows: Sequence[Row], *, max_steps: int, control: Sequence[Row] = ()) -> Figure:
    """Draw shares a step with running means and held-out points, left, and kinds of completions, right.

    rows: of a run's metrics.jsonl. control: of another run's; its share of predicted programs is dashed.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), constrained_layout=True)
    wins, right_share, predicted = "game/win_share", "game/opponent_right", "opponent right on valid"
    draw_trend(left, rows, wins, label="wins", color=WIN)
    draw_trend(left, rows, "game/valid_share", label="valid", color=VALID)
    draw_trend(left, rows, right_share, label=predicted, color=RIGHT)
    if any(known(row, right_share) for row in control):
        draw_trend(left, control, right_share, label=f"control: {predicted}", color=RIGHT, linestyle="--")
    hollow = {"zorder": 3, "clip_on": False}
    draw_heldout(left, rows, f"heldout/{wins}", "o", color=WIN, label="held out: wins", **hollow)
    label = f"held out: {predicted}"
    draw_heldout(left, rows, f"heldout/{right_share}", "s", color=RIGHT, label=label, **hollow)
    limits = (-0.02 * max_steps, 1.02 * max_steps)
    left.set(xlabel="step", xlim=limits, ylim=(-0.02, 1.02), title="The game in training")
    left.grid(alpha=0.3)
    put_legend(left, 2)
    kinds = {wins: ("win", WIN), "predicted": ("valid, but predicted", PREDICTED)}
    kinds |= {f"game/{kind}_share": (words(kind), KIND_COLOURS[kind]) for kind in INVALID_KINDS}
    steps = [
        {**row, "predicted": max(0.0, row["game/valid_share"] - row[wins])}
        for row in rows
        if known(row, "game/valid_share") and known(row, wins)
    ]
    draw_shares(right, steps, kinds, max_steps=max_steps, title="The completions")
    plt.close(figure)  # the notebook shows what is returned, not a second copy
    return figure


def draw_game_comparison(comparison: Sequence[GameComparison]) -> Figure:
    """Draw each share before, after and in the control, with its 95% interval as a thin bar."""
    measured = {
        row.measure: {time: value for time, value in row.values.items() if isinstance(value, Estimate)}
        for row in comparison
    }
    rows = {measure: values for measure, values in measured.items() if values}
    times = [time for time in TIMES if any(time in values for values in rows.values())]
    figure, axes = plt.subplots(figsize=(9, 0.5 * len(rows) + 1.2), constrained_layout=True)
    for index, time in enumerate(times):
        marker, fill, colour = TIMES[time]
        shift = (index - (len(times) - 1) / 2) * GAP
        points = [(row + shift, values[time]) for row, values in enumerate(rows.values()) if time in values]
        heights, shares = [height for height, _ in points], [share for _, share in points]
        lows, highs = [share.low for share in shares], [share.high for share in shares]
        axes.hlines(heights, lows, highs, color=colour, linewidth=1)
        style = {"color": colour, "markerfacecolor": fill, "markersize": 6, "label": time, "zorder": 3}
        axes.plot([share.value for share in shares], heights, marker, **style)
    for position in range(0, len(rows), 2):
        axes.axhspan(position - 0.5, position + 0.5, color="#000000", alpha=0.04, linewidth=0)
    axes.set_yticks(range(len(rows)), [visible_text(measure) for measure in rows], parse_math=False)
    axes.set(xlim=(-0.02, 1.02), ylim=(max(len(rows), 1) - 0.5, -0.5), xlabel="share, 95% interval")
    axes.grid(alpha=0.3, axis="x")
    if times:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)
    else:
        axes.text(0.5, 0, "nothing was measured", ha="center", va="center")
    plt.close(figure)
    return figure


def show_game(comparison: Sequence[GameComparison]) -> Table:
    """Return a table of each measure at each time, and its differences."""
    times = list(dict.fromkeys(time for row in comparison for time in row.values))
    differences = list(dict.fromkeys(name for row in comparison for name in row.differences))
    rows = [
        (
            visible_text(row.measure),
            *(format_number(row.values.get(time)) for time in times),
            *(format_number(row.differences.get(name), signed=True) for name in differences),
        )
        for row in comparison
    ]
    return Table(
        ["measure", *times, *differences],
        rows,
        caption="Held-out questions; 95% intervals over questions, a difference's over the same ones. "
        "win = valid x (1 - opponent right on valid).",
        empty="Nothing was measured.",
    )


def show_rounds(rounds: Sequence[GameRound], rewards: Sequence[Callable[[GameRound], float]]) -> Table:
    """Return a table of programs as they were written, their outcomes, and what some presets pay."""
    names = [getattr(reward, "__name__", "reward") for reward in rewards]
    return Table(
        ["program", "outcome", "why", "output", "opponent", *names, "probability of a token"],
        [
            (
                code_cell(played.code or "(no code)"),
                words(played.kind),
                visible_text(played.message)[:LONGEST_TEXT],
                code_cell(played.output, longest=LONGEST_TEXT),
                ("right" if played.is_predicted else "wrong") if played.verdict else None,
                *(format_reward(played, reward) for reward in rewards),
                format_number(played.token_probability),
            )
            for played in rounds
        ],
        caption="The opponent reads the program without comments and docstrings; the probability is its own, "
        "of a token of the true output.",
        empty="No round was played.",
    )


def format_reward(played: GameRound, reward: Callable[[GameRound], float]) -> str:
    """Format a reward, as a dash where the sandbox failed or nobody judged a valid program."""
    is_unpaid = played.kind == "sandbox_error" or played.is_valid and played.verdict is None
    return format_number(None if is_unpaid else reward(played), signed=True)


def show_hardest(hardest: Sequence[tuple[GameRound, str]]) -> Table:
    """Return a table of (round, prediction), as `rlnb.code_game.evaluation.find_hardest` returns them."""
    rows = [
        (*map(code_cell, (played.shown, played.output, prediction)), format_number(played.token_probability))
        for played, prediction in hardest
    ]
    return Table(
        ["program", "output", "prediction", "probability of a token"],
        rows,
        f"The {len(hardest)} distinct programs that the opponent failed on most, as it read them.",
        empty="The opponent failed on no valid program.",
    )


def show_counts(counts: Mapping[str, Mapping[str, tuple[int, int]]]) -> Table:
    """Return a table of right predictions by construct and time."""
    rows = [
        (words(name), *(f"{right} of {valid}" if valid else None for right, valid in by_time.values()))
        for name, by_time in counts.items()
    ]
    caption = "Of the valid programs that show a construct, how many the opponent predicts."
    return Table(["construct", *column_times(counts)], rows, caption, empty="No program was valid.")


def show_kinds(shares: Mapping[str, Mapping[str, float]]) -> Table:
    """Return a table of the invalid kinds by time."""
    rows = [(words(kind), *map(format_percent, by_time.values())) for kind, by_time in shares.items()]
    caption = "Invalid completions, of all completions."
    empty = "Every completion was valid, or there was none."
    return Table(["kind", *column_times(shares)], rows, caption, empty=empty)


def column_times(values: Mapping[str, Mapping[str, object]]) -> list[str]:
    return list(next(iter(values.values()), {}))


def show_levels(results: Sequence[LevelResult]) -> Table:
    """Return a table of an opponent's results on the fixed programs."""
    rows = [
        (
            result.level,
            PREDICTION_LEVELS.get(result.level, ""),
            f"{result.num_right} of {result.num_programs}",
            format_number(result.share),
        )
        for result in results
    ]
    return Table(
        ["level", "programs", "right", "share"],
        rows,
        caption="Programs that no policy wrote; 95% intervals by Wilson's score.",
        empty="The opponent was not asked.",
    )


def code_cell(text: str, *, longest: int = LONGEST_CODE) -> str:
    """Return text that a table shows as code, with its blanks, cut where it is longer."""
    cut = text if len(text) <= longest else text[:longest] + " …"
    return visible_text(cut.rstrip("\n")) + "\n" if cut else ""


def words(name: str) -> str:
    return name.replace("_", " ")

"""The code game in notebooks: its live figure, the comparison with a control, tables of rounds."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from rlnb.code_game.evaluation import GameComparison, LevelResult
from rlnb.code_game.prediction import PREDICTION_LEVELS
from rlnb.code_game.reward import GameRound
from rlnb.display.plots import (
    OUTCOME_COLOURS,
    LiveFigure,
    Row,
    draw_intervals,
    draw_training,
    draw_trend,
    known,
    put_legend,
)
from rlnb.display.tables import Table, as_code, as_percent, as_text
from rlnb.run.metrics import INVALID_KINDS
from rlnb.statistics import Estimate

LONGEST_TEXT = 200  # characters
WIN, VALID, RIGHT, PREDICTED = "#2a7f3f", "#1f77b4", "#d95f02", "#a9cbe8"
KIND_COLOURS: dict[str, str] = {
    **{kind: OUTCOME_COLOURS[kind] for kind in INVALID_KINDS if kind in OUTCOME_COLOURS},
    "silent": OUTCOME_COLOURS["ok_without_output"],
    "long_code": "#8c6d46",
    "long_output": "#4c5fb1",
    "unreadable": "#f4a6c6",
    "not_deterministic": "#d62728",
}
RIGHT_SHARE, RIGHT_WORDS = "game/opponent_right", "opponent right on valid"


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
    wins, valid = "game/win_share", "game/valid_share"
    trends = {wins: ("wins", WIN), valid: ("valid", VALID), RIGHT_SHARE: (RIGHT_WORDS, RIGHT)}
    heldout = {
        f"heldout/{wins}": ("held out: wins", WIN, "o"),
        f"heldout/{RIGHT_SHARE}": (f"held out: {RIGHT_WORDS}", RIGHT, "s"),
    }
    kinds = {wins: ("win", WIN), "predicted": ("valid, but predicted", PREDICTED)}
    kinds |= {f"game/{kind}_share": (words(kind), KIND_COLOURS[kind]) for kind in INVALID_KINDS}
    rows = [
        {**row, "predicted": max(0.0, row[valid] - row[wins])}
        if known(row, valid) and known(row, wins)
        else row
        for row in rows
    ]
    titles = ("The game in training", "The completions")
    figure = draw_training(rows, trends, heldout, kinds, max_steps=max_steps, titles=titles)
    left = figure.axes[0]
    left.set_ylim(-0.02, 1.02)
    if any(known(row, RIGHT_SHARE) for row in control):
        draw_trend(left, control, RIGHT_SHARE, label=f"control: {RIGHT_WORDS}", color=RIGHT, linestyle="--")
        put_legend(left, 2)
    return figure


def draw_game_comparison(comparison: Sequence[GameComparison]) -> Figure:
    """Draw each share before, after and in the control, with its 95% interval."""
    values: dict[str, dict[str, Estimate]] = {}
    for row in comparison:
        for time, value in row.values.items():
            if isinstance(value, Estimate):
                values.setdefault(time, {})[row.measure] = value
    figure, _ = draw_intervals(values)
    axes = figure.axes[0]
    axes.set_xlabel("share, 95% interval")
    if not values:
        axes.text(0.5, 0, "nothing was measured", ha="center", va="center")
    put_legend(axes, 3)
    return figure


def show_game(comparison: Sequence[GameComparison]) -> Table:
    """Return a table of each measure at each time, and its differences."""
    times = list(dict.fromkeys(time for row in comparison for time in row.values))
    differences = list(dict.fromkeys(name for row in comparison for name in row.differences))
    rows = [
        (row.measure, *map(row.values.get, times))
        + tuple(as_text(row.differences.get(name), signed=True) for name in differences)
        for row in comparison
    ]
    caption = (
        "Held-out questions; 95% intervals over questions, a difference's over the same ones. "
        "win = valid x (1 - opponent right on valid)."
    )
    return Table(["measure", *times, *differences], rows, caption, empty="Nothing was measured.")


def show_rounds(rounds: Sequence[GameRound], rewards: Sequence[Callable[[GameRound], float]]) -> Table:
    """Return a table of programs as they were written, their outcomes, and what some presets pay."""
    names = [getattr(reward, "__name__", "reward") for reward in rewards]
    return Table(
        ["program", "outcome", "why", "output", "opponent", *names, "probability of a token"],
        [
            (
                as_code(played.code),
                words(played.kind),
                as_text(played.message)[:LONGEST_TEXT],
                as_code(played.output, longest=LONGEST_TEXT),
                ("right" if played.is_predicted else "wrong") if played.verdict else None,
                *(format_reward(played, reward) for reward in rewards),
                played.token_probability,
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
    return as_text(None if is_unpaid else reward(played), signed=True)


def show_hardest(hardest: Sequence[tuple[GameRound, str]]) -> Table:
    """Return a table of (round, prediction), as `rlnb.code_game.evaluation.find_hardest` returns them."""
    rows = [
        (*map(as_code, (played.shown, played.output, prediction)), played.token_probability)
        for played, prediction in hardest
    ]
    return Table(
        ["program", "output", "prediction", "probability of a token"],
        rows,
        f"The {len(hardest)} distinct programs that the opponent failed on most, as it read them.",
        empty="The opponent failed on no valid program.",
    )


def show_counts(counts: Mapping[str, Mapping[str, tuple[int, int]]]) -> Table:
    """Return how many valid programs the opponent predicts, by construct: before, after, of the control."""
    rows = [
        (words(name), *(f"{right} of {valid}" if valid else None for right, valid in by_time.values()))
        for name, by_time in counts.items()
    ]
    caption = "Of the valid programs that show a construct, how many the opponent predicts."
    times = next(iter(counts.values()), {})
    return Table(["construct", *times], rows, caption, empty="No program was valid.")


def show_kinds(shares: Mapping[str, Mapping[str, float]]) -> Table:
    """Return a table of the invalid kinds by time."""
    rows = [(words(kind), *map(as_percent, by_time.values())) for kind, by_time in shares.items()]
    empty = "Every completion was valid, or there was none."
    times = next(iter(shares.values()), {})
    return Table(["kind", *times], rows, "Invalid completions, of all completions.", empty=empty)


def show_levels(results: Sequence[LevelResult]) -> Table:
    """Return a table of an opponent's results on the fixed programs."""
    rows = [
        (row.level, PREDICTION_LEVELS.get(row.level, ""), f"{row.num_right} of {row.num_programs}", row.share)
        for row in results
    ]
    caption = "Programs that no policy wrote; 95% intervals by Wilson's score."
    empty = "The opponent was not asked."
    return Table(["level", "programs", "right", "share"], rows, caption, empty=empty)


def words(name: str) -> str:
    return name.replace("_", " ")

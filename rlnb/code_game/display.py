"""The code game in notebooks: its live figure, the comparison with a control, tables of rounds."""

from collections.abc import Callable, Sequence
from functools import partial
from textwrap import shorten

import numpy as np
from matplotlib.figure import Figure

from rlnb.code_game.evaluation import SHARES, EvaluatedProgram, Measures
from rlnb.code_game.opponents import Judge, Predictor
from rlnb.code_game.reward import GameReferee, GameRound, judge_rounds
from rlnb.display.live import LiveFigure
from rlnb.display.plots import (
    OUTCOME_COLOURS,
    Row,
    draw_intervals,
    draw_training,
    known,
    make_panels,
    put_legend,
)
from rlnb.display.tables import Table, as_code, as_text
from rlnb.run.metrics import INVALID_KINDS
from rlnb.statistics import Estimate

LONGEST_TEXT = 200  # characters
WIN, VALID, RIGHT, PREDICTED = "#009e73", "#0072b2", "#d55e00", "#a9cbe8"
KIND_COLOURS: dict[str, str] = {
    **{kind: OUTCOME_COLOURS[kind] for kind in INVALID_KINDS if kind in OUTCOME_COLOURS},
    "silent": OUTCOME_COLOURS["ok_without_output"],
    "long_code": "#8c6d46",
    "long_output": "#4c5fb1",
    "unreadable": "#f4a6c6",
    "not_deterministic": "#d62728",
}
RIGHT_SHARE, RIGHT_WORDS = "game/opponent_right", "opponent right on valid"


def draw_game(rows: Sequence[Row], *, max_steps: int) -> Figure:
    """Draw shares a step with running means and held-out points, left, and kinds of completions, right.

    rows: of a run's metrics.jsonl.
    """
    wins, valid = "game/win_share", "game/valid_share"
    trends = {wins: ("wins", WIN), valid: ("valid", VALID), RIGHT_SHARE: (RIGHT_WORDS, RIGHT)}
    heldout = {
        f"heldout/{wins}": ("held out: wins", WIN, "o"),
        f"heldout/{RIGHT_SHARE}": (f"held out: {RIGHT_WORDS}", RIGHT, "s"),
    }
    kinds = {wins: ("win", WIN), "predicted": ("valid, but predicted", PREDICTED)}
    kinds |= {f"game/{kind}_share": (kind.replace("_", " "), KIND_COLOURS[kind]) for kind in INVALID_KINDS}
    rows = [
        {**row, "predicted": max(0.0, row[valid] - row[wins])}
        if known(row, valid) and known(row, wins)
        else row
        for row in rows
    ]
    titles = ("The game in training", "The completions")
    figure = draw_training(rows, trends, heldout, kinds, max_steps=max_steps, titles=titles)
    figure.axes[0].set_ylim(-0.02, 1.02)
    return figure


# The game of a run, redrawn after every step; called with its directory.
LiveGame = partial(LiveFigure, draw=draw_game)


def draw_shares(measures: Measures) -> Figure:
    """Draw each share before, after and in the control, with its 95% interval."""
    shares = {
        time: {name: value for name, value in values.items() if isinstance(value, Estimate)}
        for time, values in measures.items()
    }
    figure, (axes,) = make_panels(size=(9, 1.6 + 0.4 * len(SHARES)))
    draw_intervals(axes, shares)
    axes.set(xlabel="share, 95% interval", title="Held-out questions")
    put_legend(axes, 3)
    return figure


def show_measures(measures: Measures) -> Table:
    """Return a table of each measure before, after and in the control."""
    names = dict.fromkeys(name for values in measures.values() for name in values)
    rows = [(name, *(values[name] for values in measures.values())) for name in names]
    caption = "Held-out questions; 95% intervals over questions. win = valid x (1 - opponent right on valid)."
    return Table(["measure", *measures], rows, caption, empty="Nothing was measured.")


def show_examples(
    programs: Sequence[str],
    rewards: Sequence[Callable[[GameRound], float]],
    referee: GameReferee,
    opponent: Judge,
) -> Table:
    """Return the table of `show_rounds` for programs that are played against this opponent."""
    completions = [f"```python\n{program}\n```" for program in programs]
    rounds = referee.play(completions, [""] * len(programs))
    return show_rounds(judge_rounds(rounds, opponent), rewards)


def show_rounds(rounds: Sequence[GameRound], rewards: Sequence[Callable[[GameRound], float]]) -> Table:
    """Return a table of programs as they were written, their outcomes, and what some presets pay."""
    names = [getattr(reward, "__name__", "reward") for reward in rewards]
    return Table(
        ["program", "outcome", "why", "output", "opponent", *names, "probability of a token"],
        [
            (
                as_code(played.code),
                played.kind.replace("_", " "),
                shorten(played.message, LONGEST_TEXT, placeholder=" …"),
                as_code(played.output, longest=LONGEST_TEXT),
                ("right" if played.is_predicted else "wrong") if played.verdict else None,
                *(
                    None if played.kind == "sandbox_error" else as_text(reward(played), signed=True)
                    for reward in rewards
                ),
                played.token_probability,
            )
            for played in rounds
        ],
        caption="The opponent reads the program without comments and docstrings; the probability is its own, "
        "of a token of the true output.",
    )


def show_hardest(programs: Sequence[EvaluatedProgram], predictor: Predictor, *, limit: int = 10) -> Table:
    """Return a table of the distinct valid programs that the opponent failed on most, with its predictions.

    Those are the ones whose output it found least likely; where probabilities are unknown, any it failed on.
    """
    wins = {program.round.shown: program.round for program in programs if program.round.is_win}
    hardest = sorted(wins.values(), key=lambda played: np.nan_to_num(played.token_probability))[:limit]
    predictions = predictor.predict([played.shown for played in hardest])
    rows = [
        (*map(as_code, (played.shown, played.output, prediction)), played.token_probability)
        for played, prediction in zip(hardest, predictions, strict=True)
    ]
    return Table(
        ["program", "output", "prediction", "probability of a token"],
        rows,
        f"{len(hardest)} of {len(wins)} distinct programs that the opponent failed on, as it read them, the "
        "hardest first.",
    )

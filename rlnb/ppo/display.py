"""Pictures and tables of PPO on games: the live figure, the stages and their verdicts."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlnb.display.plots import COLOURS, Row, draw_line, make_panels, put_legend, series
from rlnb.display.tables import Table
from rlnb.ppo.curriculum import Curriculum, StageScore, score_ceiling, score_of_random_play


def draw_ppo(rows: Sequence[Row], *, max_steps: int) -> Figure:
    """Draw the games of training by stage, the arena's scores by game, the value's fit, and the answers."""
    figure, grid = make_panels(2, size=(11, 8.8), num_rows=2, max_steps=max_steps)
    stages, games, value, answers = grid
    draw_stages(stages, rows)
    draw_games(games, rows)
    draw_line(value, rows, "update/explained_variance", color=COLOURS[2], label="explained variance")
    value.set(title="Does the value know the state?", ylim=(-0.3, 1.02))
    draw_line(answers, rows, "entropy", color=COLOURS[0], label="entropy (nats)")
    draw_line(answers, rows, "play/invalid_share", color=COLOURS[1], label="invalid answers")
    answers.set(title="The answers", ylim=(-0.02, None))
    for axes in (value, answers):
        put_legend(axes, 2)
    return figure


def draw_stages(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw the score of all games, the stage's fresh games next to random play, and where stages begin."""
    draw_line(axes, rows, "play/score", color=COLOURS[4], linewidth=1, alpha=0.6, label="all games")
    draw_line(axes, rows, "curriculum/score", color=COLOURS[0], linewidth=2.5, label="the stage, fresh games")
    style = {"color": "#777777", "linewidth": 1, "linestyle": ":"}
    draw_line(axes, rows, "curriculum/random_score", label="random play in the stage", **style)
    draw_line(axes, rows, "play/replay_share", color=COLOURS[3], linewidth=1, label="share of replays")
    steps, stages = series(rows, "curriculum/stage")
    for before, stage, step in zip(stages, stages[1:], steps[1:], strict=False):
        if stage != before:
            axes.axvline(step, color="#555555", linewidth=1, linestyle="--")
            axes.text(step, 1.0, f" stage {stage:.0f}", va="top", fontsize=10)
    axes.set(ylim=(-0.02, 1.02), title="Games of training", ylabel="wins and half the draws")
    put_legend(axes, 3)


def draw_games(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw the score of the averaged weights, the mean of both seats, by game and opponent."""
    names = sorted({name for row in rows for name in row if name.endswith("/average_first_score")})
    for index, name in enumerate(names):
        first, second = series(rows, name), series(rows, name.replace("first", "second"))
        game, _, opponent, _ = name.rsplit("/", 3)
        colour, line = COLOURS[index % len(COLOURS)], ("-", "--", ":")[index // len(COLOURS) % 3]
        scores = np.mean([first[1], second[1]], axis=0)
        axes.plot(first[0], scores, line, color=colour, marker=".", label=f"{game}, {opponent}")
    axes.axhline(0.5, color="#999999", linewidth=1, zorder=0)
    axes.set(
        ylim=(-0.02, 1.02), title="Arena, both seats, averaged weights", ylabel="wins and half the draws"
    )
    put_legend(axes, 2)


def show_stages(curriculum: Curriculum) -> Table:
    """Return the games of each stage, their opponents, and the scores of random and of the best play."""
    rows: list[tuple[object, ...]] = []
    for stage, pairings in zip(curriculum.params.stages, curriculum.pairings, strict=True):
        ends = f"{stage.name}, from {stage.threshold} in {stage.min_episodes} games"
        rows.append((ends, "all", "", score_of_random_play(pairings), known(score_ceiling(pairings))))
        for pairing in pairings:
            scores = score_of_random_play([pairing]), known(score_ceiling([pairing]))
            rows.append((stage.name, pairing.game.name, pairing.opponent, *scores))
    caption = (
        "Scores of both seats together: wins and half the draws. A threshold that random play reaches asks "
        "for nothing. A dash: not known."
    )
    return Table(["stage, ends", "game", "opponent", "random play scores", "at most"], rows, caption)


def known(ceiling: float) -> float | None:
    """Return the ceiling, None for the 1 that stands for one that is not known."""
    return ceiling if ceiling < 1 else None


def show_success(scores: Sequence[StageScore]) -> Table:
    """Return the verdict on each stage, and what was not played for it."""
    rows = [
        (stage.name, stage.num_games, stage.score, stage.random_score)
        + (f"above {stage.final_score}", stage.verdict)
        for stage in scores
    ]
    headers = ["stage", "games", "mean score (95% interval)", "random play"]
    caption = (
        "Success: the whole interval of the score is above what is required and above random play's score. "
        "Undecided: the score is above both, its interval is not."
    )
    for stage in scores:
        missing = [f"{game.name} against {opponent}" for game, opponent in stage.not_measured]
        caption += f" Not measured in {stage.name}: {', '.join(missing)}." if missing else ""
    return Table([*headers, "required", "verdict"], rows, caption)

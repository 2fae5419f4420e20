"""PPO on games in notebooks: its live figure, the stages, scores by game and opponent, what is still lost."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlnb.display.board2048 import series
from rlnb.display.code_game import number, table_of
from rlnb.display.plots import LiveFigure
from rlnb.display.self_play import COLOURS, draw_line, heat_map, put_legend
from rlnb.display.self_play_tables import SEATS
from rlnb.display.tables import Table
from rlnb.evaluation.arena import ArenaRow
from rlnb.evaluation.contest import Difference
from rlnb.evaluation.many_games import StageScore, score_table
from rlnb.games.opponents import yardstick
from rlnb.training.curriculum import Curriculum, ceiling
from rlnb.training.replay import Replay


class LivePpo(LiveFigure):
    """How far a run's policy has come in its curriculum, and what its updates do."""

    def __init__(self, output_dir: str | Path) -> None:
        super().__init__(output_dir, draw_ppo)


def draw_ppo(rows: Sequence[Mapping[str, Any]], *, max_steps: int) -> Figure:
    """The games of training by stage, the arena's scores by game, and the update; rows: metrics.jsonl's."""
    figure, panels = plt.subplots(1, 3, figsize=(16.5, 4.4), constrained_layout=True)
    max_steps = max(max_steps, 1)
    for axes, draw in zip(panels, (draw_training, draw_games, draw_update), strict=True):
        axes.set(xlabel="step", xlim=(-0.02 * max_steps, 1.02 * max_steps))
        draw(axes, rows)
        axes.grid(alpha=0.3)
    plt.close(figure)  # the notebook shows what is returned, not a second copy
    return figure


def draw_training(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """Scores of fresh games and replays together, the stage's own mean, and where a stage begins."""
    draw_line(axes, rows, "play/score", color=COLOURS[4], linewidth=1, alpha=0.6, label="all games")
    draw_line(axes, rows, "curriculum/score", color=COLOURS[0], linewidth=2.5, label="the stage, fresh games")
    draw_line(axes, rows, "play/replay_share", color=COLOURS[3], linewidth=1, label="share of replays")
    steps, stages = series(rows, "curriculum/stage")
    for before, (step, stage) in zip(stages, zip(steps[1:], stages[1:], strict=True), strict=False):
        if stage != before:
            axes.axvline(step, color="#555555", linewidth=1, linestyle="--")
            axes.text(step, 1.0, f" stage {stage:.0f}", va="top", fontsize=8)
    axes.set(ylim=(-0.02, 1.02), title="Games of training", ylabel="wins and half the draws")
    put_legend(axes, 3)


def draw_games(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """Of each game and opponent the score of the averaged weights, the mean of both seats."""
    names = sorted({name for row in rows for name in row if name.endswith("/average_first_score")})
    for at, name in enumerate(names):
        other = name.replace("first", "second")
        both = [
            {"step": row["step"], "both": (row[name] + row[other]) / 2}
            for row in rows
            if isinstance(row.get(name), float) and isinstance(row.get(other), float)
        ]
        game, _, opponent, _ = name.rsplit("/", 3)
        style = {"linewidth": 2, "linestyle": ("-", "--", ":")[at // len(COLOURS) % 3]}
        draw_line(axes, both, "both", color=COLOURS[at % len(COLOURS)], label=f"{game}, {opponent}", **style)
    axes.axhline(0.5, color="#999999", linewidth=1, zorder=0)
    axes.set(
        ylim=(-0.02, 1.02), title="Arena, both seats, averaged weights", ylabel="wins and half the draws"
    )
    put_legend(axes, 2)


def draw_update(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    draw_line(
        axes, rows, "update/explained_variance", color=COLOURS[2], linewidth=1.5, label="explained variance"
    )
    draw_line(axes, rows, "entropy", color=COLOURS[0], linewidth=1.5, label="entropy (nats)")
    draw_line(axes, rows, "play/invalid_share", color=COLOURS[1], linewidth=1.5, label="invalid answers")
    axes.set(title="The update: does the value know the state?", ylim=(-0.3, None))
    put_legend(axes, 3)


def show_stages(curriculum: Curriculum) -> Table:
    """What is played in each stage, what random play scores there, and what is the most."""
    rows = []
    for stage, pairings in zip(curriculum.params.stages, curriculum.pairings, strict=True):
        for pairing in pairings:
            known = yardstick(pairing.game) if pairing.opponent == "random" else None
            most = ceiling(pairing)
            rows.append(
                (
                    f"{stage.name}, from {stage.threshold}",
                    pairing.game.name,
                    pairing.opponent,
                    number(sum(known.random_score) / 2 if known else None),
                    number(most if most < 1 else None),
                )
            )
    return Table(
        ["stage, ends", "game", "opponent", "random play scores", "at most"],
        rows,
        caption="Scores of both seats together: wins and half the draws. A dash: not known.",
    )


def draw_scores(before: Sequence[ArenaRow], after: Sequence[ArenaRow]) -> Figure:
    """Scores by game and opponent, before and after training; rows of one way to act each."""
    return draw_score_table({"before": before, "after": after})


def draw_score_table(rows: Mapping[str, Sequence[ArenaRow]]) -> Figure:
    """Scores of both seats by game and opponent, a panel for each of the named rows."""
    tables = {name: score_table(own) for name, own in rows.items()}
    height = 1.8 + 0.55 * max(len(games) for games, _, _ in tables.values())
    figure, panels = plt.subplots(
        1, len(tables), figsize=(5.5 * len(tables), height), constrained_layout=True, squeeze=False
    )
    for axes, (name, (games, opponents, scores)) in zip(panels.flat, tables.items(), strict=True):
        image = heat_map(axes, scores, low=0, high=1, colours="PuOr", as_percent=False)
        axes.set_xticks(range(len(opponents)), opponents, parse_math=False)
        axes.set_yticks(range(len(games)), games, parse_math=False)
        axes.set_title(name, fontsize=9, parse_math=False)
        axes.set_aspect("auto")
    figure.colorbar(image, ax=panels, label="wins and half the draws")
    plt.close(figure)
    return figure


def verdict(one: StageScore) -> str:
    """In words; none on a stage of which a game is missing."""
    if not one.num_games:
        return "not measured"
    if one.missing:
        return f"none: {', '.join(one.missing)} not measured"
    return "success" if one.is_success else "no success"


def show_success(scores: Sequence[StageScore]) -> Table:
    """The verdict on each stage."""
    rows = [
        (
            one.name,
            one.num_games,
            number(one.score if one.num_games else None),
            f"above {one.final_score}",
            verdict(one),
        )
        for one in scores
    ]
    return Table(["stage", "games", "mean score", "asked", "verdict"], rows)


def show_failures(replay: Replay, *, step: int) -> Table:
    """What is kept to be played again, by game, seat and opponent."""
    groups: dict[str, list[Any]] = {}
    for one in replay.failures:
        groups.setdefault(one.task.matchup, []).append(one)
    sizes = Counter({name: len(own) for name, own in groups.items()})
    rows = []
    for name, size in sizes.most_common():
        own = groups[name]
        task = own[0].task
        rows.append(
            (
                task.game, SEATS[task.seat], task.opponent, size, sum(one.deficit for one in own) / size,
                sum(one.num_tries for one in own) / size, sum(step - one.first_step for one in own) / size,
            )
        )  # fmt: skip
    headers = ["game", "seat", "opponent", "failures", "below the usual score by", "tries", "updates ago"]
    return table_of(headers, rows, caption="Means.", empty="Nothing is kept: all was won.")


def show_differences(differences: Sequence[Difference], names: Sequence[str]) -> Table:
    """Of two contenders, the first minus the second, game by game on the same seeds."""
    rows = [
        (
            one.game, one.opponent, f"{one.acting}, {'greedy' if one.greedy else 'sampled'}", one.num_pairs,
            number(one.score),
        )
        for one in differences
    ]  # fmt: skip
    return table_of(
        ["game", "opponent", "policy", "pairs of games", "difference of scores (95% interval)"],
        rows,
        caption=" minus ".join(names) + ". A pair: one seed, from both seats.",
        empty="There is one contender.",
    )

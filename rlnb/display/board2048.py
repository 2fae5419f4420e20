"""2048 in notebooks: replays of games, tables of strategies and of baselines, the live figure of a run."""

import io
import math
import statistics
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anywidget
import matplotlib.pyplot as plt
import traitlets
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from rlnb.display.plots import LiveFigure, running_mean
from rlnb.display.tables import Table, as_text
from rlnb.evaluation.compare import wilson_interval
from rlnb.games.baselines2048 import Reached, load_reached
from rlnb.games.board2048 import DIRECTION_OF, KEYS, LETTERS, Direction, GameBoard, moved

# Of the tiles 2, 4, 8, and so on; what lies beyond 131072 looks like that. Cirulli's up to 2048.
TILE_COLOURS = (
    "#eee4da", "#ede0c8", "#f2b179", "#f59563", "#f67c5f", "#f65e3b", "#edcf72", "#edcc61", "#edc850",
    "#edc53f", "#edc22e", "#8ab661", "#4f9d69", "#3d8b8b", "#3a6ea5", "#5b4b9a", "#3c3a32",
)  # fmt: skip
DARK, LIGHT, GREY = "#33302b", "#ffffff", "#7f7f7f"  # grey reads on light and on dark pages
LONGEST_REPLAY = 2000  # positions
NUM_PICTURED = 6
LONGEST_CODE = 1200  # characters
ENDINGS = {
    "success": "reached {target}",
    "failed": "no move was left",
    "stuck": "stuck: {patience} moves in a row changed nothing",
    "illegal": "ended by an answer that is no key",
    "exception": "ended by an exception",
    "timeout": "ended by its time limit",
    "sandbox_error": "ended by a failure of the sandbox, which is not the strategy's",
}
ENDING_COLOURS = {
    "success": "#2a7f3f",
    "failed": "#8fce9b",
    "stuck": "#f2b134",
    "illegal": "#e8743b",
    "exception": "#c0392b",
    "timeout": "#8e5ea2",
    "forbidden": "#3cba9f",
    "no_code": "#bdbdbd",
    "sandbox_error": "#000000",
}


@dataclass(frozen=True)
class Position:
    """A board after `step` moves. letter: of the move that led here, " " for none. spawned: the cell of the
    tile that then appeared, counted row by row, -1 for none."""

    step: int
    rows: list[list[int]]
    score: int
    letter: str = " "
    spawned: int = -1

    @property
    def frame(self) -> str:
        """A character a cell, row by row: the exponent of its tile, counted from "0", an empty cell."""
        return "".join(chr(48 + max(tile.bit_length() - 1, 0)) for tile in flat(self.rows))


def positions(game: Any, *, four_probability: float, patience: int, play_on: bool) -> list[Position]:
    """All positions of a played game, rebuilt from its seed and moves.

    Raises ValueError where they do not lead to the game's own score and largest tile: it was played with
    other rules.
    """
    board = GameBoard(
        game.kind.size,
        game.kind.target,
        game.seed,
        four_probability=four_probability,
        patience=patience,
        play_on=play_on,
    )
    found = [Position(0, board.rows, board.score)]
    for step, letter in enumerate(game.moves, 1):
        if board.state != "ongoing":
            break
        slid, _ = moved([tuple(row) for row in found[-1].rows], DIRECTION_OF[letter])
        board.move(DIRECTION_OF[letter])
        before, after = flat(slid), flat(board.rows)
        spawned = next((cell for cell, tile in enumerate(after) if tile != before[cell]), -1)
        found.append(Position(step, board.rows, board.score, letter, spawned))
    if (board.moves, board.score, board.largest) != (game.moves, game.score, game.largest):
        raise ValueError(
            f"the moves lead to score {board.score} and tile {board.largest} after {len(board.moves)} moves, "
            f"the game says {game.score} and {game.largest} after {len(game.moves)}; "
            "give the four_probability, patience and play_on that it was played with"
        )
    return found


def flat(rows: Sequence[Sequence[int]]) -> list[int]:
    return [tile for row in rows for tile in row]


def spread(items: Sequence[Any], limit: int) -> list[Any]:
    """The first, the last, and what lies evenly between them: `limit` (2 or more) items at most."""
    if len(items) <= limit:
        return list(items)
    return [items[round(index * (len(items) - 1) / (limit - 1))] for index in range(limit)]


def tile_colours(tile: int) -> tuple[str, str]:
    """Background and foreground of a tile, the foreground that contrasts more."""
    background = TILE_COLOURS[min(tile.bit_length() - 1, len(TILE_COLOURS)) - 1]
    red, green, blue = to_rgb(background)
    return background, DARK if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 else LIGHT


class BoardReplay(anywidget.AnyWidget):
    """A slider through the positions of one game; `replay_widget` makes it.

    frames, steps, scores, letters, spawned: one entry a position, as in `Position`. key_names: the player's
    name of each letter. position: the index of what is shown, in both directions.
    """

    _esm = Path(__file__).with_suffix(".js")
    _css = Path(__file__).with_suffix(".css")
    size = traitlets.Int().tag(sync=True)
    frames = traitlets.List(traitlets.Unicode()).tag(sync=True)
    steps = traitlets.List(traitlets.Int()).tag(sync=True)
    scores = traitlets.List(traitlets.Int()).tag(sync=True)
    letters = traitlets.Unicode().tag(sync=True)
    spawned = traitlets.List(traitlets.Int()).tag(sync=True)
    key_names = traitlets.Dict().tag(sync=True)
    colours: Any = traitlets.List().tag(sync=True)
    title = traitlets.Unicode().tag(sync=True)
    ending = traitlets.Unicode().tag(sync=True)
    position = traitlets.Int(0).tag(sync=True)

    def __repr__(self) -> str:
        """What stands in a saved notebook where no widget can be shown."""
        return f"2048 on {self.title}: {self.ending}"


def replay_widget(
    game: Any,
    *,
    keys: Mapping[Direction, str] = KEYS["arrows"],
    four_probability: float = 0.1,
    patience: int = 64,
    play_on: bool = False,
) -> BoardReplay:
    """The widget of a played game (kind, seed, moves, ending, largest, score) and its rules.

    Of more than LONGEST_REPLAY positions, as many are shown, evenly spread. Raises ValueError as `positions`.
    """
    found = positions(game, four_probability=four_probability, patience=patience, play_on=play_on)
    return widget_of(game, found, keys=keys, patience=patience)


def widget_of(
    game: Any, found: Sequence[Position], *, keys: Mapping[Direction, str], patience: int
) -> BoardReplay:
    shown = spread(found, LONGEST_REPLAY)
    return BoardReplay(
        size=game.kind.size,
        frames=[position.frame for position in shown],
        steps=[position.step for position in shown],
        scores=[position.score for position in shown],
        letters="".join(position.letter for position in shown),
        spawned=[position.spawned for position in shown],
        key_names={LETTERS[direction]: as_text(key) for direction, key in keys.items()},
        colours=[tile_colours(2**exponent) for exponent in range(1, len(TILE_COLOURS) + 1)],
        title=f"{game.kind}, seed {game.seed}",
        ending=ending_words(game, patience=patience, with_error=True),
    )


def ending_words(game: Any, *, patience: int, with_error: bool = False) -> str:
    """How a game ended, in a sentence. with_error: with the strategy's own words, which may be hostile."""
    how = ENDINGS[game.ending].format(target=game.kind.target, patience=patience)
    sentence = f"{how}; {len(game.moves)} moves, largest tile {game.largest}, score {game.score}"
    error = getattr(game, "error", "") if with_error else ""
    return as_text(f"{sentence} ({error[:200]})" if error else sentence)


def show_replay(
    game: Any,
    *,
    keys: Mapping[Direction, str] = KEYS["arrows"],
    four_probability: float = 0.1,
    patience: int = 64,
    play_on: bool = False,
) -> None:
    """Display the widget of a played game and, for a saved notebook's readers, a picture of six positions."""
    found = positions(game, four_probability=four_probability, patience=patience, play_on=play_on)
    display(widget_of(game, found, keys=keys, patience=patience))
    shown = spread(found, NUM_PICTURED)
    words = ending_words(game, patience=patience)
    text = f"2048 on {game.kind}, seed {game.seed}: {words}"
    png = io.BytesIO()
    figure = draw_positions(shown, title=text)
    figure.savefig(png, format="png", dpi=144, transparent=True, bbox_inches="tight", pad_inches=0.05)
    # Not display(figure): what that leaves depends on the notebook's matplotlib backend.
    alt = f"{text}. Boards after {', '.join(str(position.step) for position in shown)} moves."
    bundle = {"image/png": b64encode(png.getvalue()).decode(), "text/plain": alt}
    display(bundle, metadata={"image/png": {"alt": alt, "width": 960}}, raw=True)


def draw_positions(shown: Sequence[Position], *, title: str) -> Figure:
    """Boards side by side, each under its move's number."""
    figure = Figure(figsize=(11, 2.6), layout="constrained")
    for axes, position in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        draw_board(axes, position.rows)
        largest = max(map(max, position.rows))
        axes.set_title(f"move {position.step}", fontsize=10, color=GREY)
        axes.set_xlabel(f"largest {largest}\nscore {position.score}", fontsize=9, color=GREY)
    figure.suptitle(title, fontsize=11, color=GREY, parse_math=False)
    return figure


def draw_board(axes: Axes, rows: Sequence[Sequence[int]]) -> None:
    """Tiles as squares, with text as large as fits into a board of 1.5 inches."""
    size = len(rows)
    axes.set(xlim=(-0.06, size + 0.06), ylim=(size + 0.06, -0.06), xticks=[], yticks=[], aspect="equal")
    axes.patch.set(facecolor=GREY, alpha=0.25)
    axes.spines[:].set_visible(False)
    for y, row in enumerate(rows):
        for x, tile in enumerate(row):
            background, foreground = tile_colours(tile) if tile else (GREY, GREY)
            square = FancyBboxPatch((x + 0.1, y + 0.1), 0.8, 0.8, boxstyle="round,pad=0.04", linewidth=0)
            square.set(facecolor=background, alpha=1 if tile else 0.2)
            axes.add_patch(square)
            if tile:
                fontsize = 108 / size * min(0.42, 1.25 / len(str(tile)))
                style: dict[str, Any] = {"color": foreground, "fontsize": fontsize, "weight": "bold"}
                axes.text(x + 0.5, y + 0.5, str(tile), ha="center", va="center_baseline", **style)


def show_strategies(results: Sequence[Any], *, limit: int = 12) -> Table:
    """Distinct strategies, the best mean score first.

    results: one a completion, each with code (None where there is none), reason (why it was refused, or ""),
    games (none where it was) and score (None where it has none). Games that the sandbox failed count for
    nothing; of what several completions wrote, each board and seed counts once.
    """
    groups: dict[tuple[str | None, str], list[Any]] = {}
    for result in results:
        groups.setdefault((result.code, result.reason), []).append(result)
    ordered = sorted(groups.values(), key=rank, reverse=True)
    num_refused = sum(not result.games for result in results)
    caption = (
        f"{min(limit, len(ordered))} of {len(ordered)} distinct strategies that {len(results)} completions "
        f"wrote, best mean score first; {num_refused} completions were refused."
    )
    headers = [
        "strategy",
        "written",
        "boards",
        "games won",
        "win share [95% interval]",
        "largest: best, median",
    ]
    rows = [strategy_row(members) for members in ordered[:limit]]
    return Table([*headers, "mean score", "how games ended"], rows, caption=caption)


def rank(members: Sequence[Any]) -> tuple[float, float, int]:
    score, games = mean_score(members), judged_games(members)
    won = statistics.mean(game.ending == "success" for game in games) if games else -1.0
    return -math.inf if score is None else score, won, len(members)


def strategy_row(members: Sequence[Any]) -> tuple[Any, ...]:
    first, games = members[0], judged_games(members)
    code = (first.code or "(no code)").rstrip()
    cut = f"{code[:LONGEST_CODE]}\n…\n" if len(code) > LONGEST_CODE else f"{code}\n"
    endings = Counter(game.ending for game in distinct_games(members))
    ended = [f"{name.replace('_', ' ')} {number}" for name, number in endings.most_common()]
    largest = sorted(game.largest for game in games)
    won = sum(game.ending == "success" for game in games)
    return (
        cut,
        len(members),
        ", ".join(dict.fromkeys(str(game.kind) for game in games)) or None,
        f"{won} of {len(games)}" if games else None,
        share_text(won, len(games)) if games else None,
        f"{largest[-1]}, {statistics.median_low(largest)}" if games else None,
        mean_score(members),
        ", ".join(ended) or first.reason or "refused",
    )


def distinct_games(members: Sequence[Any]) -> list[Any]:
    """A strategy's games, one a board and seed: what the sandbox failed only where nothing else is known."""
    games = [game for result in members for game in result.games]
    games.sort(key=lambda game: game.ending != "sandbox_error")
    return list({(game.kind, game.seed): game for game in games}.values())


def judged_games(members: Sequence[Any]) -> list[Any]:
    return [game for game in distinct_games(members) if game.ending != "sandbox_error"]


def mean_score(members: Sequence[Any]) -> float | None:
    scores = [result.score for result in members if result.score is not None]
    return statistics.mean(scores) if scores else None


def share_text(won: int, count: int) -> str:
    estimate = wilson_interval(won / count, count)
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def show_baselines(entries: Sequence[Reached] | None = None) -> Table:
    """What simple strategies reach, a line each and a column a board: the measured ones that rlnb keeps."""
    entries = load_reached() if entries is None else entries
    boards = list(dict.fromkeys(entry.board for entry in entries))
    cells = {(entry.baseline, entry.board): baseline_text(entry) for entry in entries}
    names = list(dict.fromkeys(entry.baseline for entry in entries))
    rows = [(name, *(cells.get((name, board)) for board in boards)) for name in names]
    counts = [entry.num_games for entry in entries]
    games = "–".join(map(str, sorted({min(counts), max(counts)}))) if counts else "no"
    caption = (
        f"Share of games won [95% interval, Wilson], the median game's largest tile, and the share of games "
        f"that got stuck, where any did; {games} games each."
    )
    return Table(["baseline", *boards], rows, caption=caption)


def baseline_text(entry: Reached) -> str:
    stuck = f"; stuck {entry.stuck:.3f}" if entry.stuck else ""
    return f"{entry.won:.3f} [{entry.low:.3f}, {entry.high:.3f}]; {entry.median_largest}{stuck}"


class LiveStrategies(LiveFigure):
    """Scores and endings of a run that learns to play 2048."""

    def __init__(self, output_dir: str | Path) -> None:
        super().__init__(output_dir, draw_strategies)


def draw_strategies(rows: Sequence[Mapping[str, Any]], *, max_steps: int) -> Figure:
    """Left: mean score and the skill of honest completions, thin, with running means; held-out points.
    Right: shares of endings. A step whose measure is missing (no honest completion) has no point."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), constrained_layout=True)
    for name, label, colour in [
        ("strategy/score", "mean graded reward", "#1f77b4"),
        ("strategy/skill", "skill of honest completions", "#2a7f3f"),
    ]:
        steps, values = series(rows, name)
        left.plot(steps, values, color=colour, alpha=0.3, linewidth=1)
        left.plot(steps, running_mean(values), color=colour, linewidth=2, label=label)
    for name, label, marker, colour in [
        ("heldout/strategy/score", "held out: graded reward", "o", "#1f77b4"),
        ("heldout/strategy/skill", "held out: skill", "s", "#2a7f3f"),
        ("heldout/strategy/greedy_skill", "held out: skill of the greedy one", "^", "#444444"),
    ]:
        steps, values = series(rows, name)
        if steps:
            left.plot(steps, values, marker, color=colour, fillstyle="none", label=label)
    left.set(xlabel="step", xlim=(-0.02 * max_steps, 1.02 * max_steps), title="Strategies while training")
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, fontsize=8)
    left.grid(alpha=0.3)
    draw_endings(right, rows, max_steps)
    return figure


def draw_endings(axes: Axes, rows: Sequence[Mapping[str, Any]], max_steps: int) -> None:
    trained = [row for row in rows if any(known(row, f"strategy/{name}_share") for name in ENDING_COLOURS)]
    shares = {name: [row.get(f"strategy/{name}_share") or 0.0 for row in trained] for name in ENDING_COLOURS}
    seen = {name: values for name, values in shares.items() if any(values)}
    if seen:
        labels = [name.replace("_", " ") for name in seen]
        layers = [ENDING_COLOURS[name] for name in seen]
        axes.stackplot([row["step"] for row in trained], list(seen.values()), labels=labels, colors=layers)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=4, fontsize=8)
    axes.set(xlabel="step", xlim=(0, max_steps), ylim=(0, 1), title="How they ended")


def series(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Steps and values of a measure, where it was measured."""
    points = [(row["step"], row[name]) for row in rows if known(row, name)]
    return [step for step, _ in points], [value for _, value in points]


def known(row: Mapping[str, Any], name: str) -> bool:
    return row.get(name) is not None and math.isfinite(row[name])

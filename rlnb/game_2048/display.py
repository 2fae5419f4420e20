"""2048 in notebooks: replays of games, tables of strategies and players, the live figure of a run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from operator import itemgetter
from statistics import fmean
from textwrap import shorten

import ipywidgets as widgets
from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from rlnb.display.live import LiveFigure
from rlnb.display.panel import Panel
from rlnb.display.plots import Row, draw_training, spread
from rlnb.display.replay import Frame, Replay
from rlnb.display.tables import Table, as_code, as_text
from rlnb.game_2048.board import (
    DIRECTION_BY_LETTER,
    DIRECTIONS,
    EXPONENTS,
    KEYS,
    BoardKind,
    Direction,
    GameBoard,
    slide_board,
)
from rlnb.game_2048.evaluation import JudgedCompletion, measure_strategies
from rlnb.game_2048.play import BoardRules, StrategyGame, make_public_seeds
from rlnb.game_2048.prompts import fence_strategy
from rlnb.game_2048.reward import StrategyReferee, StrategyResult, StrategyRewardFunction
from rlnb.run.metrics import ENDINGS

LONGEST_REPLAY = 2000  # positions
BORDER = "2px solid var(--jp-border-color1,#bbb)"  # of JupyterLab's theme
TILE = f"width:3.5em;height:3.5em;padding:0;text-align:center;font-weight:bold;border:{BORDER}"
ARROWS = {"up": "↑", "down": "↓", "left": "←", "right": "→"}


def rebuild_frames(game: StrategyGame, rules: BoardRules) -> list[Frame]:
    """Return all positions of a game, rebuilt from its seed and moves.

    A cell is the exponent of its tile, as a character from "0"; the last cell is where a tile appeared.
    """
    board = GameBoard(game.kind.size, game.kind.target, game.seed, play_on=rules.play_on)
    frames: list[Frame] = []
    for index, letter in enumerate(["", *game.moves]):
        key, slid = "–", [tuple(row) for row in board.rows]
        if letter:
            side = DIRECTION_BY_LETTER[letter]
            key, (slid, _) = f"{ARROWS[side]} {KEYS[side]}", slide_board(board.rows, side)
            board.move(side)
        tiles = list(chain.from_iterable(board.rows))
        pairs = enumerate(zip(chain.from_iterable(slid), tiles, strict=True))
        spawned = next((cell for cell, (before, after) in pairs if before != after), -1)
        cells = "".join(chr(48 + max(tile.bit_length() - 1, 0)) for tile in tiles)
        facts = {"Key": key, "Score": str(board.score), "Largest": str(board.largest)}
        frames.append(Frame(index, cells, last=spawned, facts=facts))
    return frames


def choose_look(exponent: int) -> tuple[str, str, str]:
    """Return text, background and colour of a tile of 2**exponent, or of an empty cell, which is 0."""
    if exponent == 0:
        return "", "", ""
    colour = "#33302b" if exponent < 11 else "#ffffff"  # on a background that is dark from 2048 on
    return str(2**exponent), to_hex(colormaps["YlOrBr"](exponent / 20)), colour


def make_replay(game: StrategyGame, rules: BoardRules) -> Replay:
    """Return the widget of a game: all positions, or LONGEST_REPLAY evenly spread ones."""
    symbols = {chr(48 + exponent): choose_look(exponent) for exponent in range(game.kind.size**2 + 2)}
    return Replay(
        spread(rebuild_frames(game, rules), LONGEST_REPLAY),
        title=f"2048 on {game.kind}, seed {game.seed}",
        ending=f"{game.ending}: {len(game.moves)} moves, largest tile {game.largest}, score {game.score}"
        + (f" ({game.error[:200]})" if game.error else ""),
        columns=game.kind.size,
        symbols=symbols,
    )


class PlayBoard(Panel):
    """A game by hand: display it, then click the arrows.

    Its tiles are those of a strategy's game of the same kind and seed; each new game has the next seed.
    """

    def __init__(self, kind: BoardKind, seed: int) -> None:
        self.board = GameBoard(kind.size, kind.target, seed)
        self.view = widgets.HTML(write_board(self.board))
        self.buttons = {side: widgets.Button(description=ARROWS[side], tooltip=side) for side in DIRECTIONS}
        for side, button in self.buttons.items():
            button.on_click(partial(self._move, side))
        self.new_game = widgets.Button(description="New game")
        self.new_game.on_click(self._start)
        words = f"2048 on {kind} by hand, by arrows that need a running notebook."
        buttons = widgets.HBox([*self.buttons.values(), self.new_game])
        super().__init__([self.view, buttons], words, self.view.value)

    def _start(self, _: widgets.Button) -> None:
        kind, seed = self.board.kind, self.board.seed + 1
        self.board = GameBoard(kind.size, kind.target, seed)
        self.view.value = write_board(self.board)

    def _move(self, side: Direction, _: widgets.Button) -> None:
        if self.board.state == "ongoing":
            self.board.move(side)
            self.view.value = write_board(self.board)


def write_board(board: GameBoard) -> str:
    """Return a board as HTML, with its score and what became of the game."""
    rows = ""
    for tiles in board.rows:
        looks = [choose_look(EXPONENTS[tile]) for tile in tiles]
        cells = [f"<td style='{TILE};background:{fill};color:{ink}'>{text}</td>" for text, fill, ink in looks]
        rows += f"<tr>{''.join(cells)}</tr>"
    facts = f"{board.kind}, seed {board.seed}: {board.state} after {len(board.moves)} moves"
    return f"<table>{rows}</table>{facts}, score {board.score}, largest tile {board.largest}"


def show_strategies(results: Sequence[StrategyResult], *, limit: int = 12) -> Table:
    """Return a table of the distinct programs and how their games ended, the best mean score first.

    Without code, the reasons of refusals are told apart. What the sandbox failed to play does not count.
    """
    groups: dict[tuple[str | None, str], list[StrategyResult]] = {}
    for result in results:
        if not result.has_failed_sandbox:
            groups.setdefault((result.code, result.reason), []).append(result)
    rows = []
    for (code, reason), members in groups.items():
        score = fmean(result.score or 0.0 for result in members)
        endings = Counter(game.ending for result in members for game in result.finished_games)
        ended = ", ".join(f"{name} {count}" for name, count in endings.most_common()) or reason
        rows.append((as_code(code), len(members), score, ended))
    rows.sort(key=itemgetter(2), reverse=True)
    caption = f"{min(limit, len(rows))} of {len(rows)} distinct programs in {len(results)} completions."
    return Table(["strategy", "written", "mean score", "how games ended"], rows[:limit], caption)


def show_examples(
    bodies: Sequence[str],
    presets: Mapping[str, Sequence[StrategyRewardFunction]],
    referee: StrategyReferee,
    kind: BoardKind,
) -> Table:
    """Return the table of `show_strategy_rewards` for bodies of a strategy, each played on two boards."""
    count, seeds = len(bodies), make_public_seeds("by hand", num_boards=2)
    completions = [fence_strategy(body) for body in bodies]
    results = referee.judge(completions, [""] * count, [kind] * count, [seeds] * count)
    return show_strategy_rewards(results, presets)


def show_strategy_rewards(
    results: Sequence[StrategyResult], presets: Mapping[str, Sequence[StrategyRewardFunction]]
) -> Table:
    """Return a table of what each completion did, and what it earns under every preset."""
    rows = []
    for result in results:
        why = shorten(result.why, 200, placeholder=" …")
        row = [as_code(result.code), result.ending.replace("_", " "), why]
        for rewards in presets.values():
            earned = [0.0 if result.has_failed_sandbox else reward(result) or 0.0 for reward in rewards]
            row.append(as_text(float(sum(earned)), signed=True))
        rows.append(row)
    return Table(["strategy", "ended as", "why", *presets], rows)


def show_players(players: Mapping[str, Sequence[JudgedCompletion]]) -> Table:
    """Return a table of the model's programs and other players on the same held-out boards."""
    rows: list[tuple[object, ...]] = []
    for name, judged in players.items():
        greedy = [completion for completion in judged if completion.greedy]
        results = [completion.result for completion in greedy if not completion.result.problem]
        games = [game for result in results for game in result.finished_games]
        if greedy:
            score = as_text(measure_strategies(greedy).get("greedy_score"), signed=True)
            won = f"{sum(game.is_won for game in games)} of {len(games)}" if games else None
            rows.append((name, score, won, max((game.largest for game in games), default=None)))
    rows.append(("random keys", "+0.000, by definition", "", ""))
    return Table(["player", "score above random play", "games won", "largest tile"], rows)


def draw_strategies(rows: Sequence[Row], *, max_steps: int) -> Figure:
    """Draw scores with running means and held-out points at the left, the shares of endings at the right."""
    blue, green, heldout = "#0072b2", "#009e73", "heldout/strategy/"
    trends = {
        "strategy/score": ("mean graded reward", blue),
        "strategy/skill": ("skill of honest completions", green),
    }
    points = {
        heldout + "score": ("held out: graded reward", blue, "o"),
        heldout + "skill": ("held out: skill", green, "s"),
        heldout + "greedy_skill": ("held out: skill of the greedy one", "#444444", "^"),
    }
    endings = {
        f"strategy/{name}_share": (name.replace("_", " "), f"C{index}") for index, name in enumerate(ENDINGS)
    }
    titles = ("Strategies while training", "How the games ended")
    return draw_training(rows, trends, points, endings, max_steps=max_steps, titles=titles)


# Scores and endings of a run that learns to play 2048, redrawn after every step; called with its directory.
LiveStrategies = partial(LiveFigure, draw=draw_strategies)

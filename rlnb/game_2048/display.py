"""2048 in notebooks: replays of games, tables of strategies and of baselines, the live figure of a run."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain

from matplotlib.figure import Figure

from rlnb.display import replay
from rlnb.display.plots import LiveFigure, Row, draw_training, spread
from rlnb.display.replay import Frame, Replay
from rlnb.display.tables import Table, as_code, as_text
from rlnb.game_2048.baselines import BaselineResult, load_baselines
from rlnb.game_2048.board import DIRECTION_BY_LETTER, KEYS, GameBoard, slide_board, tile_colours
from rlnb.game_2048.evaluation import JudgedCompletion, measure_strategies
from rlnb.game_2048.play import BoardRules, StrategyGame
from rlnb.game_2048.reward import StrategyReferee, StrategyResult, StrategyRewardFunction
from rlnb.results import BoardComparison
from rlnb.statistics import Estimate, wilson_interval

LONGEST_REPLAY = 2000  # positions
ENDING_WORDS = {
    "success": "reached {target}",
    "failed": "no move was left",
    "stuck": "stuck: {patience} moves in a row changed nothing",
    "illegal": "ended by an answer that is not a key",
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
MEASURE_WORDS = {
    "score": "graded reward, sampled completions",
    "skill": "skill: the same, honest ones only",
    "greedy_score": "graded reward, greedy completion",
    "greedy_skill": "skill of the greedy completion",
    "valid_share": "a strategy that answers with a key",
    "honest_share": "honest: all games ended by the rules",
    "win_share": "games that reached the target",
    "distinct_programs": "different programs",
}


def rebuild_frames(game: StrategyGame, rules: BoardRules) -> list[Frame]:
    """Return all positions of a game, rebuilt from its seed and moves.

    A cell is the exponent of its tile, as a character from "0"; the last cell is where a tile appeared.
    Raises ValueError if they do not lead to the game's score and largest tile: it was played by other rules.
    """
    board = GameBoard(game.kind.size, game.kind.target, game.seed, **rules.options)
    frames: list[Frame] = []

    def add_frame(key: str, slid: Sequence[Sequence[int]]) -> None:
        tiles = list(chain.from_iterable(board.rows))
        pairs = enumerate(zip(chain.from_iterable(slid), tiles, strict=True))
        spawned = next((cell for cell, (before, after) in pairs if before != after), -1)
        cells = "".join(chr(48 + max(tile.bit_length() - 1, 0)) for tile in tiles)
        facts = {"Key": key, "Score": str(board.score), "Largest": str(max(tiles))}
        frames.append(Frame(len(frames), cells, last=spawned, facts=facts))

    add_frame("–", board.rows)
    for letter in game.moves:
        if board.state != "ongoing":
            break
        side = DIRECTION_BY_LETTER[letter]
        slid, _ = slide_board(board.rows, side)
        board.move(side)
        add_frame(" ".join(dict.fromkeys((KEYS["arrows"][side], rules.keys[side]))), slid)
    if (board.moves, board.score, board.largest) != (game.moves, game.score, game.largest):
        raise ValueError(
            f"the moves lead to score {board.score} and tile {board.largest} after {len(board.moves)} moves, "
            f"the game says {game.score} and {game.largest} after {len(game.moves)}; "
            "give the rules that it was played by"
        )
    return frames


def make_replay(game: StrategyGame, rules: BoardRules) -> Replay:
    """Return the widget of a game: all positions, or LONGEST_REPLAY evenly spread ones.

    Raises ValueError as `rebuild_frames`.
    """
    tiles = [2**exponent for exponent in range(1, game.kind.size**2 + 2)]
    symbols = {chr(47 + tile.bit_length()): (str(tile), *tile_colours(tile)) for tile in tiles}
    ending = ENDING_WORDS[game.ending].format(target=game.kind.target, patience=rules.patience)
    return Replay(
        spread(rebuild_frames(game, rules), LONGEST_REPLAY),
        title=f"2048 on {game.kind}, seed {game.seed}",
        ending=f"{ending}; {len(game.moves)} moves, largest tile {game.largest}, score {game.score}"
        + (f" ({game.error[:200]})" if game.error else ""),
        columns=game.kind.size,
        symbols={"0": ("", "", "")} | symbols,
    )


def show_replay(game: StrategyGame, rules: BoardRules) -> None:
    """Display the widget of a game and, for readers of a saved notebook, a picture of six positions."""
    replay.show_replay(make_replay(game, rules))


def show_strategies(results: Sequence[StrategyResult], *, limit: int = 12) -> Table:
    """Return a table of the distinct strategies, the best mean score first.

    Games in which the sandbox failed are left out; if several completions are the same program, each board
    and seed counts once.
    """
    groups: dict[tuple[str | None, str], list[StrategyResult]] = {}
    for result in results:
        groups.setdefault((result.code, result.reason), []).append(result)
    ranked = sorted(map(summarise_strategy, groups.values()), key=lambda summary: summary[0], reverse=True)
    num_refused = sum(not result.games for result in results)
    return Table(
        ["strategy", "written", "boards", "games won", "share (95% interval)", "largest: best, median",
         "mean score", "how games ended"],
        [row for _, row in ranked[:limit]],
        f"{min(limit, len(ranked))} of {len(ranked)} distinct strategies in {len(results)} completions, "
        f"best mean score first; {num_refused} completions were refused.",
    )  # fmt: skip


def summarise_strategy(members: Sequence[StrategyResult]) -> tuple[tuple[float, ...], list[object]]:
    """Return (rank, row of the table) of the completions that wrote one strategy."""
    played = [game for result in members for game in result.games]
    played.sort(key=lambda game: game.ending != "sandbox_error")  # the last one of a board and seed is kept
    distinct = {(game.kind, game.seed): game for game in played}.values()
    games = [game for game in distinct if game.ending != "sandbox_error"]
    scores = [result.score for result in members if result.score is not None]
    score = statistics.mean(scores) if scores else None
    endings = Counter(game.ending.replace("_", " ") for game in distinct).most_common()
    words = ", ".join(f"{name} {count}" for name, count in endings) or members[0].reason
    cells, share = ["–"] * 4, -1.0
    if games:
        won, largest = sum(game.ending == "success" for game in games), [game.largest for game in games]
        share = won / len(games)
        cells = [
            ", ".join(dict.fromkeys(str(game.kind) for game in games)),
            f"{won} of {len(games)}",
            as_text(wilson_interval(share, len(games))),
            f"{max(largest)}, {statistics.median_low(largest)}",
        ]
    rank = (-math.inf if score is None else score, share, len(members))
    return rank, [as_code(members[0].code), len(members), *cells, score, words]


def show_baselines(entries: Sequence[BaselineResult] | None = None) -> Table:
    """Return the results of simple strategies, a line each and a column a board; by default the kept ones."""
    rows: dict[str, dict[str, str]] = {}
    entries = load_baselines() if entries is None else entries
    for entry in entries:
        stuck = f"; stuck {entry.stuck:.3f}" if entry.stuck else ""
        share = as_text(Estimate(entry.won, entry.low, entry.high))
        rows.setdefault(entry.baseline, {})[entry.board] = f"{share}; {entry.median_largest}{stuck}"
    boards = list(dict.fromkeys(entry.board for entry in entries))
    counts = [entry.num_games for entry in entries]
    games = "–".join(map(str, sorted({min(counts), max(counts)}))) if counts else "no"
    caption = (
        f"Share of games won (95% interval, Wilson), the median game's largest tile, and the share of games "
        f"that got stuck, if any did; {games} games each."
    )
    cells = [(name, *map(row.get, boards)) for name, row in rows.items()]
    return Table(["baseline", *boards], cells, caption=caption)


def show_strategy_rewards(
    results: Sequence[StrategyResult], presets: Mapping[str, Sequence[StrategyRewardFunction]]
) -> Table:
    """Return a table of what each completion did, and what it earns under every preset."""
    rows = []
    for result in results:
        row = [as_code(result.code), result.ending.replace("_", " "), result.why[:200]]
        for rewards in presets.values():
            earned = [0.0 if result.has_failed_sandbox else reward(result) or 0.0 for reward in rewards]
            row.append(f"{sum(earned):+g}")
        rows.append(row)
    return Table(["strategy", "ended as", "why", *presets], rows)


def show_strategy_comparison(rows: Sequence[BoardComparison]) -> Table:
    """Return a table of before and after, with intervals."""
    cells = []
    for row in rows:
        boards = f", on {row.boards} only" if row.boards else ""
        difference = as_text(row.difference, signed=True)
        cells.append((MEASURE_WORDS[row.measure] + boards, row.before, row.after, difference))
    return Table(
        ["measure", "before", "after", "difference"],
        cells,
        caption="Held-out boards and wording; the 95% intervals resample completions and boards. A gain in "
        "the first row is mostly validity; skill is in the second and the fourth.",
        empty="Nothing was measured both before and after.",
    )


def show_players(players: Mapping[str, Sequence[JudgedCompletion]]) -> Table:
    """Return a table of the model's programs and other players on the same held-out boards."""
    rows: list[tuple[object, ...]] = []
    for name, judged in players.items():
        greedy = [completion for completion in judged if completion.greedy]
        games = [game for completion in greedy for game in completion.result.games]
        if greedy:
            score = as_text(measure_strategies(greedy).get("greedy_score"), signed=True)
            won = f"{sum(game.is_won for game in games)} of {len(games)}" if games else None
            rows.append((name, score, won, max((game.largest for game in games), default=None)))
    rows.append(("random keys", "+0.000, by definition", "", ""))
    return Table(["player", "score above random play", "games won", "largest tile"], rows)


def show_suspicious(referee: StrategyReferee, *, since: int = 0) -> Table:
    """Return a table of the suspicious traits counted in training, with examples.

    since: the step from which this attempt continued; earlier counts are in metrics.jsonl.
    """
    rows = [
        (name, count, "\n".join(map(as_code, referee.examples.get(name, []))))
        for name, count in referee.suspicious.most_common()
    ]
    since_words = f"Since step {since}. " if since else ""
    headers = ["looks suspicious", "completions", "examples"]
    return Table(headers, rows, since_words, empty=f"{since_words}Nothing suspicious was seen.")


def draw_strategies(rows: Sequence[Row], *, max_steps: int) -> Figure:
    """Draw scores with running means and held-out points at the left, the shares of endings at the right."""
    blue, green, heldout = "#1f77b4", "#2a7f3f", "heldout/strategy/"
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
        f"strategy/{name}_share": (name.replace("_", " "), colour) for name, colour in ENDING_COLOURS.items()
    }
    titles = ("Strategies while training", "How the games ended")
    return draw_training(rows, trends, points, endings, max_steps=max_steps, titles=titles)


# Scores and endings of a run that learns to play 2048, redrawn after every step; called with its directory.
LiveStrategies = partial(LiveFigure, draw=draw_strategies)

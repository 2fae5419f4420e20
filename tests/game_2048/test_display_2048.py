"""Replays, tables and the live figure of 2048: real widgets, a real kernel."""

import random
import re

from metric_table import METRICS
from replaying import replay

from rlnb.game_2048.board import DIRECTIONS, BoardKind, GameBoard
from rlnb.game_2048.display import (
    LONGEST_REPLAY,
    LiveStrategies,
    PlayBoard,
    draw_strategies,
    make_replay,
    show_players,
    show_strategies,
    show_strategy_rewards,
)
from rlnb.game_2048.evaluation import JudgedCompletion
from rlnb.game_2048.play import BoardRules, StrategyGame
from rlnb.game_2048.reward import StrategyResult
from rlnb.run.metrics import ENDINGS

RULES = BoardRules()
PLAY_ON = BoardRules(play_on=True)
HOSTILE = "def strategy(board):\n    return '<script>alert(1)</script>\udc80'"


def play(kind: str, seed: int, rules=RULES) -> StrategyGame:
    """Play random keys."""
    board_kind = BoardKind.parse(kind)
    board = GameBoard(board_kind.size, board_kind.target, seed, play_on=rules.play_on)
    draw = random.Random(seed)
    while board.state == "ongoing":
        board.move(draw.choice(DIRECTIONS))
    return StrategyGame(board_kind, seed, board.state, board.largest, board.score, board.moves, "", 0.1)


def game(seed: int, largest: int = 2048, ending: str = "success") -> StrategyGame:
    return StrategyGame(BoardKind(4, 2048), seed, ending, largest, 0, "L", "", 0.1)


def strategy(code, *games, reason="") -> StrategyResult:
    return StrategyResult(code, "no_function" if reason else "", reason, games, (0.5,) * max(1, len(games)))


def test_every_frame_is_the_engines_position_after_so_many_moves():
    played = play("6x6/64", 3)
    widget = make_replay(played, RULES)
    assert widget.moves == list(range(len(played.moves) + 1))
    for step, cells in enumerate(widget.cells):
        board = replay(played.kind, 3, played.moves[:step])
        facts = [widget.facts[name][step] for name in ("Score", "Largest")]
        assert facts == [str(board.score), str(board.largest)]
        tiles, spawned = [tile for row in board.rows for tile in row], widget.last[step]
        assert [widget.symbols[cell][0] for cell in cells] == [str(tile or "") for tile in tiles]
        assert (spawned == -1) == (step == 0 or cells == widget.cells[step - 1])
        assert spawned == -1 or tiles[spawned] in (2, 4)
    names = {" ": "–", "U": "↑ é", "D": "↓ u", "L": "← a", "R": "→ i"}
    assert widget.facts["Key"] == [names[letter] for letter in f" {played.moves}"]


def test_a_long_game_keeps_its_first_and_last_position():
    played = play("6x6/2048", 2, PLAY_ON)
    widget = make_replay(played, PLAY_ON)
    assert len(played.moves) > LONGEST_REPLAY == len(widget.cells)
    assert (widget.moves[0], widget.moves[-1]) == (0, len(played.moves))


def test_a_person_plays_the_game_that_a_strategy_plays_on_this_seed():
    panel, draw = PlayBoard(BoardKind(2, 8), seed=5), random.Random(1)
    assert panel._repr_mimebundle_()["text/html"].endswith(panel.view.value)
    while panel.board.state == "ongoing":
        panel.buttons[draw.choice(DIRECTIONS)].click()
    moves, played = panel.board.moves, panel.board
    assert replay(played.kind, 5, moves).rows == played.rows
    tiles = re.findall(r">(\d*)</td>", panel.view.value)
    assert tiles == [str(tile or "") for row in played.rows for tile in row]
    assert f"{played.state} after {len(moves)} moves, score {played.score}" in panel.view.value
    panel.buttons["left"].click()  # the game is over
    assert panel.board.moves == moves
    panel.new_game.click()
    assert (panel.board.seed, panel.board.moves, panel.board.state) == (6, "", "ongoing")
    assert "seed 6: ongoing" in panel.view.value


def test_equal_strategies_are_one_row_and_the_best_comes_first():
    games = [game(seed) for seed in range(8)] + [game(8, 256, "failed"), game(9, 64, "failed")]
    games.append(game(10, 2, "sandbox_error"))
    twice = [strategy("def a(): ...", *games)] * 2
    refused = strategy(None, reason="no function named strategy")
    table = show_strategies([refused, strategy("def b(): ...", game(1, 4, "stuck")), *twice])
    assert table.rows == [
        ["def a(): ...\n", "2", "0.427", "success 16, failed 4"],
        ["def b(): ...\n", "1", "-1.000", "stuck 1"],
        ["(no code)\n", "1", "-1.200", "no function named strategy"],
    ]
    assert show_strategies([strategy("def c(): ...", game(1, 2, "sandbox_error"))]).rows == []


def test_hostile_code_is_escaped_and_does_not_end_the_notebook(presets):
    results = [strategy(HOSTILE, reason="<b>\udc80")]
    for table in (show_strategies(results), show_strategy_rewards(results, presets)):
        html = table._repr_html_()
        assert "<script>" not in html and "<b>" not in html
        assert "&lt;script&gt;alert(1)&lt;/script&gt;\\udc80" in html
        (html + repr(table)).encode()
    assert table.headers[-2:] == ["requirements", "graded"] and table.rows[0][-2:] == ["-3.000", "-1.200"]


def test_the_live_figure_has_scores_held_out_points_and_endings(tmp_path):
    rows = [
        {"step": 0, "heldout/strategy/skill": 0.1, "heldout/strategy/greedy_skill": 0.2},
        {"step": 1, "strategy/score": -1.0, "strategy/skill": None, "strategy/no_code_share": 1.0},
        {"step": 2, "strategy/score": 0.5, "strategy/skill": 0.5, "strategy/success_share": 1.0},
    ]
    lines = [line.get_xydata().tolist() for line in draw_strategies(rows, max_steps=10).axes[0].lines]
    assert all(points in lines for points in ([[1, -1], [2, -0.25]], [[2, 0.5]], [[0, 0.1]], [[0, 0.2]]))
    LiveStrategies(tmp_path).update(0, 5)  # an empty run
    names = {f"strategy/{ending}_share" for ending in ENDINGS}
    assert names | set(rows[0]) - {"step"} <= METRICS


def test_games_won_are_of_those_that_were_played_by_the_rules():
    kind, ends = BoardKind(4, 256), {"success": 256, "sandbox_error": 4, "failed": 64}
    games = tuple(StrategyGame(kind, 1, end, tile, 0, "L", "", 0.1) for end, tile in ends.items())
    won = {}
    for problem in ("", "forbidden"):
        result = StrategyResult("code", problem, problem, games, (0.5,) * 3)
        won[problem] = show_players({"m": [JudgedCompletion(kind, True, "", False, result)]}).rows[0][2]
    assert won == {"": "1 of 2", "forbidden": "–"}

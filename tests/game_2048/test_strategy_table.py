"""The board is outside, so no cheat gains anything, whatever it names; honest strategies play on."""

import pytest
from processes import zygotes_children
from replaying import replay
from strategy_table import CHEATS, HONEST

from rlnb.game_2048.board import BoardKind
from rlnb.game_2048.checks import check_strategy, is_suspicious
from rlnb.game_2048.play import BoardRules, StrategyGame, play_many
from rlnb.game_2048.strategies import extract_strategy
from rlnb.sandbox import Sandbox

SMALL, LARGE = BoardKind(3, 64), BoardKind(4, 256)
SHORT = BoardRules(move_cpu_seconds=0.2, board_cpu_seconds=1.0, wall_seconds=5.0)
LONG = BoardRules(move_cpu_seconds=5.0, board_cpu_seconds=20.0, wall_seconds=60.0)
SEEDS = (10**9 + 1, 10**9 + 2, 10**9 + 3)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(num_workers=1, require="none") as opened:
        if opened.level not in ("standard", "strict"):
            pytest.skip(f"this machine lacks a layer: {opened.layers}")
        yield opened


def play(code, kind, sandbox, *, rules=SHORT, seed=SEEDS[0]) -> StrategyGame:
    """A game, which its moves must explain."""
    (game,) = play_many([(code, kind, seed)], sandbox, rules=rules)
    board = replay(kind, seed, game.moves, play_on=rules.play_on)
    assert (game.largest, game.score) == (board.largest, board.score)
    return game


@pytest.mark.parametrize("name", CHEATS)
def test_nothing_is_gained_by_a_cheat_and_what_it_shows_is_counted(name, sandbox):
    cheat = CHEATS[name]
    assert is_suspicious(cheat.code) >= cheat.is_suspicious
    assert check_strategy(cheat.code) == "" or "_codec" in cheat.code  # the sandbox's own, for a package
    game = play(cheat.code, LARGE, sandbox)
    assert game.ending in cheat.endings, game
    assert (game.ending == "success") == (game.largest >= LARGE.target)
    assert zygotes_children(sandbox) == []
    if cheat.endings == ("stuck",):  # it gets what the key of its answers is worth
        key = dict(zip("UDLR", "éuai", strict=True))[game.moves[-1]]
        honest = play(f"def strategy(board):\n    return {key!r}\n", LARGE, sandbox)
        assert (game.moves, game.score) == (honest.moves, honest.score)


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_strategy_is_found_as_it_was_and_played_to_the_end(name, sandbox):
    code = HONEST[name].strip("\n") + "\n"
    demo = "\n# Try it.\nboard = [[0, 2], [2, 0]]\nfor _ in range(4):\n    print(strategy(board))\n"
    for completion in (code, f"So:\n```python\n{code}```\nDone.", f"```python\n{code}{demo}```"):
        extraction = extract_strategy(completion)
        assert (extraction.problem, extraction.code) == ("", code)
    for seed in SEEDS:
        assert play(code, SMALL, sandbox, rules=LONG, seed=seed).is_honest


def test_a_cheat_leaves_the_next_game_as_it_would_have_been(sandbox):
    before = play(HONEST["a random key"], SMALL, sandbox).moves
    for cheat in list(CHEATS.values())[::9]:
        play(cheat.code, SMALL, sandbox)
    assert play(HONEST["a random key"], SMALL, sandbox).moves == before

"""The static check and the sandbox agree on cheats and on honest strategies, and no cheat gains anything."""

from pathlib import Path

import pytest
from strategy_table import CHEATS, HONEST

from rlnb.game_2048.board import BoardKind, replay
from rlnb.game_2048.checks import check_strategy
from rlnb.game_2048.play import BoardRules, play_many
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


def children_of(pid):
    return [
        child for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()
    ]


def zygotes_children(sandbox):
    """What runs below the zygotes when they wait: nothing. Above each lies its keeper."""
    zygotes = [zygote for idle in sandbox._idle for zygote in children_of(idle._process.pid)]
    return [child for zygote in zygotes for child in children_of(zygote)]


def replayed(game, rules):
    board = replay(
        game.kind, game.seed, game.moves, four_probability=rules.four_probability, patience=rules.patience
    )
    return board.largest, board.score


def test_the_table_is_large_enough():
    assert len(CHEATS) >= 30
    assert len(HONEST) >= 15


@pytest.mark.parametrize("name", CHEATS)
def test_the_static_check_says_of(name):
    cheat = CHEATS[name]
    assert bool(check_strategy(cheat.code)) == cheat.refused, check_strategy(cheat.code)


@pytest.mark.parametrize("name", CHEATS)
def test_run_all_the_same_nothing_is_gained_by(name, sandbox):
    cheat = CHEATS[name]
    (game,) = play_many([(cheat.code, LARGE, SEEDS[0])], sandbox, rules=SHORT)
    assert game.ending in cheat.endings, game
    assert (game.largest, game.score) == replayed(game, SHORT)
    assert (game.ending == "success") == (game.largest >= LARGE.target)
    assert zygotes_children(sandbox) == []


@pytest.mark.parametrize("name", [name for name, cheat in CHEATS.items() if cheat.endings == ("stuck",)])
def test_a_cheat_whose_answer_is_one_key_gets_what_that_key_is_worth(name, sandbox):
    cheat, code = CHEATS[name], "def strategy(board):\n    return {!r}\n"
    jobs = [(cheat.code, LARGE, seed) for seed in SEEDS[1:2]]
    for game in play_many(jobs, sandbox, rules=SHORT):
        keys = dict(zip("UDLR", "éuai", strict=True))
        (honest,) = play_many([(code.format(keys[game.moves[-1]]), LARGE, game.seed)], sandbox, rules=SHORT)
        assert (game.moves, game.largest, game.score) == (honest.moves, honest.largest, honest.score)


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_strategy_is_played_to_the_end(name, sandbox):
    code = HONEST[name]
    assert check_strategy(code) == ""
    games = play_many([(code, SMALL, seed) for seed in SEEDS], sandbox, rules=LONG)
    assert [game.ending for game in games if game.ending not in ("success", "failed")] == [], games
    assert [(game.largest, game.score) for game in games] == [replayed(game, LONG) for game in games]


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_strategy_is_taken_out_of_its_answer_as_it_was(name):
    code = HONEST[name].strip("\n") + "\n"
    demo = "\n# Try it.\nboard = [[0, 2], [2, 0]]\nfor _ in range(4):\n    print(strategy(board))\n"
    for completion in (code, f"So:\n```python\n{code}```\nDone.", f"```python\n{code}{demo}```"):
        extraction = extract_strategy(completion)
        assert (extraction.problem, extraction.code) == ("", code)


def test_a_cheat_leaves_the_next_game_as_it_would_have_been(sandbox):
    honest = (HONEST["a random key"], SMALL, SEEDS[0])
    before = play_many([honest], sandbox, rules=SHORT)[0].moves
    play_many([(cheat.code, SMALL, SEEDS[0]) for cheat in list(CHEATS.values())[::9]], sandbox, rules=SHORT)
    assert play_many([honest], sandbox, rules=SHORT)[0].moves == before

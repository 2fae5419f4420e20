"""Games that strategies play in the sandbox: how they end, and that nothing but keys comes back."""

import pytest
from replaying import replay

from rlnb.game_2048.board import BoardKind
from rlnb.game_2048.play import BoardRules, play_many, random_progress
from rlnb.game_2048.queries import QUERIES_SOURCE
from rlnb.sandbox import Sandbox

SMALL, LARGE = BoardKind(4, 256), BoardKind(6, 2048)
RULES = BoardRules(queries=QUERIES_SOURCE, move_cpu_seconds=0.2, board_cpu_seconds=2.0)
RANDOM = "def strategy(board):\n    return random.choice('éuai')\n"
GREEDY = "def strategy(board):\n    return max(legal_moves(board), key=lambda key: merged(board, key))\n"


def play(body: str, sandbox: Sandbox, *, kind=SMALL, seed=1, rules=RULES):
    (game,) = play_many([(f"def strategy(board):\n    {body}\n", kind, seed)], sandbox, rules=rules)
    return game


@pytest.mark.parametrize(
    ("body", "ending", "error"),
    [
        ("return None", "illegal", "returned 'None', which is not a key"),
        ("return 1 / 0", "exception", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_game_ends_by_the_first_answer_that_the_rules_do_not_know(body, ending, error, sandbox):
    game = play(body, sandbox)
    assert game.ending == ending and error in game.error
    assert game.largest < SMALL.target


def test_a_move_and_a_game_may_take_their_cpu_time_and_no_more(sandbox):
    game = play("while True: pass", sandbox)
    assert game.ending == "timeout" and 0.15 < game.seconds < 60
    rules = BoardRules(queries=QUERIES_SOURCE, move_cpu_seconds=0.2, board_cpu_seconds=0.3)
    game = play("sum(range(10**6)); return random.choice('éuai')", sandbox, kind=LARGE, rules=rules)
    assert (game.ending, game.error) == ("timeout", "more than 0.3 s of CPU time")
    assert 1 < len(game.moves) < 100


def test_a_sleeping_strategy_ends_with_the_wall_time_of_its_game(sandbox):
    rules = BoardRules(queries=QUERIES_SOURCE, wall_seconds=0.5)
    game = play("import time; time.sleep(0.2); return random.choice('éuai')", sandbox, rules=rules)
    assert (game.ending, game.error) == ("timeout", "more than 0.5 s in all")


def test_a_program_that_fails_before_its_first_board_says_so(sandbox):
    (game,) = play_many([("1 / 0", SMALL, 1)], sandbox, rules=RULES)
    assert game.ending == "exception" and not game.was_loaded
    assert game.error == "while loading: ZeroDivisionError: division by zero"


def test_the_same_code_and_seed_play_the_same_game_again_and_a_replay_is_the_game(sandbox):
    jobs = [(RANDOM, kind, seed) for kind in (SMALL, BoardKind(3, 64)) for seed in (7, 8)]
    first, second = (play_many(jobs, sandbox, rules=RULES) for _ in range(2))
    assert [game.moves for game in first] == [game.moves for game in second]
    assert first[0].moves != first[1].moves
    for game in first:
        board = replay(game.kind, game.seed, game.moves)
        assert (board.state, board.largest, board.score) == (game.ending, game.largest, game.score)
    assert 0.5 < random_progress(SMALL, 11, play_on=False) < 1.0


def test_beyond_the_target_a_game_is_won_and_its_end_is_told_as_it_was(sandbox):
    code = (
        "def strategy(board):\n    if largest(board) >= 16:\n        return 'Q'\n"
        "    return max(legal_moves(board), key=lambda key: merged(board, key))\n"
    )
    rules = BoardRules(queries=QUERIES_SOURCE, play_on=True)
    (game,) = play_many([(code, BoardKind(4, 8), 1)], sandbox, rules=rules)
    assert (game.ending, game.largest, game.is_won) == ("illegal", 16, True) and game.progress == 4 / 3
    (game,) = play_many([(code, BoardKind(4, 8), 1)], sandbox, rules=RULES)
    assert (game.ending, game.largest) == ("success", 8)

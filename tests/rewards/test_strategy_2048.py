"""Rewards of strategies: the requirement's to the letter, and graded ones that cannot be gamed."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlnb.games.board2048 import KEYS, BoardKind
from rlnb.games.queries2048 import queries_source
from rlnb.metrics import METRICS
from rlnb.rewards.strategy_2048 import (
    ENDING_LEVELS,
    HONEST_FLOOR,
    NO_STRATEGY_LEVEL,
    StrategyReferee,
    StrategyResult,
    board_seeds,
    function_works,
    no_cheating,
    strategy_metrics,
    strategy_rewards,
    strategy_succeeds,
    weaknesses,
)
from rlnb.rewards.strategy_play import PlayedGame, Rules
from rlnb.sandbox import Sandbox

KIND = BoardKind(4, 256)
SEEDS = board_seeds("test", num_boards=4)
RULES = Rules(queries=queries_source(KEYS["bepo"]), move_cpu_seconds=0.2)
FENCE = "```python\n{}\n```"
BODIES = {
    "greedy": "return max(legal_moves(board), key=lambda key: merged(board, key))",
    "random": "return random.choice('éuai')",
    "none": "return None",
    "bad key": "return 'Q'",
    "stall": "return 'a'",
    "raise": "return 1 / 0",
    "loop": "while True: pass",
}


def game(ending="failed", largest=128, *, error="", kind=KIND, was_loaded=True) -> PlayedGame:
    return PlayedGame(kind, 1, ending, largest, 0, "UDLR", error, 0.0, was_loaded)


def result(*games: PlayedGame, problem="", baseline=0.5, code="def strategy(board): ...") -> StrategyResult:
    return StrategyResult(code, problem, "", games, (baseline,) * max(1, len(games)))


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(num_workers=2) as opened:
        yield opened


@pytest.fixture
def referee(sandbox):
    return StrategyReferee(sandbox, RULES, random_games=4)


def judged(body: str, referee: StrategyReferee) -> StrategyResult:
    text = FENCE.format(f"def strategy(board):\n    {body}")
    (one,) = referee.judge([text], [""], [KIND], [SEEDS])
    return one


@pytest.mark.parametrize(
    ("one", "works", "cheats", "succeeds"),
    [
        (result(game("success", 256)), 1.0, 1.0, 20.0),
        (result(game("failed")), 1.0, 1.0, 2.0),
        (result(game("illegal")), 1.0, 1.0, 2.0),
        (result(game("stuck")), 1.0, 1.0, -1.0),
        (result(game("timeout")), 1.0, 1.0, -1.0),
        (result(game("exception")), 1.0, 1.0, -3.0),
        (result(game("exception", was_loaded=False)), -0.5, 1.0, 0.0),
        (result(game("exception", error="while loading: forged")), 1.0, 1.0, -3.0),
        (result(problem="forbidden"), -0.5, -20.0, 0.0),
        (result(problem="no_code", code=None), -2.0, -1.0, 0.0),
        (result(problem="syntax_error"), -2.0, -1.0, 0.0),
        (result(game("success", 256), game("failed")), 1.0, 1.0, 11.0),
    ],
)
def test_the_requirements_rewards_are_the_published_ones(one, works, cheats, succeeds):
    assert (function_works(one), no_cheating(one), strategy_succeeds(one)) == (works, cheats, succeeds)


def test_the_graded_score_is_the_share_of_the_targets_logarithm_above_random_play():
    assert result(game("failed", 128), baseline=0.5).score == pytest.approx(7 / 8 - 0.5)
    assert result(game("success", 1024), baseline=0.75).score == pytest.approx(10 / 8 - 0.75)  # not clipped
    two = result(game("failed", 16), game("failed", 64), baseline=0.5)
    assert two.score == pytest.approx((0.0 + 0.25) / 2)


@given(
    size=st.integers(2, 8),
    exponent=st.integers(3, 17),
    reached=st.integers(1, 20),
    baseline=st.floats(0.0, 9.0),
    ending=st.sampled_from(sorted(ENDING_LEVELS)),
)
def test_no_honest_loss_is_worth_less_than_what_is_not_honest(size, exponent, reached, baseline, ending):
    kind = BoardKind(size, 2**exponent)
    honest = result(game("failed", 2**reached, kind=kind), baseline=baseline).score
    bad = result(game(ending, 2, kind=kind), baseline=baseline).score
    assert honest >= HONEST_FLOOR > bad > NO_STRATEGY_LEVEL


def test_the_levels_below_honest_play_lie_close_together_and_apart():
    levels = [HONEST_FLOOR, ENDING_LEVELS["stuck"], ENDING_LEVELS["illegal"], NO_STRATEGY_LEVEL]
    assert levels == sorted(levels, reverse=True) and len(set(levels)) == 4
    assert levels[0] - levels[-1] <= 0.25


def test_bad_keys_and_nothing_at_all_score_below_the_worst_honest_player(referee):
    scores = {name: judged(body, referee).score for name, body in BODIES.items()}
    worst = judged("return min(legal_moves(board), key=lambda key: merged(board, key))", referee)
    assert worst.is_honest
    assert (
        scores["greedy"] > scores["random"] > worst.score > max(scores[name] for name in ("none", "bad key"))
    )
    assert worst.score > scores["stall"] > scores["raise"] and worst.score > scores["loop"]


def test_random_play_measures_about_nothing_against_random_play(sandbox):
    referee = StrategyReferee(sandbox, RULES, random_games=8)
    text = FENCE.format(f"def strategy(board):\n    {BODIES['random']}")
    (one,) = referee.judge([text], [""], [KIND], [board_seeds("many", num_boards=60)])
    assert abs(one.score) < 0.05  # 60 boards with a spread of 0.09 each: 4 standard errors


def test_a_program_is_played_once_for_all_its_copies_and_all_reward_functions(referee):
    completions = [FENCE.format(f"def strategy(board):\n    {BODIES['greedy']}")] * 3
    completions += [FENCE.format("def strategy(board):\n    return None")] * 2
    columns = {"prefix": [""] * 5, "board": ["4x4/256"] * 5, "seeds": [SEEDS] * 5}
    functions = strategy_rewards("requirements", referee)
    assert [one.__name__ for one in functions] == ["function_works", "no_cheating", "strategy_succeeds"]
    logged: dict[str, float] = {}
    rewards = [
        one(completions=completions, log_metric=logged.__setitem__, prompts=[""] * 5, **columns)
        for one in functions
    ]
    assert rewards[0] == [1.0] * 5 and rewards[1] == [1.0] * 5
    assert rewards[2][3:] == [2.0, 2.0] and len(set(rewards[2][:3])) == 1
    assert referee.failures.num_programs == 2 * len(SEEDS)
    assert logged["strategy/distinct_programs"] == 2 and logged["strategy/illegal_share"] == 2 / 5


def test_conversational_completions_are_read_as_well(referee):
    (reward,) = strategy_rewards("graded", referee)
    message = [
        {"role": "assistant", "content": FENCE.format(f"def strategy(board):\n    {BODIES['greedy']}")}
    ]
    (value,) = reward(completions=[message], prefix=[""], board=["4x4/256"], seeds=[SEEDS])
    assert value == judged(BODIES["greedy"], referee).score


def test_where_the_sandbox_failed_every_function_says_nothing(referee, monkeypatch):
    from rlnb.rewards import strategy_2048

    failed = [game("sandbox_error", error="zygote was lost")]
    monkeypatch.setattr(strategy_2048, "play_many", lambda jobs, *_, **__: failed * len(jobs))
    text = FENCE.format("def strategy(board):\n    return 'a'")
    columns = {"prefix": [""], "board": ["4x4/256"], "seeds": [SEEDS[:1]]}
    assert [one(completions=[text], **columns) for one in strategy_rewards("requirements", referee)] == [
        [None]
    ] * 3


def test_the_metrics_tell_validity_from_skill_and_all_have_names():
    results = [
        result(game("failed", 128), baseline=0.5),
        result(game("success", 256), baseline=0.5, code="b"),
        result(game("illegal", 2), baseline=0.5, code="c"),
        result(problem="no_code", code=None),
    ]
    metrics = dict(strategy_metrics(results))
    assert metrics["strategy/honest_share"] == 0.5 and metrics["strategy/win_share"] == 0.25
    assert metrics["strategy/skill"] == pytest.approx((0.375 + 0.5) / 2)
    assert metrics["strategy/score"] == pytest.approx((0.375 + 0.5 - 1.1 - 1.2) / 4)
    assert metrics["strategy/distinct_programs"] == 3
    assert metrics.keys() <= METRICS.keys()
    assert sum(value for name, value in metrics.items() if name.endswith("illegal_share")) == 0.25
    assert "strategy/skill" not in dict(strategy_metrics([results[3]]))
    assert not math.isnan(dict(strategy_metrics([results[3]]))["strategy/score"])


def test_a_text_that_breaks_the_reader_is_no_program_and_ends_no_training(referee):
    bodies = ["x = " + "2**" * 1500 + "2\n    return 'a'", "return getattr(board, 0x" + "f" * 5000 + ")"]
    bodies.append("return " + "lambda b: " * 700 + "1")
    results = [judged(body, referee) for body in bodies]
    assert all(not one.is_honest for one in results)
    assert results[1].problem == "forbidden"


def test_asking_an_offered_function_is_not_suspicious(referee):
    assert judged("return legal_moves(board)[0] if largest(board) > 8 else 'a'", referee).kinds == ()


def test_an_endless_loop_is_not_a_valid_strategy(referee):
    assert not judged("while True: pass", referee).is_valid
    assert judged("return legal_moves(board)[0]", referee).is_valid


def test_the_monitor_counts_suspicious_programs_by_kind_and_keeps_a_few(referee):
    body = "board[0][0] = 2048; return 'a'"
    results = [judged(body, referee), judged(BODIES["greedy"], referee)]
    referee.note(results * 2)
    assert referee.suspicious == {"edits the board": 2}
    assert [len(codes) for codes in referee.examples.values()] == [1]


def test_the_requirements_rewards_come_with_their_weaknesses_and_graded_ones_without():
    published = {"num_generations": 2, "max_completion_length": 200, "boards": [BoardKind(6, 2048)]}
    said = weaknesses("requirements", **published)
    assert [len([one for one in said if word in one]) for word in ("97.8%", "+4", "0.71", "200 tokens")] == [
        1
    ] * 4
    better = {"num_generations": 8, "max_completion_length": 512, "boards": [KIND]}
    assert len(weaknesses("requirements", **better)) == 1
    assert weaknesses("graded", **published) == []

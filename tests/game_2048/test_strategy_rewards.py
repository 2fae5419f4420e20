"""Rewards of strategies: the requirement's to the letter, and graded ones that cannot be gamed."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from metric_table import METRICS

from rlnb.game_2048.board import BoardKind
from rlnb.game_2048.params import GptOss2048Params
from rlnb.game_2048.play import BoardRules, StrategyGame, make_public_seeds
from rlnb.game_2048.queries import QUERIES_SOURCE
from rlnb.game_2048.reward import (
    ENDING_LEVELS,
    HONEST_FLOOR,
    NO_STRATEGY_LEVEL,
    StrategyReferee,
    StrategyResult,
    compute_strategy_metrics,
    make_strategy_rewards,
)
from rlnb.params import load_params

KIND = BoardKind(4, 256)
SEEDS = make_public_seeds("test", num_boards=4)
RULES = BoardRules(queries=QUERIES_SOURCE, move_cpu_seconds=0.2)
GREEDY = "return max(legal_moves(board), key=lambda key: merged(board, key))"
WORST = GREEDY.replace("max", "min", 1)
RANDOM = "return random.choice('éuai')"


def game(ending="failed", largest=128, *, error="", kind=KIND, was_loaded=True) -> StrategyGame:
    return StrategyGame(kind, 1, ending, largest, 0, "UDLR", error, 0.0, was_loaded)


def result(*games: StrategyGame, problem="", baseline=0.5, code="def strategy(board): ...") -> StrategyResult:
    return StrategyResult(code, problem, "", games, (baseline,) * max(1, len(games)))


def answer(body: str) -> str:
    return f"```python\ndef strategy(board):\n    {body}\n```"


@pytest.fixture
def referee(sandbox):
    return StrategyReferee(sandbox, RULES)


def judge(body: str, referee: StrategyReferee, seeds=SEEDS) -> StrategyResult:
    return referee.judge([answer(body)], [""], [KIND], [seeds])[0]


REQUIREMENTS = [  # what no single answer shows; test_published_rewards.py plays the others
    (result(game("stuck")), [1.0, 1.0, -1.0]),
    (result(game("exception", error="while loading: forged")), [1.0, 1.0, -3.0]),
    (result(problem="no_code", code=None), [-2.0, -1.0, 0.0]),
    (result(game("success", 256), game("failed")), [1.0, 1.0, 11.0]),
    (result(game("success", 256), game("sandbox_error", 2)), [1.0, 1.0, 20.0]),
    (result(game("success", 256), game("sandbox_error", 2, was_loaded=False)), [1.0, 1.0, 20.0]),
]


def test_the_rewards_in_the_notebook_are_the_published_ones_and_the_graded_score(presets):
    names = [function.__name__ for function in presets["requirements"]]
    assert names == ["function_works", "no_cheating", "strategy_succeeds"]
    for judged, rewards in REQUIREMENTS:
        assert [function(judged) for function in presets["requirements"]] == rewards, judged
        assert [function(judged) for function in presets["graded"]] == [judged.score], judged


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
def test_no_honest_loss_scores_less_than_a_dishonest_ending(size, exponent, reached, baseline, ending):
    kind = BoardKind(size, 2**exponent)
    honest = result(game("failed", 2**reached, kind=kind), baseline=baseline).score
    bad = result(game(ending, 2, kind=kind), baseline=baseline).score
    assert honest >= HONEST_FLOOR > bad > NO_STRATEGY_LEVEL


def test_better_strategies_score_more_and_dishonest_ones_less_than_any_honest_one(referee):
    bodies = [GREEDY, RANDOM, WORST, "return 'a'", "return 1 / 0"]
    scores = [judge(body, referee).score for body in bodies]
    assert scores == sorted(scores, reverse=True) and len(set(scores)) == 5
    worst = judge(WORST, referee)
    for body in ("return None", "return 'Q'", "while True: pass"):
        assert judge(body, referee).score < worst.score
    assert worst.is_honest and judge("return legal_moves(board)[0]", referee).is_valid
    assert not judge("while True: pass", referee).is_valid
    many = judge(RANDOM, referee, make_public_seeds("many", num_boards=60)).score
    assert abs(many) < 0.05  # 60 boards with a spread of 0.09 each: 4 standard errors


def tiny_with(preset: str, *, seconds: float = 1.5) -> GptOss2048Params:
    overrides = {"reward": {"preset": preset}, "sandbox": {"timeout_seconds": seconds}}
    return load_params("gpt_oss_2048", profile="tiny", overrides=overrides, environ={})


def earn(code: str, preset: str, sandbox, presets) -> list[float | None]:
    """Return what a completion earns by each function of the published rewards, in a run of this preset."""
    referee = StrategyReferee.from_params(tiny_with(preset), sandbox)
    (judged,) = referee.judge([f"```python\n{code}```"], [""], [KIND], [SEEDS[:1]])
    return [function(judged) for function in presets["requirements"]]


TABLE = """import time
table = []
def strategy(board):
    while time.process_time() < 0.7:
        table.append(len(table))
    return random.choice('éuai')
"""


def test_by_the_published_rewards_a_strategy_has_its_time_in_one_piece(sandbox, presets):
    """Its first move takes 0.7 s: more than a move of the tiny profile, less than its game."""
    assert tiny_with("graded").sandbox.board_cpu_seconds == 1.0
    assert earn(TABLE, "requirements", sandbox, presets) in ([1.0, 1.0, 2.0], [1.0, 1.0, 20.0])
    no_clock = TABLE.replace("import time\n", "").replace("time.process_time() < 0.7", "len(table) < 1e7")
    assert earn(no_clock, "graded", sandbox, presets) == [1.0, 1.0, -1.0]
    too_long = TABLE.replace("0.7", "60")
    assert earn(too_long, "requirements", sandbox, presets) == [1.0, 1.0, -1.0]


def test_a_program_is_played_once_for_all_its_copies_and_all_reward_functions(referee, presets):
    completions = [*[answer(GREEDY)] * 3, *[answer("return None")] * 2]
    columns = {"prefix": [""] * 5, "board": ["4x4/256"] * 5, "seeds": [SEEDS] * 5}
    functions = make_strategy_rewards(presets["requirements"], referee)
    logged = {}
    rewards = [
        function(completions=completions, log_metric=logged.__setitem__, prompts=[""] * 5, **columns)
        for function in functions
    ]
    assert rewards[0] == [1.0] * 5 and rewards[1] == [1.0] * 5
    assert rewards[2][3:] == [2.0, 2.0] and len(set(rewards[2][:3])) == 1
    assert referee.failures.num_programs == 2 * len(SEEDS)
    assert logged["strategy/distinct_programs"] == 2 and logged["strategy/illegal_share"] == 2 / 5


def test_if_the_sandbox_failed_every_function_returns_none(referee, presets, monkeypatch):
    failed = [game("sandbox_error", error="zygote was lost")]
    monkeypatch.setattr("rlnb.game_2048.reward.play_many", lambda jobs, *_, **__: failed * len(jobs))
    columns = {"prefix": [""], "board": ["4x4/256"], "seeds": [SEEDS[:1]]}
    completions = [answer("return 'a'")]  # TRL gives all functions the same list
    for reward in make_strategy_rewards(presets["requirements"], referee):
        assert reward(completions=completions, **columns) == [None]


def test_the_metrics_separate_validity_from_skill_and_all_have_names():
    refused = result(problem="no_code", code=None)
    games = [game("failed", 128), game("success", 256), game("illegal", 2)]
    results = [*(result(each, code=each.ending) for each in games), refused]
    metrics = compute_strategy_metrics(results)
    assert metrics["strategy/honest_share"] == 0.5 and metrics["strategy/win_share"] == 0.25
    assert metrics["strategy/skill"] == pytest.approx((0.375 + 0.5) / 2)
    assert metrics["strategy/score"] == pytest.approx((0.375 + 0.5 - 1.1 - 1.2) / 4)
    assert metrics["strategy/distinct_programs"] == 3 and metrics["strategy/illegal_share"] == 0.25
    assert metrics.keys() <= METRICS
    nothing_honest = compute_strategy_metrics([refused])
    assert "strategy/skill" not in nothing_honest and not math.isnan(nothing_honest["strategy/score"])


@pytest.mark.parametrize("profile", ["default", "cpu", "h100"])
def test_the_published_rewards_have_one_limit_of_time_whatever_the_profile(profile):
    published, graded = (
        BoardRules.from_params(load_params("gpt_oss_2048", profile=profile, overrides=reward, environ={}))
        for reward in ({"reward": {"preset": "requirements"}}, {"reward": {"preset": "graded"}})
    )
    assert published.move_cpu_seconds == published.board_cpu_seconds == published.wall_seconds == 5.0
    assert graded.move_cpu_seconds < graded.board_cpu_seconds < graded.wall_seconds == 5.0

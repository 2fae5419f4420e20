"""Held-out play: what is resampled, what is reported apart, and players beside the model."""

import json

import numpy as np
import pytest

from rlnb.display.strategies import show_players
from rlnb.evaluation.compare import bootstrap_two_way
from rlnb.evaluation.strategies import (
    StrategyEvaluation,
    player_metrics,
    save_strategies,
    strategy_heldout_metrics,
)
from rlnb.evaluation.strategy_comparison import (
    Played,
    compare_strategies,
    measure_strategies,
    score_matrices,
)
from rlnb.games.board2048 import BoardKind, replay
from rlnb.metrics import METRICS
from rlnb.params import load_params
from rlnb.params.gpt_oss_2048 import SECRET_FILE
from rlnb.policy import load_policy
from rlnb.rewards.strategy_2048 import StrategyResult
from rlnb.rewards.strategy_play import PlayedGame
from rlnb.sandbox import Sandbox
from rlnb.tasks.strategy_prompts import fenced

SMALL, LARGE = BoardKind(3, 64), BoardKind(4, 256)
GREEDY = fenced("    return max(legal_moves(board), key=lambda key: merged(board, key))")
WORST = fenced("    return min(legal_moves(board), key=lambda key: merged(board, key))")
BAD = fenced("    return None")


@pytest.fixture(scope="module")
def params(tmp_path_factory):
    overrides = {"evaluation": {"num_boards": 6, "num_greedy_boards": 10, "num_samples": 3}}
    run = tmp_path_factory.mktemp("run")
    (run / SECRET_FILE).write_text("5e" * 32)  # the same boards whenever these tests run
    overrides["output_dir"] = str(run)
    overrides["model"] = {"engine": "transformers", "dtype": "float32", "attention": "sdpa"}
    return load_params("gpt_oss_2048", profile="tiny", overrides=overrides, environ={})


@pytest.fixture(scope="module")
def evaluate(params):
    with Sandbox(num_workers=2) as sandbox:
        yield StrategyEvaluation.from_params(params, sandbox)


def played(evaluate: StrategyEvaluation, *completions: str, greedy=False) -> list[Played]:
    return [one for kind in evaluate.kinds for one in evaluate.judge(completions, "", kind, greedy=greedy)]


def test_copies_of_one_program_are_one_sample_because_boards_are_drawn_too():
    boards = np.random.default_rng(0).normal(0.02, 0.1, size=12)
    few, many = (bootstrap_two_way([np.tile(boards, (count, 1))]) for count in (1, 48))
    assert few.value == pytest.approx(many.value) == pytest.approx(boards.mean())
    assert many.high - many.low == pytest.approx(few.high - few.low, rel=0.1)
    assert many.low < 0 < many.high  # over completions alone there would be no spread at all


def test_the_interval_of_independent_scores_is_the_textbooks():
    scores = np.random.default_rng(1).normal(0.0, 1.0, size=(400, 1))
    estimate = bootstrap_two_way([scores])
    assert estimate.high - estimate.low == pytest.approx(2 * 1.96 * scores.std() / 20, rel=0.1)


def test_a_difference_on_the_same_boards_is_freed_of_what_the_boards_share():
    boards = np.random.default_rng(2).normal(0.0, 1.0, size=30)
    estimate = bootstrap_two_way([boards[None] + 0.5], [boards[None]])
    assert (estimate.low, estimate.high) == (pytest.approx(0.5), pytest.approx(0.5))


def test_kinds_of_boards_weigh_the_same_however_many_games_each_has():
    assert bootstrap_two_way([np.zeros((2, 3)), np.ones((5, 40))]).value == 0.5


@pytest.mark.parametrize(
    ("scores", "minus", "message"),
    [
        ([], [], "scores must be matrices of completions and boards, with at least one of each"),
        (
            [np.zeros((0, 3))],
            [],
            "scores must be matrices of completions and boards, with at least one of each",
        ),
        ([np.zeros((1, 3))], [np.zeros((1, 2))], "scores and minus must be of the same boards"),
    ],
)
def test_what_cannot_be_compared_is_refused(scores, minus, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        bootstrap_two_way(scores, minus)


def test_skill_is_that_of_the_honest_and_the_score_that_of_all(evaluate):
    mixed = played(evaluate, GREEDY, BAD)
    measured, alone = measure_strategies(mixed), measure_strategies(played(evaluate, GREEDY))
    assert measured["skill"].value == pytest.approx(alone["score"].value) and measured["skill"].value > 0
    assert measured["score"].value == pytest.approx((alone["score"].value - 1.1) / 2)
    shapes = {kind: matrix.shape for kind, matrix in score_matrices(mixed, greedy=False).items()}
    assert shapes == {SMALL: (2, 6), LARGE: (2, 6)}


def test_skill_is_compared_on_the_boards_where_something_was_honest_both_times(evaluate):
    before = [one for one in played(evaluate, WORST, BAD) if one.kind == SMALL or one.completion == BAD]
    after = played(evaluate, GREEDY)
    rows = {row["measure"]: row for row in compare_strategies(before, after)}
    assert rows["skill"]["boards"] == "3x3/64" and "boards" not in rows["score"]
    alone = [one for one in after if one.kind == SMALL]
    assert rows["skill"]["after"].value == measure_strategies(alone)["skill"].value


def test_greedy_programs_play_other_boards_than_the_samples(evaluate):
    seeds = [set(evaluate.seeds_of(SMALL, greedy=greedy)) for greedy in (True, False)]
    assert [len(own) for own in seeds] == [10, 6] and not seeds[0] & seeds[1]


def test_a_game_that_the_sandbox_failed_leaves_its_completion_out_and_shows_a_dash():
    failed = PlayedGame(SMALL, 1, "sandbox_error", 2, 0, "", "lost", 0.0)
    lost = Played(SMALL, True, "", StrategyResult("code", "", "", (failed,), (0.5,)))
    assert measure_strategies([lost]) == {}
    assert "–" in repr(show_players({"model": [lost]}))


def test_nothing_honest_means_no_skill_instead_of_a_number(evaluate):
    metrics = strategy_heldout_metrics(played(evaluate, BAD, "no code at all"))
    assert "heldout/strategy/skill" not in metrics
    assert metrics["heldout/strategy/valid_share"] == 0.0
    assert metrics.keys() <= METRICS.keys()


def test_before_and_after_are_compared_on_the_same_boards(evaluate):
    rows = {
        row["measure"]: row
        for row in compare_strategies(played(evaluate, WORST, BAD), played(evaluate, GREEDY))
    }
    assert rows["skill"]["difference"].low > 0
    assert rows["honest_share"] == {"measure": "honest_share", "before": 0.5, "after": 1.0}
    assert "difference" not in rows["greedy_skill"]


def test_the_players_beside_the_model_stand_in_their_known_order(evaluate):
    players = evaluate.players()
    metrics = player_metrics(players)
    assert metrics.keys() == {"heldout/players/corner", "heldout/players/greedy_merge"}
    assert metrics.keys() <= METRICS.keys()
    score = {name: measure_strategies(own)["greedy_score"].value for name, own in players.items()}
    assert score["greedy merge"] > 0 and score["corner"] > 0
    assert all(len(one.result.games) == 10 for own in players.values() for one in own)


def test_the_best_of_the_samples_is_measured_on_boards_that_it_was_not_picked_on(evaluate):
    samples = played(evaluate, BAD, WORST, GREEDY)
    best = evaluate.best_of(samples)
    assert [one.completion for one in best] == [GREEDY] * 2
    assert all(one.greedy and len(one.result.games) == 10 for one in best)


def test_an_evaluation_asks_the_model_in_the_held_out_wording_and_is_the_same_again(
    evaluate, params, tmp_path
):
    policy = load_policy(params.model, max_seq_length=2048)
    done = []
    first = evaluate(policy, progress=lambda count, total: done.append((count, total)))
    second = evaluate(policy)
    assert [one.completion for one in first] == [one.completion for one in second]
    assert done[-1] == (8, 8) and sum(one.greedy for one in first) == 2
    path = tmp_path / "results.json"
    save_strategies(path, params, {"before": first + played(evaluate, GREEDY), "after": []})
    saved = json.loads(path.read_text())
    record = saved["completions"]["before"][-1]
    seed, ending, largest, moves = record["games"][0]
    board = replay(BoardKind.parse(record["board"]), seed, moves)
    assert (board.state, board.largest) == (ending, largest)
    assert saved["figures"].keys() == {"before"} and saved["comparison"] == []
    assert len(record["board_scores"]) == len(record["games"])

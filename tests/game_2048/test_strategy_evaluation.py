"""Held-out play: measures, intervals, other players."""

import json
from pathlib import Path

import numpy as np
import pytest
from metric_table import METRICS
from replaying import replay

from rlnb.game_2048.board import BoardKind
from rlnb.game_2048.display import show_players
from rlnb.game_2048.evaluation import (
    JudgedCompletion,
    StrategyEvaluation,
    collect_figures,
    measure_strategies,
    score_boards,
    strategy_heldout_metrics,
)
from rlnb.game_2048.params import SECRET_FILE, GptOss2048Params
from rlnb.game_2048.prompts import fence_strategy
from rlnb.params import load_params
from rlnb.policy import Completion, load_policy
from rlnb.results import compare_boards, save_results
from rlnb.statistics import bootstrap_two_way

SMALL = BoardKind(3, 64)
GREEDY = fence_strategy("    return max(legal_moves(board), key=lambda key: merged(board, key))")
WORST = fence_strategy("    return min(legal_moves(board), key=lambda key: merged(board, key))")
BAD = fence_strategy("    return None")
SECRET = "5e" * 32


def make_params(run: Path) -> GptOss2048Params:
    overrides = {"output_dir": str(run), "evaluation": {"num_samples": 3}}
    overrides["model"] = {"engine": "transformers", "dtype": "float32"}
    return load_params("gpt_oss_2048", profile="tiny", overrides=overrides, environ={})


@pytest.fixture(scope="module", autouse=True)
def few_boards():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlnb.game_2048.evaluation.NUM_BOARDS", 6)
        patch.setattr("rlnb.game_2048.evaluation.NUM_GREEDY_BOARDS", 10)
        yield


def judge(evaluate: StrategyEvaluation, *completions: str, greedy=False) -> list[JudgedCompletion]:
    written = [Completion(text, text == BAD) for text in completions]
    return [judged for kind in evaluate.kinds for judged in evaluate.judge(written, "", kind, greedy=greedy)]


@pytest.fixture(scope="module")
def evaluate(tmp_path_factory, sandbox):
    """An evaluation whose boards are the same whenever these tests run."""
    run = tmp_path_factory.mktemp("run")
    (run / SECRET_FILE).write_text(SECRET)
    return StrategyEvaluation.from_params(make_params(run), sandbox)


def test_the_intervals_resample_boards_as_well_as_completions():
    generator = np.random.default_rng(0)
    boards = generator.normal(0.02, 0.1, size=12)
    few, many = (bootstrap_two_way([np.tile(boards, (count, 1))]) for count in (1, 48))
    assert few.value == pytest.approx(many.value) == pytest.approx(boards.mean())
    assert many.high - many.low == pytest.approx(few.high - few.low, rel=0.1)  # copies are one sample
    shifted = bootstrap_two_way([boards[None] + 0.5], [boards[None]])  # a difference on the same boards
    assert (shifted.low, shifted.high) == (pytest.approx(0.5), pytest.approx(0.5))
    assert bootstrap_two_way([np.zeros((2, 3)), np.ones((5, 40))]).value == 0.5  # kinds weigh the same
    with pytest.raises(ValueError, match="at least"):
        bootstrap_two_way([np.zeros((0, 3))])


def test_skill_is_the_score_of_the_honest_completions(evaluate):
    mixed = judge(evaluate, GREEDY, BAD)
    measured, alone = measure_strategies(mixed), measure_strategies(judge(evaluate, GREEDY))
    assert measured["skill"].value == pytest.approx(alone["score"].value) and measured["skill"].value > 0
    assert measured["score"].value == pytest.approx((alone["score"].value - 1.1) / 2)


def test_before_and_after_are_compared_on_the_same_boards(evaluate):
    before, after = judge(evaluate, WORST, BAD), judge(evaluate, GREEDY)
    rows = {row.measure: row for row in compare_boards(score_boards(before), score_boards(after))}
    assert list(rows) == ["score", "skill"]
    assert rows["skill"].difference.low > 0 and rows["skill"].num_items == 12
    assert compare_boards(score_boards([]), score_boards(after)) == []
    # Skill is compared on the boards where some completion was honest both times.
    before = [c for c in before if c.kind == SMALL or c.completion == BAD]
    rows = {row.measure: row for row in compare_boards(score_boards(before), score_boards(after))}
    assert (rows["skill"].split, rows["score"].split) == ("3x3/64", "all boards")


def test_without_an_honest_completion_there_is_no_skill(evaluate):
    bad = judge(evaluate, BAD, "no code at all")
    metrics = strategy_heldout_metrics(bad)
    assert "heldout/strategy/skill" not in metrics and metrics.keys() <= METRICS
    assert [row.measure for row in compare_boards(score_boards(bad), score_boards(bad))] == ["score"]


def test_a_player_without_samples_has_no_shares_of_them(evaluate):
    alone = collect_figures(judge(evaluate, GREEDY, greedy=True))
    assert alone.keys() == {"greedy_score", "greedy_skill", "cut_share"}
    assert collect_figures(judge(evaluate, GREEDY))["win_share"] > 0


def test_other_players_rank_as_known(evaluate):
    players = evaluate.play_others()
    assert players.keys() == {"corner", "greedy merge"}
    for player in players.values():
        assert measure_strategies(player)["greedy_score"].value > 0
        assert all(len(judged.result.games) == 10 for judged in player)
    assert len(show_players(players).rows) == 3  # random keys are the third


def test_sampled_and_greedy_completions_play_other_boards(evaluate):
    greedy, sampled = (set(evaluate.board_seeds(SMALL, greedy=greedy)) for greedy in (True, False))
    assert (len(greedy), len(sampled)) == (10, 6) and not greedy & sampled


def test_an_evaluation_is_the_same_again_and_its_file_rebuilds_the_games(evaluate, tmp_path):
    params = evaluate.params
    policy = load_policy(params.model, max_seq_length=2048)
    progress = []
    first = evaluate(policy, progress=lambda done, total: progress.append((done, total)))
    assert [judged.completion for judged in first] == [judged.completion for judged in evaluate(policy)]
    assert progress[-1] == (8, 8) and sum(judged.greedy for judged in first) == 2
    path = tmp_path / "results.json"
    save_results(path, params=params, completions={"before": first + judge(evaluate, GREEDY)})
    saved = json.loads(path.read_text())
    record = saved["completions"]["before"][-1]
    game = record["result"]["games"][0]
    board = replay(BoardKind(**record["kind"]), game["seed"], game["moves"])
    assert (board.state, board.largest, board.score) == (game["ending"], game["largest"], game["score"])
    assert SECRET not in path.read_text()

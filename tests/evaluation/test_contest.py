"""Contenders meet the same opponents on the same seeds, and their difference is known game by game."""

import json

import numpy as np
import pytest
from ppo_run import params_of, parts_of
from pytest import approx

from rlnb.display.ppo import verdict
from rlnb.evaluation.arena import ArenaRow
from rlnb.evaluation.compare import Estimate
from rlnb.evaluation.contest import play_contest, save_contest
from rlnb.evaluation.many_games import able_opponents, as_trained, score_table, stage_scores
from rlnb.games.text_games import load_game
from rlnb.policy.adapters import AdapterValues


@pytest.fixture(scope="module")
def arenas(tmp_path_factory):
    found, _, _ = parts_of(params_of(tmp_path_factory.mktemp("models")))
    return found


@pytest.fixture(scope="module")
def contest(arenas):
    own = AdapterValues.of(arenas.arenas[0].actor.policy)
    other = AdapterValues({name: 0 * value for name, value in own.values.items()})  # uniform play
    contenders = {"first": own, "second": other}
    return play_contest(arenas, contenders, num_games=6, modes=("constrained", "free"))


def row(game="nim", opponent="random", seat=0, score=0.5, **other) -> ArenaRow:
    values = {"role": "", "acting": "constrained", "greedy": False, "weights": "average", "num_games": 10}
    values |= {"wins": 5, "draws": 0, "losses": 5, "mean_return": 0.0, "random_score": None, "ceiling": None}
    values |= {"invalid_share": 0.0, "distinct_share": 1.0}
    return ArenaRow(
        game=game, opponent=opponent, seat=seat, score=Estimate(score, 0.0, 1.0), **(values | other)
    )


def test_every_contender_plays_every_opponent_of_every_game_in_every_way(arenas, contest):
    matches = {
        (arena.game.name, opponent, acting, greedy)
        for arena in arenas.arenas
        for opponent in arena.params.evaluation.opponents
        for acting, greedy in (("constrained", False), ("constrained", True), ("free", False))
    }
    assert {("kuhn_poker", "nash"), ("nim", "mcts:2")} <= {match[:2] for match in matches}
    for rows in contest.rows.values():
        assert {(row.game, row.opponent, row.acting, row.greedy) for row in rows} == matches
        assert {row.num_games for row in rows} == {3}  # from each seat
    found = {(one.game, one.opponent, one.acting, one.greedy) for one in contest.differences}
    assert found == matches


def test_a_difference_is_that_of_the_scores(contest):
    for one in contest.differences:
        means = [
            np.mean(
                [
                    row.score.value
                    for row in rows
                    if (row.game, row.opponent, row.acting, row.greedy)
                    == (one.game, one.opponent, one.acting, one.greedy)
                ]
            )
            for rows in contest.rows.values()
        ]
        assert one.score.value == approx(means[0] - means[1])
        assert one.num_pairs == 3
        assert one.score.low <= one.score.value <= one.score.high


def test_a_contender_against_itself_makes_no_difference(arenas):
    own = AdapterValues.of(arenas.arenas[0].actor.policy)
    found = play_contest(arenas, {"a": own, "b": own}, num_games=4, modes=("constrained",))
    assert {one.score for one in found.differences} == {Estimate(0.0, 0.0, 0.0)}


def test_one_contender_has_no_difference_and_its_weights_are_put_back(arenas):
    policy = arenas.arenas[0].actor.policy
    before = AdapterValues.of(policy)
    other = AdapterValues({name: 0 * value for name, value in before.values.items()})
    assert play_contest(arenas, {"only": other}, num_games=2, modes=("constrained",)).differences == ()
    after = AdapterValues.of(policy)
    assert all(bool((after.values[name] == value).all()) for name, value in before.values.items())


def test_a_contest_is_kept_as_json(tmp_path, contest):
    path = tmp_path / "new" / "results.json"
    save_contest(path, params_of(tmp_path), contest)
    kept = json.loads(path.read_text())
    assert set(kept["rows"]) == {"first", "second"}
    assert len(kept["differences"]) == len(contest.differences)
    assert kept["differences"][0]["score"].keys() == {"value", "low", "high"}


def test_opponents_that_would_cheat_in_a_game_are_left_out_of_it():
    names = ("random", "mcts:10", "perfect", "nash", "runs/checkpoint-3")
    assert able_opponents(load_game("kuhn_poker"), names) == ("random", "nash", "runs/checkpoint-3")
    assert able_opponents(load_game("tic_tac_toe"), names) == names[:3] + names[4:]


def test_scores_of_both_seats_weigh_the_same_in_the_table():
    rows = [row(seat=0, score=0.8), row(seat=1, score=0.4, num_games=90), row("hex", "mcts:5", score=0.1)]
    games, opponents, table = score_table(rows)
    assert (games, opponents) == (["nim", "hex"], ["random", "mcts:5"])
    assert np.allclose(table, [[0.6, np.nan], [np.nan, 0.1]], equal_nan=True)


def test_a_stage_is_a_success_above_what_it_asks_for_by_the_games_of_its_own():
    rows = [row(score=0.8), row(seat=1, score=0.4), row("hex", "mcts:5", score=0.5), row("hex", score=0.0)]
    asked = {
        "easy": ([("nim", "random")], 0.5),
        "hard": ([("nim", "random"), ("hex", "mcts:5")], 0.55),
        "later": ([("go", "random")], 0.0),
        "half": ([("nim", "random"), ("go", "random")], 0.0),
    }
    easy, hard, later, half = stage_scores(rows, asked)
    assert (easy.score, easy.num_games, easy.is_success) == (approx(0.6), 20, True)
    assert (hard.score, hard.num_games, hard.is_success) == (approx(0.55), 30, False)  # not above
    assert np.isnan(later.score) and not later.is_success
    assert (half.score, half.missing, half.is_success) == (approx(0.6), ("go against random",), False)
    assert [verdict(one) for one in (easy, hard, later, half)] == [
        "success", "no success", "not measured", "none: go against random not measured",
    ]  # fmt: skip


def test_rows_as_trained_are_sampled_and_of_the_average():
    rows = [row(), row(greedy=True), row(weights="last"), row(acting="free")]
    assert as_trained(rows, "constrained") == rows[:1]
    assert as_trained(rows, "free") == rows[3:]

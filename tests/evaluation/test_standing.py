"""All that is measured of a policy at one time: who played how, what is exact, and the file it goes to."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from self_play_run import params_of, parts_of

from rlnb.evaluation.standing import save_standings, take_standing
from rlnb.metrics import describe
from rlnb.policy.adapters import AdapterValues, adapters_of


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def taken(cache_dir):
    """(params, arena, averaged weights, standing) of the tiny model at tic-tac-toe."""
    params = params_of(
        cache_dir,
        game={"name": "tic_tac_toe", "acting": "constrained", "max_new_tokens": 2},
        evaluation={"opponents": ["random", "perfect"], "modes": ["constrained", "free"]},
    )
    arena = parts_of(params)[0]
    average = AdapterValues({name: one.detach() * 2 for name, one in adapters_of(arena.actor.policy)})
    done = []
    standing = take_standing(arena, average, num_games=4, progress=lambda *now: done.append(now))
    assert done == [(1, 3), (2, 3), (3, 3)]
    return params, arena, average, standing


def test_every_way_to_play_meets_every_opponent_from_both_seats(taken):
    _, _, _, standing = taken
    ways = [
        ("constrained", False, "last"), ("constrained", False, "average"), ("free", False, "last"),
        ("constrained", True, "last"),
    ]  # fmt: skip
    assert [(row.acting, row.greedy, row.weights, row.opponent, row.seat) for row in standing.rows] == [
        (*way, opponent, seat) for way in ways for opponent in ("random", "perfect") for seat in (0, 1)
    ]
    assert all(row.num_games == 2 for row in standing.rows)


def test_metrics_are_those_of_the_way_in_which_the_policy_is_trained(taken):
    _, arena, _, standing = taken
    assert standing.metrics["arena/random/invalid_share"] == 0  # constrained; free answers hold no move
    assert [row.invalid_share for row in standing.rows if row.acting == "free"] == pytest.approx(
        [1.0] * 4, abs=0.2
    )
    assert [name for name in standing.metrics if describe(name) is None] == []
    for name, value in arena.exact().items():
        assert standing.metrics[f"exact/{name}"] == value


def test_exact_measures_are_of_the_last_and_of_the_averaged_weights(taken):
    _, arena, average, standing = taken
    assert set(standing.exact) == {"sampled", "greedy", "average, sampled", "average, greedy"}
    for way, prefix in [("", "exact/"), ("average, ", "exact/average/")]:
        sampled, greedy = standing.exact[f"{way}sampled"], standing.exact[f"{way}greedy"]
        assert sampled.nash_conv == standing.metrics[f"{prefix}nash_conv"]
        assert sampled.seats[0].loss == standing.metrics[f"{prefix}loss_first"]
        assert greedy.seats[1].loss == standing.metrics[f"{prefix}greedy_loss_second"]
    assert standing.exact["sampled"] != standing.exact["average, sampled"]
    with average.at_work(arena.actor.policy):
        assert arena.exact()["nash_conv"] == standing.exact["average, sampled"].nash_conv


def test_the_last_weights_are_back_afterwards(taken):
    _, arena, average, _ = taken
    for name, one in adapters_of(arena.actor.policy):
        assert torch.equal(average.values[name], one * 2)


def test_other_games_have_no_table_and_free_modes_no_greedy_rows(cache_dir):
    params = params_of(cache_dir, game={"acting": "free"}, evaluation={"modes": ["free"]})
    arena, learner, _ = parts_of(params)
    standing = take_standing(arena, learner.average, num_games=2)
    assert standing.exact == {}
    assert {(row.acting, row.greedy) for row in standing.rows} == {("free", False)}
    assert standing.metrics["exact/nash_conv"] == standing.metrics["exact/average/nash_conv"]


def test_standings_are_kept_as_json(taken, tmp_path):
    params, _, _, standing = taken
    save_standings(tmp_path / "results.json", params, {"before": standing, "after": standing})
    found = json.loads((tmp_path / "results.json").read_text())
    assert list(found) == ["params", "before", "after"]
    assert found["params"]["game"]["name"] == "tic_tac_toe"
    assert found["before"]["metrics"] == dict(standing.metrics)
    assert found["after"]["rows"] == json.loads(json.dumps([asdict(row) for row in standing.rows]))
    loss = found["before"]["exact"]["average, greedy"]["seats"][0]["loss"]
    assert loss == standing.exact["average, greedy"].seats[0].loss

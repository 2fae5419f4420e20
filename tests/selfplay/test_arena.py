"""The arena counts matches, measures small games exactly, and leaves the policy as it was."""

import itertools
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from metric_table import is_known
from pytest import approx
from self_play_run import make_run, params_of

import rlnb.selfplay.arena as arena_module
from rlnb.games.exact import nash_conv
from rlnb.games.text_games import load_game
from rlnb.policy.adapters import WeightSnapshot, trained_parameters
from rlnb.selfplay.arena import (
    Arena,
    describe_answers,
    exact_measures,
    is_exact,
    match_measures,
    match_metrics,
    play_at_random,
    score_random_play,
    select_matches,
    summarise_matches,
)
from rlnb.selfplay.display import draw_self_play
from rlnb.selfplay.rollouts import LEARNER, FinishedGame, Move, Trajectory, Turn
from rlnb.statistics import wilson_interval

TIC_TAC_TOE = load_game("tic_tac_toe", style="compact")


def played(seat: int, result: float, *, history=(0,), problems=(None,)) -> FinishedGame:
    """A game of the learner in a seat against random play, with its result in X's units."""
    players = (LEARNER, "random") if seat == 0 else ("random", LEARNER)
    turns = tuple(Turn((), (), (), (), None if problem else 0, (0,), 0, problem) for problem in problems)
    trajectory = Trajectory("tic_tac_toe", seat, TIC_TAC_TOE.roles[seat], turns, 0.0)
    moves = tuple(Move(0, action, "") for action in history)
    return FinishedGame("tic_tac_toe", players, 0, history, moves, (result, -result), (trajectory,))


@pytest.fixture(scope="module")
def arena(cache_dir) -> Arena:
    """Of the tiny model at tic-tac-toe, random weights, against random and perfect play."""
    return tiny_arena(cache_dir, evaluation={"opponents": ["random", "perfect"]})


def tiny_arena(cache_dir: Path, *, name: str = "tic_tac_toe", evaluation=None, **game) -> Arena:
    game = {"name": name, "acting": "constrained", "max_new_tokens": 2, **game}
    return make_run(params_of(cache_dir, game=game, evaluation=evaluation or {})).arena


def measured(arena: Arena) -> dict[str, float]:
    return exact_measures(TIC_TAC_TOE, partial(arena.probabilities, TIC_TAC_TOE))[0]


def scaled(arena: Arena, factor: float) -> WeightSnapshot:
    parameters = trained_parameters(arena.actor.policy)
    return WeightSnapshot({name: parameter.detach() * factor for name, parameter in parameters})


@pytest.fixture(scope="module")
def exact(arena) -> dict[str, float]:
    return measured(arena)


def test_a_row_counts_wins_draws_and_losses_of_a_seat():
    games = [
        played(0, 1.0, history=(1,)),
        played(1, 1.0, history=(1,)),
        played(0, 0.0, history=(2,), problems=(None, None, "illegal")),
        played(1, -1.0, history=(3,)),
        played(0, 1.0, history=(1,)),
        played(0, -1.0, history=(4,), problems=("cut",)),
    ]
    first, second = summarise_matches(games, TIC_TAC_TOE, weights="average")
    assert (first.game, first.opponent, first.seat, first.role) == ("tic_tac_toe", "random", 0, "X")
    assert first.weights == "average"
    assert (first.num_games, first.wins, first.draws, first.losses) == (4, 2, 1, 1)
    assert first.score.value == 0.625  # (1 + .5 + 1 + 0) / 4
    assert first.score == wilson_interval(0.625, 4)
    assert (first.invalid_share, first.cut_share) == (2 / 6, 1 / 6)
    assert first.distinct_share == 3 / 4
    assert (first.random_score, first.ceiling) == approx((0.64841, 0.99740), abs=1e-5)
    assert (second.seat, second.role, second.wins, second.draws, second.losses) == (1, "O", 1, 0, 1)
    assert (second.random_score, second.ceiling) == approx((0.35159, 0.96243), abs=1e-5)
    last = [replace(row, weights="last") for row in (first, second)]
    assert match_metrics(last) == {
        "arena/random/first_score": 0.625,
        "arena/random/second_score": 0.5,
        "arena/random/invalid_share": approx(1 / 6),
        "arena/random/cut_share": approx(1 / 12),
    }
    assert len(describe_answers([first, second])) == 1 and describe_answers([second]) == []


def test_sampled_games_agree_with_the_exact_figures(arena, exact):
    """400 games, seed of the run: random play by its interval, losses to perfect play by four deviations."""
    rows, again = (
        [
            match
            for game, opponents in arena.opponents
            for opponent in opponents
            for match in arena.play_match(game, opponent, num_games=400, weights="last")
        ]
        for _ in range(2)
    )
    assert rows == again
    assert [row.num_games for row in rows] == [200] * 4 and not any(row.invalid_share for row in rows)
    for seat, name in enumerate(("first", "second")):
        (against_random,) = select_matches(rows, opponent="random", seat=seat)
        score = against_random.score
        assert score.low < exact[f"random_score_{name}"] < score.high
        (against_perfect,) = select_matches(rows, opponent="perfect", seat=seat)
        assert against_perfect.wins == 0
        assert abs(against_perfect.losses / 200 - exact[f"loss_{name}"]) <= 4 * 0.5 / 200**0.5


@pytest.fixture(scope="module")
def evaluation(arena):
    """The evaluation of the arena's policy, with doubled weights as their average."""
    return arena.measure(scaled(arena, 2), num_games=4)


def test_last_and_averaged_weights_meet_every_opponent_from_both_seats(evaluation):
    assert [(row.weights, row.opponent, row.seat) for row in evaluation.rows] == [
        *itertools.product(("last", "average"), ("random", "perfect"), (0, 1))
    ]
    assert all(row.num_games == 2 for row in evaluation.rows)
    assert [name for name in evaluation.metrics if not is_known(name)] == []


def test_exact_measures_are_of_the_last_and_of_the_averaged_weights(arena, evaluation, exact):
    assert set(evaluation.exact) == {"sampled", "greedy", "average, sampled", "average, greedy"}
    for prefix, start in [("", "exact/"), ("average, ", "exact/average/")]:
        sampled, greedy = evaluation.exact[f"{prefix}sampled"], evaluation.exact[f"{prefix}greedy"]
        assert sampled.nash_conv == evaluation.metrics[f"{start}nash_conv"]
        assert sampled.seats[0].loss == evaluation.metrics[f"{start}loss_first"]
        assert greedy.seats[1].loss == evaluation.metrics[f"{start}greedy_loss_second"]
    assert evaluation.exact["sampled"].nash_conv == exact["nash_conv"]
    with scaled(arena, 2).applied_to(arena.actor.policy):
        assert measured(arena)["nash_conv"] == evaluation.exact["average, sampled"].nash_conv
    assert measured(arena) == exact  # the last weights are back


@pytest.mark.parametrize("acting", ["constrained", "free"])
def test_poker_is_measured_exactly_where_answers_are_constrained(cache_dir, acting):
    """The policy of free answers is not that of the first token, and is judged by its games."""
    evaluation = {"opponents": ["random", "nash"]}
    arena = tiny_arena(cache_dir, name="kuhn_poker", acting=acting, evaluation=evaluation)
    (game, _), *_ = arena.opponents
    metrics = arena.measure(scaled(arena, 1.5), num_games=2).metrics
    if acting == "free":
        assert metrics and not any(name.startswith("exact/") for name in metrics)
        figure = draw_self_play([{"step": 1, **metrics}], max_steps=1)
        (scores,) = [
            axes for axes in figure.axes if axes.get_title().startswith("Averaged weights in the arena")
        ]
        drawn = sorted(
            float(line.get_ydata()[0]) for line in scores.get_lines() if line.get_label()[0] != "_"
        )
        wanted = sorted(metrics[name] for name in metrics if re.search("average_(first|second)_score", name))
        assert drawn == wanted and len(drawn) == 4
    else:
        exact = nash_conv(game.game, partial(arena.probabilities, game))
        assert metrics["exact/nash_conv"] == exact != metrics["exact/average/nash_conv"]


def test_before_a_training_the_average_is_the_policy_and_is_not_played_again(cache_dir, monkeypatch):
    arena = tiny_arena(cache_dir, evaluation={"opponents": ["random", "perfect"]})
    played = Mock(wraps=arena_module.play_games)
    monkeypatch.setattr(arena_module, "play_games", played)
    before, twice = arena.measure(WeightSnapshot.take(arena.policy), num_games=2), played.call_count * 2
    other = arena.measure(scaled(arena, 1.5), num_games=2)
    assert played.call_count == twice + twice // 2 == 6
    rows = [[row for row in before.rows if row.weights == weights] for weights in ("last", "average")]
    assert [replace(row, weights="average") for row in rows[0]] == rows[1]
    assert (before.metrics.keys(), before.exact.keys()) == (other.metrics.keys(), other.exact.keys())
    assert all(before.exact[way] == before.exact[f"average, {way}"] for way in ("sampled", "greedy"))


def test_games_without_exact_measures_have_none(cache_dir):
    assert not is_exact(load_game("connect_four"))
    assert not is_exact(load_game("leduc_poker(suit_isomorphism=True)"))
    arena = tiny_arena(cache_dir, evaluation={"exact": False})
    assert arena.measure_exactly(scaled(arena, 1)) == ({}, {})


def test_a_pair_of_games_on_one_seed_is_one_item():
    games = [played(0, 1.0), played(1, 1.0), played(0, 0.0), played(1, 1.0)]  # X wins, X wins, draw, X wins
    rows = summarise_matches(games, TIC_TAC_TOE, weights="average")
    assert match_measures(rows) == {
        "score, average weights": {"tic_tac_toe against random": {"pair 0": 0.5, "pair 1": 0.25}}
    }


def test_against_mcts_the_same_games_are_played_each_time_and_a_strong_one_is_taken_for_25():
    game = load_game("tic_tac_toe")
    weak, strong, stronger = (score_random_play(game, f"mcts:{count}") for count in (2, 25, 1000))
    play_at_random.cache_clear()
    assert score_random_play(game, "mcts:2") == weak
    assert strong == stronger
    assert sum(strong) / 2 < 0.2 < 0.4 < sum(weak) / 2 < 0.6  # 20,000 games: 0.097 and 0.501


def test_long_games_are_played_less_often():
    """Ten from each seat: the scores are multiples of 0.05."""
    shares = [20 * score for score in score_random_play(load_game("othello"), "mcts:3")]
    assert shares == approx([round(share) for share in shares])

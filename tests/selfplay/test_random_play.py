"""Random play's scores against opponents: exact, counted beforehand, or played; each recomputed here."""

import pytest
from pytest import approx

from rlnb.games.opponents import equilibrium
from rlnb.games.text_games import load_game
from rlnb.selfplay.random_play import (
    AGAINST_MCTS,
    AGAINST_NASH,
    RandomPlay,
    count_random_play,
    play_at_random,
    score_random_play,
)
from rlnb.selfplay.rollouts import LEARNER

CHEAP = [("tic_tac_toe", 2), ("tic_tac_toe", 10), ("nim", 25)]


def played_scores(name: str, opponent: str, num_games: int, seed: int = 1) -> list[float]:
    games = play_at_random(load_game(name), opponent, num_games, seed=seed)
    return [
        sum(game.score(seat) for game in games if game.players[seat] == LEARNER) / (num_games / 2)
        for seat in (0, 1)
    ]


@pytest.mark.parametrize(
    "name", ["kuhn_poker", "leduc_poker", pytest.param("liars_dice", marks=pytest.mark.slow)]
)
def test_the_scores_against_an_equilibrium_are_sums_over_the_whole_game(name):
    game = load_game(name)
    table = equilibrium(str(game.game))
    sums = []
    for seat in (0, 1):
        total, to_visit = 0.0, [(game.new_state(), 1.0)]
        while to_visit:
            state, reach = to_visit.pop()
            if state.is_terminal():
                total += reach * (1 + (state.returns()[seat] > 0) - (state.returns()[seat] < 0)) / 2
                continue
            if state.is_chance_node():
                shares = state.chance_outcomes()
            elif state.current_player() == seat:
                actions = state.legal_actions()
                shares = [(action, 1 / len(actions)) for action in actions]
            else:
                shares = table.get_state_policy(state.information_state_string())
            to_visit += [(state.child(action), reach * share) for action, share in shares if share > 0]
        sums.append(total)
    assert AGAINST_NASH[name].seats == approx(sums, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "num_simulations"),
    [*CHEAP, *(pytest.param(*key, marks=pytest.mark.slow) for key in AGAINST_MCTS if key not in CHEAP)],
)
def test_the_scores_against_mcts_are_those_of_other_games(name, num_simulations):
    """Games of another seed; four standard deviations of both counts together."""
    num_games = 60 if name == "othello" else 1000
    known = AGAINST_MCTS[name, num_simulations]
    scores = played_scores(name, f"mcts:{num_simulations}", num_games)
    for score, expected in zip(scores, known.seats, strict=True):
        variance = expected * (1 - expected) * (2 / num_games + 2 / known.num_games)
        assert score == approx(expected, abs=4 * variance**0.5)


def test_the_scores_against_perfect_play_are_those_of_2_000_games():
    exact = score_random_play(load_game("tic_tac_toe"), "perfect")
    assert exact.num_games == 0
    assert played_scores("tic_tac_toe", "perfect", 2000) == approx(exact.seats, abs=4 * 0.5 / 1000**0.5)


@pytest.mark.parametrize("name", ["tic_tac_toe", "kuhn_poker", "breakthrough(rows=5,columns=5)"])
def test_random_play_has_a_half_against_itself(name):
    score = score_random_play(load_game(name), "random")
    assert (score.mean, score.num_games) == (approx(0.5, abs=1e-2), 0)
    assert (score.seats is None) == name.startswith("breakthrough")


def test_a_stronger_mcts_is_taken_for_one_that_can_be_counted():
    game = load_game("tic_tac_toe")
    counted = AGAINST_MCTS["tic_tac_toe", 25]
    assert [score_random_play(game, name) for name in ("mcts:25", "mcts:26", "mcts:1000")] == [counted] * 3


def test_what_no_table_has_is_played_with_the_same_games_each_time():
    game = load_game("tic_tac_toe")
    first = score_random_play(game, "mcts:4")
    count_random_play.cache_clear()
    assert score_random_play(game, "mcts:4") == first
    assert first.num_games == 2000
    assert RandomPlay((0.2332, 0.0652)).mean < first.mean < RandomPlay((0.6472, 0.3545)).mean


def test_random_openings_are_counted_since_no_table_has_them():
    """Perfect play may inherit a mistake, and random play gains by it."""
    game = load_game("tic_tac_toe")
    opened = score_random_play(game, "perfect", max_opening_plies=2)
    assert opened.num_games == 2000
    assert opened.mean > score_random_play(game, "perfect").mean + 0.02


def test_long_games_are_counted_in_fewer_games():
    game = load_game("othello")
    assert count_random_play(game.name, "mcts:3", 3, 0).num_games < 400

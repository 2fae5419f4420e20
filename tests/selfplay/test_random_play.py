"""Random play's scores against opponents: exact, or played; the exact ones are recomputed here."""

import pytest
from pytest import approx

from rlnb.games.opponents import equilibrium
from rlnb.games.text_games import load_game
from rlnb.ppo.curriculum import Pairing, score_of_random_play
from rlnb.selfplay.random_play import AGAINST_NASH, NUM_GAMES, play_at_random, score_random_play


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
    assert AGAINST_NASH[name] == approx(sums, abs=1e-5)


def test_the_scores_against_perfect_play_are_those_of_played_games():
    exact = score_random_play(load_game("tic_tac_toe"), "perfect")
    played = play_at_random("tic_tac_toe", "perfect")
    assert played != exact
    assert played == approx(exact, abs=4 * 0.5 / (NUM_GAMES / 2) ** 0.5)


@pytest.mark.parametrize("name", ["tic_tac_toe", "kuhn_poker", "breakthrough(rows=5,columns=5)"])
def test_random_play_has_a_half_against_itself(name):
    assert score_of_random_play([Pairing(load_game(name), "random")]) == approx(0.5, abs=1e-2)


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

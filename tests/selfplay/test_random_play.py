"""Random play's scores against opponents, where they are played."""

from pytest import approx

from rlnb.games.text_games import load_game
from rlnb.selfplay.arena import play_at_random, score_random_play


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

"""Games are played to their end by the rules, in lockstep, and what is recorded of them is what happened."""

from collections import Counter

import pytest
from pytest import approx
from scripted_play import X_WINS, Scripted, any_legal, line, one_game, spiral_reward

from rlnb.games.opponents import load_opponent
from rlnb.games.text_games import load_game
from rlnb.selfplay.rollouts import GameRules, paired_episodes, play_games, self_play_episodes

TICTACTOE = load_game("tic_tac_toe")
KUHN = load_game("kuhn_poker")


def rewards(played) -> list[list[float]]:
    return [[turn.reward for turn in trajectory.turns] for trajectory in played.trajectories]


def test_a_game_is_played_to_its_end_and_its_result_comes_with_the_last_turns():
    played = one_game(line(X_WINS))
    assert played.history == X_WINS
    assert (played.returns, played.winner, played.forfeit) == ((1.0, -1.0), 0, None)
    assert rewards(played) == [[0, 0, 0, 1], [0, 0, -1]]
    assert [trajectory.reward for trajectory in played.trajectories] == [1.0, -1.0]
    assert [(trajectory.seat, trajectory.role) for trajectory in played.trajectories] == [(0, "X"), (1, "O")]
    assert [turn.ply for turn in played.trajectories[1].turns] == [1, 3, 5]
    assert [played.score(seat) for seat in (0, 1)] == [1.0, 0.0]


@pytest.mark.parametrize(
    "spoken, num_moves, expected",
    [
        ({2: ["\\boxed{0}"]}, 2, [[0, -1.5], [0.5]]),  # illegal
        ({0: ["I do not know"]}, 0, [[-1.5]]),  # the other seat had no turn
    ],
)
def test_an_answer_without_a_legal_move_is_paid_for_and_forfeits(spoken, num_moves, expected):
    played = one_game(line(X_WINS, spoken=spoken))
    assert (played.history, played.forfeit) == (X_WINS[:num_moves], 0)
    assert played.returns == (-1.0, 1.0)
    assert rewards(played) == expected


def test_a_forfeit_loses_the_most_that_can_be_lost():
    assert one_game(Scripted(lambda request: "nothing"), name="kuhn_poker").returns == (-2.0, 2.0)


def test_in_the_place_of_an_invalid_answer_a_random_move_is_made():
    says = Scripted(lambda request: "?" if request.ply % 2 else any_legal(request))
    games = play_games(
        self_play_episodes(TICTACTOE, 30, seed=2),
        {"policy": says},
        rules=GameRules(reward=spiral_reward, invalid="random"),
    )
    for game in games:
        assert game.forfeit is None
        first, second = game.trajectories
        assert [turn.reward for turn in second.turns[:-1]] == [-1.5] * (len(second.turns) - 1)
        assert second.reward == approx(-1.5 * len(second.turns) + game.returns[1])
        assert first.reward == game.returns[0]
        assert all(turn.action is None for turn in second.turns)
    assert len({game.history for game in games}) > 20


@pytest.mark.parametrize("num_parallel", [1, 3, 100])
def test_finished_games_are_replaced_and_never_more_are_played_at_once(num_parallel):
    player = Scripted(any_legal)
    episodes = self_play_episodes(TICTACTOE, 20, seed=4, max_opening_plies=3)
    games = play_games(episodes, {"policy": player}, num_parallel=num_parallel)
    assert max(player.num_requests) == min(num_parallel, 20)
    assert [game.seed for game in games] == [episode.seed for episode in episodes]
    if num_parallel == 3:  # while games wait, no table stays empty
        assert set(player.num_requests[:25]) == {3}
    alone = [play_games([episode], {"policy": Scripted(any_legal)})[0] for episode in episodes]
    assert [game.history for game in games] == [game.history for game in alone]


def test_seats_alternate_and_each_seed_is_played_from_both():
    episodes = paired_episodes(KUHN, "random", 6, seed=5)
    assert [episode.players for episode in episodes] == [("policy", "random"), ("random", "policy")] * 3
    assert [episode.seed for episode in episodes[::2]] == [episode.seed for episode in episodes[1::2]]
    assert [episode.opening_seed for episode in episodes[::2]] == [
        episode.opening_seed for episode in episodes[1::2]
    ]
    assert len({episode.seed for episode in episodes}) == 3
    games = play_games(episodes, {"policy": Scripted(any_legal), "random": load_opponent("random", KUHN)})
    for first, second in zip(games[::2], games[1::2], strict=True):
        assert first.history[:2] == second.history[:2]  # the deal


def openings(games):
    return [tuple(move.action for move in game.moves if move.is_random) for game in games]


def test_openings_are_random_as_long_as_allowed_and_the_same_by_the_same_seed():
    episodes = self_play_episodes(TICTACTOE, 400, seed=7, max_opening_plies=4)
    first, again = (play_games(episodes, {"policy": Scripted(any_legal)}) for _ in range(2))
    assert openings(first) == openings(again)
    lengths = Counter(map(len, openings(first)))
    assert sorted(lengths) == [0, 1, 2, 3, 4]
    assert all(50 < count < 110 for count in lengths.values()), lengths  # 80 each, give or take 8
    assert len({opening[0] for opening in openings(first) if opening}) == 9


@pytest.mark.parametrize(("name", "longest"), [("tic_tac_toe", 7), ("markov_soccer(horizon=2)", 0)])
def test_no_opening_ends_a_game(name, longest):
    """Neither by a win nor by chance: that soccer is over behind the draw of who moves first."""
    episodes = self_play_episodes(load_game(name), 200, seed=9, max_opening_plies=9)
    games = play_games(episodes, {"policy": Scripted(any_legal)})
    assert all(any(each.turns for each in played.trajectories) for played in games)
    assert max(map(len, openings(games))) >= longest


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_share_of_the_moves_is_drawn_at_random_and_is_no_turn(share):
    episodes = self_play_episodes(TICTACTOE, 400, seed=11, random_move_share=share)
    games, again = (play_games(episodes, {"policy": Scripted(any_legal)}) for _ in range(2))
    assert [game.history for game in games] == [game.history for game in again]
    for game in games:
        turns = {turn.ply: turn.action for trajectory in game.trajectories for turn in trajectory.turns}
        assert turns == {ply: move.action for ply, move in enumerate(game.moves) if not move.is_random}
        assert tuple(move.action for move in game.moves) == game.history
    moves = [move for game in games for move in game.moves]
    assert sum(move.is_random for move in moves) / len(moves) == approx(share, abs=0.03)  # 0.008 by chance
    assert {game.winner for game in games} == {None, 0, 1}


@pytest.mark.parametrize("game", [TICTACTOE, KUHN])
def test_games_of_a_group_share_their_opening_and_differ_behind_it(game):
    episodes = self_play_episodes(game, 120, seed=10, max_opening_plies=2, games_per_opening=4)
    games = play_games(episodes, {"policy": Scripted(any_legal)})
    assert [played.trajectories[0].group for played in games] == [index // 4 for index in range(120)]
    starts = [
        (opening, tuple(played.history[:2]) if game is KUHN else ())
        for played, opening in zip(games, openings(games), strict=True)
    ]
    assert all(len(set(starts[k : k + 4])) == 1 for k in range(0, 120, 4))
    assert len(set(starts)) > 5
    histories = [len({played.history for played in games[k : k + 4]}) for k in range(0, 120, 4)]
    assert sum(count > 1 for count in histories) > 15

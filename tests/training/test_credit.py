"""From played games to the credit of each turn, worked by hand on games that were really played."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from pytest import approx
from scripted_play import X_WINS, Scripted, any_legal, line

from rlnb.advantages import gae
from rlnb.games.text_games import load_game
from rlnb.rollouts import Rules, play_games, self_play
from rlnb.training.credit import Credit, credit
from rlnb.trajectories import PlayedGame, last_turns, turns_of

TICTACTOE = load_game("tic_tac_toe")
X_PLIES, O_PLIES = (0, 2, 4, 6), (1, 3, 5)


def settings(kind: str, **changes: object) -> SimpleNamespace:
    usual = {"kind": kind, "decay": 0.9, "gamma": 1.0, "lam": 0.9, "scale_groups": False}
    return SimpleNamespace(**{**usual, **changes})


def game(*, spoken=None, **rules) -> PlayedGame:
    """X wins with its fourth move, unless something else is said."""
    episodes = self_play(TICTACTOE, 1, seed=0)
    return play_games(episodes, {"policy": line(X_WINS, spoken=spoken)}, rules=Rules(**rules))[0]


def mirrored() -> PlayedGame:
    """O wins after six moves: X 0, O 3, X 1, O 4, X 8, O 5."""
    return play_games(self_play(TICTACTOE, 1, seed=0), {"policy": line((0, 3, 1, 4, 8, 5))})[0]


def valued(played: PlayedGame, values: dict[int, float]) -> PlayedGame:
    """With the values that a critic gave, by ply."""
    return replace(
        played,
        trajectories=tuple(
            replace(one, turns=tuple(replace(turn, value=values.get(turn.ply, 0.0)) for turn in one.turns))
            for one in played.trajectories
        ),
    )


def test_without_a_baseline_every_turn_has_its_games_return():
    found = credit([game()], {"tic_tac_toe/X": 5.0}, settings("none"))
    assert found.advantages.tolist() == [1, 1, 1, 1, -1, -1, -1]
    assert found.targets.tolist() == found.advantages.tolist()
    assert found.baselines == {"tic_tac_toe/X": 5.0}


def test_earlier_turns_are_discounted_once_for_each_own_turn_left():
    found = credit([game()], {}, settings("none", gamma=0.5))
    assert found.advantages.tolist() == [0.125, 0.25, 0.5, 1, -0.25, -0.5, -1]


def test_a_game_that_was_cut_off_goes_on_with_the_value_of_its_rest():
    cut = game(max_turns=2)
    cut = replace(
        cut,
        trajectories=tuple(
            replace(one, bootstrap=rest) for one, rest in zip(cut.trajectories, (0.5, -0.5), strict=True)
        ),
    )
    found = credit([valued(cut, {0: 0.1, 2: 0.3})], {}, settings("gae", lam=0.0))
    assert found.advantages.tolist() == approx([0.3 - 0.1, 0.5 - 0.3, 0.0, -0.5])
    assert found.targets.tolist() == approx([0.3, 0.5, 0.0, -0.5])


def test_role_baselines_over_two_batches():
    first = credit([game()], {}, settings("rae"))
    assert first.advantages.tolist() == [1, 1, 1, 1, -1, -1, -1]  # read before they move
    assert first.baselines == approx({"tic_tac_toe/X": 0.1, "tic_tac_toe/O": -0.1})
    second = credit([game(), game(), mirrored()], first.baselines, settings("rae"))
    won = [0.9] * 4 + [-0.9] * 3  # 1-.1 and -1+.1
    assert second.advantages.tolist() == approx(won + won + [-1.1] * 3 + [1.1] * 3)
    moved = 0.9**3 * 0.1 + (1 - 0.9**3) / 3  # three trajectories of mean (1 + 1 - 1) / 3
    assert second.baselines == approx({"tic_tac_toe/X": moved, "tic_tac_toe/O": -moved})
    assert second.targets.tolist() == [1] * 4 + [-1] * 3 + [1] * 4 + [-1] * 3 + [-1] * 3 + [1] * 3


def test_each_game_has_baselines_of_its_own():
    kuhn = play_games(self_play(load_game("kuhn_poker"), 1, seed=0), {"policy": Scripted(any_legal)})
    before = {"tic_tac_toe/X": 0.5, "nim/first player": 0.25}
    found = credit([game(), *kuhn], before, settings("rae"))
    first, second = (one.reward for one in kuhn[0].trajectories)
    assert found.baselines == approx(
        {
            "tic_tac_toe/X": 0.9 * 0.5 + 0.1,
            "tic_tac_toe/O": -0.1,
            "nim/first player": 0.25,
            "kuhn_poker/first player": 0.1 * first,
            "kuhn_poker/second player": 0.1 * second,
        }
    )
    assert before == {"tic_tac_toe/X": 0.5, "nim/first player": 0.25}


def test_leave_one_out_looks_at_the_other_games_of_the_role():
    found = credit([game(), game(), mirrored()], {}, settings("leave_one_out"))
    # X: 1, 1, -1. 1 - 0, 1 - 0, -1 - 1; O the other way round.
    assert found.advantages.tolist() == [1] * 4 + [-1] * 3 + [1] * 4 + [-1] * 3 + [-2] * 3 + [2] * 3


def test_a_group_is_one_role_in_the_games_of_one_opening():
    def numbered(played: PlayedGame, group: int) -> PlayedGame:
        return replace(played, trajectories=tuple(replace(one, group=group) for one in played.trajectories))

    games = [numbered(game(), 0), numbered(mirrored(), 0), numbered(game(), 1), numbered(game(), 1)]
    found = credit(games, {}, settings("group"))
    tied = [0.0] * 14
    assert found.advantages.tolist() == [1] * 4 + [-1] * 3 + [-1] * 3 + [1] * 3 + tied


def test_estimates_over_own_turns_are_those_of_each_trajectory():
    played = valued(game(), {0: 0.1, 1: -0.2, 2: 0.3, 3: 0.1, 4: 0.6, 5: -0.5, 6: 0.9})
    found = credit([played], {"tic_tac_toe/X": 3.0}, settings("gae", gamma=0.9, lam=0.5))
    expected = []
    for one in played.trajectories:
        values = [turn.value for turn in one.turns]
        rewards = [0.0] * (len(values) - 1) + [one.reward]
        ends = [False] * (len(values) - 1) + [True]
        expected += gae(rewards, values, ends, gamma=0.9, lam=0.5).tolist()
    assert found.advantages.tolist() == expected
    values = [turn.value for turn in turns_of(played.trajectories)]
    assert found.targets.tolist() == approx((found.advantages + np.array(values)).tolist())
    assert found.baselines == {"tic_tac_toe/X": 3.0}


def test_from_ply_to_ply_the_result_counts_once_and_for_all_turns_of_both_seats():
    found = credit([game(), mirrored()], {}, settings("gae_plies", lam=1.0))
    assert found.advantages.tolist() == [1] * 4 + [-1] * 3 + [-1] * 3 + [1] * 3
    alone = credit([game()], {}, settings("gae_plies", lam=0.0))
    assert alone.advantages.tolist() == [0, 0, 0, 1, 0, 0, 0]  # the move that won


def test_from_ply_to_ply_the_next_movers_value_counts_against_who_moved():
    played = valued(game(), {0: 0.1, 1: -0.2, 2: 0.3, 3: 0.1, 4: 0.6, 5: -0.5, 6: 0.9})
    found = credit([played], {}, settings("gae_plies", lam=0.0))
    # X: .2-.1, -.1-.3, .5-.6, 1-.9; O: -.3+.2, -.6-.1, -.9+.5
    assert found.advantages.tolist() == approx([0.1, -0.4, -0.1, 0.1, -0.1, -0.7, -0.4])
    assert found.targets.tolist() == approx([0.2, -0.1, 0.5, 1.0, -0.3, -0.6, -0.9])


@pytest.mark.parametrize("kind", ["gae", "gae_plies"])
def test_an_invalid_answer_on_the_way_is_paid_for_where_it_was_given(kind):
    played = game(spoken={2: ["?"], 3: ["\\boxed{0}"]}, invalid="retry")
    found = credit([played], {}, settings(kind, lam=0.0))
    first, second = played.trajectories
    assert [turn.reward for turn in first.turns] == [0, -1.5, 0, 0, 1]
    o_last = -1.0 if kind == "gae" else 0.0
    assert found.advantages.tolist() == [0, -1.5, 0, 0, 1, 0, -1.5, 0, o_last]
    assert len(second.turns) == 4


def test_a_forfeit_is_paid_for_by_who_gave_no_legal_move():
    played = game(spoken={2: ["?"]})
    plain = credit([played], {}, settings("none"))
    assert plain.advantages.tolist() == [-1.5, -1.5, 0.5]
    plies = credit([played], {}, settings("gae_plies", lam=0.0))
    assert plies.advantages.tolist() == [0, -1.5, 0]


@pytest.mark.parametrize("kind", ["none", "rae", "leave_one_out", "group", "gae", "gae_plies"])
def test_credit_is_in_the_order_of_the_turns_and_nothing_is_no_credit(kind):
    nothing = credit([], {"tic_tac_toe/X": 0.5}, settings(kind))
    assert isinstance(nothing, Credit)
    assert (nothing.advantages.tolist(), nothing.targets.tolist()) == ([], [])
    assert nothing.baselines == {"tic_tac_toe/X": 0.5}
    games = [game(), mirrored()]
    found = credit(games, {}, settings(kind, gamma=1.0, lam=1.0))
    trajectories = [one for played in games for one in played.trajectories]
    signs = np.repeat([1, -1, -1, 1], [len(one.turns) for one in trajectories])
    assert len(found.advantages) == len(turns_of(trajectories)) == len(last_turns(trajectories))
    assert (np.sign(found.advantages) == signs).all()

"""The parameters of self-play: the paper's settings, what profiles change, what is refused at once."""

import pytest
from self_play_run import notebook_reward
from shipped_profiles import profiles_of

from rlnb.params import load_params
from rlnb.spiral.params import SpiralSelfPlayParams


def load(profile="default", **sections) -> SpiralSelfPlayParams:
    params = load_params("spiral_self_play", profile=profile, overrides=sections, environ={})
    assert isinstance(params, SpiralSelfPlayParams)
    return params


def test_the_rewards_of_the_notebooks_cell_are_the_papers():
    reward = notebook_reward(load(game={"reward_scale": 2.0}))
    events = ("end", "invalid", "forfeit", "opponent_forfeit")
    assert [reward(event, 1.0) for event in events] == [0.5, -1.5, 0.0, 0.5]


@pytest.mark.parametrize("profile", profiles_of("spiral_self_play"))
def test_the_opponents_of_a_profile_can_play_its_game(profile):
    params = load(profile)
    assert params.load_game().name == params.game.name


def test_sums_over_tokens_are_divided_by_the_longest_answer():
    assert load(game={"max_new_tokens": 77}).loss_tokens == 77
    assert load(game={"acting": "constrained", "max_new_tokens": 77}).loss_tokens == 1


def test_advantages_of_groups_have_eight_games_of_an_opening():
    assert load().games_per_opening == 1
    assert load(advantage={"kind": "group"}).games_per_opening == 8

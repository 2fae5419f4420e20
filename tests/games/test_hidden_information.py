"""A prompt holds what its player knows: no less, and nothing hidden."""

import random

import pyspiel
import pytest

from rlnb.games.text_games import TextGame, load_game, states_in_play


def all_states(state: pyspiel.State):
    """Every state below this one in which a player moves."""
    if state.is_terminal():
        return
    if not state.is_chance_node():
        yield state
    for action in state.legal_actions():
        yield from all_states(state.child(action))


def assert_prompts_are_information_states(game: TextGame, states) -> int:
    """Check that prompts and information states map one to one, and return how many there are."""
    prompts: dict[tuple[int, str], str] = {}
    known: dict[str, tuple[int, str]] = {}
    for state in states:
        player = state.current_player()
        information = (player, state.information_state_string(player))
        prompt = game.prompt(state)
        assert prompts.setdefault(information, prompt) == prompt, f"two prompts for {information}"
        assert known.setdefault(prompt, information) == information, f"one prompt for two states: {prompt}"
    return len(prompts)


@pytest.mark.parametrize("style", ["full", "compact"])
@pytest.mark.parametrize(
    ("name", "num_information_states"),
    [
        ("kuhn_poker", 12),
        ("leduc_poker", 936),
        ("goofspiel(imp_info=True,num_cards=3)", None),
        ("liars_dice(dice_sides=2)", None),
    ],
)
def test_every_information_state_has_one_prompt_and_every_prompt_one_information_state(
    name, num_information_states, style
):
    game = load_game(name, style=style)
    num_prompts = assert_prompts_are_information_states(game, all_states(game.new_state()))
    assert num_prompts == (num_information_states or num_prompts)
    assert num_prompts >= 12


SAMPLED = ("liars_dice", "liars_dice(numdice=2)", "phantom_ttt", "universal_poker")


@pytest.mark.parametrize("style", ["full", "compact"])
@pytest.mark.parametrize("name", SAMPLED)
def test_states_that_a_player_cannot_tell_apart_have_one_prompt(name, style):
    game = load_game(name, style=style)
    assert assert_prompts_are_information_states(game, states_in_play(game, 1500, rng=random.Random(0))) > 50


@pytest.mark.parametrize("style", ["full", "compact"])
@pytest.mark.parametrize(
    "name", ["goofspiel", "goofspiel(imp_info=True,num_cards=4)", "oshi_zumo", "markov_soccer"]
)
def test_a_bid_that_waits_for_the_other_does_not_show(name, style):
    game = load_game(name, style=style)
    assert game.has_hidden_information
    rng, state = random.Random(1), game.new_state()
    num_pending = 0
    while not state.is_terminal() and num_pending < 20:
        if state.is_chance_node() or state.current_player() == 1:
            state.apply_action(rng.choice(state.legal_actions()))
            continue
        pending = [state.child(action) for action in state.legal_actions()]
        assert {child.current_player() for child in pending} == {1}
        assert len({game.prompt(child) for child in pending}) == 1
        num_pending += 1
        state = rng.choice(pending)
    assert num_pending

"""NashConv, tables of policies, and Kuhn's equilibrium family, against what is known exactly."""

import numpy as np
import pyspiel
import pytest

from rlnb.errors import ParamsError
from rlnb.evaluation.nash import (
    expected_returns,
    information_states,
    kuhn_family,
    legal_probabilities,
    nash_conv,
    policy_table,
    table_nash_conv,
)
from rlnb.games.opponents import equilibrium

KUHN = pyspiel.load_game("kuhn_poker")


def uniform(states):
    return [np.full(len(state.legal_actions()), 1 / len(state.legal_actions())) for state in states]


def kuhn_equilibrium(alpha):
    """Kuhn 1950, by hand: probabilities of betting by information state: card, then what was done."""
    betting = {
        **{"0": alpha, "1": 0, "2": 3 * alpha},
        **{"0pb": 0, "1pb": alpha + 1 / 3, "2pb": 1},
        **{"0p": 1 / 3, "1p": 0, "2p": 1},
        **{"0b": 0, "1b": 1 / 3, "2b": 1},
    }

    def probabilities(states):
        bets = [betting[state.information_state_string()] for state in states]
        return [np.array([1 - bet, bet]) for bet in bets]

    return probabilities


@pytest.mark.parametrize(("name", "expected"), [("kuhn_poker", 11 / 12), ("leduc_poker", 4.7472)])
def test_uniform_play_has_the_known_nash_conv_which_is_twice_the_exploitability(name, expected):
    game = pyspiel.load_game(name)
    assert nash_conv(game, uniform) == pytest.approx(expected, abs=1e-4)
    exploitability = pyspiel.exploitability(game, pyspiel.UniformRandomPolicy(game))
    assert nash_conv(game, uniform) == pytest.approx(2 * exploitability)


@pytest.mark.parametrize("alpha", [0, 0.2, 1 / 3])
def test_every_member_of_kuhns_family_has_nash_conv_0_and_stands_beside_itself(alpha):
    policy = kuhn_equilibrium(alpha)
    assert nash_conv(KUHN, policy) == pytest.approx(0, abs=1e-9)
    family = kuhn_family(policy)
    assert family.alpha == pytest.approx(alpha)
    assert [row.difference for row in family.rows] == pytest.approx([0] * 12, abs=1e-12)


def test_kuhns_table_names_what_each_of_the_twelve_decisions_is():
    rows = kuhn_family(kuhn_equilibrium(0.1)).rows
    assert len(rows) == 12
    said = [(row.player, row.card, row.situation, round(row.equilibrium, 4)) for row in rows[::4]]
    assert said == [
        (0, "Jack", "to open", 0.1),
        (0, "Queen", "passed, then the other bet", 0.4333),
        (1, "King", "the other passed", 1),
    ]


def test_a_policy_outside_the_family_stands_beside_its_nearest_member():
    family = kuhn_family(uniform)
    assert family.alpha == pytest.approx(1 / 3)  # a Jack is opened half the time, at most a third is sound
    assert family.rows[0].difference == pytest.approx(1 / 6)
    assert family.rows[1].difference == 0.5  # a Queen should never be opened


def test_one_wrong_decision_costs_what_arithmetic_says():
    """The second player folds a King to a bet; the best response to that is to bet always."""
    right = kuhn_equilibrium(0)

    def folds_king(states):
        rows = right(states)
        return [
            np.array([1.0, 0.0]) if state.information_state_string() == "2b" else row
            for state, row in zip(states, rows, strict=True)
        ]

    # It wins 1 from a King twice (of six deals) and from a Jack twice; a Queen calls one time in three, so
    # that a King wins 2/3 + 2/3 from it and a Jack 2/3 - 2/3.
    best = (1 + 1 + 1 + 1 + 4 / 3 + 0) / 6
    assert nash_conv(KUHN, folds_king) == pytest.approx(best + 1 / 18, abs=1e-9)


@pytest.mark.parametrize(("name", "number"), [("kuhn_poker", 12), ("leduc_poker", 936)])
def test_each_information_state_is_asked_for_once_with_a_state_of_its_own(name, number):
    found = information_states(pyspiel.load_game(name))
    assert len(found) == number
    assert all(state.information_state_string() == key for key, state in found.items())


def test_a_table_asks_the_policy_once_and_holds_all_legal_actions():
    calls = []

    def policy(states):
        calls.append(len(states))
        return uniform(states)

    table = policy_table(KUHN, policy)
    assert calls == [12]
    assert table == {key: [(0, 0.5), (1, 0.5)] for key in information_states(KUHN)}
    assert table_nash_conv(KUHN, table) == pytest.approx(11 / 12)


def test_a_game_turned_sequential_can_be_measured():
    game = pyspiel.convert_to_turn_based(pyspiel.load_game("goofspiel(num_cards=3,points_order=descending)"))
    assert nash_conv(game, uniform) > 0.1


def test_an_equilibrium_gets_the_value_of_the_game_in_both_seats():
    policy = kuhn_equilibrium(0.25)
    assert expected_returns(KUHN, policy) == pytest.approx((-1 / 18, 1 / 18))


def test_against_an_equilibrium_uniform_play_gets_less_than_the_value():
    first, second = expected_returns(KUHN, uniform, opponent=equilibrium("kuhn_poker()"))
    assert first < -1 / 18 - 0.05
    assert second < 1 / 18 - 0.05
    right = expected_returns(KUHN, kuhn_equilibrium(0.25), opponent=equilibrium("kuhn_poker()"))
    assert right == pytest.approx((-1 / 18, 1 / 18), abs=2e-3)


def test_games_that_are_too_large_are_refused_before_memory_is_full():
    with pytest.raises(ParamsError) as error:
        information_states(pyspiel.load_game("connect_four"), limit=1000)
    assert str(error.value) == (
        "connect_four() has more than 1,000 histories, too many for an exact evaluation; "
        "use kuhn_poker, leduc_poker or liars_dice with one die each, or play in the arena"
    )


def test_simultaneous_games_are_refused():
    with pytest.raises(ParamsError) as error:
        information_states(pyspiel.load_game("matrix_rps"))
    assert str(error.value) == (
        "matrix_rps() has simultaneous moves; use pyspiel.convert_to_turn_based(game)"
    )


@pytest.mark.parametrize("answer", [[0.5, 0.4], [1.5, -0.5], [1.0], [float("nan"), 0.5]])
def test_what_is_no_distribution_over_the_legal_actions_is_refused(answer):
    state = next(iter(information_states(KUHN).values()))
    with pytest.raises(ValueError, match=r"is no distribution over the legal actions \[0, 1\] of"):
        legal_probabilities([state], lambda states: [np.array(answer)])


def test_a_policy_that_leaves_states_out_is_refused():
    states = list(information_states(KUHN).values())
    with pytest.raises(ValueError, match=r"^11 answers for 12 states$"):
        legal_probabilities(states, lambda states: uniform(states)[1:])

"""Exact measures against what is known: NashConv, Kuhn's family, tic-tac-toe by recursion and by sampling."""

from functools import cache

import numpy as np
import pyspiel
import pytest
from open_spiel.python.algorithms.minimax import alpha_beta_search

from rlnb.errors import ParamsError
from rlnb.games.exact import (
    best_actions,
    board_cells,
    decision_states,
    information_states,
    kuhn_family,
    legal_probabilities,
    measure_rows,
    nash_conv,
    positions,
    probabilities_by_state,
    solve_tictactoe,
)

KUHN = pyspiel.load_game("kuhn_poker")


def values():
    """Return {cells: what X gets when both play perfectly}."""
    return dict(zip(positions(), solve_tictactoe().values.tolist(), strict=True))


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


def perfect(states):
    rows = []
    for state in states:
        best = best_actions()[board_cells(state)]
        rows.append(np.array([(action in best) / len(best) for action in state.legal_actions()]))
    return rows


def by_cell(states):
    """By hand: cell a with a weight of a + 1, three times that where the row above is empty."""
    rows = []
    for state in states:
        board = board_cells(state)
        weights = [(a + 1) * (3 if a > 2 and board[a - 3] == "." else 1) for a in state.legal_actions()]
        rows.append(np.array(weights) / sum(weights))
    return rows


@pytest.mark.parametrize(("name", "expected"), [("kuhn_poker", 11 / 12), ("leduc_poker", 4.7472)])
def test_uniform_play_has_the_known_nash_conv_which_is_twice_the_exploitability(name, expected):
    game = pyspiel.load_game(name)
    assert nash_conv(game, uniform) == pytest.approx(expected, abs=1e-4)
    exploitability = pyspiel.exploitability(game, pyspiel.UniformRandomPolicy(game))
    assert nash_conv(game, uniform) == pytest.approx(2 * exploitability)


@pytest.mark.parametrize("alpha", [0, 0.2, 1 / 3])
def test_every_member_of_kuhns_family_has_nash_conv_0_and_is_its_own_nearest(alpha):
    policy = kuhn_equilibrium(alpha)
    assert nash_conv(KUHN, policy) == pytest.approx(0, abs=1e-9)
    family = kuhn_family(policy)
    assert family.alpha == pytest.approx(alpha)
    situations = [(row.player, row.card, row.situation) for row in family.rows[::4]]
    assert situations == [
        (0, "Jack", "to open"), (0, "Queen", "passed, then the other bet"), (1, "King", "the other passed")
    ]  # fmt: skip
    assert [row.learned - row.equilibrium for row in family.rows] == pytest.approx([0] * 12, abs=1e-12)


def test_a_policy_outside_the_family_is_compared_with_its_nearest_member():
    family = kuhn_family(uniform)
    assert family.alpha == pytest.approx(1 / 3)  # a Jack is opened half the time, at most a third is sound
    first, second = family.rows[:2]
    assert (first.learned, first.equilibrium) == pytest.approx((1 / 2, 1 / 3))
    assert (second.learned, second.equilibrium) == (0.5, 0)  # a Queen should never be opened


def test_a_game_turned_sequential_can_be_measured():
    game = pyspiel.convert_to_turn_based(pyspiel.load_game("goofspiel(num_cards=3,points_order=descending)"))
    assert nash_conv(game, uniform) > 0.1


@pytest.mark.parametrize(
    ("name", "reason"), [("connect_four", "more than 1,000 histories"), ("matrix_rps", "simultaneous moves")]
)
def test_games_that_are_too_large_or_simultaneous_are_refused(name, reason):
    with pytest.raises(ParamsError, match=reason):
        information_states(pyspiel.load_game(name), limit=1000)


@pytest.mark.parametrize("answer", [[0.5, 0.4], [1.5, -0.5], [1.0], [float("nan"), 0.5]])
def test_what_is_not_a_distribution_over_the_legal_actions_is_refused(answer):
    state = next(iter(information_states(KUHN).values()))
    with pytest.raises(ValueError, match=r"is not a distribution over the legal actions \[0, 1\] of"):
        legal_probabilities([state], lambda states: [np.array(answer)])
    with pytest.raises(ValueError, match=r"^0 answers for 1 states$"):
        legal_probabilities([state], lambda states: [])


def test_the_solved_table_agrees_with_openspiels_search():
    game, known = pyspiel.load_game("tic_tac_toe"), values()
    assert (len(positions()), len(decision_states())) == (5478, 4520)
    for state in decision_states()[100::250]:
        value, _ = alpha_beta_search(game, state=state, maximizing_player_id=0)
        assert known[board_cells(state)] == value, f"\n{state}"
        keeping = [a for a in state.legal_actions() if known[board_cells(state.child(a))] == value]
        assert list(best_actions()[board_cells(state)]) == keeping
    assert best_actions()["x........"] == (4,)  # the only reply to a corner
    assert (known["." * 9], known["xo......."]) == (0, 1)


def test_uniform_play_has_the_known_figures():
    result = measure_rows(probabilities_by_state(uniform), greedy=False)
    first, second = result.seats
    assert (first.loss, second.loss) == pytest.approx((0.7775, 0.9678), abs=1e-4)
    assert (first.win, second.win) == (0, 0)
    assert result.nash_conv == pytest.approx(1.9197, abs=1e-4)
    # As random play does: X wins .585, O .288, and .127 are drawn.
    assert first.score_against_random == pytest.approx(0.58492 + 0.12698 / 2, abs=1e-5)
    assert second.score_against_random == pytest.approx(0.28810 + 0.12698 / 2, abs=1e-5)
    assert result.self_play_draw == pytest.approx(0.12698, abs=1e-5)
    assert result.first_moves == pytest.approx([1 / 9] * 9)


def test_perfect_play_loses_nothing_and_cannot_be_beaten():
    result = measure_rows(probabilities_by_state(perfect), greedy=False)
    for seat in result.seats:
        assert (seat.win, seat.loss, seat.blunder_rate) == (0, 0, 0)
        assert seat.draw == pytest.approx(1)
        assert seat.best_response_value == 0
    assert result.nash_conv == 0
    assert result.self_play_draw == pytest.approx(1)


def test_a_best_responder_gets_what_plain_recursion_finds():
    states = decision_states()
    answers = dict(zip(map(board_cells, states), by_cell(states), strict=True))

    @cache
    def best_response(board, responder):
        state = positions()[board]
        if state.is_terminal():
            return state.returns()[responder]
        after = [best_response(board_cells(state.child(a)), responder) for a in state.legal_actions()]
        return max(after) if state.current_player() == responder else float(answers[board] @ after)

    result = measure_rows(probabilities_by_state(by_cell), greedy=False)
    left_to_x, left_to_o = -best_response("." * 9, 1), -best_response("." * 9, 0)
    assert [seat.best_response_value for seat in result.seats] == pytest.approx([left_to_x, left_to_o])
    assert result.nash_conv == pytest.approx(-left_to_x - left_to_o)
    assert -1 < left_to_o < left_to_x < 0


@pytest.mark.parametrize("seat", [0, 1])
def test_the_blunder_rate_is_the_share_of_decisions_that_lower_the_value(seat):
    """By recursion over games against perfect play: expected blunders over expected decisions."""

    def expected(state, weight):
        if state.is_terminal():
            return np.zeros(2)
        is_own = state.current_player() == seat
        probabilities = (by_cell if is_own else perfect)([state])[0]
        counts = np.zeros(2)
        for action, probability in zip(state.legal_actions(), probabilities.tolist(), strict=True):
            if probability:
                child = state.child(action)
                lowers = known[board_cells(child)] != known[board_cells(state)]
                counts += is_own * weight * probability * np.array([lowers, 1])
                counts += expected(child, weight * probability)
        return counts

    known = values()
    blunders, decisions = expected(pyspiel.load_game("tic_tac_toe").new_initial_state(), 1.0)
    result = measure_rows(probabilities_by_state(by_cell), greedy=False).seats[seat]
    assert result.blunder_rate == pytest.approx(blunders / decisions)


def test_greedy_takes_the_most_probable_move_and_of_equals_the_lowest():
    rows = probabilities_by_state(uniform)
    result = measure_rows(rows, greedy=True)
    assert result.first_moves == (1, 0, 0, 0, 0, 0, 0, 0, 0)
    # X takes 0, 2, 4 and 6 against itself and wins by 2-4-6; a responder with O in the centre beats it.
    assert result.self_play_draw == 0
    assert [seat.best_response_value for seat in result.seats] == [-1, -1]

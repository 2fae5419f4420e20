"""Tic-tac-toe's exact measures, against known figures, plain recursion and games that are played."""

import random
import time
from functools import cache

import numpy as np
import pyspiel
import pytest

from rlnb.evaluation.tictactoe import (
    measure_rows,
    measure_tictactoe,
    probabilities_by_state,
)
from rlnb.games.opponents import PerfectPlayer, RandomPlayer
from rlnb.games.perfect_tictactoe import best_actions, board_of, decision_states, positions, values


def uniform(states):
    return [np.full(len(state.legal_actions()), 1 / len(state.legal_actions())) for state in states]


def perfect(states):
    found = []
    for state in states:
        best = best_actions()[board_of(state)]
        found.append(np.array([(action in best) / len(best) for action in state.legal_actions()]))
    return found


def by_cell(states):
    """By hand: cell a with a weight of a + 1, three times that where the row above is empty."""
    found = []
    for state in states:
        board = board_of(state)
        weights = [(a + 1) * (3 if a > 2 and board[a - 3] == "." else 1) for a in state.legal_actions()]
        found.append(np.array(weights) / sum(weights))
    return found


def played(seat, opponent, num_games):
    """Shares of win, draw and loss of `by_cell` in sampled games. Seed 0."""
    rng, outcomes = random.Random(0), []
    game = pyspiel.load_game("tic_tac_toe")
    for _ in range(num_games):
        state = game.new_initial_state()
        while not state.is_terminal():
            if state.current_player() == seat:
                action = rng.choices(state.legal_actions(), by_cell([state])[0].tolist())[0]
            else:
                action = opponent.act([state], [rng])[0]
            state.apply_action(action)
        outcomes.append(state.returns()[seat])
    return [outcomes.count(value) / num_games for value in (1, 0, -1)]


def test_uniform_play_has_the_known_figures():
    result = measure_tictactoe(uniform, greedy=False)
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
    result = measure_tictactoe(perfect, greedy=False)
    for seat in result.seats:
        assert (seat.win, seat.loss, seat.blunder_rate) == (0, 0, 0)
        assert seat.draw == pytest.approx(1)
        assert seat.best_response_value == 0
    assert result.nash_conv == 0
    assert result.self_play_draw == pytest.approx(1)


def test_a_best_responder_gets_what_plain_recursion_finds():
    states = decision_states()
    answers = dict(zip(map(board_of, states), by_cell(states), strict=True))

    @cache
    def best_response(board, responder):
        state = positions()[board]
        if state.is_terminal():
            return state.returns()[responder]
        after = [best_response(board_of(state.child(a)), responder) for a in state.legal_actions()]
        return max(after) if state.current_player() == responder else float(answers[board] @ after)

    result = measure_tictactoe(by_cell, greedy=False)
    left_to_x, left_to_o = -best_response("." * 9, 1), -best_response("." * 9, 0)
    assert [seat.best_response_value for seat in result.seats] == pytest.approx([left_to_x, left_to_o])
    assert result.nash_conv == pytest.approx(-left_to_x - left_to_o)
    assert -1 < left_to_o < left_to_x < 0


@pytest.mark.parametrize("seat", [0, 1])
def test_shares_are_those_of_games_that_are_played(seat):
    """3,000 games each, seed 0: four standard deviations."""
    result = measure_tictactoe(by_cell, greedy=False).seats[seat]
    exact = np.array([result.win, result.draw, result.loss])
    assert exact.sum() == pytest.approx(1)
    assert (abs(exact - played(seat, PerfectPlayer(), 3000)) <= 4 * np.sqrt(exact * (1 - exact) / 3000)).all()
    win, draw, _ = played(seat, RandomPlayer(), 3000)
    assert abs(result.score_against_random - (win + draw / 2)) < 4 * 0.5 / np.sqrt(3000)


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
                lowers = values()[board_of(child)] != values()[board_of(state)]
                counts += is_own * weight * probability * np.array([lowers, 1])
                counts += expected(child, weight * probability)
        return counts

    blunders, decisions = expected(pyspiel.load_game("tic_tac_toe").new_initial_state(), 1.0)
    result = measure_tictactoe(by_cell, greedy=False).seats[seat]
    assert result.blunder_rate == pytest.approx(blunders / decisions)


def test_greedy_takes_the_most_probable_move_and_of_equals_the_lowest():
    rows = probabilities_by_state(uniform)
    result = measure_rows(rows, greedy=True)
    assert result.first_moves == (1, 0, 0, 0, 0, 0, 0, 0, 0)
    # X takes 0, 2, 4 and 6 against itself and wins by 2-4-6; a responder with O in the centre beats it.
    assert result.self_play_draw == 0
    assert [seat.best_response_value for seat in result.seats] == [-1, -1]


def test_greedy_and_sampled_share_one_pass_and_agree_where_nothing_is_random():
    calls = []

    def policy(states):
        calls.append(len(states))
        return [np.eye(len(state.legal_actions()))[-1] for state in states]

    rows = probabilities_by_state(policy)
    assert measure_rows(rows, greedy=True) == measure_rows(rows, greedy=False)
    assert calls == [4520]


def test_rows_hold_the_probabilities_at_their_cells():
    rows = probabilities_by_state(by_cell)
    states = decision_states()
    answers = by_cell(states)
    assert rows.shape == (4520, 9)
    for row, state, answer in list(zip(rows, states, answers, strict=True))[::97]:
        assert row[state.legal_actions()].tolist() == answer.tolist()
        assert row.sum() == pytest.approx(1)


def test_one_bad_reply_is_found_by_the_best_responder_only_in_its_seat():
    """Perfect but for the reply to a corner: an edge instead of the centre, which loses."""

    def edge_player(states):
        found = perfect(states)
        for index, state in enumerate(states):
            if board_of(state) == "x........":
                found[index] = np.eye(8)[0]  # cell 1
        return found

    first, second = measure_tictactoe(edge_player, greedy=False).seats
    assert (first.loss, first.best_response_value) == (0, 0)
    assert second.best_response_value == pytest.approx(-1)
    assert 0 < second.blunder_rate < 1 / 9
    # One opening in nine meets it; perfect play, random among equals, keeps the win to the end.
    assert second.loss == pytest.approx(1 / 9)


def test_measuring_takes_a_fraction_of_a_second():
    """It is called every few updates of a training; 0.015 s here, 0.3 s allowed."""
    rows = probabilities_by_state(by_cell)
    seconds = []
    for _ in range(3):
        started = time.process_time()
        measure_rows(rows, greedy=False)
        seconds.append(time.process_time() - started)
    assert min(seconds) < 0.3

"""The live figure, pictures and tables of self-play, by their artists and cells, on real figures."""

import itertools

import numpy as np
import pyspiel
import pytest

from rlnb.games.exact import kuhn_family, measure_rows, nash_conv, probabilities_by_state
from rlnb.selfplay.arena import Match
from rlnb.selfplay.display import (
    draw_arena,
    draw_self_play,
    show_arena,
    show_exact,
    show_first_moves,
    show_kuhn,
)
from rlnb.statistics import wilson_interval

SEATS = ("first", "second")


def uniform(states):
    return [np.full(len(state.legal_actions()), 1 / len(state.legal_actions())) for state in states]


def lowest(states):
    """Always the legal action with the lowest id."""
    return [np.eye(len(state.legal_actions()))[0] for state in states]


def tictactoe_rows():
    rows = [{"step": step, "play/draw_share": 0.2 * step, "entropy": 2.0 - 0.4 * step} for step in range(5)]
    for step, (prefix, factor), (index, seat) in itertools.product(
        (0, 2, 4), (("", 1.0), ("average/", 0.5)), enumerate(SEATS)
    ):
        rows[step] |= {
            f"exact/{prefix}loss_{seat}": factor * (0.8 - 0.1 * step + 0.1 * index),
            f"exact/{prefix}greedy_loss_{seat}": factor * 0.4,
            f"exact/{prefix}random_score_{seat}": 0.6,
            f"exact/{prefix}nash_conv": factor * (2 - 0.5 * step),
        }
    return rows


def panels(figure):
    return [axes.get_title() for axes in figure.axes if axes.get_title()]


def lines(figure, title):
    axes = next(axes for axes in figure.axes if axes.get_title() == title)
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}


LOSSES = "Games lost to perfect play (exact)"
NASH = "NashConv (exact; 0 is an equilibrium)"
RANDOM = "Score against random play (exact)"
ARENA = "Score in the arena (sampled games)"
OWN = "Self-play alone (it misleads)"


def test_tictactoe_shows_its_losses_next_to_what_self_play_says():
    figure = draw_self_play(tictactoe_rows(), max_steps=10, title="seed 1")
    assert panels(figure) == [LOSSES, NASH, RANDOM, OWN]
    losses = lines(figure, LOSSES)
    average = losses["second seat, average"]
    assert average.get_xdata().tolist() == [0, 2, 4]
    assert average.get_ydata().tolist() == pytest.approx([0.45, 0.35, 0.25])
    assert losses["second seat, last weights"].get_ydata().tolist() == pytest.approx([0.9, 0.7, 0.5])
    assert losses["second seat, greedy"].get_ydata().tolist() == pytest.approx([0.2] * 3)  # of the average
    assert lines(figure, OWN)["draws"].get_ydata().tolist() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])
    twin = figure.axes[-1]
    assert twin.lines[0].get_ydata().tolist() == pytest.approx([2.0, 1.6, 1.2, 0.8, 0.4])
    assert figure.get_suptitle() == "seed 1"
    figure.draw_without_rendering()


def test_a_game_with_nash_conv_alone_shows_it_on_a_logarithmic_axis_zero_included():
    rows = [
        {"step": 0, "exact/nash_conv": 0.9},
        {"step": 5, "exact/nash_conv": 0.0, "exact/average/nash_conv": 0.2},
    ]
    figure = draw_self_play(rows, max_steps=5)
    assert panels(figure) == [NASH, OWN]
    assert figure.axes[0].get_yscale() == "log"
    drawn_lines = lines(figure, NASH)
    assert drawn_lines["last weights"].get_ydata().tolist() == [0.9, 1e-4]
    assert drawn_lines["averaged weights"].get_xydata().tolist() == [[5, 0.2]]


def test_a_game_without_exact_figures_shows_the_arena_and_empty_rows_can_be_drawn():
    figure = draw_self_play([{"step": 1, "arena/random/second_score": 0.4}], max_steps=2)
    assert panels(figure) == [ARENA, OWN]
    assert lines(figure, ARENA)["random, second seat"].get_xydata().tolist() == [[1, 0.4]]
    draw_self_play([], max_steps=0).draw_without_rendering()


def test_first_moves_are_numbered_cells_and_kuhn_is_compared_with_the_equilibrium_of_its_own_alpha():
    figure = show_first_moves(measure_rows(probabilities_by_state(lowest), greedy=False))
    moves = {text.get_position(): text.get_text() for text in figure.axes[0].texts}
    assert (len(moves), moves[0.5, 0.5], moves[1.5, 1.5]) == (9, "100.0%", "0.0%")
    table = show_kuhn(kuhn_family(uniform), nash_conv(pyspiel.load_game("kuhn_poker"), uniform))
    assert len(table.rows) == 12
    assert table.rows[0] == ["first", "Jack", "to open", "0.500", "0.333", "+0.167"]  # alpha is 1/3 at most
    sampled = measure_rows(probabilities_by_state(uniform), greedy=False)
    table = show_exact({"sampled": sampled}, {"sampled": sampled})
    assert [(row[1], row[2]) for row in table.rows] == [
        *itertools.product(["first, X", "second, O"], ["before", "after"])
    ]
    assert table.rows[2][3] == f"{sampled.seats[1].loss:.1%}"


def arena_row(game, opponent, seat, role, score, **others):
    row = {
        "random_score": None, "ceiling": None, "weights": "last",
        "num_games": 10, "wins": 4, "draws": 2, "losses": 4, "invalid_share": 0.0, "distinct_share": 0.75,
        "mean_return": 0.25,
    }  # fmt: skip
    return Match(game=game, opponent=opponent, seat=seat, role=role, score=score, **{**row, **others})


def test_the_arena_has_a_line_a_row():
    rows = [
        arena_row("tic_tac_toe", "random", 1, "O", wilson_interval(0.5, 10), random_score=0.35, ceiling=0.96),
        arena_row("kuhn_poker", "nash", 0, "first player", wilson_interval(1.0, 10), weights="average"),
    ]
    table = show_arena(rows)
    first, second = (dict(zip(table.headers, row, strict=True)) for row in table.rows)
    assert (first["seat"], first["weights"]) == ("second, O", "last")
    assert (first["score (95% interval)"], first["ceiling"]) == ("0.500 (0.237 to 0.763)", "0.960")
    assert (second["seat"], second["weights"]) == ("first", "average")
    assert (second["random scores"], second["ceiling"]) == ("–", "–")
    figure = draw_arena({"before": rows, "after": rows[:1]})
    reference = lines(figure, "Scores in the arena")
    assert reference["before"].get_xdata().tolist() == [0.5, 1.0]
    assert reference["random play"].get_xydata().tolist() == [[0.35, 0]]
    figure.draw_without_rendering()

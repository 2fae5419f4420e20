"""The live figure, pictures and tables of self-play, by their artists and cells, on real figures."""

import itertools
from dataclasses import replace

import numpy as np
import pyspiel
import pytest

from rlnb.games.exact import kuhn_family, measure_rows, nash_conv, probabilities_by_state
from rlnb.selfplay.arena import Match
from rlnb.selfplay.display import draw_arena, draw_self_play, show_first_moves, show_kuhn
from rlnb.statistics import Estimate

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
OWN = "Self-play alone (it misleads)"


def test_tictactoe_shows_its_losses_next_to_what_self_play_says():
    figure = draw_self_play(tictactoe_rows(), max_steps=10)
    losses = lines(figure, LOSSES)
    average = losses["second seat, average"]
    assert average.get_xdata().tolist() == [0, 2, 4]
    assert average.get_ydata().tolist() == pytest.approx([0.45, 0.35, 0.25])
    assert losses["second seat, last weights"].get_ydata().tolist() == pytest.approx([0.9, 0.7, 0.5])
    assert losses["second seat, greedy"].get_ydata().tolist() == pytest.approx([0.2] * 3)  # of the average
    assert lines(figure, OWN)["draws"].get_ydata().tolist() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])
    figure.draw_without_rendering()


@pytest.mark.parametrize(("last", "scale"), [(0.81, "linear"), (0.09, "log")])
def test_nash_conv_has_a_logarithmic_axis_once_it_spans_a_decade(last, scale):
    rows = [{"step": 0, "exact/nash_conv": 0.9}, {"step": 1, "exact/nash_conv": last}]
    assert draw_self_play(rows, max_steps=1).axes[0].get_yscale() == scale


@pytest.mark.parametrize("weights", [["last"], ["last", "average"]])
def test_the_arena_has_a_panel_a_game_and_a_line_an_opponent_and_seat(weights):
    score = Estimate(0.5, 0.25, 0.75)
    match = Match("kuhn_poker", "random", 0, "", "last", 2, 1, 0, 1, score, 0.0, 0.25, None, 0.0, 1.0)
    rows = [replace(match, seat=seat, weights=each) for seat in (0, 1) for each in weights]
    figure = draw_arena({"before": [*rows, replace(rows[-1], game="hex")], "after": rows})
    kuhn, other = figure.axes
    assert (kuhn.get_title(), other.get_title()) == ("kuhn_poker", "hex")
    assert [label.get_text() for label in kuhn.get_yticklabels()] == ["random, first", "random, second"]
    assert figure.get_suptitle() == f"Scores in the arena, {weights[-1]} weights: wins and half the draws"
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["before", "after", "random play"]
    assert draw_arena({}).axes


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


def test_first_moves_are_numbered_cells_and_kuhn_is_compared_with_the_equilibrium_of_its_own_alpha():
    figure = show_first_moves(measure_rows(probabilities_by_state(lowest), greedy=False))
    moves = {text.get_position(): text.get_text() for text in figure.axes[0].texts}
    assert (len(moves), moves[0.5, 0.5], moves[1.5, 1.5]) == (9, "100.0%", "0.0%")
    table = show_kuhn(kuhn_family(uniform), nash_conv(pyspiel.load_game("kuhn_poker"), uniform))
    assert len(table.rows) == 12
    assert table.rows[0] == ["first", "Jack", "to open", "0.500", "0.333", "+0.167"]  # alpha is 1/3 at most


def test_a_run_without_exact_figures_or_without_any_row_can_be_drawn():
    for rows in ([{"step": 1, "arena/random/second_score": 0.4}], []):
        draw_self_play(rows, max_steps=2).draw_without_rendering()

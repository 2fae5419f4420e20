"""Figures and tables of the code game, by their artists and cells, on rounds that were really counted."""

import io
import itertools
import math

import matplotlib.pyplot as plt
from matplotlib.colors import to_hex, to_rgb
from scripted_opponent import ScriptedOpponent

from rlnb.code_game import display
from rlnb.code_game.display import (
    KIND_COLOURS,
    TIMES,
    LiveGame,
    draw_game,
    draw_game_comparison,
    show_counts,
    show_game,
    show_hardest,
    show_kinds,
    show_levels,
    show_rounds,
)
from rlnb.code_game.evaluation import (
    EvaluatedProgram,
    GameComparison,
    compare_game,
    count_constructs,
    count_invalid_kinds,
    find_hardest,
    measure_levels,
)
from rlnb.code_game.opponents import PredictionVerdict
from rlnb.code_game.prediction import load_prediction_set
from rlnb.code_game.prompts import GameQuestion
from rlnb.code_game.reward import GameRound, game_metrics
from rlnb.display.plots import OUTCOME_COLOURS
from rlnb.run.metrics import INVALID_KINDS
from rlnb.statistics import Estimate

HOSTILE = "<script>alert(1)</script>$\\frac{$\udc80\x1b[31m\u202e"
ESCAPED = "&lt;script&gt;alert(1)&lt;/script&gt;$\\frac{$\\udc80\\x1b[31m\\u202e"


def valid(code: str, output: str, *, is_right: bool, probability: float = 0.5) -> GameRound:
    """A judged round whose output is one token."""
    return GameRound(code, "valid", "", code, output, PredictionVerdict(is_right, math.log(probability), 1))


WIN = valid("n = 3\nprint(n * 7)", "21", is_right=False, probability=0.25)
PREDICTED = valid("print(4)", "4", is_right=True)
BROKEN = GameRound("print(", "syntax_error", "is not Python")


def played(*rounds: GameRound) -> list[EvaluatedProgram]:
    """Each round with a question of its own."""
    questions = [GameQuestion(f"held_out/{index}", "n = 3") for index in range(len(rounds))]
    return [EvaluatedProgram(question, "", game) for question, game in zip(questions, rounds, strict=True)]


def required(game: GameRound) -> float:
    return 1.0 if game.is_win else -1.0


def graded(game: GameRound) -> float:
    return 1.0 - 2.0 * game.token_probability if game.is_valid else -1.0


def row(step: int, *rounds: GameRound, **more: float) -> dict[str, float]:
    return {"step": step} | {f"game/{name}": value for name, value in game_metrics(rounds).items()} | more


def points(line) -> list[list[float | None]]:
    """Of a line, with None for a gap."""
    return [[x, None if math.isnan(y) else y] for x, y in line.get_xydata().tolist()]


def lines_of(axes) -> dict[str, list[list[float | None]]]:
    return {line.get_label(): points(line) for line in axes.lines if not line.get_label().startswith("_")}


def labels_of(axes) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_a_step_is_a_thin_point_and_the_thick_line_is_the_mean_of_those_before_it():
    left, _ = draw_game([row(1, WIN, WIN), row(2, WIN, BROKEN)], max_steps=10).axes
    assert labels_of(left) == ["wins", "valid", "opponent right on valid"]
    thin = [points(line) for line in left.lines if line.get_linewidth() == 1]
    assert thin == [[[1, 1], [2, 0.5]], [[1, 1], [2, 0.5]], [[1, 0], [2, 0]]]
    assert list(lines_of(left).values()) == [[[1, 1], [2, 0.75]], [[1, 1], [2, 0.75]], [[1, 0], [2, 0]]]


def test_where_nothing_was_valid_the_opponent_s_line_leaves_out_the_step():
    rows = [row(1, PREDICTED), row(2, BROKEN), row(3, WIN), row(4, BROKEN)]
    left, _ = draw_game(rows, max_steps=10).axes
    assert lines_of(left)["opponent right on valid"] == [[1, 1], [3, 0.5]]


def test_the_control_is_the_dashed_line_and_held_out_points_are_hollow():
    held_out = {"step": 0, "heldout/game/win_share": 0.25, "heldout/game/opponent_right": None}
    later = row(1, WIN) | {"heldout/game/win_share": 0.5, "heldout/game/opponent_right": 0.1}
    left, _ = draw_game([held_out, later], max_steps=10, control=[{"step": 0}, row(1, PREDICTED)]).axes
    lines = lines_of(left)
    assert lines["control: opponent right on valid"] == [[1, 1]]
    assert lines["held out: wins"] == [[0, 0.25], [1, 0.5]]
    assert lines["held out: opponent right on valid"] == [[1, 0.1]]
    assert lines["wins"] == [[1, 1]], "a step at which nothing was trained has no point"
    for line in left.lines:
        label = line.get_label()
        assert (line.get_fillstyle() == "none") == label.startswith("held out"), label
        if label.startswith("control"):
            assert line.get_linestyle() == "--"


def test_the_layers_are_wins_predicted_ones_and_the_kinds_that_occur_and_fill_the_panel():
    late = GameRound("while True: pass", "timeout", "took too long")
    rows = [row(1, WIN, PREDICTED, BROKEN, BROKEN), row(2, WIN, late)]
    _, right = draw_game(rows, max_steps=10).axes
    assert labels_of(right) == ["win", "valid, but predicted", "syntax error", "timeout"]
    colours = [to_hex(layer.get_facecolor()[0]) for layer in right.collections]
    assert colours == [display.WIN, display.PREDICTED, KIND_COLOURS["syntax_error"], KIND_COLOURS["timeout"]]
    vertices = [layer.get_paths()[0].vertices for layer in right.collections]
    assert [max(y for x, y in layer if x == 1) for layer in vertices] == [0.25, 0.5, 1.0, 1.0]


def test_every_kind_has_a_colour_of_its_own_and_the_one_that_other_figures_give_it():
    assert {*KIND_COLOURS} == {*INVALID_KINDS}
    common = KIND_COLOURS.keys() & OUTCOME_COLOURS.keys()
    assert all(KIND_COLOURS[kind] == OUTCOME_COLOURS[kind] for kind in common)
    for one, other in itertools.combinations(KIND_COLOURS, 2):
        assert math.dist(to_rgb(KIND_COLOURS[one]), to_rgb(KIND_COLOURS[other])) > 0.15, (one, other)


def test_the_legends_of_a_full_figure_lie_beside_each_other_below_the_panels():
    rows = [row(step, WIN, PREDICTED, *[GameRound("", kind) for kind in INVALID_KINDS]) for step in (1, 2)]
    rows[0] |= {"heldout/game/win_share": 0.5, "heldout/game/opponent_right": 0.1}
    figure = draw_game(rows, max_steps=2, control=rows)
    figure.draw_without_rendering()
    assert [len(labels_of(axes)) for axes in figure.axes] == [6, 2 + len(INVALID_KINDS)]
    boxes = [axes.get_tightbbox(for_layout_only=True, bbox_extra_artists=[]) for axes in figure.axes]
    boxes += [axes.get_legend().get_window_extent() for axes in figure.axes]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0 for box in boxes)


def test_the_live_figure_draws_an_empty_run_and_its_control_and_leaves_no_figure_open(tmp_path):
    open_before, live = plt.get_fignums(), LiveGame(tmp_path)
    live.control = [row(1, PREDICTED)]
    lines = lines_of(live.draw([], max_steps=5).axes[0])
    assert (lines["valid"], lines["control: opponent right on valid"]) == ([], [[1, 1]])
    assert plt.get_fignums() == open_before


def comparison() -> list[GameComparison]:
    """Three questions at each time."""
    before, after = played(PREDICTED, BROKEN, BROKEN), played(WIN, WIN, PREDICTED)
    return compare_game({"before": before, "after": after, "control": played(PREDICTED, WIN, PREDICTED)})


def test_the_comparison_has_a_line_a_share_with_each_time_and_its_interval_beside_the_others():
    rows = comparison()
    figure = draw_game_comparison(rows)
    (axes,) = figure.axes
    measures = [text.get_text() for text in axes.get_yticklabels()]
    assert measures == ["win", "valid", "opponent right on valid", "trivial", "echo"]
    by_name = {row.measure: row.values for row in rows}
    drawn = {line.get_label(): line for line in axes.lines}
    assert list(drawn) == labels_of(axes) == ["before", "after", "control"]
    for number, time in enumerate(TIMES):
        assert [x for x, _ in points(drawn[time])] == [by_name[name][time].value for name in measures]
        ends = [bar[:, 0].tolist() for bar in axes.collections[number].get_segments()]
        assert ends == [[by_name[name][time].low, by_name[name][time].high] for name in measures]


def test_a_comparison_without_control_or_without_rows_or_with_a_strange_name_is_drawn():
    share = Estimate(0.5, 0.6, 0.7)  # an interval need not hold its value
    strange = GameComparison(HOSTILE, {"before": share, "after": None})
    figure = draw_game_comparison([strange, GameComparison("characters", {"before": 3.5})])
    figure.savefig(io.BytesIO())
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == [
        HOSTILE.encode("ascii", "backslashreplace").decode().replace("\x1b", "\\x1b")
    ]
    assert labels_of(axes) == ["before"]
    empty = draw_game_comparison([]).axes[0]
    assert [text.get_text() for text in empty.texts] == ["nothing was measured"]
    assert empty.get_legend() is None


def test_the_table_of_measures_has_values_and_differences_with_their_intervals():
    share, more = Estimate(0.91, 0.83, 0.95), Estimate(-0.1, -0.25, 0.05)
    by_hand = show_game([GameComparison("win", {"after": share}, {"after - before": more})])
    assert by_hand.headers == ["measure", "after", "after - before"]
    assert by_hand.rows == [["win", "0.910 (0.830 to 0.950)", "-0.100 (-0.250 to +0.050)"]]
    table = show_game(comparison())
    assert table.headers == ["measure", "before", "after", "control", "after - before", "after - control"]
    cells = {line[0]: line[1:] for line in table.rows}
    values = [cell.partition(" (")[0] for cell in cells["win"]]
    assert values == ["0.000", "0.667", "0.333", "+0.667", "+0.333"]
    assert cells["distinct shapes a valid program"] == ["1.000", "0.667", "0.667", "–", "–"]
    without = show_game(compare_game({"before": played(BROKEN), "after": played(WIN), "control": []}))
    assert without.headers == ["measure", "before", "after", "after - before"]
    assert {line[0]: line[1:] for line in without.rows}["characters of an output"] == ["–", "2.000", "–"]


def test_rounds_show_what_became_of_a_program_and_what_it_earns():
    unjudged = GameRound("print(5)", "valid", "", "print(5)", "5")
    unknown = GameRound("print(6)", "valid", "", "print(6)", " 6\n7", PredictionVerdict(True))
    failed = GameRound("print(8)", "sandbox_error", "no server")
    none = GameRound(None, "no_code", "there is no program in the answer")
    table = show_rounds([WIN, PREDICTED, BROKEN, none, unjudged, unknown, failed], [required, graded])
    assert table.headers[1:] == [
        "outcome", "why", "output", "opponent", "required", "graded", "probability of a token",
    ]  # fmt: skip
    assert table.rows == [
        ["n = 3\nprint(n * 7)\n", "valid", "", "21\n", "wrong", "+1.000", "+0.500", "0.250"],
        ["print(4)\n", "valid", "", "4\n", "right", "-1.000", "+0.000", "0.500"],
        ["print(\n", "syntax error", "is not Python", "", "–", "-1.000", "-1.000", "–"],
        ["(no code)\n", "no code", none.message, "", "–", "-1.000", "-1.000", "–"],
        ["print(5)\n", "valid", "", "5\n", "–", "–", "–", "–"],
        ["print(6)\n", "valid", "", " 6\n7\n", "right", "-1.000", "–", "–"],
        ["print(8)\n", "sandbox error", "no server", "", "–", "–", "–", "–"],
    ]


def test_the_hardest_programs_stand_with_output_and_prediction():
    asked = ScriptedOpponent({WIN.shown: "24\n"})
    table = show_hardest(find_hardest(played(WIN, WIN, PREDICTED, BROKEN), asked))
    assert table.rows == [["n = 3\nprint(n * 7)\n", "21\n", "24\n", "0.250"]]


def test_constructs_are_counted_and_invalid_kinds_are_per_cent_of_all_completions():
    counts = count_constructs({"before": played(PREDICTED, BROKEN), "after": played(WIN, WIN, PREDICTED)})
    table = show_counts(counts)
    assert table.headers == ["construct", "before", "after"]
    assert table.rows == [["trivial", "1 of 1", "1 of 1"], ["arithmetic", "–", "0 of 2"]]
    late = GameRound("while True: pass", "timeout")
    times = {"before": played(BROKEN, BROKEN, late), "after": played(WIN, WIN, WIN, late), "control": []}
    table = show_kinds(count_invalid_kinds(times))
    assert table.headers == ["kind", "before", "after"]
    assert table.rows == [["syntax error", "66.7%", "0.0%"], ["timeout", "33.3%", "25.0%"]]


def test_levels_show_right_predictions_and_their_interval():
    known = {one.code: one.output for one in load_prediction_set() if one.level == "L1"}
    table = show_levels(measure_levels(ScriptedOpponent(known)))
    assert [row[2:] for row in table.rows] == [
        ["15 of 15", "1.000 (0.796 to 1.000)"],
        *[["0 of 15", "0.000 (0.000 to 0.204)"]] * 3,
        ["15 of 60", "0.250 (0.158 to 0.372)"],
    ]


def test_hostile_text_is_escaped_and_written_out_and_long_text_is_cut():
    hostile = GameRound(HOSTILE, "unreadable", HOSTILE, HOSTILE, HOSTILE)
    for table, count in ((show_rounds([hostile], []), 3), (show_hardest([(hostile, HOSTILE)]), 3)):
        html = table._repr_html_()
        assert "<script>" not in html
        assert html.count(ESCAPED) == count
        (html + repr(table)).encode()
        assert "\x1b" not in html + repr(table)
    long = show_rounds([GameRound("x" * 700, "long_code", "y" * 700, "", "z" * 700)], [])
    assert [len(cell) for cell in long.rows[0][:4]] == [603, 9, 200, 203]
    assert long.rows[0][0].endswith("x …\n")


def test_a_table_without_rows_says_so():
    tables = [show_game([]), show_rounds([], []), show_hardest([]), show_counts({}), show_kinds({})]
    for table in [*tables, show_levels([])]:
        assert table.rows == [] and f">{table.caption}</caption>" in table._repr_html_()

"""Figures and tables of the code game, by their artists and cells, on rounds that were really counted."""

import math

from scripted_opponent import ScriptedOpponent

from rlnb.code_game.display import (
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
from rlnb.statistics import Estimate

HOSTILE = "<script>alert(1)</script>$\\frac{$\udc80\x1b[31m\u202e"
ESCAPED = "&lt;script&gt;alert(1)&lt;/script&gt;$\\frac{$\\udc80\\x1b[31m\\u202e"


def valid(code: str, output: str, *, is_right: bool, probability: float = 0.5) -> GameRound:
    """A judged round whose output is one token."""
    return GameRound(code, "valid", "", code, output, PredictionVerdict(is_right, math.log(probability), 1))


WIN = valid("n = 3\nprint(n * 7)", "21", is_right=False, probability=0.25)
PREDICTED = valid("print(4)", "4", is_right=True)
BROKEN = GameRound("print(", "syntax_error", "is not Python")
LATE = GameRound("while True: pass", "timeout", "took too long")


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


def lines_of(axes) -> dict[str, list[list[float]]]:
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    return {label: points for label, points in lines.items() if not label.startswith("_")}


def labels_of(axes) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_the_game_has_its_control_held_out_points_and_the_kinds_that_occur():
    held_out = {"step": 0, "heldout/game/win_share": 0.25, "heldout/game/opponent_right": None}
    rows = [held_out, row(1, WIN, PREDICTED, BROKEN, BROKEN), row(2, BROKEN), row(3, WIN, LATE)]
    left, right = draw_game(rows, max_steps=10, control=[{"step": 0}, row(1, PREDICTED)]).axes
    assert lines_of(left) == {
        "wins": [[1, 0.25], [2, 0.125], [3, 0.25]], "valid": [[1, 0.5], [2, 0.25], [3, 1 / 3]],
        "opponent right on valid": [[1, 0.5], [3, 0.25]], "control: opponent right on valid": [[1, 1]],
        "held out: wins": [[0, 0.25]],
    }  # fmt: skip
    assert labels_of(right) == ["win", "valid, but predicted", "syntax error", "timeout"]
    vertices = [layer.get_paths()[0].vertices for layer in right.collections]
    assert [max(y for x, y in layer if x == 1) for layer in vertices] == [0.25, 0.5, 1.0, 1.0]


def test_the_live_figure_draws_an_empty_run_and_its_control(tmp_path):
    live = LiveGame(tmp_path)
    live.control = [row(1, PREDICTED)]
    lines = lines_of(live.draw([], max_steps=5).axes[0])
    assert (lines["valid"], lines["control: opponent right on valid"]) == ([], [[1, 1]])


def comparison() -> list[GameComparison]:
    """Three questions at each time."""
    before, after = played(PREDICTED, BROKEN, BROKEN), played(WIN, WIN, PREDICTED)
    return compare_game({"before": before, "after": after, "control": played(PREDICTED, WIN, PREDICTED)})


def test_the_comparison_has_a_line_a_share_with_each_time():
    rows = comparison()
    (axes,) = draw_game_comparison(rows).axes
    measures = [text.get_text() for text in axes.get_yticklabels()]
    assert measures == ["win", "valid", "opponent right on valid", "trivial", "echo"]
    by_name = {row.measure: row.values for row in rows}
    drawn = {line.get_label(): line.get_xdata().tolist() for line in axes.lines}
    assert list(drawn) == labels_of(axes) == ["before", "after", "control"]
    for time, shares in drawn.items():
        assert shares == [by_name[name][time].value for name in measures]
    empty = draw_game_comparison([GameComparison("characters", {"before": 3.5})]).axes[0]
    assert [text.get_text() for text in empty.texts] == ["nothing was measured"]


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
    times = {"before": played(BROKEN, BROKEN, LATE), "after": played(WIN, WIN, WIN, LATE), "control": []}
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


def test_hostile_text_is_escaped_and_long_text_is_cut():
    hostile = GameRound(HOSTILE, "unreadable", HOSTILE, HOSTILE, HOSTILE)
    for table in (show_rounds([hostile], []), show_hardest([(hostile, HOSTILE)])):
        html = table._repr_html_()
        assert "<script>" not in html and html.count(ESCAPED) == 3
        assert "\x1b" not in html + repr(table)
    long = show_rounds([GameRound("x" * 1100, "long_code", "y" * 700, "", "z" * 700)], [])
    assert [len(cell) for cell in long.rows[0][:4]] == [1003, 9, 200, 203]


def test_a_table_without_rows_says_so():
    tables = [show_game([]), show_rounds([], []), show_hardest([]), show_counts({}), show_kinds({})]
    for table in [*tables, show_levels([])]:
        assert table.rows == [] and f">{table.caption}</caption>" in table._repr_html_()

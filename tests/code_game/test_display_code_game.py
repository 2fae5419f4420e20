"""Figures and tables of the code game, by their artists and cells, on rounds that were really counted."""

import math

from scripted_opponent import ScriptedOpponent

from rlnb.code_game.display import draw_game, draw_shares, show_hardest, show_measures, show_rounds
from rlnb.code_game.evaluation import EvaluatedProgram, measure_game, measure_levels
from rlnb.code_game.opponents import PredictionVerdict
from rlnb.code_game.prediction import load_prediction_set
from rlnb.code_game.prompts import GameQuestion
from rlnb.code_game.reward import GameRound, game_metrics


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
    return [
        EvaluatedProgram(question, "", True, game) for question, game in zip(questions, rounds, strict=True)
    ]


def required(game: GameRound) -> float:
    return 1.0 if game.is_win else -1.0


def graded(game: GameRound) -> float:
    return 1.0 - 2.0 * game.token_probability if game.is_valid else -1.0


def row(step: int, *rounds: GameRound, **more: float) -> dict[str, float]:
    return {"step": step} | {f"game/{name}": value for name, value in game_metrics(rounds).items()} | more


def test_the_game_has_held_out_points_and_the_kinds_that_occur():
    held_out = {"step": 0, "heldout/game/win_share": 0.25, "heldout/game/opponent_right": None}
    rows = [held_out, row(1, WIN, PREDICTED, BROKEN, BROKEN), row(2, BROKEN), row(3, WIN, LATE)]
    left, right = draw_game(rows, max_steps=10).axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in left.lines}
    assert {label: points for label, points in lines.items() if not label.startswith("_")} == {
        "wins": [[1, 0.25], [2, 0.125], [3, 0.25]], "valid": [[1, 0.5], [2, 0.25], [3, 1 / 3]],
        "opponent right on valid": [[1, 0.5], [3, 0.25]], "held out: wins": [[0, 0.25]],
    }  # fmt: skip
    kinds = [text.get_text() for text in right.get_legend().get_texts()]
    assert kinds == ["win", "valid, but predicted", "syntax error", "timeout"]


def test_measures_are_drawn_and_shown_at_each_time():
    before, after = played(PREDICTED, BROKEN, BROKEN), played(WIN, WIN, PREDICTED)
    times = {"before": before, "after": after, "control": played(PREDICTED, WIN, PREDICTED)}
    measures = measure_game(times)
    (axes,) = draw_shares(measures).axes
    names = [text.get_text() for text in axes.get_yticklabels()]
    drawn = {line.get_label(): line.get_xdata().tolist() for line in axes.lines}
    assert list(drawn) == ["before", "after", "control"] and "win" in names
    for time, shares in drawn.items():
        assert shares == [measures[time][name].value for name in names]
    table = show_measures(measures)
    cells = {line[0]: [cell.partition(" (")[0] for cell in line[1:]] for line in table.rows}
    assert cells["win"] == ["0.000", "0.667", "0.333"]


def test_rounds_show_what_became_of_a_program_and_what_it_earns():
    failed = GameRound("print(8)", "sandbox_error", "no server")
    none = GameRound(None, "no_code", "there is no program in the answer")
    table = show_rounds([WIN, PREDICTED, BROKEN, none, failed], [required, graded])
    assert table.rows == [
        ["n = 3\nprint(n * 7)\n", "valid", "", "21\n", "wrong", "+1.000", "+0.500", "0.250"],
        ["print(4)\n", "valid", "", "4\n", "right", "-1.000", "+0.000", "0.500"],
        ["print(\n", "syntax error", "is not Python", "", "–", "-1.000", "-1.000", "–"],
        ["(no code)\n", "no code", none.message, "", "–", "-1.000", "-1.000", "–"],
        ["print(8)\n", "sandbox error", "no server", "", "–", "–", "–", "–"],
    ]


def test_the_hardest_are_distinct_wins_the_least_likely_output_first():
    likely = valid("print(1 + 1)", "2", is_right=False, probability=0.4)
    asked = ScriptedOpponent({WIN.shown: "24\n"})
    table = show_hardest(played(likely, WIN, WIN, PREDICTED, BROKEN), asked)
    assert table.rows == [
        ["n = 3\nprint(n * 7)\n", "21\n", "24\n", "0.250"],
        ["print(1 + 1)\n", "2\n", "", "0.400"],
    ]


def test_levels_count_right_predictions():
    known = {one.code: one.output for one in load_prediction_set() if one.level == "L1"}
    counts = measure_levels(ScriptedOpponent(known))
    assert list(counts.values()) == ["15 of 15", "0 of 15", "0 of 15", "0 of 15", "15 of 60"]

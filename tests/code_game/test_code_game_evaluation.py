"""Measures of the code game on rounds that fit in the head, and an evaluation from end to end."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scripted_opponent import ScriptedOpponent
from tiny_policy import load_tiny

from rlnb.code_game.evaluation import (
    EvaluatedProgram,
    GameEvaluation,
    compare_game,
    count_constructs,
    count_invalid_kinds,
    estimate_share,
    find_hardest,
    game_heldout_metrics,
    measure_game,
    save_game,
)
from rlnb.code_game.opponents import ModelOpponent, PredictionVerdict
from rlnb.code_game.params import GrpoCodeGameParams
from rlnb.code_game.prompts import GameQuestion, game_questions
from rlnb.code_game.reward import GameReferee, GameRound
from rlnb.run.metrics import describe
from rlnb.sandbox import Limits, Reruns
from rlnb.statistics import Estimate, bootstrap_ratio, wilson_interval

RIGHT, WRONG = PredictionVerdict(True, math.log(0.9), 1), PredictionVerdict(False, 2 * math.log(0.1), 2)
QUESTIONS = [GameQuestion(f"held_out/{number}", f"n = {number}") for number in range(4)]


def valid(question: int, code: str, output: str, verdict: PredictionVerdict = WRONG) -> EvaluatedProgram:
    played = GameRound(code, "valid", "", code, output, verdict)
    return EvaluatedProgram(QUESTIONS[question], f"```python\n{code}\n```", played)


def invalid(question: int, kind: str = "silent") -> EvaluatedProgram:
    return EvaluatedProgram(QUESTIONS[question], "", GameRound("x = 1", kind, "prints nothing", "x = 1"))


# Two questions, two samples each: 3 of 4 are valid, of these 1 is predicted, 1 is trivial.
BEFORE = [
    valid(0, "print(5)", "5", RIGHT),
    valid(0, "print(2 + 3)", "5"),
    valid(1, "print(2 * 4)  # Output: 9", "8"),
    invalid(1),
]
AFTER = [
    valid(0, "print(3 * 3)", "9"),
    valid(0, "print(5 * 5)", "25"),
    valid(1, "for k in [7]: print(k + 1)", "8"),
    valid(1, "print(6 * 6)", "36", RIGHT),
]


JUDGED_TWICE = [
    replace(program, second=verdict, counts_for_second=True)
    for program, verdict in zip(BEFORE, [RIGHT, RIGHT, WRONG, None], strict=True)
]


def test_each_share_is_of_what_it_says():
    measures = measure_game(JUDGED_TWICE)
    values = {name: value.value if isinstance(value, Estimate) else value for name, value in measures.items()}
    assert values == pytest.approx({
        "win": 2 / 4,
        "valid": 3 / 4,
        "opponent right on valid": 1 / 3,
        "win under the second judge": 1 / 4,
        "second judge right on valid": 2 / 3,
        "trivial": 1 / 3,
        "echo": 1 / 3,
        "distinct shapes a valid program": 1.0,
        "probability of an output token": (0.9 + 0.1 + 0.1) / 3,
        "characters of an output": 1.0,
    })  # fmt: skip
    assert values["win"] == pytest.approx(values["valid"] * (1 - values["opponent right on valid"]))


def test_intervals_draw_questions_not_completions():
    assert estimate_share(BEFORE, "valid") == bootstrap_ratio([2, 1], [2, 2])
    assert estimate_share(BEFORE, "opponent right on valid") == bootstrap_ratio([1, 0], [2, 1])


def test_a_difference_to_none_at_all_has_a_width():
    """Newcombe's: 0 of one question's programs against 1 of 2; nothing varies on the first side."""
    now = [valid(0, "print(2 + 3)", "5"), valid(1, "print(2 * 4)", "8")]
    rows = {row.measure: row for row in compare_game({"before": BEFORE, "after": now})}
    row = rows["opponent right on valid"]
    assert row.values["after"] == wilson_interval(0.0, 2)
    change = row.differences["after - before"]
    assert change.value == pytest.approx(-1 / 3)
    assert change.low == pytest.approx(-1 / 3 - (row.values["before"].high - 1 / 3))
    assert change.high > change.value


def test_what_the_second_judge_had_no_full_choice_for_counts_not():
    class Chooser:
        def judge(self, programs, outputs):
            verdicts = (True, 4), (False, 4), (True, 1)
            return [PredictionVerdict(is_right, num_options=count) for is_right, count in verdicts]

    judged_twice = GameEvaluation(GrpoCodeGameParams(), None, None, None).judge_again(BEFORE, Chooser())
    assert [program.counts_for_second for program in judged_twice] == [True, True, False, True]
    assert estimate_share(judged_twice, "second judge right on valid").value == 0.5
    assert estimate_share(judged_twice, "win under the second judge").value == pytest.approx(1 / 3)


def test_what_nothing_tells_of_is_none():
    measures = measure_game([invalid(0), invalid(1, "no_code")])
    assert measures["win"] == wilson_interval(0.0, 2)  # two questions; nothing varies between draws
    of_valid = [name for name in measures if name not in ("win", "valid")]
    assert {measures[name] for name in of_valid} == {None}


def test_the_comparison_has_the_differences_of_each_measure_that_is_defined():
    rows = {row.measure: row for row in compare_game({"before": BEFORE, "after": AFTER, "control": []})}
    win = rows["win"]
    assert (win.values["before"].value, win.values["after"].value) == (0.5, 0.75)
    minus = ([1, 1], [2, 2])
    assert win.differences == {"after - before": bootstrap_ratio([2, 1], [2, 2], minus=minus)}
    right = rows["opponent right on valid"].differences["after - before"]
    assert right.value == pytest.approx(1 / 4 - 1 / 3)
    assert "win under the second judge" not in rows  # nobody was asked
    assert rows["characters of an output"].differences == {}


def test_a_time_compared_with_itself_differs_by_nothing_in_any_order():
    rows = compare_game({"before": AFTER, "after": AFTER[::-1], "control": AFTER})
    differences = [change for row in rows for change in row.differences.values() if change]
    assert len(differences) >= 10
    for change in differences:
        assert change.value == 0.0 and change.low == -change.high


def test_only_questions_of_both_times_are_compared():
    more = [*AFTER, invalid(2), invalid(2)]
    rows = {row.measure: row for row in compare_game({"before": BEFORE, "after": more})}
    assert rows["valid"].values["after"].value == 4 / 6
    assert rows["valid"].differences["after - before"].value == pytest.approx(1 - 3 / 4)
    apart = compare_game({"before": BEFORE, "after": [valid(3, "print(1 + 1)", "2")]})
    assert [change for row in apart for change in row.differences.values()] == [None] * 5


def test_the_heldout_metrics_are_the_means_and_stand_in_the_table():
    metrics = game_heldout_metrics(JUDGED_TWICE)
    assert metrics == pytest.approx({
        "heldout/game/win_share": 1 / 2, "heldout/game/valid_share": 3 / 4,
        "heldout/game/opponent_right": 1 / 3, "heldout/game/trivial_share": 1 / 3,
        "heldout/game/echo_share": 1 / 3, "heldout/game/distinct_shapes": 1.0,
        "heldout/game/second_right": 2 / 3,
    })  # fmt: skip
    assert all(describe(name) for name in metrics)
    assert (game_heldout_metrics([]), compare_game({"before": [], "after": []})) == ({}, [])


def test_kinds_of_invalid_programs_that_occur_have_a_row():
    shares = count_invalid_kinds({"before": BEFORE, "after": AFTER, "control": [invalid(0, "no_code")]})
    assert shares == {
        "no_code": {"before": 0.0, "after": 0.0, "control": 1.0},
        "silent": {"before": 0.25, "after": 0.0, "control": 0.0},
    }


def test_constructs_are_counted_with_how_often_they_were_predicted():
    assert count_constructs({"before": BEFORE, "after": AFTER}) == {
        "trivial": {"before": (1, 1), "after": (0, 0)},
        "arithmetic": {"before": (0, 2), "after": (1, 4)},
        "loops": {"before": (0, 0), "after": (0, 1)},
        "lists": {"before": (0, 0), "after": (0, 1)},
    }


def test_the_hardest_are_distinct_wins_the_least_likely_output_first():
    unlikely = PredictionVerdict(False, math.log(0.01), 1)
    likely = PredictionVerdict(False, 4 * math.log(0.4), 4)
    programs = [
        valid(0, "print(1 + 1)", "2", likely),
        valid(0, "print(2 + 2)", "4", unlikely),
        valid(1, "print(2 + 2)", "4", unlikely),
        valid(1, "print(7)", "7", RIGHT),
        invalid(2),
        valid(2, "print(3 + 3)", "6"),
    ]
    opponent = ScriptedOpponent({"print(2 + 2)": "5", "print(3 + 3)": "7"})
    rows = find_hardest(programs, opponent)
    assert [(played.shown, played.output, prediction) for played, prediction in rows] == [
        ("print(2 + 2)", "4", "5"), ("print(3 + 3)", "6", "7"), ("print(1 + 1)", "2", ""),
    ]  # fmt: skip
    assert [played.token_probability for played, _ in rows] == pytest.approx([0.01, 0.1, 0.4])
    assert find_hardest(programs, opponent, limit=1) == rows[:1]
    assert find_hardest([invalid(0)], opponent) == []


def test_what_is_saved_is_strict_json_with_every_round(tmp_path: Path):
    unknown = [valid(0, "print(1 + 1)", "2", PredictionVerdict(False)), invalid(1)]
    save_game(tmp_path / "game.json", GrpoCodeGameParams(), {"before": unknown, "after": AFTER})

    def refuse(name: str) -> None:
        raise ValueError(name)  # NaN is no JSON

    saved = json.loads((tmp_path / "game.json").read_text(encoding="utf-8"), parse_constant=refuse)
    assert [program["kind"] for program in saved["rounds"]["before"]] == ["valid", "silent"]
    assert [program["token_probability"] for program in saved["rounds"]["before"]] == [None, None]
    assert [program["opponent_right"] for program in saved["rounds"]["after"]] == [False, False, False, True]
    assert saved["measures"][0]["measure"] == "win"
    assert saved["measures"][0]["values"]["after"]["value"] == 0.75


def test_an_evaluation_asks_the_same_each_time_and_keeps_the_random_state(tmp_path: Path):
    sections = {"game": {"form": "seeded"}, "training": {"max_completion_length": 6}}
    params = GrpoCodeGameParams(**sections, evaluation={"num_programs": 2, "num_prompts": 3})
    policy = load_tiny(tmp_path)
    with Reruns(Limits(cpu_seconds=1), num_interpreters=2, num_workers=1) as reruns:
        evaluate = GameEvaluation(
            params, GameReferee(reruns, len), ModelOpponent(policy, num_shots=0), ScriptedOpponent({})
        )
        torch.manual_seed(3)
        state = torch.random.get_rng_state()
        first, second = (evaluate(policy) for _ in range(2))
        without = replace(evaluate, second=None)(policy)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert first == second
    assert [program.question for program in first] == [
        q for q in game_questions()["held_out"][:3] for _ in (1, 2)
    ]
    assert all(program.counts_for_second for program in first)
    assert not any(program.counts_for_second for program in without)
    assert [program.round for program in without] == [program.round for program in first]
    assert len({program.completion for program in first}) > 3

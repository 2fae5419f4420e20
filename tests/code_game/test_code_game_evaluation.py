"""Measures of the code game on rounds that fit in the head, and an evaluation from end to end."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from metric_table import is_known
from scripted_opponent import ScriptedOpponent
from tiny_policy import load_tiny

from rlnb.code_game.evaluation import (
    NUM_PROGRAMS,
    EvaluatedProgram,
    GameEvaluation,
    compare_game,
    estimate_share,
    game_heldout_metrics,
    measure_game,
)
from rlnb.code_game.opponents import ModelOpponent, PredictionVerdict
from rlnb.code_game.params import GrpoCodeGameParams
from rlnb.code_game.prompts import GameQuestion, game_questions
from rlnb.code_game.reward import GameReferee, GameRound
from rlnb.results import Comparison, SavedComparison, load_saved, save_results
from rlnb.sandbox import Limits, Reruns
from rlnb.statistics import Estimate, bootstrap_ratio, wilson_interval

RIGHT, WRONG = PredictionVerdict(True, math.log(0.9), 1), PredictionVerdict(False, 2 * math.log(0.1), 2)
QUESTIONS = [GameQuestion(f"held_out/{number}", f"n = {number}") for number in range(4)]


def valid(question: int, code: str, output: str, verdict: PredictionVerdict = WRONG) -> EvaluatedProgram:
    played = GameRound(code, "valid", "", code, output, verdict)
    return EvaluatedProgram(QUESTIONS[question], f"```python\n{code}\n```", False, played)


def invalid(question: int, kind: str = "silent") -> EvaluatedProgram:
    played = GameRound("x = 1", kind, "prints nothing", "x = 1")
    return EvaluatedProgram(QUESTIONS[question], "", True, played)


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


SECONDS = [RIGHT, RIGHT, WRONG, None]
JUDGED_TWICE = [replace(program, second=verdict) for program, verdict in zip(BEFORE, SECONDS, strict=True)]


def test_each_share_is_of_what_it_says():
    measures = measure_game({"before": JUDGED_TWICE, "control": []})
    assert list(measures) == ["before"]
    values = {
        name: value.value if isinstance(value, Estimate) else value
        for name, value in measures["before"].items()
    }
    assert values == pytest.approx({
        "win": 2 / 4,
        "valid": 3 / 4,
        "cut": 1 / 4,
        "opponent right on valid": 1 / 3,
        "second judge right on valid": 2 / 3,
        "trivial": 1 / 3,
        "echo": 1 / 3,
        "distinct shapes a valid program": 1.0,
        "probability of an output token": (0.9 + 0.1 + 0.1) / 3,
        "characters of an output": 1.0,
    })  # fmt: skip
    assert values["win"] == pytest.approx(values["valid"] * (1 - values["opponent right on valid"]))


def test_what_nothing_tells_of_is_none():
    measures = measure_game({"before": [invalid(0), invalid(1, "no_code")]})["before"]
    assert measures["win"] == wilson_interval(0.0, 2)  # two questions; nothing varies between draws
    of_valid = [name for name in measures if name not in ("win", "valid", "cut")]
    assert {measures[name] for name in of_valid} == {None}


def changes(before, after, *, control=()) -> dict[tuple[str, str], Comparison]:
    rows = compare_game({"before": before, "after": after, "control": control})
    return {(row.measure, row.split): row for row in rows}


def test_the_comparison_draws_questions_and_has_the_differences_of_each_share_that_is_defined():
    assert estimate_share(BEFORE, "opponent right on valid") == bootstrap_ratio([1, 0], [2, 1])
    rows = changes(BEFORE, AFTER)
    win = rows["win", "after - before"]
    assert (win.num_items, win.before, win.after) == (2, 0.5, 0.75)
    assert win.difference == bootstrap_ratio([2, 1], [2, 2], minus=([1, 1], [2, 2]))
    right = rows["opponent right on valid", "after - before"].difference
    assert right.value == pytest.approx(1 / 4 - 1 / 3)
    assert {split for _, split in rows} == {"after - before"}  # there is no control
    assert "second judge right on valid" not in {measure for measure, _ in rows}  # it was not asked


def test_only_questions_of_both_times_are_compared_in_any_order():
    row = changes(BEFORE, [*AFTER, invalid(2), invalid(2)])["valid", "after - before"]
    assert (row.before, row.after, row.num_items) == (0.75, 1.0, 2)
    assert changes(BEFORE, [valid(3, "print(1 + 1)", "2")]) == {}
    for row in changes(AFTER, AFTER[::-1], control=AFTER).values():
        assert row.difference.value == 0.0 and row.difference.low == -row.difference.high


def test_the_heldout_metrics_are_the_means_and_stand_in_the_table():
    metrics = game_heldout_metrics(JUDGED_TWICE)
    assert len(metrics) == 8 and all(map(is_known, metrics))
    names = ("win_share", "opponent_right", "second_right")
    assert [metrics[f"heldout/game/{name}"] for name in names] == pytest.approx([1 / 2, 1 / 3, 2 / 3])
    assert game_heldout_metrics([]) == {}


def test_what_is_saved_is_strict_json(tmp_path: Path):
    unknown = [valid(0, "print(1 + 1)", "2", PredictionVerdict(False)), invalid(1)]
    times = {"before": unknown, "after": AFTER}
    given = {"comparison": compare_game(times), "measures": measure_game(times)}
    save_results(tmp_path / "game.json", params=GrpoCodeGameParams(), **given)
    text = (tmp_path / "game.json").read_text(encoding="utf-8")
    saved = json.loads(text, parse_constant=pytest.fail)  # NaN is not JSON
    assert saved["measures"]["before"]["probability of an output token"] is None
    saved = load_saved(tmp_path / "game.json", SavedComparison, what="of a run").comparison
    assert saved == compare_game({"before": unknown, "after": AFTER})


def test_an_evaluation_asks_the_same_each_time_and_keeps_the_random_state(tmp_path: Path):
    sections = {"game": {"form": "seeded"}, "training": {"max_completion_length": 6}}
    params = GrpoCodeGameParams(**sections, evaluation={"num_prompts": 3})
    policy = load_tiny(tmp_path)
    with Reruns(Limits(cpu_seconds=1), num_interpreters=2, num_workers=1) as reruns:
        evaluate = GameEvaluation(
            params, GameReferee(reruns, len), ModelOpponent(policy, shots=()), ScriptedOpponent({})
        )
        torch.manual_seed(3)
        state = torch.random.get_rng_state()
        first, second = (evaluate(policy) for _ in range(2))
        without = replace(evaluate, second=None)(policy)
        between = evaluate(policy, is_interval=True)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert first == second
    asked = game_questions("seeded")["held_out"][:3]
    assert [program.question for program in first] == [q for q in asked for _ in range(NUM_PROGRAMS)]
    assert [program.second is not None for program in first] == [p.round.is_valid for p in first]
    assert not any(program.second for program in without)
    assert [program.round for program in without] == [program.round for program in first]
    assert len({program.completion for program in first}) > 6
    assert {program.question for program in between} == {asked[0]}  # an eighth, and at least one

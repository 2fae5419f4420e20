"""Measures of the code game on rounds that fit in the head, and an evaluation from end to end."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rlnb.evaluation.code_game import (
    GameEvaluation,
    Played,
    by_construct,
    compare_game,
    game_heldout_metrics,
    hardest,
    invalid_kinds,
    measure_game,
    opponent_by_level,
    save_game,
    share_of,
)
from rlnb.evaluation.compare import Estimate, bootstrap_ratio, wilson_interval
from rlnb.metrics import describe
from rlnb.params.grpo_code_game import GrpoCodeGameParams
from rlnb.params.sections import ModelParams
from rlnb.policy import load_policy
from rlnb.rewards.code_game import GameReferee, GameRound, reading_of
from rlnb.rewards.opponents import ScriptedOpponent, Verdict, base_opponent
from rlnb.sandbox import Limits, Reruns
from rlnb.tasks.game_prompts import GameQuestion, game_questions
from rlnb.tasks.prediction_set import prediction_set

RIGHT, WRONG = Verdict(True, math.log(0.9), 1), Verdict(False, 2 * math.log(0.1), 2)
QUESTIONS = [GameQuestion(f"held_out/{number}", f"n = {number}") for number in range(4)]


def valid(question: int, code: str, output: str, verdict: Verdict = WRONG) -> Played:
    one = GameRound(code, "valid", "", code, output, verdict)
    return Played(QUESTIONS[question], f"```python\n{code}\n```", one, reading_of(one))


def invalid(question: int, kind: str = "silent") -> Played:
    return Played(QUESTIONS[question], "", GameRound("x = 1", kind, "prints nothing", "x = 1"))


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


def with_second(played: list[Played], verdicts: list[Verdict | None]) -> list[Played]:
    return [
        replace(one, second=verdict, has_second=True) for one, verdict in zip(played, verdicts, strict=True)
    ]


def test_each_share_is_of_what_it_says():
    second = with_second(BEFORE, [RIGHT, RIGHT, WRONG, None])
    measures = measure_game(second)
    values = {name: value.value if isinstance(value, Estimate) else value for name, value in measures.items()}
    assert values == pytest.approx({
        "win": 2 / 4,
        "valid": 3 / 4,
        "opponent right on valid": 1 / 3,
        "win under the second judge": 1 / 4,
        "second judge right on valid": 2 / 3,
        "trivial": 1 / 3,
        "echo": 1 / 3,
        "false comment": 1 / 3,
        "distinct shapes a valid program": 1.0,
        "probability of an output token": (0.9 + 0.1 + 0.1) / 3,
        "characters of an output": 1.0,
    })  # fmt: skip
    assert values["win"] == pytest.approx(values["valid"] * (1 - values["opponent right on valid"]))


def test_intervals_draw_questions_not_completions():
    assert share_of(BEFORE, "valid") == bootstrap_ratio([2, 1], [2, 2])
    assert share_of(BEFORE, "opponent right on valid") == bootstrap_ratio([1, 0], [2, 1])


def test_a_difference_to_none_at_all_has_a_width():
    """Newcombe's: 0 of one question's programs against 1 of 2; nothing varies on the first side."""
    now = [valid(0, "print(2 + 3)", "5"), valid(1, "print(2 * 4)", "8")]
    (row,) = [
        row
        for row in compare_game({"before": BEFORE, "after": now})
        if row["measure"] == "opponent right on valid"
    ]
    assert row["after"] == wilson_interval(0.0, 2)
    change = row["after - before"]
    assert change.value == pytest.approx(-1 / 3)
    assert change.low == pytest.approx(-1 / 3 - (row["before"].high - 1 / 3))
    assert change.high > change.value


def test_what_the_second_judge_had_no_full_choice_for_counts_not():
    class Chooser:
        def judge(self, programs, outputs):
            return [Verdict(True, num_options=4), Verdict(False, num_options=4), Verdict(True, num_options=1)]

    params = GrpoCodeGameParams()
    evaluate = GameEvaluation(params, None, ScriptedOpponent({}), Chooser())
    judged_twice = evaluate.with_second(BEFORE)
    assert [one.has_second for one in judged_twice] == [True, True, False, True]
    assert share_of(judged_twice, "second judge right on valid").value == 0.5
    assert share_of(judged_twice, "win under the second judge").value == pytest.approx(1 / 3)


def test_what_nothing_tells_of_is_none():
    measures = measure_game([invalid(0), invalid(1, "no_code")])
    assert measures["win"] == wilson_interval(0.0, 2)  # two questions; nothing varies between draws
    of_valid = [name for name in measures if name not in ("win", "valid")]
    assert {measures[name] for name in of_valid} == {None}


def test_the_comparison_has_a_row_a_measure_with_the_differences():
    rows = {row["measure"]: row for row in compare_game({"before": BEFORE, "after": AFTER, "control": []})}
    assert list(rows["win"]) == ["measure", "before", "after", "after - before"]
    assert rows["win"]["before"].value == 0.5
    assert rows["win"]["after"].value == 0.75
    assert rows["win"]["after - before"] == bootstrap_ratio([2, 1], [2, 2], minus=([1, 1], [2, 2]))
    assert rows["opponent right on valid"]["after - before"].value == pytest.approx(1 / 4 - 1 / 3)
    assert "win under the second judge" not in rows  # nobody was asked
    assert list(rows["characters of an output"]) == ["measure", "before", "after"]


def test_a_time_compared_with_itself_differs_by_nothing_in_any_order():
    rows = compare_game({"before": AFTER, "after": AFTER[::-1], "control": AFTER})
    for row in rows:
        for name in ("after - before", "after - control"):
            change = row.get(name) or Estimate(0.0, 0.0, 0.0)
            assert change.value == 0.0 and change.low == -change.high
    assert rows[0]["after - control"] is not None


def test_only_questions_of_both_times_are_compared():
    more = [*AFTER, invalid(2), invalid(2)]
    rows = {row["measure"]: row for row in compare_game({"before": BEFORE, "after": more})}
    assert rows["valid"]["after"].value == 4 / 6
    assert rows["valid"]["after - before"].value == pytest.approx(1 - 3 / 4)
    apart = compare_game({"before": BEFORE, "after": [valid(3, "print(1 + 1)", "2")]})
    assert [row["after - before"] for row in apart if "after - before" in row] == [None] * 6


def test_nothing_played_compares_to_nothing():
    assert compare_game({"before": [], "after": []}) == []
    assert game_heldout_metrics([]) == {}


def test_the_heldout_metrics_are_the_means_and_stand_in_the_table():
    metrics = game_heldout_metrics(with_second(BEFORE, [RIGHT, RIGHT, WRONG, None]))
    assert metrics == pytest.approx({
        "heldout/game/win_share": 1 / 2, "heldout/game/valid_share": 3 / 4,
        "heldout/game/opponent_right": 1 / 3, "heldout/game/trivial_share": 1 / 3,
        "heldout/game/echo_share": 1 / 3, "heldout/game/distinct_shapes": 1.0,
        "heldout/game/second_right": 2 / 3,
    })  # fmt: skip
    assert all(describe(name) for name in metrics)


def test_kinds_of_invalid_programs_that_occur_have_a_row():
    rows = invalid_kinds({"before": BEFORE, "after": AFTER, "control": [invalid(0, "no_code")]})
    assert rows == [
        {"kind": "no_code", "before": 0.0, "after": 0.0, "control": 1.0},
        {"kind": "silent", "before": 0.25, "after": 0.0, "control": 0.0},
    ]


def test_constructs_are_counted_with_how_often_they_were_predicted():
    rows = {row.pop("construct"): row for row in by_construct({"before": BEFORE, "after": AFTER})}
    assert rows == {
        "trivial": {"before": (1, 1), "after": (0, 0)},
        "arithmetic": {"before": (0, 2), "after": (1, 4)},
        "loops": {"before": (0, 0), "after": (0, 1)},
        "lists": {"before": (0, 0), "after": (0, 1)},
    }


def test_the_hardest_are_distinct_wins_the_least_likely_output_first():
    unlikely, likely = Verdict(False, math.log(0.01), 1), Verdict(False, 4 * math.log(0.4), 4)
    played = [
        valid(0, "print(1 + 1)", "2", likely),
        valid(0, "print(2 + 2)", "4", unlikely),
        valid(1, "print(2 + 2)", "4", unlikely),
        valid(1, "print(7)", "7", RIGHT),
        invalid(2),
        valid(2, "print(3 + 3)", "6"),
    ]
    opponent = ScriptedOpponent({"print(2 + 2)": "5", "print(3 + 3)": "7"})
    rows = hardest(played, opponent)
    assert [(row["program"], row["output"], row["prediction"]) for row in rows] == [
        ("print(2 + 2)", "4", "5"), ("print(3 + 3)", "6", "7"), ("print(1 + 1)", "2", ""),
    ]  # fmt: skip
    assert [row["token_probability"] for row in rows] == pytest.approx([0.01, 0.1, 0.4])
    assert hardest(played, opponent, limit=1) == rows[:1]
    assert hardest([invalid(0)], opponent) == []


def test_an_opponent_without_probabilities_leaves_them_unknown():
    (row,) = hardest([valid(0, "print(1 + 1)", "2", Verdict(False))], ScriptedOpponent({}))
    assert row["token_probability"] is None


def test_the_opponent_is_measured_level_by_level():
    literals = {one.code: one.output for one in prediction_set() if one.level == "L1"}
    rows = opponent_by_level(ScriptedOpponent(literals))
    assert [(row["level"], row["right"], row["count"]) for row in rows] == [
        ("L1", 15, 15), ("L2", 0, 15), ("L3", 0, 15), ("L4", 0, 15), ("all", 15, 60),
    ]  # fmt: skip
    assert rows[-1]["share"].low < 0.25 < rows[-1]["share"].high


def test_what_is_saved_is_strict_json_with_every_round(tmp_path: Path):
    unknown = [valid(0, "print(1 + 1)", "2", Verdict(False)), invalid(1)]
    save_game(tmp_path / "game.json", GrpoCodeGameParams(), {"before": unknown, "after": AFTER})

    def refuse(name: str) -> None:
        raise ValueError(name)  # NaN is no JSON

    saved = json.loads((tmp_path / "game.json").read_text(encoding="utf-8"), parse_constant=refuse)
    assert [one["kind"] for one in saved["rounds"]["before"]] == ["valid", "silent"]
    assert [one["token_probability"] for one in saved["rounds"]["before"]] == [None, None]
    assert [one["opponent_right"] for one in saved["rounds"]["after"]] == [False, False, False, True]
    assert saved["comparison"][0]["measure"] == "win"
    assert saved["comparison"][0]["after"]["value"] == 0.75


def test_an_evaluation_asks_the_same_each_time_and_keeps_the_random_state(tmp_path: Path):
    model = ModelParams(
        id="tiny", cache_dir=str(tmp_path), engine="transformers", dtype="float32", attention="sdpa",
        load_in_4bit=False, lora_rank=4,
    )  # fmt: skip
    params = GrpoCodeGameParams(
        model=model, game={"form": "seeded"}, training={"max_completion_length": 6},
        evaluation={"num_programs": 2},
    )  # fmt: skip
    policy = load_policy(model)
    with Reruns(Limits(cpu_seconds=1), num_interpreters=2, num_workers=1) as reruns:
        evaluate = GameEvaluation(
            params, GameReferee(reruns, len), base_opponent(policy, num_shots=0), ScriptedOpponent({})
        )
        torch.manual_seed(3)
        state = torch.random.get_rng_state()
        first, second = (evaluate(policy, num_prompts=3) for _ in range(2))
        without = replace(evaluate, second=None)(policy, num_prompts=3)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert first == second
    assert [one.question for one in first] == [q for q in game_questions()["held_out"][:3] for _ in (1, 2)]
    assert all(one.has_second for one in first)
    assert not any(one.has_second for one in without)
    assert [one.round for one in without] == [one.round for one in first]
    assert len({one.completion for one in first}) > 3

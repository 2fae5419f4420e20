"""Evaluations that a run keeps: read by a resumed run, whatever its ranks see."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import BaseModel
from tiny_policy import load_tiny, train_by_hand

from rlnb.evaluations import answer_before_and_after, measure_once
from rlnb.policy import generate
from rlnb.policy.adapters import WeightSnapshot, rewind, trained_parameters
from rlnb.policy.prompts import Prompt


class ParamsOfTest(BaseModel):
    seed: int = 7


@dataclass(frozen=True)
class Verdict:
    text: str
    logprob: float
    parts: tuple[tuple[bool | None, ...], ...] = ()


VERDICTS = [Verdict("NaN", math.inf, ((True, None), ())), Verdict("", 0.1 + 0.2)]


@pytest.fixture(scope="module")
def policy(cache_dir: Path):
    return load_tiny(cache_dir)


@pytest.fixture
def measure(policy, tmp_path):
    """A function that measures, perhaps otherwise, and returns the evaluation and whether it was done."""

    def measure(evaluation: object = VERDICTS, **changes: object) -> tuple[object, bool]:
        calls = []

        def evaluate() -> object:
            calls.append(1)
            return evaluation

        options = {"kind": list[Verdict], "policy": policy, "params": ParamsOfTest()}
        options |= {"settings": {"games": (1, 2)}, **changes}
        return measure_once(tmp_path / "run" / "game_before.json", evaluate, **options), bool(calls)

    return measure


def test_an_evaluation_is_done_once_and_read_to_the_bit(measure, tmp_path, capsys):
    assert measure() == (VERDICTS, True)
    assert measure() == (VERDICTS, False)
    path = tmp_path / "run" / "game_before.json"
    assert capsys.readouterr().out.startswith(str(path))
    assert json.loads(path.read_text())["params"] == {"seed": 7}
    measure([Verdict("", math.nan)], settings={})
    ((verdict,), is_done) = measure(settings={})
    assert math.isnan(verdict.logprob) and not is_done


def test_other_settings_weights_or_averages_are_evaluated_again(measure, policy, capsys):
    average = WeightSnapshot.take(policy)
    assert [measure(settings=settings)[1] for settings in ({"games": 1}, {"games": 2})] == [True, True]
    assert [measure(snapshots=[average])[1] for _ in range(2)] == [True, False]
    before = WeightSnapshot.take(policy)
    train_by_hand(policy)
    assert [measure(snapshots=[average])[1] for _ in range(2)] == [True, False]
    average.move_towards(policy, 1.0)
    assert measure(snapshots=[average])[1]
    before.restore(policy)
    assert "damaged" not in capsys.readouterr().out


def test_a_damaged_file_is_said_and_evaluated_again(measure, tmp_path, capsys):
    measure()
    path = tmp_path / "run" / "game_before.json"
    for text in (path.read_text()[:-30], path.read_text().replace("logprob", "probability")):
        path.write_text(text)
        assert measure() == (VERDICTS, True)
        assert "damaged" in capsys.readouterr().out


def test_the_answers_before_and_after_are_those_of_the_first_weights_and_of_the_trained_ones(cache_dir):
    fresh, trained = load_tiny(cache_dir), load_tiny(cache_dir)
    rewind(trained.model)  # as a training begins
    train_by_hand(trained)
    prompt = Prompt("def double(n):\n", "def double(n):\n")
    expected = [
        generate(policy, [prompt.text], max_new_tokens=8, temperature=0.0)[0].text
        for policy in (fresh, trained)
    ]
    assert expected[0] != expected[1]
    assert answer_before_and_after(trained, prompt, function="", max_new_tokens=8) == expected


def test_before_is_of_the_first_weights_and_there_is_no_after_without_a_training(cache_dir, tmp_path):
    policy = load_tiny(cache_dir)
    options = {"kind": float, "policy": policy, "params": ParamsOfTest(), "settings": {}}

    def evaluate() -> float:
        return float(sum(weight.detach().sum() for _, weight in trained_parameters(policy)))

    with pytest.raises(RuntimeError, match="run the training cell"):
        measure_once(tmp_path / "game_after.json", evaluate, **options)
    untrained = measure_once(tmp_path / "game_before.json", evaluate, **options)
    rewind(policy.model)  # as a training begins
    train_by_hand(policy)
    trained = evaluate()
    assert trained != untrained
    assert measure_once(tmp_path / "game_before.json", pytest.fail, **options) == untrained
    assert measure_once(tmp_path / "again_before.json", evaluate, **options) == untrained
    assert measure_once(tmp_path / "game_after.json", evaluate, **options) == trained == evaluate()

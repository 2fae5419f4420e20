"""Runs do what they did when they were recorded: the same games, losses, gradients and weights, to 1e-6.

`python tests/selfplay/recorded_runs.py FOLDER` records them again, after a change of what a run computes.
"""

import json
from pathlib import Path

import pytest
from pytest import approx
from recorded_runs import CASES, ON_RANKS, RECORDED, measure
from two_ranks import run_on_two_ranks

TOLERANCE = 1e-6


def assert_same(actual: dict, recorded: dict) -> None:
    assert actual["games"] == recorded["games"]
    assert actual["kept"] == approx(recorded["kept"], abs=TOLERANCE)
    for row, expected in zip(actual["metrics"], recorded["metrics"], strict=True):
        assert {name: row.get(name) for name in expected} == approx(expected, abs=TOLERANCE, rel=TOLERANCE)
    for weights in ("weights", "average"):
        for figures, expected in zip(actual[weights], recorded[weights], strict=True):
            assert figures == approx(expected, abs=TOLERANCE)


@pytest.fixture(scope="module")
def recorded() -> dict:
    return json.loads(RECORDED.read_text())


@pytest.mark.parametrize("case", CASES)
def test_a_run_is_as_recorded(recorded, tmp_path, case):
    assert_same(measure(case, tmp_path), recorded["alone"][case])


def test_runs_on_two_ranks_are_as_recorded(recorded, tmp_path):
    run_on_two_ranks(Path(__file__).with_name("recorded_runs.py"), tmp_path)
    ranks = json.loads((tmp_path / "ranks.json").read_text())
    for case in ON_RANKS:
        assert_same(ranks[case], recorded["ranks"][case])

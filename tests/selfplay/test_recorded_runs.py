"""Runs do what they did when they were recorded: the same games, losses, gradients and weights, to 1e-6.

`python tests/selfplay/recorded_runs.py FOLDER` records them again, after a change of what a run computes.
"""

import json

import pytest
from recorded_runs import CASES, RECORDED, assert_same, measure


@pytest.fixture(scope="module")
def recorded() -> dict:
    return json.loads(RECORDED.read_text())


@pytest.mark.parametrize("case", CASES)
def test_a_run_is_as_recorded(recorded, tmp_path, case):
    assert_same(measure(case, tmp_path), recorded["alone"][case])

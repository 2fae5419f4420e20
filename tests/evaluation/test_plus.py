"""Samples of an evaluation that meet EvalPlus's inputs too."""

import json

import pytest

from rlnb.errors import ParamsError
from rlnb.evaluation.mbpp import evaluate_samples
from rlnb.evaluation.plus import check_samples, summary_of
from rlnb.evaluation.writers import WrittenSample
from rlnb.sandbox import Sandbox
from rlnb.tasks.mbpp import Problem
from rlnb.tasks.mbpp_prompts import TEMPLATES

DOUBLE = Problem(901, "Double it.", "def double(n): return 2 * n", ("assert double(2) == 4",))
RECORD = {
    "task_id": "Mbpp/901", "prompt": "", "entry_point": "double", "canonical_solution": DOUBLE.code,
    "base_input": [[2]], "plus_input": [[3]], "atol": 0,
}  # fmt: skip


def test_a_memorized_answer_passes_base_and_not_plus(tmp_path):
    path = tmp_path / "plus.jsonl"
    path.write_text(json.dumps(RECORD) + "\n")
    programs = (DOUBLE.code, "def double(n): return 4", "def double(n): return n")
    with Sandbox(num_workers=2) as sandbox:
        written = [WrittenSample(901, program, is_program=True) for program in programs]
        samples = evaluate_samples([DOUBLE], TEMPLATES["chat"], written, sandbox)
        report = check_samples(samples, str(path), sandbox, cache_dir=str(tmp_path))
        assert [(verdict.base, verdict.plus) for verdict in report.verdicts] == [
            (True, True), (True, False), (False, False),
        ]  # fmt: skip
        assert report.summary["base"]["value"] == pytest.approx(2 / 3)
        assert report.summary["plus"]["value"] == pytest.approx(1 / 3)
        path.write_text(json.dumps({**RECORD, "task_id": "Mbpp/902"}) + "\n")
        with pytest.raises(ParamsError) as raised:
            check_samples(samples, str(path), sandbox, cache_dir=str(tmp_path))
    assert str(raised.value) == (
        f"{path}: holds none of the problems that were asked; write mbpp.split = all"
    )


def test_rates_of_nothing_are_none():
    assert summary_of([None], 1) == {"num_problems": 1, "num_samples": 0}

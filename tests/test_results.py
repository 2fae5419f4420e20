"""Comparisons of evaluations, and the file that keeps them."""

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
from pydantic import BaseModel

from rlnb.errors import ParamsError
from rlnb.results import (
    Comparison,
    SavedComparison,
    compare,
    compare_files,
    load_saved,
    pool_comparisons,
    save_results,
)
from rlnb.statistics import Estimate, bootstrap_difference, bootstrap_ratio, bootstrap_two_way, student_mean


class ParamsOfTest(BaseModel):
    seed: int = 7
    target_kl: float = math.nan


@dataclass(frozen=True)
class Answer:
    completion: str
    rewards: tuple[float, ...]


def test_items_measured_both_times_are_paired_and_all_splits_come_first():
    before = {"reward": {"known": {"a": 0.0, "b": 1.0, "gone": 1.0}, "new": {"c": 0.5}}}
    after = {"reward": {"new": {"c": 1.0, "added": 0.0}, "known": {"b": 1.0, "a": 1.0}}}
    rows = compare(before, after)
    assert [(row.split, row.num_items) for row in rows] == [("all", 3), ("known", 2), ("new", 1)]
    assert {(row.measure, row.before, row.after) for row in rows} == {("reward", 0.5, 1.0)}
    assert rows[0].difference == bootstrap_difference([0.0, 1.0, 0.5], [1.0, 1.0, 1.0])


def test_one_split_has_no_row_for_all_and_nothing_in_common_no_row_at_all():
    before = {"pass": {"mbpp": {"1": 0.0}}, "other": {"mbpp": {"1": 1.0}}}
    rows = compare(before, {"pass": {"mbpp": {"1": 1.0}}})
    assert rows == [Comparison("pass", "mbpp", 1, 0.0, 1.0, Estimate(1.0, 1.0, 1.0))]


def test_runs_are_pooled_over_the_items_that_all_have_and_all_splits_together():
    before = {"pass": {"known": {"a": 0.0, "b": 0.0}, "new": {"c": 0.0}}}
    runs = [
        compare(before, {"pass": {"known": {"a": 1.0, "b": 0.0}, "new": {"c": 0.5}}}),
        compare(before, {"pass": {"known": {"a": 1.0, "b": 1.0}, "new": {"c": 0.0}}}),
    ]
    rows = {row.split: row for row in pool_comparisons(runs)}
    pooled = [(row.num_items, row.difference) for row in rows.values()]
    assert pooled == [(3, 0.5833333333333333), (2, 0.75), (1, 0.25)]
    assert rows["all"].over_items == bootstrap_ratio([1.0, 0.5, 0.25], [1, 1, 1])
    assert rows["all"].over_runs == student_mean([0.5, 2 / 3])
    assert rows["all"].over_both == bootstrap_two_way([[[1.0, 0.0, 0.5], [1.0, 1.0, 0.0]]])
    other = {"pass": {"mbpp": {"1": 0.0, "2": 0.0}}}  # of another evaluation, as a training has it
    more = [[*run, *compare(other, {"pass": {"mbpp": {"1": 1.0, "2": 1.0}}})] for run in runs]
    assert pool_comparisons(more)[:3] == list(rows.values())
    (alone, *_) = pool_comparisons(runs[:1])
    assert (alone.over_runs, alone.over_both) == (None, None)
    assert pool_comparisons([]) == []


def test_results_are_written_and_read_back(tmp_path):
    path = tmp_path / "results.json"
    comparison = compare({"reward": {"new": {"a": 0.0}}}, {"reward": {"new": {"a": 0.5}}})
    save_results(
        path,
        params=ParamsOfTest(),
        comparison=comparison,
        before=[Answer("print(1) \ud800", (math.nan, 1.0))],
        board=np.array([[1.0, math.inf], [2.0, 3.0]]),
        count=np.int64(3),
    )
    results = json.loads(path.read_text())
    assert list(results) == ["params", "headline", "comparison", "before", "board", "count"]
    assert results["params"] == {"seed": 7, "target_kl": None}
    difference = {"value": 0.5, "low": 0.5, "high": 0.5}
    row = {"measure": "reward", "split": "new", "num_items": 1, "before": 0.0, "after": 0.5}
    assert results["comparison"] == [row | {"difference": difference, "items": {"a": [0.0, 0.5]}}]
    assert load_saved(path, SavedComparison, what="of a run").comparison == comparison
    assert results["before"] == [{"completion": "print(1) \ud800", "rewards": [None, 1.0]}]
    assert (results["board"], results["count"]) == ([[1.0, None], [2.0, 3.0]], 3)


def test_what_cannot_be_saved_leaves_the_old_file_whole(tmp_path):
    path = tmp_path / "results.json"
    save_results(path, params={}, samples=[1])
    with pytest.raises(TypeError, match="cannot be saved"):
        save_results(path, params={}, samples=[object()])
    assert json.loads(path.read_text())["samples"] == [1]
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_without_results_is_refused(tmp_path):
    path = tmp_path / "results.json"
    for text in (None, "{", "[1]"):
        if text is not None:
            path.write_text(text)
        with pytest.raises(ParamsError, match=f"^{path}: .*; name "):
            load_saved(path, SavedComparison, what="of a run")


def test_two_runs_are_compared_by_their_directories_or_files_and_nothing_else(tmp_path):
    samples = [{"task_id": 1, "passed": True}, {"task_id": 2, "passed": None}]
    (tmp_path / "run").mkdir()
    for name in ("run/results.json", "mbpp_after.json"):
        (tmp_path / name).write_text(json.dumps({"settings": {}, "samples": samples}))
    said = compare_files(tmp_path / "run", tmp_path / "mbpp_after.json")
    assert said.startswith("1 problems in both\npass@1 +0.000 [+0.000, +0.000]\n")
    (tmp_path / "empty").mkdir()
    for name, missing in (("empty", "empty/results.json"), ("none.json", "none.json")):
        with pytest.raises(ParamsError, match=f"^{tmp_path / missing}: "):
            compare_files(tmp_path / "run", tmp_path / name)

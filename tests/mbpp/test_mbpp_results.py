"""Metrics and summaries of evaluations on MBPP, and comparisons of two."""

import json
from dataclasses import replace

import pytest
from refusals import refused

from rlnb.mbpp.results import compare_samples, mbpp_metrics, save_evaluation, summarize
from rlnb.mbpp.samples import Sample
from rlnb.results import compare_files


def a_sample(task_id: int, index: int, *results: bool | None, status: str = "ok") -> Sample:
    outcome = "passed" if all(results) else "wrong" if status == "ok" else status
    passed = None if status == "sandbox_error" else all(results)
    return Sample(task_id, "", index, outcome, passed, results, "", "text", False, "code")


GOOD, BAD, LUCKY = (True, True, True), (False, False, False), (True, False, False)


def test_the_metrics_are_the_mean_over_problems_and_the_problems_solved():
    samples = [a_sample(1, 0, *GOOD), a_sample(1, 1, *BAD), a_sample(2, 0, *BAD), a_sample(2, 1, *BAD)]
    names = ("pass_rate", "problems_passed", "num_problems")
    assert [mbpp_metrics(samples)[f"mbpp_eval/{name}"] for name in names] == [0.25, 1.0, 2.0]
    assert mbpp_metrics([]) == {}


def test_a_summary_has_each_pass_at_k_of_the_programs_that_ran():
    samples = [a_sample(1, 0, *GOOD), a_sample(1, 1, *LUCKY), a_sample(2, 0, *LUCKY), a_sample(2, 1, *BAD)]
    summary = summarize(samples)
    assert summary["pass_at"]["1"]["value"] == 0.25  # (1/2 + 0) / 2
    assert summary["pass_at"]["2"]["value"] == 0.5  # (1 + 0) / 2
    assert summary["outcomes"] == {"passed": 1, "wrong": 3}
    failed = a_sample(1, 1, None, None, None, status="sandbox_error")  # it does not count
    summary = summarize([a_sample(1, 0, *GOOD), failed])
    assert summary["pass_at"]["1"]["value"] == 1.0
    assert (summary["num_samples"], summary["outcomes"]) == (1, {"passed": 1, "sandbox_error": 1})


def test_an_error_that_most_programs_share_is_in_the_summary_and_its_headline(tmp_path):
    error = "NameError: name 'python' is not defined"
    failed = replace(a_sample(2, 0, None, status="runtime_error"), error=error)
    samples = [a_sample(1, 0, *GOOD), failed, replace(failed, task_id=3)]
    save_evaluation(tmp_path / "results.json", samples, params={}, settings={})
    saved = json.loads((tmp_path / "results.json").read_text())
    rate, cut, outcomes, warning = saved["headline"]
    assert rate.startswith("pass@1 0.333 [") and outcomes == "outcomes: 2 runtime error, 1 passed"
    assert saved["summary"]["warnings"] == [warning] and "67%" in warning and f"(2 of 3): {error}" in warning


SETTINGS = {"sha256": "abc", "template": "chat"}


def test_two_results_are_compared_by_gains_and_losses(tmp_path):
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    old = [a_sample(n, 0, *(GOOD if n < 5 else BAD)) for n in range(20)]
    new = [a_sample(n, 0, *(GOOD if n in (0, 1) or n > 8 else BAD)) for n in range(20)]
    save_evaluation(first, old, params={}, settings=SETTINGS)
    save_evaluation(second, new, params={}, settings={**SETTINGS, "template": "paper"})
    record = json.loads(first.read_text())["samples"][-1]
    assert (record["task_id"], record["outcome"], record["results"]) == (19, "wrong", list(BAD))
    p_value = 2 * sum([1, 14, 91, 364]) / 2**14
    said = compare_files(first, second)
    for part in ("gained 11: 9, 10, ", "lost 3: 2, 3, 4", f"p = {p_value:.3g}", "template: chat / paper"):
        assert part in said
    (row,) = compare_samples(old, new)
    assert (row.before, row.after, row.difference.value) == (0.25, 0.65, pytest.approx(0.4))

    save_evaluation(second, new, params={}, settings={"sha256": "def"})
    assert "sha256" in refused(compare_files, first, second)
    save_evaluation(second, [a_sample(30, 0, *GOOD)], params={}, settings=SETTINGS)
    assert "in common" in refused(compare_files, first, second)


@pytest.mark.parametrize("result", [GOOD, BAD])
def test_no_interval_says_that_what_always_or_never_happened_is_certain(result):
    samples = [a_sample(problem, number, *result) for problem in range(6) for number in (0, 1)]
    for estimate in summarize(samples)["pass_at"].values():
        assert estimate["low"] <= estimate["value"] <= estimate["high"]
        assert 0.2 < estimate["high"] - estimate["low"] < 0.8


def test_a_problem_with_too_few_samples_is_left_out_of_pass_at_k():
    samples = [a_sample(1, 0, *GOOD), a_sample(1, 1, *BAD), a_sample(2, 0, *BAD)]
    pass_at = summarize(samples)["pass_at"]
    assert (pass_at["1"]["value"], pass_at["1"]["num_problems"]) == (0.25, 2)
    assert (pass_at["2"]["value"], pass_at["2"]["num_problems"]) == (1.0, 1)
    samples += [a_sample(1, n, *BAD) for n in range(2, 40)]
    assert list(summarize(samples)["pass_at"]) == ["1", "10", "40"]

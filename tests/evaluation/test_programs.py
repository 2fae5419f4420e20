"""Measures of held-out tasks: which answers count for which number."""

from pytest import approx

from rlnb.evaluation.programs import Answer, compare, heldout_metrics, measure
from rlnb.rewards.code_execution import ERROR_REWARD, Judgement
from rlnb.tasks import Task
from rlnb.tasks.programming import Test as Call


def answer(name: str, right: bool | None, *, split: str = "known", greedy: bool = False) -> Answer:
    """An answer that is right, wrong, or (None) could not be run."""
    task = Task(name, "family", 1, "f", "n", "Do it.", Call((0,), 0), (Call((1,), 1), Call((2,), 2)))
    if right is None:
        return Answer(task, split, greedy, "", Judgement("", "sandbox_error", None, (None, None)))
    return Answer(task, split, greedy, "", Judgement("", "ok_with_output", None, (True, right)))


def test_sampled_and_greedy_answers_are_measured_apart():
    answers = [answer("a", True), answer("a", False), answer("b", True), answer("a", False, greedy=True)]
    assert measure(answers, "tests") == {
        "reward": {"known": {"a": 0.5, "b": 1.0}},
        "pass_rate_sampled": {"known": {"a": 0.5, "b": 1.0}},
        "pass_rate_greedy": {"known": {"a": 0.0}},
    }


def test_the_reward_is_of_greedy_answers_where_none_was_sampled():
    assert measure([answer("a", True, greedy=True)], "execution")["reward"] == {"known": {"a": 1.0}}


def test_answers_that_could_not_be_run_count_for_nothing():
    answers = [answer("a", True), answer("a", None), answer("b", None)]
    assert measure(answers, "tests")["pass_rate_sampled"] == {"known": {"a": 1.0}}


def test_a_test_without_a_result_makes_an_error_of_an_answer():
    task = answer("a", True).task
    broken = Answer(task, "known", False, "", Judgement("", "ok_with_output", None, (True, None)))
    assert measure([broken], "tests")["reward"] == {"known": {"a": ERROR_REWARD}}


def test_metrics_are_means_over_tasks_by_split():
    answers = [answer("a", True), answer("a", True), answer("b", False), answer("c", True, split="new")]
    assert heldout_metrics(answers, "tests") == {
        "heldout/known/reward": 0.5,
        "heldout/new/reward": 1.0,
        "heldout/known/pass_rate_sampled": 0.5,
        "heldout/new/pass_rate_sampled": 1.0,
    }


def test_the_comparison_pairs_tasks_and_begins_with_all_splits():
    before = [answer("a", False), answer("b", False, split="new"), answer("gone", True)]
    after = [answer("a", True), answer("b", False, split="new")]
    rows = compare(before, after, "tests")
    assert [(row["measure"], row["split"], row["num_tasks"]) for row in rows[:3]] == [
        ("reward", "all", 2),
        ("reward", "known", 1),
        ("reward", "new", 1),
    ]
    assert (rows[0]["before"], rows[0]["after"], rows[0]["difference"]) == (0.0, 0.5, 0.5)
    assert rows[0]["low"] == approx(0.0)
    assert rows[0]["high"] == approx(1.0)

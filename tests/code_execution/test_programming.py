"""Splitting tasks, and asking them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlnb.code_execution.prompts import build_prompt, question
from rlnb.code_execution.tasks import Task, split_tasks
from rlnb.code_execution.tasks import Test as Call


def task(name: str, family: str = "double") -> Task:
    return Task(
        name, family, 1, "double", "n", "Return twice n.", Call((2,), 4), (Call((5,), 10), Call((0,), 0))
    )


families = st.sampled_from("abcde")


@given(st.lists(families, max_size=40), st.floats(0, 1), st.integers(0, 99))
def test_a_split_is_a_partition(members, share, seed):
    tasks = [task(f"t{number}", family) for number, family in enumerate(members)]
    train, known = split_tasks(tasks, known_share=share, seed=seed)
    assert sorted(t.id for t in train + known) == sorted(t.id for t in tasks)
    assert split_tasks(tasks, known_share=share, seed=seed) == (train, known)


def test_a_family_of_ten_gives_three_for_known_and_one_of_one_gives_none():
    tasks = [task(f"t{number}") for number in range(10)] + [task("alone", "single")]
    train, known = split_tasks(tasks, known_share=0.3, seed=0)
    assert (len(known), len(train)) == (3, 8) and "alone" in [t.id for t in train]


@pytest.mark.parametrize("printed_example", [True, False])
def test_a_question_holds_the_statement_the_name_and_the_example_and_no_test(printed_example, chat):
    text = question(task("t"), printed_example=printed_example)
    assert all(part in text for part in ("Return twice n.", "`double(n)`", "double(2)", "`4`"))
    assert ("print" in text) == printed_example
    for form in ("chat", "prefilled", "completion"):
        assert "double(5)" not in build_prompt(task("t"), form, chat).text


def test_a_chat_leaves_the_answer_to_the_model_unless_it_is_prefilled(chat):
    prompt = build_prompt(task("t"), "chat", chat)
    assert (prompt.text, prompt.prefix) == (f"<user>{question(task('t'))}<assistant>", "")
    prompt = build_prompt(task("t"), "prefilled", chat)
    assert prompt.prefix == "```python\ndef double(n):\n"
    assert prompt.text.endswith("<assistant>" + prompt.prefix)


def test_a_statement_that_says_what_to_write_is_not_said_twice():
    statement = "Write a function to double a number."
    text = question(replace(task("t"), statement=statement))
    assert text.startswith(f"{statement} Name it `double(n)`.") and text.count("Write") == 1


def test_a_completion_prompt_is_all_program(chat):
    prompt = build_prompt(task("t"), "completion", chat)
    assert prompt.text == prompt.prefix
    assert prompt.text == 'def double(n):\n    """Return twice n.\n\n    >>> double(2)\n    4\n    """\n'

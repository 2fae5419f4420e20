"""Splitting tasks, and asking them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from rlnb.code_execution.prompts import build_prompt, question
from rlnb.code_execution.tasks import Task, split_tasks
from rlnb.code_execution.tasks import Test as Call


def task(name: str, family: str = "double") -> Task:
    return Task(
        name, family, 1, "double", "n", "Return twice n.", Call((2,), 4), (Call((5,), 10), Call((0,), 0))
    )


families = st.sampled_from("abcde")


@given(st.lists(families, max_size=40), st.sets(families), st.floats(0, 1), st.integers(0, 99))
def test_a_split_is_a_partition(members, new, share, seed):
    tasks = [task(f"t{number}", family) for number, family in enumerate(members)]
    splits = split_tasks(tasks, new_families=sorted(new), known_share=share, seed=seed)
    assert sorted(t.id for part in splits.values() for t in part) == sorted(t.id for t in tasks)
    assert {t.family for t in splits["new"]} == set(members) & new
    assert not {t.family for t in splits["train"] + splits["known"]} & new
    again = split_tasks(tasks, new_families=sorted(new), known_share=share, seed=seed)
    assert again == splits


def test_a_family_of_ten_gives_three_for_known_and_one_of_one_gives_none():
    tasks = [task(f"t{number}") for number in range(10)] + [task("alone", "single")]
    splits = split_tasks(tasks, new_families=(), known_share=0.3, seed=0)
    assert (len(splits["known"]), len(splits["train"]), splits["new"]) == (3, 8, [])
    assert "alone" in [t.id for t in splits["train"]]


class Templates:
    """What a tokenizer is needed for: its chat template and the pieces of a fence."""

    def __init__(self, fence: list[int], *, chat_template: str | None = "{{ messages }}") -> None:
        self.fence = fence
        self.chat_template = chat_template
        self.bos_token = None

    def apply_chat_template(self, messages, *, add_generation_prompt, tokenize, enable_thinking):
        assert add_generation_prompt and not tokenize
        return "".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>"

    def __call__(self, text, *, add_special_tokens):
        return {"input_ids": self.fence}


@pytest.mark.parametrize("printed_example", [True, False])
def test_a_question_holds_the_statement_and_the_example_and_no_test(printed_example):
    text = question(task("t"), printed_example=printed_example)
    assert all(part in text for part in ("Return twice n.", "double(2)", "`4`"))
    assert ("print" in text) == printed_example
    for form in ("chat", "prefilled", "completion"):
        assert "double(5)" not in build_prompt(task("t"), form, Templates([7])).text


def test_a_chat_leaves_the_answer_to_the_model_unless_it_is_prefilled_without_a_newline_at_the_end():
    prompt = build_prompt(task("t"), "chat", Templates([7]))
    assert (prompt.text, prompt.prefix) == (f"<system><user>{question(task('t'))}<assistant>", "")
    prompt = build_prompt(task("t"), "prefilled", Templates([7]))
    assert prompt.prefix == "```python\ndef double(n):"
    assert prompt.text.endswith("<assistant>" + prompt.prefix)


def test_a_chat_needs_a_template():
    assert "model.id: " in refused(build_prompt, task("t"), "chat", Templates([7], chat_template=None))


def test_a_completion_prompt_is_all_program():
    prompt = build_prompt(task("t"), "completion", None)
    assert prompt.text == prompt.prefix
    assert prompt.text == 'def double(n):\n    """Return twice n.\n\n    >>> double(2)\n    4\n    """'

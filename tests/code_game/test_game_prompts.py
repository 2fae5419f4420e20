"""What the code game asks for: values that are never trained and asked again, in two forms."""

import ast

import pytest

from rlnb.code_game.params import NUM_HELD_OUT
from rlnb.code_game.prompts import NUM_TRAINED, TOPICS, GameQuestion, build_game_prompt, game_questions
from rlnb.source_code.extraction import extract_program


def kinds_of(questions) -> set[str]:
    return {question.first_line.partition(" =")[0] for question in questions}


def test_the_questions_are_split_in_the_promised_numbers_and_share_no_value():
    questions = game_questions("seeded")
    lines = [question.first_line for members in questions.values() for question in members]
    assert {split: len(members) for split, members in questions.items()} == {
        "train": NUM_TRAINED, "held_out": NUM_HELD_OUT,
    }  # fmt: skip
    assert len(set(lines)) == NUM_TRAINED + NUM_HELD_OUT
    assert kinds_of(questions["held_out"][:4]) == {"n", "s", "xs", "a, b"}
    for line in lines:
        (statement,) = ast.parse(line).body
        assert isinstance(statement, ast.Assign)
        ast.literal_eval(statement.value)


def test_topics_take_turns_in_each_part_and_change_no_value():
    plain, topical = game_questions("seeded"), game_questions("topic")
    for split, members in topical.items():
        assert [question.topic for question in members[:20]] == [name for name in TOPICS for _ in range(4)]
        assert [(question.id, question.first_line) for question in members] == [
            (question.id, question.first_line) for question in plain[split]
        ]


@pytest.mark.parametrize(
    ("form", "topic", "prefix"),
    [("seeded", "", "```python\nn = 7\nprint("), ("topic", "loops", "```python\n")],
)
def test_a_prompt_ends_in_its_prefix_which_the_answer_goes_on_from(form, topic, prefix, chat):
    prompt = build_game_prompt(GameQuestion("train/0", "n = 7", topic), form, chat)
    assert prompt.prefix == prefix and prompt.text.endswith(f"<assistant>{prefix}")
    assert topic in prompt.text and "n = 7" in prompt.text
    answer = "n * 2)\n```" if form == "seeded" else "n = 7\nprint(n * 2)\n```"
    assert extract_program(answer, prefix=prefix) == "n = 7\nprint(n * 2)\n"

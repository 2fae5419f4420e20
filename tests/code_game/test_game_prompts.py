"""What the code game asks for: values that are never trained and asked again, in two forms."""

import ast
from dataclasses import replace

import pytest

from rlnb.code_game.params import NUM_HELD_OUT
from rlnb.code_game.prompts import GameQuestion, build_game_prompt, game_questions
from rlnb.source_code.extraction import extract_program


def test_the_questions_are_split_in_the_promised_numbers_and_share_no_value():
    plain, topical = game_questions("seeded"), game_questions("topic")
    lines = [question.first_line for members in plain.values() for question in members]
    sizes = {split: len(members) for split, members in plain.items()}
    assert sizes == {"train": 160, "held_out": NUM_HELD_OUT}
    assert len(set(lines)) == 160 + NUM_HELD_OUT
    for line in lines:
        (statement,) = ast.parse(line).body
        assert isinstance(statement, ast.Assign)
        ast.literal_eval(statement.value)
    for split, members in topical.items():  # each topic with all kinds of values, in turn
        names = {question.first_line.partition(" =")[0] for question in members[:4]}
        assert names == {"n", "s", "xs", "a, b"}
        topics = [question.topic for question in members]
        assert len(set(topics)) == 5 and all(len(set(topics[at : at + 4])) == 1 for at in range(0, 20, 4))
        assert [replace(question, topic="") for question in members] == plain[split]


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

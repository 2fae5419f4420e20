"""Questions for an output, and how answers are read and compared."""

import contextlib
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlnb.tasks.prediction import (
    MAX_SHOTS,
    PREDICTION_STOP,
    SEPARATOR,
    SHOTS,
    answered,
    asked,
    is_readable,
    normalised,
    parse_prediction,
    prediction_prompt,
    shots_text,
)
from rlnb.tasks.prediction_set import prediction_set


def test_the_question_to_the_letter():
    assert prediction_prompt("print(1)\n", num_shots=1) == (
        "Program:\n```python\nprint('sunday')\n```\nOutput:\n```\nsunday\n```\n\n"
        "Program:\n```python\nprint(1)\n```\nOutput:\n```\n"
    )
    assert prediction_prompt("print(1)") == asked("print(1)")


@pytest.mark.parametrize("num_shots", range(1, MAX_SHOTS + 1))
def test_examples_stand_in_front_in_the_form_of_the_question(num_shots):
    prompt = prediction_prompt("x = 1", num_shots=num_shots)
    assert prompt == shots_text(num_shots) + SEPARATOR + asked("x = 1")
    assert prompt.count("Program:") == num_shots + 1
    assert prompt.count(PREDICTION_STOP) == 4 * num_shots + 3


@pytest.mark.parametrize(("program", "output"), SHOTS)
def test_the_examples_are_solved_right(program, output):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(program, {})
    assert normalised(printed.getvalue()) == output


def test_no_example_is_a_program_of_the_fixed_set():
    assert not {program for program, _ in SHOTS} & {one.code for one in prediction_set()}


ANSWERS = {
    "42\n```": "42",
    "42": "42",
    "42  \n\n```\n\nProgram:\n```python": "42",
    "1\n2\n```\nmore": "1\n2",
    "```": "",
    "\n```": "",
    "": "",
    "a ``` b\n```": "a ``` b",
    "  a\n```": "  a",
    "\n\n5\n```": "\n\n5",
    "1\r\n2\r\n```": "1\n2",
}


@pytest.mark.parametrize("text", ANSWERS)
def test_an_answer_is_read_up_to_its_closing_fence(text):
    assert parse_prediction(text) == ANSWERS[text]


texts = st.text(st.sampled_from("ab1 \t\n\r`~'["), max_size=25)


@given(texts)
def test_normalising_twice_changes_nothing_more(text):
    assert normalised(normalised(text)) == normalised(text)


@given(texts)
def test_the_right_answer_to_a_readable_output_is_read_as_that_output(text):
    output = normalised(text)
    if is_readable(output):
        assert parse_prediction(answered(output)) == output
        assert parse_prediction(answered(output) + "\n\nProgram:\n```python\nx\n```") == output


def test_ends_of_lines_and_blanks_at_them_do_not_count_but_blanks_in_front_do():
    assert normalised("a \r\nb\t\r\n\n") == "a\nb"
    assert normalised("\n a") == "\n a" != normalised("a")
    assert normalised("a\rb") == "a\nb"


@pytest.mark.parametrize("output", ["42", "é ß", "a\tb\nc", "`x`", "x ```", "日本", "[1, '2']"])
def test_an_output_that_an_answer_can_hold(output):
    assert is_readable(output)


UNREADABLE = ["\x1b[1m", "\x00", "a\n```\nb", "```", " ~~~", "\ufffd", "a\u200bb", "\x07"]


@pytest.mark.parametrize("output", UNREADABLE, ids=repr)
def test_an_output_that_no_answer_can_hold(output):
    assert not is_readable(output)

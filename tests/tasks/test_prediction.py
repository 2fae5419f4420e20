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
    holds_control_token,
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
    "  a\n```": "a",
    "\n\n5\n```": "5",
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


def test_ends_of_lines_and_blanks_around_lines_do_not_count_but_indentation_among_them_does():
    assert normalised("a \r\nb\t\r\n\n") == "a\nb"
    assert normalised("a\n b") == "a\n b" != normalised("a\nb")
    assert normalised("a\rb") == "a\nb"


@pytest.mark.parametrize("output", ["42", "é ß", "a\tb\nc", "`x`", "x ```", "日本", "[1, '2']"])
def test_an_output_that_an_answer_can_hold(output):
    assert is_readable(output)


UNREADABLE = ["\x1b[1m", "\x00", "a\n```\nb", "```", " ~~~", "\ufffd", "a\u200bb", "\x07"]


@pytest.mark.parametrize("output", UNREADABLE, ids=repr)
def test_an_output_that_no_answer_can_hold(output):
    assert not is_readable(output)


@pytest.mark.parametrize(
    ("printed", "same"),
    [
        ("\nzebra\n", "zebra"),
        (" zebra\n", "zebra"),
        ("  a\n    b\n", "a\n  b"),
        ("\n\n1\n\n2\n\n", "1\n\n2"),
        ("e\u0301", "\u00e9"),
    ],
)
def test_what_nobody_sees_is_no_difference(printed, same):
    assert normalised(printed) == same


@pytest.mark.parametrize("text", ["<|im_end|>", "x = '<|endoftext|>'", "</s>", "[INST]", "<end_of_turn>"])
def test_markers_of_chats_are_no_output_and_no_program(text):
    assert holds_control_token(text) and not is_readable(text)


@pytest.mark.parametrize("text", ["a < b | c > d", "<s", "x[i]", "1 << 3", "<b>bold</b>", "[1, 2]"])
def test_what_only_looks_like_a_marker_is_let_through(text):
    assert not holds_control_token(text) and is_readable(text)


@pytest.mark.parametrize("text", ["\u3164", "\u2800", "a\u034f", "\u200b", "\x1b[31m", "\ufffd"])
def test_what_cannot_be_seen_is_not_readable(text):
    assert not is_readable(text)

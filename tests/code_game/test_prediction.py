"""Questions for an output, how answers are read and compared, and the fixed programs."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rlnb.code_game.determinism import find_forbidden_use
from rlnb.code_game.prediction import (
    CONTROL_TOKEN,
    OTHER_SHOTS,
    PREDICTION_LEVELS,
    SHOTS,
    is_readable,
    load_prediction_set,
    normalise_output,
    parse_prediction,
    prediction_answer,
    prediction_prompt,
    prediction_question,
)
from rlnb.code_game.programs import is_echo, is_trivial, strip_comments

PROGRAMS = load_prediction_set()


def test_the_question_to_the_letter():
    assert prediction_prompt("print(1)\n", shots=SHOTS[:1]) == (
        "Program:\n```python\nprint('sunday')\n```\nOutput:\n```\nsunday\n```\n\n"
        "Program:\n```python\nprint(1)\n```\nOutput:\n```\n"
    )
    assert prediction_prompt("print(1)") == prediction_question("print(1)")


ANSWERS = {
    "42": "42", "42  \n\n```\n\nProgram:\n```python": "42", "1\n2\n```\nmore": "1\n2", "```": "", "": "",
    "a ``` b\n```": "a ``` b", "  a\n```": "a", "1\r\n2\r\n```": "1\n2",
}  # fmt: skip


def test_an_answer_is_read_up_to_its_closing_fence():
    assert {text: parse_prediction(text) for text in ANSWERS} == ANSWERS


texts = st.text(st.sampled_from("ab1 \t\n\r`~'["), max_size=25)


@given(texts)
def test_normalising_twice_changes_nothing_more_and_the_right_answer_is_read_as_the_output(text):
    output = normalise_output(text)
    assert normalise_output(output) == output
    if is_readable(output):
        assert parse_prediction(prediction_answer(output)) == output
        assert parse_prediction(prediction_answer(output) + "\n\nProgram:\n```python\nx\n```") == output


READABLE = ["42", "é ß", "a\tb\nc", "x ```", "日本", "a < b | c > d", "<s", "x[i]"]
UNREADABLE = ["\x1b[1m", "\x00", "a\n```\nb", "```", " ~~~", "\ufffd", "a\u200bb", "\u3164", "a\u034f"]
MARKERS = [
    "<|im_end|>", "x = '<|endoftext|>'", "</s>", "[INST]", "<end_of_turn>", "<empty_output>", "<file_sep>",
    "<filename>", "<reponame>", "<gh_stars>", "<issue_closed>", "<jupyter_code>", "<｜User｜>",
    "[TOOL_CALLS]", "[/SYSTEM_PROMPT]", "<tool_call>", "</tool_response>", "<start_of_image>", "<unused7>",
    "<fim_middle>",
    "<extra_id_0>", "[SEP]", "[MASK]", "<|channel>", "<turn|>",
]  # fmt: skip


def test_an_output_is_readable_where_an_answer_can_hold_it():
    assert [text for text in READABLE if not is_readable(text) or CONTROL_TOKEN.search(text)] == []
    assert [text for text in UNREADABLE if is_readable(text)] == []


def test_markers_of_published_models_are_known_and_programs_hold_none():
    assert [text for text in MARKERS if not CONTROL_TOKEN.search(f"print('{text}')")] == []
    programs = [
        *(program.code for program in PROGRAMS),
        "xs[a < b_c > d]",
        "d[KEY], m[I][J] = x << 2 | y, '<b>'",
    ]
    assert [code for code in programs if CONTROL_TOKEN.search(code)] == []


SEEN = {
    "\nzebra\n": "zebra", " zebra\n": "zebra", "  a\n    b\n": "a\n  b", "\n\n1\n\n2\n\n": "1\n\n2",
    "e\u0301": "\u00e9", "a \r\nb\t\r\n\n": "a\nb", "a\n b": "a\n b", "a\rb": "a\nb",
}  # fmt: skip


def test_what_nobody_sees_is_no_difference():
    assert {printed: normalise_output(printed) for printed in SEEN} == SEEN


def test_every_fixed_program_and_every_example_prints_what_is_stored(sandbox):
    solved = [*SHOTS, *OTHER_SHOTS, *((program.code, program.output) for program in PROGRAMS)]
    executions = sandbox.run_many([code for code, _ in solved])
    assert [execution.status for execution in executions] == ["ok"] * len(solved)
    assert [normalise_output(execution.stdout) for execution in executions] == [out for _, out in solved]


def test_a_fixed_program_is_no_example_and_short_and_gives_its_output_away_only_in_the_first_level():
    assert Counter(program.level for program in PROGRAMS) == dict.fromkeys(PREDICTION_LEVELS, 15)
    assert not {program.code for program in PROGRAMS} & {code for code, _ in (*SHOTS, *OTHER_SHOTS)}
    for program in PROGRAMS:
        is_first = program.level == "L1"
        assert is_trivial(program.code) == is_echo(program.code, program.output) == is_first, program
        assert find_forbidden_use(program.code) == "", program
        assert is_readable(program.output) and program.output == normalise_output(program.output) != ""
        assert len(program.code) <= 120 and len(program.output) <= 40, program
        assert strip_comments(program.code) is not None, program

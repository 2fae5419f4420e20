"""Extraction of programs from completions: the one that a reader would run."""

import ast
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rlnb.source_code.extraction import (
    END,
    MARK,
    ends_of_answers,
    extract_program,
    iterate_drafts,
    mend_code,
    parse_program,
)  # fmt: skip

# Which part of an answer is its program where no function tells; test_answer_forms.py has the forms.
CHOICES = {
    "python before no language": ("```\nx = 1\n```\n```python\nx = 2\n```", "x = 2\n"),
    "complete before unclosed": ("```python\n```\n```\nx = 1\n```\n```python\nx =", "x = 1\n"),
    "a block that is not empty": ("```python\n\n```\n```python\nx = 2\n```", "x = 2\n"),
    "comments before a program": ("```python\n# Try.\n```\n```python\nx = 1\n```", "x = 1\n"),
    "bare code that does not parse": ("def f(n):\n    return (n", "def f(n):\n    return (n\n"),
    "a sentence that begins like code": (
        "for example, so:\ndef f():\n    return 1\n",
        "def f():\n    return 1\n",
    ),
}


@pytest.mark.parametrize("form", CHOICES)
def test_the_program_is_extracted_from(form):
    completion, code = CHOICES[form]
    assert extract_program(completion) == code


BARE = [
    "a, b = 1, 2\nprint(a + b)",
    "try:\n    x = 1\nexcept Exception:\n    x = 2\nprint(x)",
    "x: int = 5\nprint(x)",
    "async def f(): pass\nprint(f)",
    'with open("a", "w") as h: ...\nprint(h.name)',
    "(a, b) = 1, 2\nprint(a)",
    '"""A program."""\n# It prints.\nmain = print\nmain(1)',
    "sorted([2, 1])",
    "@cached\ndef f(): pass",
    "d['a'].b += 1\nprint(d)",
    "a, *b = 1, 2\nprint(b)",
    "x: list[int] = []\nprint(x)",
    "from a.b import c\nc()",
]
ALONE = BARE[5:8]  # in words these do not begin like a program


@pytest.mark.parametrize("program", BARE)
def test_a_bare_program_is_taken_whole_also_in_words(program):
    assert extract_program(program) == program + "\n"
    assert program in ALONE or extract_program(f"So:\n{program}\nIt is so.") == program + "\n"


def test_an_answer_without_a_program_and_a_sentence_that_happens_to_parse_have_none():
    empty = [
        "",
        "```python\n```",
        "```python\n# To do.\n```",
        "# I do not know.",
        "I do not know how to do this.",
    ]
    sentences = ["Sure", "yes", "yes or no", "'Sure'", "42", "Answer: seven", "Answer: 42", "a, b"]
    assert {text: extract_program(text) for text in empty + sentences} == dict.fromkeys(empty + sentences)


def test_a_broken_function_is_not_skipped_for_the_print_behind_it():
    completion = "def f(n)\n    return n\nprint(5)"
    assert extract_program(completion) == completion + "\n"


PREFIX = "```python\ndef f(n):"
CONTINUATIONS = {
    "\n    return n\n```\nDone.": "def f(n):\n    return n\n",
    "\n    return n": "def f(n):\n    return n\n",
    "\n    return n```": "def f(n):\n    return n\n",
    "\n    return n\n```\nOr:\n```python\ny = 2\n```": "def f(n):\n    return n\n",
    "\n```": "def f(n):\n",
}


def test_a_completion_continues_the_answer_that_the_prompt_begins():
    assert {text: extract_program(text, prefix=PREFIX) for text in CONTINUATIONS} == CONTINUATIONS
    prefix = 'def f(n):\n    """Return n."""'  # without a fence it ends where it no longer parses
    assert extract_program("\n    return n\n\nThat is all.", prefix=prefix) == prefix + "\n    return n\n"


def test_text_that_warns_when_parsed_is_read_in_silence(recwarn):
    assert extract_program("x = '\\d'") == "x = '\\d'\n"
    assert not recwarn.list


lines = st.text(st.characters(exclude_characters="`~\r<>", exclude_categories=("Cs", "Cc")), max_size=30)
statements = lines.filter(lambda line: line.strip() and not line.strip().startswith("#"))
programs = (
    st.tuples(st.lists(lines, max_size=4), statements, st.lists(lines, max_size=4))
    .map(lambda parts: "\n".join([*parts[0], parts[1], *parts[2]]))
    .filter(lambda text: not MARK.search(text) and not re.search(END, "\n" + text))  # they rule in fences too
)


@given(programs)
@example("!0")
@example("%%time\n# To do.")
@example("\u200b")
def test_code_in_a_fence_comes_back_as_it_was(code):
    wanted = {code, *mend_code(code)} if parse_program(code) is None else {code}
    parsed = {each.strip("\n") + "\n": parse_program(each) for each in wanted}
    program = extract_program(f"Here:\n```python\n{code}\n```\nThere.")
    assert program in {None if tree and not tree.body else text for text, tree in parsed.items()}


@given(st.text(st.sampled_from("`~ \n\tpython=(1'\"df:"), max_size=60), st.sampled_from(["", PREFIX]))
def test_any_text_is_read_without_an_error(text, prefix):
    code = extract_program(text, prefix=prefix)
    assert code is None or code.strip()


@given(
    st.lists(st.sampled_from(["def f(n):", "    return n", "print(1)", "Some prose.", "x = (1"]), max_size=6)
)
def test_bare_code_parses_or_is_all_there_is(given_lines):
    text = "\n".join(given_lines)
    code = extract_program(text)
    if code is not None and not text.endswith(code.rstrip()):
        ast.parse(code)


def test_programs_that_may_define_a_function_come_with_the_marked_and_latest_answer_first():
    completion = (
        "Draft:\n```python\ndef f(n): return 1\n```\nOr:\n```python\ndef f(n): return 2\n```\n</think>"
        "```python\ndef f(n): return 3\n```\nNot:\n```python\ndef f(n): return 4\n```"
    )
    programs = list(iterate_drafts(completion, function="f"))
    assert programs[:2] == ["def f(n): return 4\n", "def f(n): return 3\n"]
    unmarked = list(iterate_drafts(completion.replace("</think>", "\n"), function="f"))
    assert unmarked[:4] == [f"def f(n): return {n}\n" for n in (4, 3, 2, 1)]
    assert list(iterate_drafts("def f(n):\n    return n\nThat is all.", function="f"))[0] == (
        "def f(n):\n    return n\n"
    )


def test_each_row_of_an_evaluation_ends_with_the_program_that_it_was_asked_for():
    ends = ends_of_answers(["```python\ndef f(n):", ""], ["f", "g"])
    block = "```python\ndef {}(n):\n    return n\n```\n"
    assert ends(0, "\n    return n\n```\n") and not ends(0, "\n    return n\n")
    assert ends(1, block.format("g")) and not ends(1, block.format("f"))


@pytest.mark.parametrize("torn", ["board = [\n    [4, 0", "print(f(3", 'text = """two', "if f(2) == (", ""])
def test_of_an_answer_that_was_cut_behind_its_function_the_torn_statement_goes(torn):
    function = "def f(n):\n    return n\n"
    assert extract_program(f"```python\n{function}{torn}", function="f") == function
    assert extract_program(f"    return n\n{torn}", prefix="```python\ndef f(n):\n", function="f") == function
    broken = f"```python\n{function}x = (1\ny = 2\n"  # an error, not a cut
    assert extract_program(broken, function="f") != function


def test_half_a_surrogate_pair_in_json_is_no_program():
    text = '{"code": "def f(n):\\n    return \'\\ud800\'"}'
    assert extract_program(text, function="f") is None
    assert extract_program(text.replace("\\ud800", "\\u00e9"), function="f")


def test_a_stub_behind_the_answer_is_not_the_first_draft():
    text = "```python\ndef f(n): return 1\n```\nYours:\n```python\ndef f(n):\n    pass\n```\n"
    assert next(iterate_drafts(text, function="f")) == "def f(n): return 1\n"

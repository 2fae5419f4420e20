"""Extraction of programs from completions: the one that a reader would run."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlnb.source_code.extraction import (
    can_parse,
    ends_of_answers,
    extract_program,
    iterate_drafts,
    mend_code,
)  # fmt: skip

FORMS = {
    "a fence": ("```python\nx = 1\n```", "x = 1\n"),
    "prose before and after": ("Sure!\n\n```python\nx = 1\n```\nThis sets x.", "x = 1\n"),
    "an info string": ('```python title="a.py" {1,2}\nx = 1\n```', "x = 1\n"),
    "a name in capitals": ("```Python3\nx = 1\n```", "x = 1\n"),
    "tildes": ("~~~python\nx = '```'\n~~~", "x = '```'\n"),
    "a fence of four holding one of three": ("````python\nx = '''\n```\n'''\n````", "x = '''\n```\n'''\n"),
    "a longer closing fence": ("```python\nx = 1\n`````\nand so on", "x = 1\n"),
    "a fence closed behind code": ("```python\nprint(1)```\nThis prints.", "print(1)\n"),
    "a fence in a list": (
        "1. First:\n   ```python\n   def f():\n       return 1\n   ```",
        "def f():\n    return 1\n",
    ),
    "a block in a block of markdown": ("````markdown\n# T\n```python\nx = 1\n```\n````", "x = 1\n"),
    "carriage returns": ("```python\r\nx = 1\r\ny = 2\r\n```\r\n", "x = 1\ny = 2\n"),
    "an unclosed fence": ("```python\nx = 1\nprint(x)", "x = 1\nprint(x)\n"),
    "no language": ("```\nx = 1\n```", "x = 1\n"),
    "the first of two": ("```python\nx = 1\n```\nor\n```python\nx = 2\n```", "x = 1\n"),
    "python before no language": ("```\nx = 1\n```\n```python\nx = 2\n```", "x = 2\n"),
    "python behind another language": ("```bash\nls\n```\n```python\nx = 2\n```", "x = 2\n"),
    "complete before unclosed": ("```python\n```\n```\nx = 1\n```\n```python\nx =", "x = 1\n"),
    "a block that is not empty": ("```python\n\n```\n```python\nx = 2\n```", "x = 2\n"),
    "only another language": ("```bash\nls\n```", None),
    "only an empty block": ("```python\n```", None),
    "no code": ("I do not know how to do this.", None),
    "nothing": ("", None),
    "bare code": ("x = 1\nprint(x)", "x = 1\nprint(x)\n"),
    "bare code in prose": (
        "Here it is:\ndef f():\n    return 1\nI hope it helps.",
        "def f():\n    return 1\n",
    ),
    "a sentence that begins like code": (
        "for example, so:\ndef f():\n    return 1\n",
        "def f():\n    return 1\n",
    ),
    "bare code that does not parse": ("def f(n):\n    return (n", "def f(n):\n    return (n\n"),
    "only comments": ("```python\n# To do.\n```", None),
    "comments before a program": ("```python\n# Try.\n```\n```python\nx = 1\n```", "x = 1\n"),
    "bare comments": ("# I do not know.", None),
    "a sentence that is all name": ("Sure\n\n@cached\ndef f(): pass", "@cached\ndef f(): pass\n"),
    "an assignment to an item in prose": (
        "So:\nd['a'].b += 1\nprint(d)\nIt is so.",
        "d['a'].b += 1\nprint(d)\n",
    ),
    "a pair in prose": ("So:\na, *b = 1, 2\nprint(b)\nIt is so.", "a, *b = 1, 2\nprint(b)\n"),
    "an annotation in prose": (
        "So:\nx: list[int] = []\nprint(x)\nIt is so.",
        "x: list[int] = []\nprint(x)\n",
    ),
    "a file opened in prose": ("So:\nwith f() as g: pass\nIt is so.", "with f() as g: pass\n"),
    "a dotted import in prose": ("So:\nfrom a.b import c\nc()\nIt is so.", "from a.b import c\nc()\n"),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_program_is_extracted_from(form):
    completion, code = FORMS[form]
    assert extract_program(completion) == code


WHOLE = [
    "a, b = 1, 2\nprint(a + b)",
    "try:\n    x = 1\nexcept Exception:\n    x = 2\nprint(x)",
    "x: int = 5\nprint(x)",
    "async def f(): pass\nprint(f)",
    'with open("a", "w") as h: ...\nprint(h.name)',
    "(a, b) = 1, 2\nprint(a)",
    '"""A program."""\n# It prints.\nmain = print\nmain(1)',
    "sorted([2, 1])",
]


def test_a_bare_program_is_taken_whole_and_a_try_statement_in_prose_keeps_its_head():
    assert [extract_program(program) for program in WHOLE] == [program + "\n" for program in WHOLE]
    assert extract_program(f"This works:\n{WHOLE[1]}\nIt is so.") == WHOLE[1] + "\n"


def test_a_sentence_that_happens_to_parse_is_not_a_program():
    sentences = ["Sure", "yes", "yes or no", "'Sure'", "42", "Answer: seven", "Answer: 42", "a, b"]
    assert [extract_program(sentence) for sentence in sentences] == [None] * len(sentences)


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
programs = st.tuples(st.lists(lines, max_size=4), statements, st.lists(lines, max_size=4)).map(
    lambda parts: "\n".join([*parts[0], parts[1], *parts[2]])
)


@given(programs)
def test_code_in_a_fence_comes_back_as_it_was(code):
    wanted = {code, *mend_code(code)} if not can_parse(code) else {code}
    program = extract_program(f"Here:\n```python\n{code}\n```\nThere.")
    assert program in {each.strip("\n") + "\n" for each in wanted}


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

"""Any program comes back from any form of answer, and no text behind a complete answer changes it."""

import ast
import html
import json
import textwrap

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlnb.source_code.extraction import extract_program, is_complete_answer

F = "```"
WRONG = "def answer(n):\n    return None\n"
DRAFT = f"Perhaps:\n{F}python\n{WRONG}{F}\nNo, that isn't it.\n"
USAGE = f"{F}python\nprint(answer(2))\n{F}\n"
CHANNEL = "<|channel|>{}<|message|>"


def block(code, tag="python", fence=F):
    return f"{fence}{tag}\n{code}{fence}\n"


def indented(code, mark):
    return textwrap.indent(code, mark, lambda line: True)


def session(code):
    lines = code.splitlines()
    return "".join(
        (f"... {line}" if index else f">>> {line}").rstrip() + "\n" for index, line in enumerate(lines)
    )


# Forms in which not a character of the program is lost.
EXACT = {
    "a name without quotes": lambda code: block(code, "python filename=main.py"),
    "a block": block,
    "words around": lambda code: f"Sure! Here's it:\n\n{block(code)}\nThis isn't hard.",
    "no language": lambda code: f"It:\n{block(code, '')}",
    "py3": lambda code: block(code, "py3"),
    "Python 3": lambda code: block(code, "Python 3"),
    "ipython3": lambda code: block(code, "ipython3"),
    "tool_code": lambda code: block(code, "tool_code"),
    "text": lambda code: block(code, "text"),
    "a file's name": lambda code: block(code, "answer.py"),
    "a title": lambda code: block(code, 'python title="a.py" {1,2}'),
    "braces": lambda code: block(code, "{.python .numberLines}"),
    "a word of another alphabet": lambda code: block(code, "код"),
    "a lone word": lambda code: block(f"python\n{code}", ""),
    "a lone word and a tag": lambda code: block(f"Python\n{code}"),
    "four backticks": lambda code: block(code, fence=F + "`"),
    "a longer end": lambda code: f"{F}python\n{code}{F}``\nThat's all.",
    "tildes": lambda code: block(code, fence="~~~"),
    "carriage returns": lambda code: block(code).replace("\n", "\r\n"),
    "old carriage returns": lambda code: block(code).replace("\n", "\r"),
    "behind words": lambda code: f"Here you go: {block(code)}Done.",
    "a heading": lambda code: f"# Solution\n{block(code, '')}",
    "a list's item": lambda code: f"1. {block(code)}",
    "a quote": lambda code: indented(block(code), "> ") + "Is it?",
    "a closing fence behind code": lambda code: f"{F}python\n{code.rstrip()}{F}\nDone.",
    "a closing fence before words": lambda code: f"{F}python\n{code}{F} This isn't hard.",
    "no end": lambda code: f"{F}python\n{code}",
    "a block in markdown": lambda code: block(block(code), "markdown") + "Bye",
    "a block in longer markdown": lambda code: block(f"# T\n{block(code)}", "md", F + "`"),
    "an end token": lambda code: block(code) + "<|im_end|>\n<|im_start|>user\n" + DRAFT,
    "an end token in the block": lambda code: f"{F}python\n{code}<|endoftext|>",
    "another end token": lambda code: f"{F}python\n{code}</s>",
    "a usage first": lambda code: USAGE + block(code),
    "another language first": lambda code: block("pip install numpy\n", "bash") + block(code),
    "an output behind": lambda code: block(code) + block("6\n", ""),
    "a broken draft first": lambda code: block("def answer(n)\n    return\n") + f"Oops:\n{block(code)}",
    "another behind": lambda code: block(code) + block(WRONG),
    "a fence that is not closed before": lambda code: f"{F}python\nprint(1)\nSo:\n{block(code)}",
    "thoughts": lambda code: f"<think>\n{DRAFT}</think>\n\n{block(code)}",
    "thoughts that the prompt began": lambda code: f"{DRAFT}</think>\n{block(code)}",
    "thoughts in brackets": lambda code: f"[THINK]{DRAFT}[/THINK]{block(code)}",
    "thoughts about thinking": lambda code: f"<think>I close with </think> now. {DRAFT}</think>{block(code)}",
    "tags": lambda code: f"<think>\n{DRAFT}</think>\n<answer>\n{block(code)}</answer>",
    "an answer's tag": lambda code: f"{DRAFT}<answer>{block(code)}</answer>",
    "channels": lambda code: CHANNEL.format("analysis") + f"{DRAFT}<|end|><|start|>assistant"
    + CHANNEL.format("final") + block(code) + "<|return|>",
    "channels without marks": lambda code: f"analysisWe {DRAFT}assistantfinal{block(code)}",
    "thoughts of Cohere": lambda code: f"<|START_THINKING|>{DRAFT}<|END_THINKING|>"
    + f"<|START_RESPONSE|>{block(code)}<|END_RESPONSE|>",
    "thoughts of Gemma": lambda code: f"<|channel>thought\n{DRAFT}<channel|>{block(code)}<turn|>",
    "thoughts of Granite": lambda code: "Here is my thought process:\n" + DRAFT
    + f"Here is my response:\n{block(code)}",
    "thoughts in other tokens": lambda code: f"<|begin_of_thought|>{DRAFT}<|end_of_thought|>\n{block(code)}",
    "thoughts in tags of working": lambda code: f"<start_working_out>{DRAFT}<end_working_out>\n"
    + f"<SOLUTION>{code}</SOLUTION>",
    "thoughts behind a token": lambda code: f"<｜Assistant｜><think>\n{DRAFT}</think>\n{block(code)}",
    "fences in words": lambda code: f"I wrap it in {F}python ... {F} marks.\n\n{block(code)}",
    "a channel in Python": lambda code: f"{CHANNEL.format('final<|constrain|>python')}{block(code)}",
    "a stub first": lambda code: block("def answer(n):\n    pass\n") + block(code),
    "thoughts, then bare": lambda code: f"<think>{DRAFT}</think>\n{code}",
    "bare": lambda code: code,
    "bare and an end token": lambda code: f"{code}<|eot_id|>",
    "a closing fence alone": lambda code: f"{code}{F}\n\nThis isn't hard.",
}  # fmt: skip
# Forms that move the lines of a text inside of the program, or its comments.
LOSSY = {
    "an indented list": lambda code: "1. So:\n\n" + indented(block(code), "   "),
    "a session": lambda code: block(session(code), "pycon"),
    "no-break spaces": lambda code: block(code).replace("    ", "\xa0" * 4),
    "bare in words": lambda code: f"Sure:\n\n{code}\nThis isn't hard.",
    "bare with an output behind": lambda code: f"{code}\nIt prints:\n{block('6', 'text')}",
    "HTML": lambda code: f'<pre><code class="language-python">{html.escape(code)}</code></pre>\n<p>Bye</p>',
    "JSON": lambda code: json.dumps({"reason": "It's 3 * n.", "code": code}),
    "a tool's call": lambda code: f"<tool_call>\n{json.dumps({'arguments': {'code': code}})}\n</tool_call>",
    "commands of a notebook": lambda code: block(f"%matplotlib inline\n!pip install x\n{code}"),
    "a byte-order mark": lambda code: "\ufeff" + code,
}
PIECES = st.sampled_from(
    [F, f"{F}python", "~~~", "    ", "\n", "\n", "\n    ", "It's", '"', "#", "\\", "{}", ">>> f(1)", "> "]
    + ["é", "</think> ", "<think> ", "</s> ", "<answer> ", "<|im_end|> ", "def answer(n):", "python"]
)
TEXTS = st.lists(PIECES, max_size=8).map("".join)
DOCSTRINGS = st.lists(PIECES.filter(lambda piece: "<" not in piece and piece not in '"\\'), max_size=9).map(
    "".join
)
STATEMENTS = st.one_of(
    TEXTS.map(lambda text: f"TEXT = {text!r}\n"),
    DOCSTRINGS.map(lambda text: f"def helper(n):\n    '''A.\n\n    {text}.\n    '''\n    return n\n"),
    st.sampled_from([
        "import math\nfrom collections import Counter\n",
        "@staticmethod\ndef other(a, *b, c: int = 3, **d) -> 'x':\n    return [x for x in b if x]\n",
        "class Tree:\n    '''A tree.'''\n\n    def __init__(self):\n        self.left = None\n\n\n",
        "# Note: it isn't used.\nasync def later():\n    await later()\n",
        "inner = None\nif True:\n    def inner():\n        pass\nelse:\n    inner = None\n",
        "VALUES = {\n    'a': 1,\n    'b': [2, 3],\n}\n",
        "first, *rest = 1, 2\nrest += [3]\n",
        "note = 1  # a ``` in a comment\n",
        "print('''\n```\n''')\n",
    ]),
)  # fmt: skip
ANSWERS = DOCSTRINGS.map(
    lambda text: f'def answer(n):\n    """Answer.\n\n    {text}\n    """\n    return 3 * n  # n\n'
)
PROGRAMS = st.tuples(st.lists(STATEMENTS, max_size=3), ANSWERS, st.lists(STATEMENTS, max_size=2)).map(
    lambda parts: "".join([*parts[0], parts[1], *parts[2]])
)


def functions(code):
    return [node.name for node in ast.walk(ast.parse(code)) if isinstance(node, ast.FunctionDef)]


# Where only its function tells the program from the block before it.
BY_NAME = (
    "a usage first",
    "a stub first",
    "a broken draft first",
    "a fence that is not closed before",
    "HTML",
    "JSON",
    "a tool's call",
)


@pytest.mark.parametrize("form", EXACT)
@settings(max_examples=15)
@given(PROGRAMS)
def test_a_program_comes_back_whole_from(form, code):
    for function in ("answer",) if form in BY_NAME else ("answer", ""):
        program = extract_program(EXACT[form](code), function=function)
        assert ast.dump(ast.parse(program)) == ast.dump(ast.parse(code))


@pytest.mark.parametrize("form", LOSSY)
@settings(max_examples=15)
@example('def answer(n):\n    """A.\n\n    ```\n    def answer(n):\n    """\ndef helper(n):\n    return n\n')
@example("TEXT = '```def answer(n):{}```'\ndef answer(n):\n    return n\ndef helper(n):\n    return n\n")
@given(PROGRAMS)
def test_a_program_comes_back_with_its_functions_from(form, code):
    for function in ("answer",) if form in BY_NAME else ("answer", ""):
        assert functions(extract_program(LOSSY[form](code), function=function)) == functions(code)


THOUGHTS = [
    f"<think>\n{DRAFT}", f"{CHANNEL.format('analysis')}{DRAFT}", f"analysisWe try. {DRAFT}",
    f"<think>\nA.\n</think>\nHm.\n<think>\n{DRAFT}", f"<think>A</think><think>{DRAFT}",
    f"<｜Assistant｜><think>\n{DRAFT}", f"<start_working_out>{DRAFT}",
]  # fmt: skip


def test_an_open_thought_is_no_answer_and_does_not_end():
    for prefix, text in [*(("", text) for text in THOUGHTS), ("<think>\n", DRAFT)]:
        for function in ("answer", ""):
            assert extract_program(text, prefix=prefix, function=function) is None
            assert not is_complete_answer(text, prefix=prefix, function=function)
    answer = f"{DRAFT}</think>{block('x = 3')}"
    assert extract_program(answer, prefix="<think>\n") == "x = 3\n"


def test_of_several_blocks_the_first_with_the_function_counts_with_the_imports_before_it():
    imports, code = "import math\n", "def answer(n):\n    return math.pi\n"
    text = block(imports) + USAGE + block("import sys\nprint(1)\n") + block(code) + block(WRONG)
    assert extract_program(text, function="answer") == imports + code
    assert extract_program(text) == imports + "print(answer(2))\n"  # without a function the first program
    future = "from __future__ import annotations\n"
    assert (
        extract_program(block(imports) + block(future + code), function="answer") == future + imports + code
    )


def test_a_function_keeps_the_functions_and_classes_of_the_blocks_before_it():
    helper, node = "def triple(n):\n    return 3 * n\n", "class Node:\n    value = 1\n"
    code = "def answer(n):\n    return triple(n)\n"
    text = block(helper) + "And:\n" + block(node) + USAGE + block(code)
    assert extract_program(text, function="answer") == helper + node + code


def test_a_block_of_another_language_is_no_program():
    for text in (
        block(WRONG, "java"),
        block(f"bash\n{WRONG}", ""),
        *(block("x = 1\n", language) for language in ("fsharp", "vbnet", "jl", "Solidity", "objective-c")),
        f"Run:\n{block(WRONG, 'js')}for example.",
    ):
        assert extract_program(text, function="answer") is extract_program(text) is None


@pytest.mark.parametrize("start", ["LIMIT = 3\n", "try:\n    import math\nexcept ImportError:\n    pass\n"])
def test_indented_code_among_words_begins_with_its_first_line(start):
    code = f"{start}answer = lambda n: n\n"
    text = f"Here it is:\n\n{indented(code, '    ')}\n\nThis isn't hard."
    assert extract_program(text, function="answer") == code


HEAD = 'def answer(n):\n    """Three."""'
BODY = "\n    if n:\n# a comment\n\n        return '''\n```\n'''\n    return 3\n"


@pytest.mark.parametrize("end", ["```\n\nThis isn't", "This isn't", "print(answer(2))", "</s>", "    ```"])
def test_what_follows_a_function_that_the_prompt_begins_is_left_out(end):
    asked = {"prefix": HEAD, "function": "answer"}
    assert extract_program(BODY + end, **asked) == extract_program(BODY, **asked) == HEAD + BODY
    assert is_complete_answer(BODY + end, **asked) and not is_complete_answer(BODY, **asked)


def test_an_answer_may_start_over_behind_its_prefix():
    code = "def answer(n):\n    return 3\n"
    for prefix in (HEAD, f"{F}python\n{HEAD}", f"{F}python\n"):
        assert extract_program(f"\nSure.\n{block(code)}", prefix=prefix, function="answer") == code


LINES = st.sampled_from(
    [F, f"{F}python", f"{F}\n", f"{F}bash\n", "~~~", "\n", "\n", "    ", "def answer(n):\n", "    return 3\n"]
    + ["import math\n", "answer(2)\n", "'''", '"""', "It's ", "# ", "> ", "1. ", ">>> ", "(", "\n<think>\n"]
    + ["analysis", "</s>", "python\n", "\r", "\xa0", "\\"]
)
ENDED = block("def answer(n):\n    return 3\n").rstrip()


@settings(max_examples=400)
@given(
    st.lists(LINES, max_size=6), st.sampled_from([ENDED, f"\n{ENDED}", "    return 3\n```", ""]),
    st.lists(LINES, max_size=6), st.sampled_from(["", f"{F}python\ndef answer(n):", HEAD, f"{HEAD}\n"]),
    st.sampled_from(["answer", ""]),
)  # fmt: skip
def test_nothing_behind_a_complete_answer_changes_it(start, end, rest, prefix, function):
    text, more, asked = "".join([*start, end]), "".join(rest), {"prefix": prefix, "function": function}
    if is_complete_answer(text, **asked):
        program = extract_program(text, **asked)
        assert program and extract_program(text + more, **asked) == program
        assert is_complete_answer(text + more, **asked)


@pytest.mark.parametrize("form", EXACT)
def test_an_answer_ends_with_its_program(form):
    code = "def answer(n):\n    return 3\n"
    text = EXACT[form](code)
    ends = [end for end in range(len(text) + 1) if is_complete_answer(text[:end], function="answer")]
    assert bool(ends) != (form in ("no end", "bare", "thoughts, then bare", "a byte-order mark"))
    # In these only what follows says that a block is a draft.
    if form not in ("thoughts that the prompt began", "thoughts about thinking", "an answer's tag"):
        assert all(extract_program(text[:end], function="answer") == code for end in ends)


@pytest.mark.parametrize(
    "body", ["...\n\nassert answer(2) == 6\n", "pass\n\nprint(answer(2))\n", "raise NotImplementedError\n"]
)
def test_a_stub_is_no_program_whatever_follows_it(body):
    stub, code = block(f"def answer(n):\n    {body}"), "def answer(n):\n    return 3 * n\n"
    assert extract_program(stub + block(code), function="answer") == code
    assert not is_complete_answer(stub, function="answer")


def test_a_test_that_imports_the_answer_is_not_the_answer():
    code = "def answer(n):\n    return 3 * n\n"
    test = block("from main import answer\n\nassert answer(2) == 6\n")
    assert extract_program(test + block(code), function="answer") == code
    assert not is_complete_answer(test, function="answer")
    alias = "from math import prod as answer\n"
    assert extract_program(block(alias) + block(code), function="answer") == alias


@pytest.mark.parametrize(
    "constants",
    [
        "LIMIT = 10**9 + 7\n",
        "from collections import defaultdict\n\nmemo = defaultdict(lambda: [0 for i in range(9)])\n",
        "import re\n\nPATTERN = re.compile('[aeiou]')\nTABLE: list[int] = [2 * i for i in range(100)]\n",
    ],
)
def test_a_function_keeps_the_constants_of_a_block_before_it(constants):
    code = "def answer(n):\n    return 3 * n\n"
    assert extract_program(block(constants) + block(code), function="answer") == constants + code
    for demonstration in (
        "result = answer(3)\n",
        "n = int(input())\n",
        "n = helper(3)\n",
        "import sys\n\nn = int(sys.stdin.readline())\n",
        "def double(x):\n    return 2 * x\n\nresult = double(x)\n",
        "squares = [i * i for i in range(3)]\nlast = i\n",
        "total = a + b\na = 1\nb = 2\n",
        "code = exit()\n",
        "r = print(3)\n",
    ):
        assert extract_program(block(demonstration) + block(code), function="answer") == code


def test_imports_from_the_future_come_first_whichever_block_has_them():
    future, code, helper = (
        "from __future__ import annotations\n",
        "def answer(n):\n    return 3\n",
        "import math\n",
    )
    text = block(future + helper) + block(future + code)
    assert extract_program(text, function="answer") == future + helper + code
    used, cache = "@lru_cache\n" + code, "from functools import lru_cache\n"
    assert extract_program(block(cache) + block(future + used), function="answer") == future + cache + used


@pytest.mark.parametrize(
    "end", ["Explanation\n\nIt isn't hard.", "Note: linear\n", "Usage\n-----\nIt isn't."]
)
def test_a_heading_behind_a_bare_program_is_left_out(end):
    code = "def f(n):\n    return n\n"
    assert extract_program(f"{code}\n{end}", function="f") == code

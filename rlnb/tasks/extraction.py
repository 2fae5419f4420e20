"""The program in a completion."""

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, takewhile

# A fence, its language, and all up to a closing fence at least as long, or to the end of the text.
FENCE = re.compile(
    r"^(?P<indent>[ \t]*)(?P<fence>`{3,}+|~{3,}+)[ \t]*(?P<language>[\w+-]*)[^\n`]*\n"
    r"(?P<code>.*?)(?P<end>^[ \t]*(?P=fence)[`~]*[ \t]*$|\Z)",
    re.DOTALL | re.MULTILINE,
)
# Closed behind code instead of on a line of its own: no line of Python ends like this.
CLOSED_LATE = re.compile(r"(?<=[^\s`])[ \t]*```[ \t]*$.*", re.DOTALL | re.MULTILINE)
PYTHON = ("python", "py", "python3")
UNNAMED = ("",)
MARKDOWN = ("markdown", "md")
STATEMENT = re.compile(r"^[^\S\n]*[^\s#]", re.MULTILINE)
NAME = r"[A-Za-z_](?:[\w.]|\[[^\]\n]*\])*"  # or an attribute, or an item
# Lines that begin a program: surely, or perhaps a sentence. The last are assignments of all kinds.
CODE_START = re.compile(
    r"^(?:(?P<surely>(?:async )?def |class |import |from [\w.]+ import |@|print\(|try:)"
    r"|(?:async )?for |while |if |(?:(?:async )?with|match) [^\n]*:"
    rf"|{NAME}(?: *, *\*?{NAME})*(?: *: *{NAME}(?: *\| *{NAME})*)? *(?:[-+*/%@&|^]|//|\*\*|<<|>>)?=(?!=))",
    re.MULTILINE,
)
LONGEST_COMPLETION = 2**16  # characters that are looked at: a hostile text must not stall the trainer
MAX_PARSES = 100  # of one bare text; each costs up to some milliseconds
MAX_NESTED_BLOCKS = 3  # blocks of markdown in blocks of markdown
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


@dataclass(frozen=True)
class Block:
    """A fenced block. language: in lower case, "" where none is named."""

    language: str
    code: str
    closed: bool


def extract_code(completion: str, *, prefix: str = "") -> str | None:
    """The program in a completion, or None where there is none.

    prefix: the opening of the answer that the prompt already holds (a fence and the function's first line);
    the completion goes on from there. The first complete python block wins, then the first complete block of
    no named language, then an unclosed block, then bare text (see `bare_code`), unless there is any block.
    A block without a statement, comments alone, is no program. Of a text only the first LONGEST_COMPLETION
    characters are looked at.
    """
    text = (prefix + completion)[:LONGEST_COMPLETION].replace("\r\n", "\n")
    blocks = list(blocks_of(text))
    for closed, languages in ((True, PYTHON), (True, UNNAMED), (False, PYTHON + UNNAMED)):
        for block in blocks:
            if block.closed == closed and block.language in languages and STATEMENT.search(block.code):
                return block.code.strip("\n") + "\n"
    return None if blocks else bare_code(text)


def blocks_of(text: str, depth: int = 0) -> Iterator[Block]:
    """The fenced blocks of a text; those inside a block of markdown instead of it."""
    for match in FENCE.finditer(text):
        language, code, closed = match["language"].lower(), match["code"], bool(match["end"])
        if match["indent"]:  # in a list item, say: the fence's indentation is not the code's
            code = re.sub(rf"^[ \t]{{1,{len(match['indent'])}}}", "", code, flags=re.MULTILINE)
        if language in MARKDOWN and depth < MAX_NESTED_BLOCKS:
            yield from blocks_of(code, depth + 1)
        elif not closed and CLOSED_LATE.search(code):
            yield Block(language, CLOSED_LATE.sub("", code, count=1), closed=True)
        else:
            yield Block(language, code, closed)


def bare_code(text: str) -> str | None:
    """Unfenced code: all of the text if it is Python, else from the first line that looks like code, as far
    as it parses.

    A line that might begin a sentence counts only if it parses. A line that surely is code decides: where it
    does not parse, all of it is a program with a syntax error, and no print behind it is run in its stead.
    """
    if whole := whole_program(text):
        return whole
    first, parses = CODE_START.search(text), count(1)
    for match in CODE_START.finditer(text):
        code = parsing_part(text[match.start() :], parses)
        if code or match["surely"]:
            return code or text[match.start() :].rstrip() + "\n"
    return text[first.start() :].rstrip() + "\n" if first else None


def whole_program(text: str) -> str:
    """A text that is all Python, without sentences before it that happen to parse; "" where it is not."""
    try:
        statements = parse(text).body
    except UNREADABLE:
        return ""
    sentences = list(takewhile(may_be_prose, statements))
    if len(sentences) == len(statements):
        return ""
    ends = [statement.end_lineno or 0 for statement in sentences if not is_constant(statement)]
    code = "\n".join(text.split("\n")[max(ends, default=0) :]).strip("\n").rstrip() + "\n"
    return code if STATEMENT.search(code) else ""


def may_be_prose(statement: ast.stmt) -> bool:
    """Whether a statement does nothing, and so may be a sentence: `Sure`, `yes or no`, `Answer: seven`."""
    if isinstance(statement, ast.AnnAssign):
        return statement.value is None
    return isinstance(statement, ast.Expr) and not any(
        isinstance(node, ast.Call | ast.NamedExpr) for node in ast.walk(statement)
    )


def is_constant(statement: ast.stmt) -> bool:
    """Whether a statement is a docstring or the like, which does no harm before a program."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def parse(code: str) -> ast.Module:
    """The syntax tree of a program, without warnings of doubtful escapes: they are the program's affair."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(code)


def parsing_part(text: str, parses: Iterator[int]) -> str:
    """The leading lines of a text that parse: all before the line of the first error, and so on.

    parses: counts what has been tried for the whole text; after MAX_PARSES nothing is.
    """
    lines = text.rstrip().split("\n")
    while lines and next(parses) <= MAX_PARSES:
        code = "\n".join(lines) + "\n"
        try:
            parse(code)
        except SyntaxError as error:
            del lines[min(error.lineno or 1, len(lines)) - 1 :]
        except UNREADABLE:
            return ""
        else:
            return code if code.strip() else ""
    return ""

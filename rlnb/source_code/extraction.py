"""Find the program in a completion."""

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice, takewhile
from textwrap import dedent

from rlnb.source_code.checks import LONGEST_PROGRAM

# A fence, its language, and all up to a closing fence at least as long, or to the end of the text.
FENCE = re.compile(
    r"^(?P<indent>[ \t]*)(?P<fence>`{3,}+|~{3,}+)[ \t]*(?P<language>[\w+-]*)[^\n`]*\n"
    r"(?P<code>.*?)(?P<end>^[ \t]*(?P=fence)[`~]*[ \t]*$|\Z)",
    re.DOTALL | re.MULTILINE,
)
# Closed at the end of a line of code instead of on a line of its own: no line of Python ends like this.
CLOSED_LATE = re.compile(r"(?<=[^\s`])[ \t]*```[ \t]*$.*", re.DOTALL | re.MULTILINE)
PYTHON = ("python", "py", "python3")
UNNAMED = ("",)
MARKDOWN = ("markdown", "md")
STATEMENT = re.compile(r"^[^\S\n]*[^\s#]", re.MULTILINE)
NAME = r"[A-Za-z_](?:[\w.]|\[[^\]\n]*\])*"  # or an attribute, or an item
# Lines that begin a program: surely, or perhaps a sentence. The last alternative is assignments of all kinds.
CODE_START = re.compile(
    r"^(?:(?P<surely>(?:async )?def |class |import |from [\w.]+ import |@|print\(|try:)"
    r"|(?:async )?for |while |if |(?:(?:async )?with|match) [^\n]*:"
    rf"|{NAME}(?: *, *\*?{NAME})*(?: *: *{NAME}(?: *\| *{NAME})*)? *(?:[-+*/%@&|^]|//|\*\*|<<|>>)?=(?!=))",
    re.MULTILINE,
)
# The answer follows the last of these: GPT-OSS's channel, the same without its markers, the end of thinking.
ANSWER = re.compile(r"<\|channel\|>\s{0,4}final[^<]{0,64}<\|message\|>|assistantfinal|</think>")
MARKER = re.compile(r"<\|\w{1,32}\|>")
LONGEST_COMPLETION = 2**16  # characters that are read: a hostile text must not stall the trainer
LONGEST_BARE = 2**13  # characters of a text that is parsed repeatedly in the search for a function
MAX_PARSES = 100  # of one bare text; each takes up to some milliseconds
MAX_FUNCTION_PARSES = 12  # the same, in the search for a function
MAX_BLOCKS = 50  # the last ones, in the search for a function
MAX_NESTED_BLOCKS = 3  # blocks of markdown in blocks of markdown
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


@dataclass(frozen=True)
class Block:
    """A fenced block. language: in lower case, "" where none is named."""

    language: str
    code: str
    closed: bool


def extract_code(completion: str, *, prefix: str = "") -> str | None:
    """Return the program in a completion, or None where there is none.

    prefix: the opening of the answer that the prompt already holds (a fence and the function's first line);
    the completion continues it. The first complete python block wins, then the first complete block without
    a language, then an unclosed block, then bare text (see `find_bare_code`), unless there is any block.
    A block without a statement, only comments, is not a program. Only the first LONGEST_COMPLETION characters
    of a text are read.
    """
    text = (prefix + completion)[:LONGEST_COMPLETION].replace("\r\n", "\n")
    blocks = list(iterate_blocks(text))
    for closed, languages in ((True, PYTHON), (True, UNNAMED), (False, PYTHON + UNNAMED)):
        for block in blocks:
            if block.closed == closed and block.language in languages and STATEMENT.search(block.code):
                return block.code.strip("\n") + "\n"
    return None if blocks else find_bare_code(text)


def iterate_programs(completion: str, *, function: str, prefix: str = "") -> Iterator[str]:
    """Yield the programs in a completion that may define a function, the most likely answer first.

    Models think, show drafts, then answer. So the answer counts where it is marked (a final channel, an end
    of thinking), and the last complete block of it first; then an unclosed block, without the prose after it;
    then bare text. A program may come up twice. prefix: as for `extract_code`; a completion that starts over
    is read without it. Only LONGEST_COMPLETION characters of each reading are used.
    """
    mentions = compile_mentions(function)
    parses = count(MAX_PARSES - MAX_FUNCTION_PARSES + 1)
    for text in dict.fromkeys((prefix + completion, completion)):
        for reading in _iterate_readings(text, mentions):
            yield from _iterate_candidates(reading, mentions, parses)


def compile_mentions(function: str) -> re.Pattern[str]:
    """Return a pattern that matches where a text defines a function or binds its name."""
    return re.compile(rf"^[ \t]*(?:async[ \t]+)?def[ \t]+{function}\b|^{function}[ \t]*[:=]", re.MULTILINE)


def _iterate_readings(text: str, mentions: re.Pattern[str]) -> Iterator[str]:
    """Yield the marked answer, if any, then the whole text if the answer does not mention the function."""
    end = 0
    for match in ANSWER.finditer(text):
        end = match.end()
    for start in dict.fromkeys((end, 0)):
        cut = MARKER.sub("\n", text[start : start + LONGEST_COMPLETION])
        reading = re.sub(r"\r\n?", "\n", cut)
        yield reading
        if mentions.search(reading):
            return


def _iterate_candidates(text: str, mentions: re.Pattern[str], parses: Iterator[int]) -> Iterator[str]:
    blocks = [block for block in iterate_blocks(text) if STATEMENT.search(block.code)][-MAX_BLOCKS:]
    for block in reversed(blocks):
        if block.closed:
            yield dedent(block.code).strip("\n") + "\n"
    for block in reversed(blocks):
        if not block.closed:
            yield cut_prose(dedent(block.code), parses)
    starts = [match.start() for match in mentions.finditer(text)][-1:]
    if blocks:  # The fence of the function may close a block that the text only talks about.
        fences = [text.rfind("\n", 0, text.rfind("```", 0, start)) for start in starts]
        starts = [text.find("\n", fence + 1) + 1 for fence in fences]
    else:
        if len(text) <= LONGEST_PROGRAM and (code := find_whole_program(text)):
            yield code
        starts = [*_find_bare_start(text), *starts]
    yield from (cut_prose(text[start:], parses) for start in starts)


def _find_bare_start(text: str) -> list[int]:
    """Return where unfenced code begins: at the first line that is surely code, or at assignments before it.

    Empty where no line is surely code.
    """
    matches = list(islice(CODE_START.finditer(text), MAX_BLOCKS))
    surely = next((match for match in matches if match["surely"]), None)
    if surely is None:
        return []
    return [
        next(
            match.start()
            for match in matches
            if match is surely or can_parse(text[match.start() : surely.start()][:LONGEST_BARE])
        )
    ]


def cut_prose(text: str, parses: Iterator[int]) -> str:
    """Return a program without the sentences after it. parses: as for `find_parsing_part`."""
    text = text.strip("\n")
    if len(text) <= LONGEST_PROGRAM and can_parse(text):
        return text + "\n"
    code = find_parsing_part(text[:LONGEST_BARE], parses)
    if not code:
        return text + "\n"
    before, _, rest = text.partition(code.strip("\n").rstrip())
    rest = rest.strip("\n")
    match = CODE_START.match(rest)
    if rest[:1] in (" ", "\t") or (match and match["surely"]):  # The code goes on, with an error in it.
        code = text[len(before) :]
    return code.strip("\n") + "\n"


def iterate_blocks(text: str, depth: int = 0) -> Iterator[Block]:
    """Yield the fenced blocks of a text; in place of a block of markdown, the blocks inside it."""
    for match in FENCE.finditer(text):
        language, code, closed = match["language"].lower(), match["code"], bool(match["end"])
        if match["indent"]:  # In a list item, for instance, the fence's indentation is not the code's.
            code = re.sub(rf"^[ \t]{{1,{len(match['indent'])}}}", "", code, flags=re.MULTILINE)
        if language in MARKDOWN and depth < MAX_NESTED_BLOCKS:
            yield from iterate_blocks(code, depth + 1)
        elif not closed and CLOSED_LATE.search(code):
            yield Block(language, CLOSED_LATE.sub("", code, count=1), closed=True)
        else:
            yield Block(language, code, closed)


def find_bare_code(text: str) -> str | None:
    """Return unfenced code: the whole text if it is Python, else what parses from the first line of code on.

    A line that might begin a sentence counts only if it parses. A line that is surely code decides: where it
    does not parse, the rest is a program with a syntax error, and no print after it is run in its place.
    """
    if program := find_whole_program(text):
        return program
    first, parses = CODE_START.search(text), count(1)
    for match in CODE_START.finditer(text):
        code = find_parsing_part(text[match.start() :], parses)
        if code or match["surely"]:
            return code or text[match.start() :].rstrip() + "\n"
    return text[first.start() :].rstrip() + "\n" if first else None


def find_whole_program(text: str) -> str:
    """Return a text that is all Python, without leading sentences that happen to parse; "" if it is not."""
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
    """Return whether a statement does nothing, so may be a sentence: `Sure`, `yes or no`, `Answer: seven`."""
    if isinstance(statement, ast.AnnAssign):
        return statement.value is None
    return isinstance(statement, ast.Expr) and not any(
        isinstance(node, ast.Call | ast.NamedExpr) for node in ast.walk(statement)
    )


def is_constant(statement: ast.stmt) -> bool:
    """Return whether a statement is a docstring or the like, which does no harm before a program."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def parse(code: str) -> ast.Module:
    """Return the syntax tree of a program, without warnings about its escape sequences."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(code)


def can_parse(code: str) -> bool:
    try:
        parse(code)
    except UNREADABLE:
        return False
    return True


def find_parsing_part(text: str, parses: Iterator[int]) -> str:
    """Return the leading lines of a text that parse: all before the first error, and so on.

    parses: counts the attempts on the whole text, which end after MAX_PARSES.
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

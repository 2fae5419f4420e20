"""Find the program in an answer: one reader for all pipelines.

An answer is what follows the thoughts. Its program is a fenced block, or text without a fence. A fence closes
a block where the code before it is Python, so fences inside of docstrings do not.
"""

import ast
import builtins
import html
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count, islice, takewhile

from rlnb.params.thoughts import BEGIN_THOUGHT, END_THOUGHT, THINK
from rlnb.source_code.checks import LONGEST_PROGRAM, count_bindings, imported_names, iterate_scopes, names_in

# Where thoughts begin and answers begin: by such marks, in GPT-OSS's channels, and in words.
MARK = re.compile(
    rf"(?P<open>(?:^[ \t]*+|(?<=>))<{THINK}>|{BEGIN_THOUGHT}|<\|channel\|>(?!\s{{0,4}}final)"
    r"|\A\s*(?:analysis(?=[^\W_])|Here is my thought process:))"
    rf"|(?P<close></{THINK}>|{END_THOUGHT}|^Here is my response:|assistantfinal"
    r"|<\|channel\|>\s{0,4}final(?:[^<]|<\|constrain){0,64}<\|message\|>)|<(?:answer|solution)>",
    re.IGNORECASE | re.MULTILINE,
)
# A token that ends an answer, written as text; these may also stand before it.
END = r"(?:\n\[DONE\]|</s>|<eos>|<end_of_turn>|</(?i:answer|solution)>|<[|｜][\w▁-]{1,32}[|｜]>)"
LEADING_ENDS = rf"\A(?:\s*{END}(?:assistant\b)?)++"
# What may open or close a block. Tildes only at the start of a line: elsewhere they are operators.
FENCE = re.compile(
    rf"(?P<ticks>`{{3,}}+)|^[ \t]*+(?:>[ \t]*+)*+(?P<tildes>~{{3,}}+)|(?P<end>{END})", re.MULTILINE
)
FENCE_LINE = re.compile(r"^.*(?:```|~~~).*$", re.MULTILINE)
CONTAINER = re.compile(r"[ \t]*+(?:(?:>|[-*+]|\d{1,9}[.)])[ \t]*+)*+")  # quotes and list items before a fence
TAG = re.compile(r"[ \t]*\{?\.?(?P<language>[^\s`{}:,=]*)")
PYTHON = re.compile(r"i?py(?:thon)?[\w.-]*|.*\.py")
OTHER_LANGUAGES = re.compile(
    "bash|sh|shell|zsh|fish|console|terminal|powershell|ps1|cmd|bat|dockerfile|makefile|cmake|c|h|cpp|c[+][+]|cc|"
    "cs|csharp|c#|java|kotlin|scala|groovy|javascript|js|jsx|typescript|ts|tsx|go|golang|rust|rs|zig|swift|ruby|"
    "rb|perl|php|lua|r|julia|matlab|octave|fortran|haskell|hs|ocaml|elixir|erlang|clojure|lisp|scheme|dart|nim|"
    "sql|json|jsonl|yaml|yml|toml|ini|xml|html|css|scss|csv|latex|tex|diff|patch|mermaid|jl|fsharp|fs|f#|vb|vba|"
    "vbnet|objective-c|objc|asm|mathematica|solidity|graphql|vue|svelte|sass|proto|hcl|terraform|awk|pascal|elm"
)
MARKDOWN = ("markdown", "md")
QUOTED = re.compile(r"\"(?:[^\"\\]|\\.?)*+(?:\"|\Z)", re.DOTALL)  # a text in JSON, or the rest
JSON_VALUE = re.compile(r"\"[ \t]*+:[ \t]*+\"(?:[^\"\\]|\\.)*+\Z")  # a text in JSON that has not ended
HTML_CODE = re.compile(r"^[ \t]*+(?:<pre[^<>]*+>\s*+)?<code[^<>]*+>|</code>", re.IGNORECASE | re.MULTILINE)
ENTITY = re.compile(r"&#?\w{1,32};")
LONE_WORD = re.compile(r"\s*+(?P<word>[A-Za-z][\w+#.]*+):?[^\S\n]*+\n")
ATTRIBUTE = re.compile(r"[\w-]++=(?:[\"'{]|[\w./-]*\.py\b|true\b|false\b)")  # of a fence: title="a.py"
FUTURE = re.compile(r"^from __future__ import [^(\n]*+\n", re.MULTILINE)
STATEMENT = re.compile(r"^[^\S\n]*+[^\s#]", re.MULTILINE)
# Where a function's body may end: at a line that is not indented, unless it is a comment.
OUTER = re.compile(rf"{FENCE.pattern}|^(?P<outer>[^\s#])", re.MULTILINE)
HEAD = re.compile(r"^(?:(?:async )?def|class) ", re.MULTILINE)
# What a constant may be made of; not what reads, prints or ends.
VALUES_OF_PYTHON = frozenset(dir(builtins)) - {
    "input", "open", "print", "exit", "quit", "exec", "eval", "breakpoint", "help", "__import__",
}  # fmt: skip
INDENTED_CODE = re.compile(r"(?m)^[ \t]++((async )?def |class |(from [\w.]++ )?import |@|try:|\w++ = )")
NAME = r"[A-Za-z_](?:[\w.]++|\[[^\]\n]*+\])*+"  # or an attribute, or an item
# Lines that begin a program: surely, or perhaps a sentence. The last alternative is assignments of all kinds.
CODE_START = re.compile(
    r"^(?:(?P<surely>(?:async )?def |class |import |from [\w.]++ import |@|print\(|try:)"
    r"|(?P<perhaps>(?:async )?for |while |if |(?:(?:async )?with|match) [^\n]*:)"
    rf"|{NAME}(?: *+, *+\*?{NAME})*+(?: *+: *+{NAME}(?: *+\| *+{NAME})*+)?+ *+"
    r"(?:[-+*/%@&|^]|//|\*\*|<<|>>)?=(?!=))",
    re.MULTILINE,
)
LONGEST_COMPLETION = 2**16  # characters that are read: a hostile text must not stall the trainer
LONGEST_BARE = 2**13  # characters of a text that is parsed repeatedly
MAX_PARSES = 50  # of one answer; each takes up to some milliseconds
MAX_FENCES = 1000
MAX_BLOCKS = 50
TORN = re.compile(r"\S[^\n]*+(?:\n(?:[ \t][^\n]*+)?)*+")  # one statement and its indented lines
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


@dataclass(frozen=True)
class Program:
    """A part of an answer that may be its program.

    tree: None where the code is not Python. language: of the fence, in lower case. closed: by a fence.
    settled: no text that follows can move its end. helpers: code of other blocks that it may use, which
    defines no function that is asked for.
    """

    code: str
    tree: ast.Module | None
    language: str = ""
    closed: bool = False
    settled: bool = False
    helpers: str = ""

    @property
    def whole(self) -> str:
        """The code with its helpers."""
        whole = self.helpers + self.code
        if not self.helpers or not (first := FUTURE.findall(whole)):
            return whole
        return "".join(dict.fromkeys(first)) + FUTURE.sub("", whole)

    @property
    def is_foreign(self) -> bool:
        """Its fence names another language."""
        return bool(OTHER_LANGUAGES.fullmatch(self.language))

    def has_only(self, is_kind: Callable[[ast.stmt], bool]) -> bool:
        statements = self.tree.body if self.tree else []
        return bool(statements) and all(map(is_kind, statements))

    @property
    def rank(self) -> int:
        """Where no function is asked: 0 for the answer, 1 for a block that may be one, 2 without an end."""
        if not self.closed or not STATEMENT.search(self.whole):
            return 2
        is_code = self.tree and any(match["surely"] for match in CODE_START.finditer(self.whole))
        is_named = PYTHON.fullmatch(self.language) or not self.language and is_code
        return 0 if is_named and not self.has_only(lambda part: is_import(part) or may_be_prose(part)) else 1

    def defines(self, function: str) -> bool:
        """Return whether it is Python that binds a name, not to a stub, outside of functions and classes."""
        try:
            module = next(iterate_scopes(self.code)) if self.tree else None
        except UNREADABLE:
            return False
        if not self.tree or not module or function not in module.get_identifiers():
            return False
        named = [node for node in self.tree.body if getattr(node, "name", "") == function]
        if any(map(is_stub, named[-1:])):  # the last of overloads
            return False
        sources = imported_names(self.tree).get(function, ())  # not the answer's own: `from main import f`
        is_imported = any(each.partition(".")[0] in sys.stdlib_module_names for each in sources)
        return module.lookup(function).is_assigned() or is_imported


@dataclass(frozen=True)
class Opening:
    """The begin of a block. start: of its code. fence: how a closing one begins. quotes: how many `>`."""

    start: int
    language: str = ""
    fence: str = ""
    quotes: int = 0


def extract_program(completion: str, *, prefix: str = "", function: str = "") -> str | None:
    """Return the program in a completion, or None where there is none.

    prefix: the opening of the answer that the prompt already holds, which the completion continues: thoughts
    that begin, a fence with a first line, or a function's head, whose body ends at the first line that is not
    indented. function: the name that the program should define. The first block that does counts, with the
    blocks before it that only import and define; a stub (`def f(n): ...`) does not. Else the first complete
    block of Python counts, then another one, then one that is not closed, then bare text unless there is any
    block. A block without a statement, only comments, is not a program. Only LONGEST_COMPLETION characters of
    an answer are read.
    """
    if continued := _read_continuation(completion, prefix):
        return continued.code
    fallback: Program | None = None
    for text in _list_readings(completion, prefix, function):
        programs = []
        for program in _iterate_programs(text, function):
            if function and program.defines(function):
                return program.whole
            programs.append(program)
        fallback = fallback or min(programs, key=lambda program: program.rank, default=None)
    return fallback.whole if fallback else None


def is_complete_answer(text: str, *, prefix: str = "", function: str = "") -> bool:
    """Return whether an answer has its program, so that writing may end: nothing behind it counts any more.

    The one exception is a mark behind it that makes all before it a thought. prefix, function: as for
    `extract_program`.
    """
    if continued := _read_continuation(_read_to_last(OUTER, text), prefix):
        return continued.closed and continued.settled
    parts, is_thinking = split_thoughts(_list_texts(text, prefix)[0], function)
    return not is_thinking and _has_answer(parts[-1], function)


def _has_answer(text: str, function: str) -> bool:
    """Return whether a block is the program, whatever text follows."""
    for block in _iterate_blocks(_read_to_last(FENCE, _trim(text)), function, count(1)):
        if not block.settled:
            return False
        if block.defines(function) if function else block.rank == 0:
            return True
    return False


def _read_to_last(end: re.Pattern[str], text: str) -> str:
    """Return a text without the lines behind its last end, so that no look parses what is being written."""
    text = re.sub(r"\r\n?", "\n", text)
    last = max((match.end() for match in end.finditer(text)), default=0)
    return text[: text.find("\n", last) + 1 or None]


def ends_of_answers(prefixes: Sequence[str], functions: Sequence[str]) -> Callable[[int, str], bool]:
    """Return `is_complete_answer` as `generate` asks it: of a row and its text."""
    return lambda row, text: is_complete_answer(text, prefix=prefixes[row], function=functions[row])


def iterate_drafts(completion: str, *, function: str, prefix: str = "") -> Iterator[str]:
    """Yield all that may be the program that defines a function, the last complete block first.

    Drafts in thoughts that have ended come last. A program may come up twice. prefix: as for
    `extract_program`.
    """
    for text in _list_readings(completion, prefix, function, with_thoughts=True):
        programs = list(_iterate_programs(text, function))
        closed = [program for program in programs[::-1] if program.closed]
        closed.sort(key=lambda program: not program.defines(function))  # a stub defines nothing
        yield from islice((program.whole for program in closed), MAX_BLOCKS)
        yield from (program.whole for program in programs if not program.closed)


def _list_readings(completion: str, prefix: str, function: str, *, with_thoughts: bool = False) -> list[str]:
    """Return the texts in which to look for a program, the last part of the answer first."""
    readings: list[str] = []
    quoted: list[str] = []
    for text in _list_texts(completion, prefix):
        parts, is_thinking = split_thoughts(text, function)
        for part in parts[::-1]:
            fenced = HTML_CODE.sub(f"\n{'`' * 9}\n", part)
            if fenced != part:  # an entity has a name, or a number of a few digits
                fenced = ENTITY.sub(lambda entity: html.unescape(entity[0]), fenced)
            fence = FENCE.search(fenced)  # one of HTML comes first, or in a program
            readings += [part, fenced] if fence and fence[0] != "`" * 9 else [fenced, part]
        quoted += [code for part in parts[-1:] for code in unquote(part, function)]
        if with_thoughts and not is_thinking:
            readings.append(re.sub(END, "\n", text[:LONGEST_COMPLETION]))
    return list(dict.fromkeys([*readings, *quoted]))


def _list_texts(completion: str, prefix: str) -> list[str]:
    """Return an answer as it goes on from its prefix and as it starts over, first if it has no fence."""
    if fence := FENCE.search(prefix):
        return [prefix + completion, prefix[: fence.start()] + completion]
    return [completion, prefix + completion] if HEAD.search(prefix) else [prefix + completion]


def unquote(text: str, function: str) -> list[str]:
    """Return the texts of JSON in which a function is defined."""
    texts = []
    for match in QUOTED.finditer(text[:LONGEST_BARE]):
        with suppress(ValueError):
            text_in_json: str = json.loads(match[0], strict=False)
            text_in_json.encode()  # half of a surrogate pair: no file could hold it
            texts.append(text_in_json)
    mentions = compile_mentions(function)
    return [text for text in texts if function and mentions.search(text)][:3]


def split_thoughts(text: str, function: str | None = None) -> tuple[list[str], bool]:
    """Return the last parts of a text that are not thoughts, and whether it ends in a thought.

    The end of a thought that did not begin makes all before it a thought: the prompt began it. What begins
    behind a complete program (see `is_complete_answer`; None: not looked for) is none.
    """
    text = re.sub(r"\r\n?", "\n", text).lstrip("\ufeff")
    spans: list[tuple[int, int]] = []
    start, is_thinking = 0, False
    for mark in MARK.finditer(text):
        begins, ends = bool(mark["open"]), bool(mark["close"])
        before = text[max(mark.start() - 200, 0) : mark.start()].rpartition("\n")[2]
        behind = text[mark.end() : mark.end() + 200].partition("\n")[0]
        if not is_thinking and any(quote in before and quote in behind for quote in "\"'"):
            continue  # a text in the program
        if is_thinking and not (begins or ends) and text[mark.start() - 1 : mark.start()] != "\n":
            continue  # a thought about the tag
        is_asked = function is not None and begins and not is_thinking
        if is_asked and _has_answer(text[start : mark.start()], function or ""):
            break
        if ends and not is_thinking:
            spans.clear()
        elif not is_thinking:
            spans.append((start, mark.start()))
        start, is_thinking = mark.end(), begins
    if not is_thinking:
        spans.append((start, len(text)))
    return [text[begin:end] for begin, end in spans[-3:]], is_thinking


def _read_continuation(completion: str, prefix: str) -> Program | None:
    """Return the program that continues a function's head in the prefix, unless the answer starts over."""
    if FENCE.search(prefix) or MARK.search(prefix) or not HEAD.search(prefix):
        return None
    text = prefix + re.sub(r"\r\n?", "\n", completion[:LONGEST_COMPLETION])
    ends = list(islice(OUTER.finditer(text, len(prefix)), MAX_FENCES))
    body = text[len(prefix) : ends[0].start() if ends else None]
    return _close_block(text, Opening(0), ends, 0, count(1))[0] if STATEMENT.search(body) else None


def _trim(text: str) -> str:
    """Return what is read of an answer."""
    return re.sub(LEADING_ENDS, "", text[:LONGEST_COMPLETION])


def _iterate_programs(text: str, function: str) -> Iterator[Program]:
    """Yield the blocks, those that are closed first, then bare text."""
    text, parses = _trim(text), count(1)
    every = list(_iterate_blocks(text, function, parses))
    blocks = [block for block in every if STATEMENT.search(block.whole) and not block.is_foreign]
    yield from sorted(blocks, key=lambda block: not block.closed)
    parts = [text]
    if every:  # A text without a fence around it, or a fence of the function that closes another block.
        for block in islice((block for block in every if block.is_foreign), MAX_BLOCKS):
            text = text.replace(block.code.strip("\n"), "")
        mentions = compile_mentions(function)
        parts = [part for part in FENCE_LINE.split(text) if function and mentions.search(part)][:3]
    for part in parts:
        bare = re.split(END, part, maxsplit=1)[0]
        if not CODE_START.search(bare) and (indented := INDENTED_CODE.search(bare)):
            bare = bare[indented.start() :]
        for mended in dict.fromkeys((bare, *mend_code(bare))):
            if code := find_bare_code(mended, parses):
                yield Program(*_read_code(drop_last_sentences(code), parses)[:2])


def compile_mentions(function: str) -> re.Pattern[str]:
    """Return a pattern that matches where a text defines a function or binds its name."""
    name = re.escape(function)
    return re.compile(rf"^[ \t]*(?:async[ \t]+)?def[ \t]+{name}\b|^{name}[ \t]*[:=]", re.MULTILINE)


def _iterate_blocks(text: str, function: str, parses: Iterator[int]) -> Iterator[Program]:
    """Yield the fenced blocks of a text, each with those before it that only import and define others.

    Code before the first fence is a block as well where it is all Python: that fence closes it.
    """
    fences = list(islice(FENCE.finditer(text), MAX_FENCES))
    index, settled, helpers = 0, True, ""
    known: Set[str] = VALUES_OF_PYTHON  # and what helpers bind
    bare = _open_bare(text, fences)
    while index < len(fences):
        if fences[index]["end"] and not bare:
            return
        opening = bare or _open_block(text, fences[index])
        if not opening:
            index += 1
            continue
        block, end = _close_block(text, opening, fences, index + (not bare), parses)
        settled = settled and block.settled
        if bare:
            bare = None
            is_whole = block.closed or opening.start + len(block.code) > fences[-1].start()
            if not (block.tree and is_whole and not all(map(may_be_prose, block.tree.body))):
                continue
        index = end
        is_closed = block.closed or not opening.fence
        yield Program(block.code, block.tree, opening.language, is_closed, settled, helpers)
        names = known_names(block, known if function else None)
        if names is not None and not block.defines(function):
            helpers, known = helpers + block.code, names


def _open_bare(text: str, fences: list[re.Match[str]]) -> Opening | None:
    """Return where code begins before the first fence: at the start, or where it reads like a program."""
    before = text[: fences[0].start()] if fences else ""
    if re.match(r"\s*(?:\"\"\"|'''|#)", before):
        return Opening(0)
    first = len(before) - len(before.lstrip())
    matches = CODE_START.finditer(before)
    return next((Opening(m.start()) for m in matches if not m["perhaps"] or m.start() <= first), None)


def _open_block(text: str, fence: re.Match[str]) -> Opening | None:
    """Return the block that a fence opens, if it does: on a line of its own, or behind words.

    One in a text of JSON, with more of that text behind it in its line, opens none.
    """
    begin, end = fence.span(fence.lastgroup or 0)
    lead = text[text.rfind("\n", 0, begin) + 1 : begin]
    line = text[end:].partition("\n")[0]
    info, is_inline, _ = line.partition("`")
    _, language, rest = TAG.split(info, maxsplit=1)
    language, rest = language.lower(), rest.strip()
    is_first = bool(CONTAINER.fullmatch(lead))
    is_python = not language or bool(PYTHON.fullmatch(language))
    start = end + len(line) + 1
    goes_on = is_inline or CODE_START.match(info.lstrip()) or CODE_START.match(rest)
    if goes_on and JSON_VALUE.search(lead[-LONGEST_BARE:]):
        return None
    if CODE_START.match(info.lstrip()):
        language, start = "", end + len(info) - len(info.lstrip())
    elif is_inline or CODE_START.match(rest) and not ATTRIBUTE.match(rest):
        start = end + len(info.rstrip()) - len(rest)
    elif language in MARKDOWN or not (is_python if is_first else is_python and not rest):
        is_word = not rest or ATTRIBUTE.match(rest) or OTHER_LANGUAGES.fullmatch(language)
        if language in MARKDOWN or not (is_first and is_word and re.fullmatch(r"[\w+#.-]*[\w+#-]", language)):
            return None
    if word := LONE_WORD.match(text, start):
        name = word["word"].lower()
        if PYTHON.fullmatch(name) or not language and OTHER_LANGUAGES.fullmatch(name):
            language, start = name, word.end()
    return Opening(min(start, len(text)), language, text[begin:end], lead.count(">") * is_first)


def _close_block(
    text: str, opening: Opening, fences: list[re.Match[str]], index: int, parses: Iterator[int]
) -> tuple[Program, int]:
    """Return a block, and the index of the next fence to read.

    It ends at the first fence before which its code is Python; where the code is not, at the first fence on a
    line of its own that is not inside of a string.
    """
    inside: tuple[str, int] | None = None  # the first fence in a string
    is_code = not OTHER_LANGUAGES.fullmatch(opening.language)
    for position in range(index, len(fences)):
        fence = fences[position]
        begin = fence.start(fence.lastgroup or 0)
        if fence.lastgroup in ("ticks", "tildes") and not text.startswith(opening.fence, begin):
            continue
        start = max(text.rfind("\n", 0, begin) + 1, opening.start)
        lead = "" if fence["end"] else text[start:begin].strip(" \t>" if opening.quotes else None)
        code = text[opening.start : begin if lead or fence["end"] else start]
        tree, error = None, ""
        if is_code:
            code, tree, error = _read_code(code, parses, quotes=opening.quotes)
        in_string = ("unterminated" if fence["end"] else "unterminated triple-quoted") in error
        if tree and not ("#" in lead and _read_code(code + "`", parses)[1]):  # not in a comment
            break
        if not (lead or in_string or fence.lastgroup == "outer"):
            if inside or not opening.fence:  # Sentences may stand between code and fence.
                cut = cut_prose(code, parses)
                tree = _read_code(cut, parses)[1]
                if tree and len(cut) > len(inside[0] if inside else ""):
                    return Program(cut, tree, closed=True, settled=True), position
                tree = None
            code, position = inside or (code, position)
            break
        if in_string and not lead:
            inside = inside or (code, position)
    else:
        code = _read_code(text[opening.start :], parses, quotes=opening.quotes)[0]
        code = cut_prose(code, parses) or code
        tree = _read_code(code, parses)[1]
        whole = "" if tree else find_parsing_part(code, parses)
        if whole and TORN.fullmatch(code[len(whole) :].rstrip()):  # only the last statement is cut
            code, tree = whole, _read_code(whole, parses)[1]
        if not inside or tree and len(code) > len(inside[0]):
            return Program(code.strip("\n") + "\n", tree), len(fences)
        return Program(inside[0].strip("\n") + "\n", None, closed=True), inside[1] + 1
    info = text[fences[position].end() :].partition("\n")[0].strip()
    after = len(fences) if fence["end"] else position if info and not lead else position + 1
    return Program(code.strip("\n") + "\n", tree, closed=True, settled=True), after


def _read_code(code: str, parses: Iterator[int], *, quotes: int = 0) -> tuple[str, ast.Module | None, str]:
    """Return code, mended if only that makes it Python; its tree; and the parser's errors."""
    errors = ""
    if len(code) > LONGEST_PROGRAM:
        return code, None, ""
    if quotes:
        code = re.sub(rf"^[ \t]*+(?:>[ \t]?){{0,{quotes}}}", "", code, flags=re.MULTILINE)
    for text in chain((code,), mend_code(code)):
        if text == code and errors:
            continue
        if next(parses) > MAX_PARSES:
            break
        try:
            return text, parse(text), ""
        except SyntaxError as error:
            errors += str(error)
        except UNREADABLE:
            continue
    return code, None, errors


def mend_code(code: str) -> Iterator[str]:
    """Yield code without a common indentation, prompts and commands of a session, and unusual spaces."""
    for spaces in (r"^[^\S\n]+", r"[^\S\n]+"):  # those in strings only if that is not enough
        text = re.sub(spaces, lambda match: re.sub(r"[^\t]", " ", match[0]), code, flags=re.MULTILINE)
        text = re.sub(r"^(?:%%?[a-z]\w+|!\w).*|[\ufeff\u200b]", "", text, flags=re.MULTILINE).lstrip("\n")
        indent = len(text) - len(text.lstrip(" \t"))
        lines = [re.sub(rf"^[ \t]{{0,{indent}}}", "", line) for line in text.split("\n")]
        if text.lstrip().startswith(">>>"):
            lines = [line[4:] for line in lines if line[:3] in (">>>", "...")]
        yield "\n".join(lines)


def cut_prose(text: str, parses: Iterator[int]) -> str:
    """Return a program without the sentences after it; "" where no line of it is Python."""
    text = text.strip("\n")
    code = find_parsing_part(text[:LONGEST_BARE], parses)
    if not code or parse_program(text):
        return text + "\n" if code else ""
    before, _, rest = text.partition(code.strip("\n").rstrip())
    rest = rest.strip("\n")
    match = CODE_START.match(rest)
    if rest[:1] in (" ", "\t") or (match and not match["perhaps"]):  # The code goes on, with an error in it.
        code = text[len(before) :]
    return code.strip("\n") + "\n"


def find_bare_code(text: str, parses: Iterator[int]) -> str | None:
    """Return unfenced code: the whole text if it is Python, else what parses from the first line of code on.

    A line that might begin a sentence counts only if it parses. A line that is surely code decides: where it
    does not parse, the rest is a program with a syntax error, and no print after it is run in its place.
    """
    if program := find_whole_program(text):
        return program
    first = CODE_START.search(text)
    for index, match in enumerate(CODE_START.finditer(text)):  # each takes a parse, until there is none left
        code = cut_prose(text[match.start() :], parses) if index < MAX_PARSES else ""
        if code or match["surely"]:
            return code or text[match.start() :].rstrip() + "\n"
    return text[first.start() :].rstrip() + "\n" if first else None


def find_whole_program(text: str) -> str:
    """Return a text that is all Python, without leading sentences that happen to parse; "" if it is not."""
    tree = parse_program(text)
    sentences = list(takewhile(may_be_prose, tree.body)) if tree else []
    if not tree or len(sentences) == len(tree.body):
        return ""
    ends = [statement.end_lineno or 0 for statement in sentences if not is_constant(statement)]
    code = "\n".join(text.split("\n")[max(ends, default=0) :]).strip("\n").rstrip() + "\n"
    return code if STATEMENT.search(code) else ""


def drop_last_sentences(code: str) -> str:
    """Return bare code without statements behind it that may be sentences: `Explanation`."""
    body = tree.body if (tree := parse_program(code)) else []
    ends = [statement.end_lineno or 0 for statement in body if not may_be_prose(statement)]
    if not ends or not may_be_prose(body[-1]):
        return code
    return "\n".join(code.split("\n")[: max(ends)]) + "\n"


def may_be_prose(statement: ast.stmt) -> bool:
    """Return whether a statement does nothing, so may be a sentence: `Sure`, `yes or no`, `Answer: seven`."""
    if isinstance(statement, ast.AnnAssign):
        return statement.value is None
    return isinstance(statement, ast.Expr) and not any(
        isinstance(node, ast.Call | ast.NamedExpr) for node in ast.walk(statement)
    )


def is_import(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Import | ast.ImportFrom)


def is_helper(statement: ast.stmt) -> bool:
    """Return whether a statement only makes a name known to later blocks."""
    is_definition = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    return is_import(statement) or is_definition and not is_stub(statement)


def known_names(block: Program, known: Set[str] | None) -> Set[str] | None:
    """Return the names that can be used behind a block that only imports, defines, and names values.

    None for another block. known: the names before it, of which the values are made; None: it names none.
    """
    names = set(known or ())
    for part in block.tree.body if block.tree else []:
        if is_helper(part):
            names |= {*imported_names(part), getattr(part, "name", "")} - {"sys"}  # sys.stdin, sys.exit
        elif known is not None and isinstance(part, ast.Assign | ast.AnnAssign) and part.value:
            inner = set(count_bindings(part.value))  # of comprehensions and lambdas
            if not names_in(part.value) <= names | inner:
                return None
            names |= names_in(part) - inner
        else:
            return None
    return names if block.tree and block.tree.body else None


def is_stub(statement: ast.stmt) -> bool:
    """Return whether a statement is a function whose body is still to be written."""
    body = statement.body if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) else []
    return bool(body) and all(
        is_constant(part)
        or isinstance(part, ast.Pass)
        or (isinstance(part, ast.Raise) and "NotImplementedError" in names_in(part))
        for part in body
    )


def is_constant(statement: ast.stmt) -> bool:
    """Return whether a statement is a docstring or the like, which does no harm before a program."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def parse(code: str) -> ast.Module:
    """Return the syntax tree of a program, without warnings about its escape sequences."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(code)


def parse_program(code: str) -> ast.Module | None:
    """Return the syntax tree of a text, None where it is no program, or longer than LONGEST_PROGRAM."""
    try:
        return parse(code) if len(code) <= LONGEST_PROGRAM else None
    except UNREADABLE:
        return None


def find_parsing_part(text: str, parses: Iterator[int]) -> str:
    """Return the leading lines of a text that parse: all before the first error, and so on.

    parses: counts the attempts on the whole text, which end after MAX_PARSES.
    """
    lines = text.rstrip().split("\n") if len(text) <= LONGEST_PROGRAM else []
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

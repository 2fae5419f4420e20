"""A function `strategy(board)` for 2048 in a completion: found, and read before it is run."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from textwrap import dedent

from rlnb.tasks.extraction import (
    CODE_START,
    LONGEST_COMPLETION,
    MAX_PARSES,
    STATEMENT,
    UNREADABLE,
    blocks_of,
    parse,
    parsing_part,
    whole_program,
)
from rlnb.tasks.strategy_checks import (
    ALLOWED_MODULES,
    LONGEST_PROGRAM,
    check_strategy,
    names_in,
    root_of,
    scopes_of,
    unreadable,
)
from rlnb.tasks.strategy_suspicions import suspicious_kinds

__all__ = ["ALLOWED_MODULES", "Extraction", "check_strategy", "extract_strategy", "suspicious_kinds"]

LONGEST_BARE = 2**13  # characters of a text that is parsed again and again, MOST_TRIES times
MOST_TRIES = 12
MOST_BLOCKS = 50  # the last ones
# Behind the last of these is the answer: GPT-OSS's channel, the same with its markers taken out, others' end
# of thinking.
ANSWER = re.compile(r"<\|channel\|>\s{0,4}final[^<]{0,64}<\|message\|>|assistantfinal|</think>")
MARKER = re.compile(r"<\|\w{1,32}\|>")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)
VALUES = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.JoinedStr)


@dataclass(frozen=True)
class Extraction:
    """The strategy in a completion, or what is wrong with it.

    code: the program; also where it is refused, to be shown; None where there is none. problem: "" (fine),
    "no_code", "syntax_error", "no_function" or "forbidden". reason: a sentence for people, "" where fine.
    """

    code: str | None
    problem: str
    reason: str


def extract_strategy(completion: str, *, prefix: str = "", function: str = "strategy") -> Extraction:
    """The program that a reader would take for the answer.

    Models think, show drafts, then answer. So the answer counts where it is marked (a final channel, an end
    of thinking), and of its blocks the last complete one that parses and has the function; then an unclosed
    one, without the prose behind it; then bare text. What the function does without, as an example board, a
    print, a game played with it or `if __name__ == "__main__":`, is left out. prefix: as for `extract_code`;
    a completion that begins anew is read without it. Of a reading only LONGEST_COMPLETION characters count.
    """
    mentions = re.compile(
        rf"^[ \t]*(?:async[ \t]+)?def[ \t]+{function}\b|^{function}[ \t]*[:=]", re.MULTILINE
    )
    refused: dict[str, Extraction] = {}
    tries = count(MAX_PARSES - MOST_TRIES + 1)
    for text in dict.fromkeys((prefix + completion, completion)):
        for reading in readings(text, mentions):
            for code in candidates(reading, mentions, tries):
                if code in refused:
                    continue
                refused[code] = extraction = examine(code, function)
                if extraction.problem in ("", "forbidden"):
                    return extraction
    for code, extraction in refused.items():
        if mentions.search(code):
            return extraction
    said = "There is no code in it." if completion.strip() else "The completion is empty."
    return next(iter(refused.values()), Extraction(None, "no_code", said))


def readings(text: str, mentions: re.Pattern[str]) -> Iterator[str]:
    """The marked answer, if any; all of the text, if that does not mention the function."""
    end = 0
    for match in ANSWER.finditer(text):
        end = match.end()
    for start in dict.fromkeys((end, 0)):
        cut = MARKER.sub("\n", text[start : start + LONGEST_COMPLETION])
        reading = re.sub(r"\r\n?", "\n", cut)
        yield reading
        if mentions.search(reading):
            return


def candidates(text: str, mentions: re.Pattern[str], tries: Iterator[int]) -> Iterator[str]:
    """The programs in a text, the one that is most likely meant first. tries: `parses` of `parsing_part`."""
    blocks = [block for block in blocks_of(text) if STATEMENT.search(block.code)][-MOST_BLOCKS:]
    for block in reversed(blocks):
        if block.closed:
            yield dedent(block.code).strip("\n") + "\n"
    for block in reversed(blocks):
        if not block.closed:
            yield without_prose(dedent(block.code), tries)
    last = [match.start() for match in mentions.finditer(text)][-1:]
    if blocks:  # its fence may be taken for the end of one that is only talked about
        starts = [text.rfind("\n", 0, text.rfind("```", 0, start)) for start in last]
        starts = [text.find("\n", start + 1) + 1 for start in starts]
    else:
        if len(text) <= LONGEST_PROGRAM and (code := whole_program(text)):
            yield code
        starts = [*bare_start(text), *last]
    yield from (without_prose(text[start:], tries) for start in starts)


def bare_start(text: str) -> Iterator[int]:
    """Where unfenced code begins: at the first line that surely is code, or at assignments before it."""
    starts = list(islice(CODE_START.finditer(text), MOST_BLOCKS))
    for sure in starts:
        if sure["surely"]:
            for match in starts:
                if match is sure or parses(text[match.start() : sure.start()][:LONGEST_BARE]):
                    yield match.start()
                    return


def parses(code: str) -> bool:
    try:
        parse(code)
    except UNREADABLE:
        return False
    return True


def without_prose(text: str, tries: Iterator[int]) -> str:
    """A program without the sentences behind it."""
    if len(text) <= LONGEST_PROGRAM and parses(text):
        return text.strip("\n") + "\n"
    code = parsing_part(text[:LONGEST_BARE], tries)
    return whole_or_broken(code, text) if code else text.strip("\n") + "\n"


def whole_or_broken(code: str, text: str) -> str:
    """The part of a text that parses; where it goes on as code that does not, with that."""
    before, _, rest = text.partition(code.strip("\n").rstrip())
    rest = rest.strip("\n")
    match = CODE_START.match(rest)
    if rest[:1] in (" ", "\t") or (match and match["surely"]):
        code = text[len(before) :]
    return code.strip("\n") + "\n"


def examine(code: str, function: str) -> Extraction:
    """What is wrong with a program that is to have a function of one argument."""
    if len(code) > LONGEST_PROGRAM:
        return Extraction(code, "syntax_error", f"It is longer than {LONGEST_PROGRAM} characters.")
    try:
        tree = parse(code)
        kept = without_demonstration(code, tree, function)
    except UNREADABLE as error:
        return Extraction(code, "syntax_error", unreadable(error))
    for statement in outer_statements(tree):
        if isinstance(statement, ast.Return):
            reason = f"Line {statement.lineno} is no Python: 'return' outside function."
            return Extraction(code, "syntax_error", reason)
    if reason := lacking(tree, function):
        return Extraction(code, "no_function", reason)
    reason = check_strategy(kept)
    return Extraction(kept, "forbidden" if reason else "", reason)


def outer_statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements outside functions and classes, also those of an `if` or `try`, in no order."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if isinstance(node, ast.stmt):
                yield node
            if not isinstance(node, (*DEFINITIONS, ast.expr)):
                waiting.append(node)


def lacking(tree: ast.Module, function: str) -> str:
    """Why a program has no function that can be called with the board alone; "" where it has."""
    bindings = [s for s in outer_statements(tree) if function in (named_by(s), *targets_of(s))]
    if not bindings:
        return misplaced(tree, function)
    last = max(bindings, key=lambda statement: statement.lineno)
    if isinstance(last, ast.AsyncFunctionDef):
        return f"`{function}` is an async function; it is called, and never awaited."
    if isinstance(last, ast.ClassDef):
        return f"`{function}` is a class, not a function."
    bound: ast.AST | None = getattr(last, "value", last)  # of an assignment
    if isinstance(bound, ast.Name):
        named = [s for s in outer_statements(tree) if named_by(s) == root_of(bound)]
        bound = named[-1] if named else bound
    if isinstance(bound, VALUES):
        return f"`{function}` is a value, not a function."
    if isinstance(bound, ast.FunctionDef | ast.Lambda):
        return unfit(bound.args, function)
    return ""


def misplaced(tree: ast.Module, function: str) -> str:
    """Why a program that does not bind the function's name at its top level lacks it."""
    definitions = [node for node in ast.walk(tree) if isinstance(node, DEFINITIONS)]
    for outer in definitions:
        if any(isinstance(inner, FUNCTIONS) and inner.name == function for inner in outer.body):
            if isinstance(outer, ast.ClassDef):
                return f"`{function}` is a method of the class {outer.name}, not a function of its own."
            return f"`{function}` is defined inside the function {outer.name}, where it cannot be called."
    names = [node.name for node in definitions if isinstance(node, FUNCTIONS)][:3]
    return f"There is no function `{function}`" + (f", only {', '.join(names)}." if names else ".")


def unfit(arguments: ast.arguments, function: str) -> str:
    """Why a function cannot be called with one argument; "" where it can."""
    positional = arguments.posonlyargs + arguments.args
    required = positional[: len(positional) - len(arguments.defaults)]
    required += [a for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is None]
    if not positional and not arguments.vararg:
        return f"`{function}` takes no argument; it is called with the board."
    if len(required) > 1 or (required and required[0] not in positional):
        names = ", ".join(argument.arg for argument in required)
        return f"`{function}` needs {names}; it is called with the board alone."
    return ""


def without_demonstration(code: str, tree: ast.Module, function: str) -> str:
    """A program without the statements at its top level that change nothing its functions read."""
    needed = {function}
    for scope in scopes_of(code):
        if scope.get_type() != "module":
            needed |= {symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global()}
    kept: list[ast.stmt] = []
    for statement in reversed(tree.body):
        is_main = isinstance(statement, ast.If) and "__name__" in names_in(statement.test)
        if is_kept(statement, needed) and not is_main:
            kept.append(statement)
            parts: list[ast.AST] = [statement]
            if isinstance(statement, DEFINITIONS):  # what its body reads is needed already
                body = {id(inner) for inner in statement.body}
                parts = [node for node in ast.iter_child_nodes(statement) if id(node) not in body]
            needed |= {name for part in parts for name in names_in(part)}
    if len(kept) == len(tree.body) or not kept:
        return code
    ids = {id(statement) for statement in kept}
    lines, last = code.split("\n"), 0
    dropped: set[int] = set()
    for group in groupby_lines(tree.body):
        numbers = range(group[0].lineno, end_of(group[-1]) + 1)
        if any(id(statement) in ids for statement in group):
            last = numbers[-1]
        else:
            dropped.update(numbers)
    if tree.body[-1] is kept[0]:
        last = len(lines)  # else comments behind it go as well: they are of what was left out
    text = "\n".join(line for number, line in enumerate(lines[:last], 1) if number not in dropped)
    return text.strip("\n") + "\n"


def groupby_lines(statements: list[ast.stmt]) -> list[list[ast.stmt]]:
    """Statements that share lines, as `a = 1; b = 2`, together."""
    groups: list[list[ast.stmt]] = []
    for statement in statements:
        if groups and statement.lineno <= end_of(groups[-1][-1]):
            groups[-1].append(statement)
        else:
            groups.append([statement])
    return groups


def is_kept(statement: ast.stmt, needed: set[str]) -> bool:
    if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
        return False  # it would have to stand first, and others put lines before it
    if isinstance(statement, (*DEFINITIONS, ast.Import, ast.ImportFrom)):
        return True
    return bool(bound_by(statement) & needed) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def bound_by(statement: ast.stmt) -> set[str]:
    """The names that a statement binds, or whose value it may change."""
    if isinstance(statement, DEFINITIONS):
        return {statement.name}
    names = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            names.add(root_of(node))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            names.add(root_of(node.func))
        elif isinstance(node, DEFINITIONS):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
    return names - {""}


def named_by(statement: ast.stmt) -> str:
    return statement.name if isinstance(statement, DEFINITIONS) else ""


def targets_of(statement: ast.stmt) -> set[str]:
    """The names that an assignment binds."""
    if isinstance(statement, ast.Assign):
        return {target.id for target in statement.targets if isinstance(target, ast.Name)}
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        return {statement.target.id} if isinstance(statement.target, ast.Name) else set()
    return set()


def end_of(statement: ast.stmt) -> int:
    """Its last line."""
    return statement.end_lineno or statement.lineno

"""The function `strategy(board)` in a completion: found, and checked before it is run."""

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

from rlnb.game_2048.checks import check_strategy, explain_unreadable
from rlnb.source_code.checks import FUNCTIONS, LONGEST_PROGRAM, PYTHON, iterate_scopes, names_in, root_name
from rlnb.source_code.extraction import UNREADABLE, compile_mentions, iterate_drafts, parse

FUNCTION = "strategy"
FUTURE = "from __future__ import annotations\n"
FILLING_MODULES = ("bisect", "heapq", "random")  # whose functions change a list that they are given
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)
NOT_FUNCTIONS = (
    ast.AsyncFunctionDef, ast.ClassDef, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.JoinedStr,
)  # fmt: skip


@dataclass(frozen=True)
class Extraction:
    """The strategy in a completion, or what is wrong with it.

    code: the program, also where it is refused; None if there is none. problem: "" (fine), "no_code",
    "syntax_error", "no_function" or "forbidden". reason: a sentence for people, "" for a fine one.
    """

    code: str | None
    problem: str
    reason: str


def extract_strategy(completion: str, *, prefix: str = "") -> Extraction:
    """Return the first program of `iterate_drafts` that parses and has the function, or why there is none.

    What the function does not need, such as an example board, a print or `if __name__ == "__main__":`, is
    left out. A text that breaks the parser is not a program, and ends no training.
    """
    refused: dict[str, Extraction] = {}
    try:
        for code in iterate_drafts(completion, function=FUNCTION, prefix=prefix):
            if code not in refused:
                refused[code] = examine(code)
                if refused[code].problem in ("", "forbidden"):
                    return refused[code]
    except (RecursionError, ValueError, MemoryError) as error:
        return Extraction(None, "syntax_error", f"It cannot be read: {type(error).__name__}.")
    reason = "There is no code in it." if completion.strip() else "The completion is empty."
    mentions = compile_mentions(FUNCTION)
    with_function = [extraction for code, extraction in refused.items() if mentions.search(code)]
    return next(iter([*with_function, *refused.values()]), Extraction(None, "no_code", reason))


def examine(code: str) -> Extraction:
    """Return what is wrong with a program that should have a function of one argument."""
    if len(code) > LONGEST_PROGRAM:
        return Extraction(code, "syntax_error", f"It is longer than {LONGEST_PROGRAM} characters.")
    try:
        tree = parse(code)
        outer = list(iterate_outer_statements(tree))
        for statement in outer:
            if isinstance(statement, ast.Return):
                reason = f"Line {statement.lineno} is not Python: 'return' outside function."
                return Extraction(code, "syntax_error", reason)
        if reason := explain_missing(outer):
            return Extraction(code, "no_function", reason)
        program = drop_demonstration(code, tree)
    except UNREADABLE as error:
        return Extraction(code, "syntax_error", explain_unreadable(error))
    reason = check_strategy(program)
    return Extraction(program, "forbidden" if reason else "", reason)


def iterate_outer_statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements outside functions and classes, also those of an `if` or `try`, in no order."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if isinstance(node, ast.stmt):
                yield node
            if not isinstance(node, (*DEFINITIONS, ast.expr)):
                waiting.append(node)


def explain_missing(outer: Sequence[ast.stmt]) -> str:
    """Return why outer statements define no function that can be called with the board; "" if they do."""
    bindings = [(statement.lineno, value) for statement in outer if (value := bound_value(statement))]
    if not bindings:
        return f"There is no function `{FUNCTION}` outside of functions and classes."
    value = max(bindings, key=itemgetter(0))[1]
    if isinstance(value, ast.Name):
        named = [s for s in outer if isinstance(s, DEFINITIONS) and s.name == value.id]
        value = named[-1] if named else value
    if isinstance(value, ast.FunctionDef | ast.Lambda):
        arguments, positional = value.args, value.args.posonlyargs + value.args.args
        num_others = max(len(positional) - len(arguments.defaults) - 1, 0) + arguments.kw_defaults.count(None)
        if num_others or not (positional or arguments.vararg):
            return f"`{FUNCTION}({ast.unparse(arguments)[:200]})` is called with the board alone."
    if isinstance(value, NOT_FUNCTIONS):
        return f"`{FUNCTION}` is not a function that can be called with the board."
    return ""


def bound_value(statement: ast.stmt) -> ast.AST | None:
    """Return what a statement binds the function's name to, None if it does not."""
    match statement:
        case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
            return statement if name == FUNCTION else None
        case ast.Assign(targets, value) if any(isinstance(t, ast.Name) and t.id == FUNCTION for t in targets):
            return value
        case ast.AnnAssign(ast.Name(name), value=value) if name == FUNCTION:
            return value
    return None


def drop_demonstration(code: str, tree: ast.Module) -> str:
    """Return a program without the top-level statements that change nothing its functions read."""
    inner_scopes = [scope for scope in iterate_scopes(code) if scope.get_type() != "module"]
    symbols = chain.from_iterable(scope.get_symbols() for scope in inner_scopes)
    needed = {FUNCTION, *(symbol.get_name() for symbol in symbols if symbol.is_global())}
    changing, filling = find_changing(tree, needed)
    used: list[ast.stmt] = []
    for statement in reversed(tree.body):
        is_main = isinstance(statement, ast.If) and "__name__" in names_in(statement.test)
        if is_used(statement, needed, changing, filling) and not is_main:
            used.append(statement)
            # The names that the body of a definition reads are in `needed`.
            body = set(statement.body) if isinstance(statement, DEFINITIONS) else set()
            needed.update(*map(names_in, set(ast.iter_child_nodes(statement)) - body))
    if len(used) == len(tree.body) or not used:
        return code
    spans = {s: range(s.lineno, (s.end_lineno or s.lineno) + 1) for s in tree.body}
    used_lines = {line for statement in used for line in spans[statement]}
    for span in [*spans.values(), *reversed(spans.values())]:  # statements that share a line stay together
        if not used_lines.isdisjoint(span):
            used_lines.update(span)
    dropped = set(chain.from_iterable(spans.values())) - used_lines
    # Comments after the last used statement go as well: they are about what was dropped.
    end = len(code) if tree.body[-1] is used[0] else max(used_lines)
    lines = code.split("\n")[:end]
    kept = "\n".join(line for index, line in enumerate(lines, 1) if index not in dropped).strip("\n")
    return f"{FUTURE * any(map(is_future, tree.body))}{kept}\n"


def is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def is_used(statement: ast.stmt, needed: set[str], changing: set[str], filling: set[str]) -> bool:
    """Return whether a statement makes or changes what is needed. changing, filling: of `find_changing`."""
    if is_future(statement):
        return False  # `drop_demonstration` puts it into the first line, wherever it stood
    if isinstance(statement, (*DEFINITIONS, ast.Import, ast.ImportFrom)):
        return True
    changes = read_changes([statement], filling)
    is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    is_needed = not needed.isdisjoint(changes.bound | changes.mutated)
    return is_docstring or is_needed or not changes.called.isdisjoint(changing)


class Changes(NamedTuple):
    """The names that statements bind, those whose values they may change, and the functions they call."""

    bound: set[str]
    mutated: set[str]
    called: set[str]


def read_changes(statements: Sequence[ast.stmt], filling: Collection[str] = ()) -> Changes:
    """Return what statements change. filling: functions that may change what they are given."""
    bound, mutated, called = set(), set(), set()
    loops: list[ast.For | ast.AsyncFor | ast.comprehension] = []
    for node in chain.from_iterable(map(ast.walk, statements)):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            mutated.add(root_name(node))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):  # random.shuffle(ORDER)
            mutated |= {root_name(part) for part in (node.func, *arguments_of(node))}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called.add(node.func.id)
            if node.func.id in filling:
                mutated |= {root_name(part) for part in arguments_of(node)} - {FUNCTION}
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            loops.append(node)
        elif isinstance(node, DEFINITIONS):
            bound.add(node.name)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
    for loop in reversed(loops):  # what changes a row of a table, or a row's cell, changes the table
        if not mutated.isdisjoint(names_in(loop.target)):
            mutated |= names_in(loop.iter) - PYTHON
    return Changes(bound - {""}, mutated - {""}, called)


def arguments_of(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def find_changing(tree: ast.Module, needed: set[str]) -> tuple[set[str], set[str]]:
    """Return the functions of which a call changes a needed global, and those that may change an argument.

    Also through other calls. A call of the strategy itself is a demonstration, whatever it keeps between
    moves.
    """
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name != FUNCTION]
    parameters = [
        {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}
        for node in functions
    ]
    bodies = [read_changes(function.body) for function in functions]
    callers: dict[str, set[str]] = {}
    for function, body in zip(functions, bodies, strict=True):
        for name in body.called:
            callers.setdefault(name, set()).add(function.name)
    imports = [s for s in tree.body if isinstance(s, ast.ImportFrom) and s.module in FILLING_MODULES]
    filling = {alias.asname or alias.name for node in imports for alias in node.names}
    filling |= {
        function.name
        for function, names, body in zip(functions, parameters, bodies, strict=True)
        if not names.isdisjoint(body.mutated)
    }
    filling = with_callers(filling, callers)
    changing = set()
    for function, names in zip(functions, parameters, strict=True):
        changes = read_changes(function.body, filling)
        if (changes.bound | changes.mutated) & needed - names:
            changing.add(function.name)
    return with_callers(changing, callers), filling


def with_callers(functions: set[str], callers: Mapping[str, set[str]]) -> set[str]:
    """Return functions with those that call them, directly or through others."""
    reached, waiting = set(functions), list(functions)
    while waiting:
        new = callers.get(waiting.pop(), set()) - reached
        reached |= new
        waiting += new
    return reached

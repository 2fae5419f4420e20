"""The function `strategy(board)` in a completion: found, and checked before it is run."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from rlnb.game_2048.checks import check_strategy, explain_unreadable, iterate_scopes
from rlnb.source_code.checks import FUNCTIONS, LONGEST_PROGRAM, names_in, root_name
from rlnb.source_code.extraction import UNREADABLE, compile_mentions, iterate_programs, parse

FUNCTION = "strategy"
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)
VALUES = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.JoinedStr)


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
    """Return the first program of `iterate_programs` that parses and has the function, or why there is none.

    What the function does not need, such as an example board, a print or `if __name__ == "__main__":`, is
    left out. A text that breaks the parser is not a program, and ends no training.
    """
    refused: dict[str, Extraction] = {}
    try:
        for code in iterate_programs(completion, function=FUNCTION, prefix=prefix):
            if code not in refused:
                refused[code] = extraction = examine(code)
                if extraction.problem in ("", "forbidden"):
                    return extraction
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
        program = drop_demonstration(code, tree)
    except UNREADABLE as error:
        return Extraction(code, "syntax_error", explain_unreadable(error))
    for outer in iterate_outer_statements(tree):
        if isinstance(outer, ast.Return):
            reason = f"Line {outer.lineno} is not Python: 'return' outside function."
            return Extraction(code, "syntax_error", reason)
    if reason := explain_missing(tree):
        return Extraction(code, "no_function", reason)
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


def explain_missing(tree: ast.Module) -> str:
    """Return why a program has no function that can be called with the board alone; "" if it has one."""
    outer = list(iterate_outer_statements(tree))
    bindings = list(filter(binds_function, outer))
    if not bindings:
        return explain_misplaced(tree)
    last = max(bindings, key=lambda statement: statement.lineno)
    value: ast.AST | None = getattr(last, "value", last)  # of an assignment
    if isinstance(value, ast.Name):
        named = [s for s in outer if isinstance(s, DEFINITIONS) and s.name == root_name(value)]
        value = named[-1] if named else value
    if isinstance(value, ast.FunctionDef | ast.Lambda):
        return explain_arguments(value.args)
    if isinstance(value, ast.AsyncFunctionDef):
        return f"`{FUNCTION}` is an async function; it is called, and never awaited."
    kinds = {ast.ClassDef: "class"} | dict.fromkeys(VALUES, "value")
    return f"`{FUNCTION}` is a {kinds[type(value)]}, not a function." if type(value) in kinds else ""


def explain_misplaced(tree: ast.Module) -> str:
    """Return why a program does not bind the function's name at its top level."""
    definitions = [node for node in ast.walk(tree) if isinstance(node, DEFINITIONS)]
    for outer in definitions:
        if any(isinstance(inner, FUNCTIONS) and inner.name == FUNCTION for inner in outer.body):
            if isinstance(outer, ast.ClassDef):
                return f"`{FUNCTION}` is a method of the class {outer.name}, not a function of its own."
            return f"`{FUNCTION}` is defined inside the function {outer.name}, where it cannot be called."
    names = [node.name for node in definitions if isinstance(node, FUNCTIONS)][:3]
    return f"There is no function `{FUNCTION}`" + (f", only {', '.join(names)}." if names else ".")


def explain_arguments(arguments: ast.arguments) -> str:
    """Return why a function cannot be called with one argument; "" if it can."""
    positional = arguments.posonlyargs + arguments.args
    required = positional[: len(positional) - len(arguments.defaults)]
    required += [a for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is None]
    if not positional and not arguments.vararg:
        return f"`{FUNCTION}` takes no argument; it is called with the board."
    if len(required) > 1 or (required and required[0] not in positional):
        names = ", ".join(argument.arg for argument in required)
        return f"`{FUNCTION}` needs {names}; it is called with the board alone."
    return ""


def drop_demonstration(code: str, tree: ast.Module) -> str:
    """Return a program without the top-level statements that change nothing its functions read."""
    needed = {FUNCTION}
    for scope in iterate_scopes(code):
        if scope.get_type() != "module":
            needed |= {symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global()}
    used: list[ast.stmt] = []
    for statement in reversed(tree.body):
        is_main = isinstance(statement, ast.If) and "__name__" in names_in(statement.test)
        if is_used(statement, needed) and not is_main:
            used.append(statement)
            parts: list[ast.AST] = [statement]
            if isinstance(statement, DEFINITIONS):  # the names that its body reads are in `needed`
                parts = [node for node in ast.iter_child_nodes(statement) if node not in statement.body]
            needed |= {name for part in parts for name in names_in(part)}
    if len(used) == len(tree.body) or not used:
        return code
    used_lines = {line for statement in used for line in line_range(statement)}
    for statement in [*tree.body, *reversed(tree.body)]:  # statements that share a line stay together
        if not used_lines.isdisjoint(line_range(statement)):
            used_lines.update(line_range(statement))
    dropped = {line for statement in tree.body for line in line_range(statement)} - used_lines
    # Comments after the last used statement go as well: they are about what was dropped.
    end = len(code) if tree.body[-1] is used[0] else max(used_lines)
    lines = code.split("\n")[:end]
    return "\n".join(line for index, line in enumerate(lines, 1) if index not in dropped).strip("\n") + "\n"


def line_range(statement: ast.stmt) -> range:
    return range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)


def is_used(statement: ast.stmt, needed: set[str]) -> bool:
    if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
        return False  # it would have to be the first statement, and `BoardRules` puts lines before it
    if isinstance(statement, (*DEFINITIONS, ast.Import, ast.ImportFrom)):
        return True
    is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_docstring or not changed_names(statement).isdisjoint(needed)


def changed_names(statement: ast.stmt) -> set[str]:
    """Return the names that a statement binds, or whose value it may change."""
    names = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            names.add(root_name(node))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            names.add(root_name(node.func))
        elif isinstance(node, DEFINITIONS):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
    return names - {""}


def binds_function(statement: ast.stmt) -> bool:
    match statement:
        case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
            return name == FUNCTION
        case ast.Assign(targets):
            return any(isinstance(target, ast.Name) and target.id == FUNCTION for target in targets)
        case ast.AnnAssign(ast.Name(name), value=value):
            return name == FUNCTION and value is not None
    return False

"""The function `strategy(board)` in a completion: found, and checked before it is run."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter

from rlnb.game_2048.checks import check_strategy, explain_unreadable
from rlnb.source_code.checks import FUNCTIONS, LONGEST_PROGRAM, iterate_scopes, names_in, root_name
from rlnb.source_code.extraction import UNREADABLE, compile_mentions, iterate_drafts, parse

FUNCTION = "strategy"
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


def extract_strategy(completion: str, *, prefix: str = "", standard_library: bool = False) -> Extraction:
    """Return the first program of `iterate_drafts` that parses and has the function, or why there is none.

    standard_library: as in `check_strategy`.
    What the function does not need, such as an example board, a print or `if __name__ == "__main__":`, is
    left out. A text that breaks the parser is not a program, and ends no training.
    """
    refused: dict[str, Extraction] = {}
    try:
        for code in iterate_drafts(completion, function=FUNCTION, prefix=prefix):
            if code not in refused:
                refused[code] = examine(code, standard_library=standard_library)
                if refused[code].problem in ("", "forbidden"):
                    return refused[code]
    except (RecursionError, ValueError, MemoryError) as error:
        return Extraction(None, "syntax_error", f"It cannot be read: {type(error).__name__}.")
    reason = "There is no code in it." if completion.strip() else "The completion is empty."
    mentions = compile_mentions(FUNCTION)
    with_function = [extraction for code, extraction in refused.items() if mentions.search(code)]
    return next(iter([*with_function, *refused.values()]), Extraction(None, "no_code", reason))


def examine(code: str, *, standard_library: bool) -> Extraction:
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
    reason = check_strategy(program, standard_library=standard_library)
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
    effects = changed_globals(tree, needed)
    used: list[ast.stmt] = []
    for statement in reversed(tree.body):
        is_main = isinstance(statement, ast.If) and "__name__" in names_in(statement.test)
        if is_used(statement, needed, effects) and not is_main:
            used.append(statement)
            parts: list[ast.AST] = [statement]
            if isinstance(statement, DEFINITIONS):  # the names that its body reads are in `needed`
                parts = [node for node in ast.iter_child_nodes(statement) if node not in statement.body]
            needed |= {name for part in parts for name in names_in(part)}
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
    return "\n".join(line for index, line in enumerate(lines, 1) if index not in dropped).strip("\n") + "\n"


def is_used(statement: ast.stmt, needed: set[str], effects: Mapping[str, set[str]]) -> bool:
    if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
        return False  # it would have to be the first statement, and `BoardRules` puts lines before it
    if isinstance(statement, (*DEFINITIONS, ast.Import, ast.ImportFrom)):
        return True
    is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_docstring or not changed_names(statement, effects).isdisjoint(needed)


def changed_names(statement: ast.stmt, effects: Mapping[str, set[str]]) -> set[str]:
    """Return the names that a statement binds, or whose value it may change.

    effects: the globals that calling each function of the program changes.
    """
    names = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            names.add(root_name(node))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):  # random.shuffle(ORDER)
            names |= {root_name(part) for part in (node.func, *node.args)}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            names |= effects.get(node.func.id, set())
        elif isinstance(node, DEFINITIONS):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
    return names - {""}


def changed_globals(tree: ast.Module, needed: set[str]) -> dict[str, set[str]]:
    """Return which of the needed globals a call of each top-level function changes, by name.

    A call of the strategy itself is a demonstration, whatever it keeps between moves.
    """
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name != FUNCTION]
    effects: dict[str, set[str]] = {function.name: set() for function in functions}
    for _ in functions:  # what the functions that it calls change, it changes
        for function in functions:
            local = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
            changed = chain.from_iterable(changed_names(statement, effects) for statement in function.body)
            effects[function.name] |= (set(changed) & needed) - local
    return effects

"""The static check of strategies: it refuses what no honest strategy needs, and says why.

The sandbox keeps a program from doing harm. This check reads the syntax tree alone, so some ways of making up
names at run time pass it.
"""

import ast
import importlib
import re
import sys

from rlnb.source_code.checks import iterate_scopes, shown
from rlnb.source_code.extraction import UNREADABLE, parse, parse_program
from rlnb.source_code.reflection import WITHHELD, ProgramRules

ALLOWED_MODULES = (
    "bisect", "collections", "collections.abc", "copy", "dataclasses", "functools", "heapq", "itertools",
    "math", "operator", "random", "statistics", "typing",
)  # fmt: skip
NOT_NEEDED = "which no strategy needs"


def find_withheld(module: str) -> set[str]:
    """Return the names of a module that are not its own, and its own that are not for strategies."""
    members = vars(importlib.import_module(module))
    return {"*"} | members.keys() - set(members.get("__all__", members)) | WITHHELD.get(module, set())


RULES = ProgramRules(
    modules=ALLOWED_MODULES,
    given=("random",),
    withheld={module: find_withheld(module) for module in ALLOWED_MODULES},
    builtins=dict.fromkeys((
        "__build_class__", "__builtins__", "__cached__", "__doc__", "__file__", "__import__", "__loader__",
        "__package__", "__spec__", "breakpoint", "compile", "delattr", "eval", "exec", "exit", "globals",
        "help", "input", "locals", "open", "quit", "setattr", "vars",
    ), NOT_NEEDED),
    attributes=dict.fromkeys((
        "_os", "_sys", "_urandom", "builtins", "importlib", "inspect", "modules", "os", "subprocess", "sys",
    ), NOT_NEEDED),
    reason=NOT_NEEDED,
    modules_are_values=True,
)  # fmt: skip

# What a person should look at, in a program as `ast.unparse` writes it: it catches everything, keeps state
# between moves, reads the clock or seeds random, or names the game.
SUSPICIOUS = re.compile(
    r"^ *except(:| .*\b(Base)?Exception\b)|^ *global |\brandom\.(Random|getstate|seed|setstate)\b"
    r"|\b(GameBoard|engine|game)\b",
    re.MULTILINE,
)


def is_suspicious(code: str) -> bool:
    """Return whether a person should look at a program; it may be honest all the same.

    It shows what SUSPICIOUS says, or what the check refuses unless the standard library is allowed.
    """
    tree = parse_program(code)
    try:
        return bool(tree and (SUSPICIOUS.search(ast.unparse(tree)) or check_strategy(code)))
    except UNREADABLE:  # also chains so deep that a walk along them raises RecursionError
        return False


def check_strategy(code: str, *, standard_library: bool = False) -> str:
    """Return why a strategy is refused, a sentence about its first fault; "" for a fine one.

    Changing the board is fine: a strategy has a copy, and honest ones try moves on it. standard_library:
    refuse nothing but imports of other packages, as the published rewards do.
    """
    try:
        tree, _ = parse(code), list(iterate_scopes(code))
    except UNREADABLE as error:
        return explain_unreadable(error)
    return find_package(tree) if standard_library else RULES.find_fault(tree, code)


def find_package(tree: ast.Module) -> str:
    """Return a sentence on the first import from outside the standard library; "" without one."""
    imports: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imports.append((node.lineno, "." * node.level + (node.module or "")))
    packages = [pair for pair in imports if pair[1].partition(".")[0] not in sys.stdlib_module_names]
    if not packages:
        return ""
    line, name = min(packages)
    return f"Line {line} imports {shown(name)}, which is not in the standard library; do without it."


def explain_unreadable(error: BaseException) -> str:
    """Return why a text is not a program, as a sentence. error: one of UNREADABLE."""
    if isinstance(error, SyntaxError):
        message = "".join(filter(str.isprintable, error.msg[:200]))
        return f"Line {error.lineno or 1} is not Python: {message}."
    is_text = isinstance(error, ValueError)
    return "It has characters that no program can have." if is_text else "It is nested too deeply."

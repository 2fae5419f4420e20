"""The static check of strategies: it refuses what no honest strategy needs, and says why.

The sandbox keeps a program from doing harm. This check reads the syntax tree alone, so some ways of making up
names at run time pass it.
"""

import importlib

from rlnb.source_code.checks import iterate_scopes
from rlnb.source_code.extraction import UNREADABLE, parse
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


def check_strategy(code: str) -> str:
    """Return why a strategy is refused, a sentence about its first fault; "" for a fine one.

    Changing the board is fine: a strategy has a copy, and honest ones try moves on it.
    """
    try:
        tree, _ = parse(code), list(iterate_scopes(code))
    except UNREADABLE as error:
        return explain_unreadable(error)
    return RULES.find_fault(tree, code)


def explain_unreadable(error: BaseException) -> str:
    """Return why a text is not a program, as a sentence. error: one of UNREADABLE."""
    if isinstance(error, SyntaxError):
        message = "".join(filter(str.isprintable, error.msg[:200]))
        return f"Line {error.lineno or 1} is not Python: {message}."
    is_text = isinstance(error, ValueError)
    return "It has characters that no program can have." if is_text else "It is nested too deeply."

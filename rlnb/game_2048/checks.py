"""The static check of strategies: it refuses what no honest strategy needs, and says why.

The sandbox keeps a program from doing harm. This check reads the syntax tree alone, so some ways of making up
names at run time pass it.
"""

import ast
import importlib
import symtable
import types
import warnings
from collections.abc import Iterator
from functools import cache

from rlnb.source_code.checks import FUNCTIONS, shown
from rlnb.source_code.extraction import UNREADABLE, parse
from rlnb.source_code.reflection import (
    DUNDER,
    FORMATS,
    HARMLESS_DUNDERS,
    WITHHELD,
    dunder_in,
    leads_out,
    made_up_reads,
)

ALLOWED_MODULES = (
    "bisect", "collections", "copy", "dataclasses", "functools", "heapq", "itertools", "math", "operator",
    "random", "statistics", "typing",
)  # fmt: skip
FORBIDDEN_NAMES = frozenset((
    "breakpoint", "compile", "delattr", "eval", "exec", "exit", "getattr", "globals", "help", "input",
    "locals", "open", "quit", "setattr", "vars",
))  # fmt: skip
FORBIDDEN_ATTRIBUTES = frozenset((
    "_os", "_sys", "_urandom", "builtins", "importlib", "inspect", "modules", "os", "subprocess", "sys",
))  # fmt: skip


def check_strategy(code: str) -> str:
    """Return why a strategy is refused, a sentence about its first fault; "" for a fine one.

    Refused: imports other than ALLOWED_MODULES, names of these modules that are not their own, names with two
    underscores on both sides, frames, names that run text or reach the process. Changing the board is fine: a
    strategy has a copy, and honest ones try moves on it.
    """
    try:
        tree, scopes = parse(code), list(iterate_scopes(code))
    except UNREADABLE as error:
        return explain_unreadable(error)
    faults = [*find_faults(tree), *find_forbidden_names(tree, scopes)]
    line, fault = min(faults, default=(0, ""))
    return f"Line {line} {fault}." if fault else ""


def explain_unreadable(error: BaseException) -> str:
    """Return why a text is not a program, as a sentence. error: one of UNREADABLE."""
    if isinstance(error, SyntaxError):
        message = "".join(filter(str.isprintable, error.msg[:200]))
        return f"Line {error.lineno or 1} is not Python: {message}."
    is_text = isinstance(error, ValueError)
    return "It has characters that no program can have." if is_text else "It is nested too deeply."


def iterate_scopes(code: str) -> Iterator[symtable.SymbolTable]:
    """Yield the scopes of a program. Raises the errors of parsing, and those that only the compiler finds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        waiting = [symtable.symtable(code, "<strategy>", "exec")]
    while waiting:
        scope = waiting.pop()
        yield scope
        waiting += scope.get_children()


def find_faults(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, fault) of a program, without the names that depend on scopes."""
    nodes = list(ast.walk(tree))
    modules = {"random": "random"}  # {name: the module that it is}; strategies get `random` without an import
    for alias in (alias for node in nodes if isinstance(node, ast.Import) for alias in node.names):
        package = alias.name.partition(".")[0]
        modules[alias.asname or package] = alias.name if alias.asname else package
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    line = 1
    for node in nodes:
        line = getattr(node, "lineno", line)
        if isinstance(node, ast.Import | ast.ImportFrom):
            fault = import_fault(node)
        elif isinstance(node, ast.Attribute):
            module = modules.get(node.value.id, "") if isinstance(node.value, ast.Name) else ""
            fault = attribute_fault(node.attr, module)
            if module and not isinstance(node.ctx, ast.Load):
                fault = f"changes {module}.{shown(node.attr)}, which is not the program's own"
        elif isinstance(node, ast.Constant):
            name = "" if id(node) in docstrings else dunder_in(node.value, HARMLESS_DUNDERS)
            fault = name and f"has {shown(name)} in a text, which names what reaches out of the program"
        else:
            fault = identifier_fault(node)
        if fault:
            yield line, fault


def import_fault(node: ast.Import | ast.ImportFrom) -> str:
    source = "." * node.level + (node.module or "") if isinstance(node, ast.ImportFrom) else ""
    for alias in node.names:
        module = source or alias.name
        if module not in (*ALLOWED_MODULES, "collections.abc"):
            return f"imports {shown(module)}, which is not among {', '.join(ALLOWED_MODULES)}"
        if source and alias.name == "*":
            return f"imports everything from {module}; name what is needed"
        if source and (alias.name in withheld_names(module) or alias.name.startswith("_")):
            return f"imports {shown(alias.name)} from {module}, which no strategy needs"
    return ""


def attribute_fault(name: str, module: str = "") -> str:
    """module: the module that the attribute is read from, if known."""
    if leads_out(name, HARMLESS_DUNDERS) or name in FORBIDDEN_ATTRIBUTES:
        return f"reads the attribute {shown(name)}, which reaches out of the program"
    if module and (name.startswith("_") or (module in ALLOWED_MODULES and name in withheld_names(module))):
        return f"uses {module}.{shown(name)}, which no strategy needs"
    return ""


def identifier_fault(node: ast.AST) -> str:
    """Return the fault of the names in any other node: its own, of arguments, of `global`, in patterns."""
    if isinstance(node, FUNCTIONS):
        return ""  # special methods of its own classes
    if isinstance(node, ast.MatchClass):
        return next(filter(None, map(attribute_fault, node.kwd_attrs)), "")
    for _, value in ast.iter_fields(node):
        for name in value if isinstance(value, list) else [value]:
            if isinstance(name, str) and DUNDER.fullmatch(name) and name not in HARMLESS_DUNDERS:
                return f"uses the name {shown(name)}, which reaches out of the program"
    return ""


@cache
def withheld_names(name: str) -> frozenset[str]:
    """Return the names of an allowed module that are not for strategies: its own imports, and WITHHELD."""
    members = vars(importlib.import_module(name))
    defined = {member for member, value in members.items() if not isinstance(value, types.ModuleType)}
    private = members.keys() - set(members.get("__all__", defined)) - {"abc"}
    return frozenset(private | WITHHELD.get(name, set()))


def find_forbidden_names(tree: ast.Module, scopes: list[symtable.SymbolTable]) -> Iterator[tuple[int, str]]:
    """Yield uses of FORBIDDEN_NAMES that may mean Python's; a function may have a local `input` or `open`.

    getattr and str.format are refused only where the attribute's name or the template is not written out.
    """
    made_up = set()
    for use, name in made_up_reads(tree, attribute_fault):
        made_up.add(id(use))
        if name in FORMATS:
            yield use.lineno, f"uses {name} on a text that is not written out, which no strategy needs"
    uses: dict[str, list[int]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Name(name, ast.Load()) if name in FORBIDDEN_NAMES:
                if name != "getattr" or id(node) in made_up:
                    uses.setdefault(name, []).append(node.lineno)
    for scope in scopes:
        for symbol in scope.get_symbols():
            name = symbol.get_name()
            may_be_pythons = symbol.is_global() or scope.get_type() != "function"
            if name in uses and symbol.is_referenced() and may_be_pythons:
                lines = [line for line in uses[name] if line >= scope.get_lineno()] or uses[name]
                yield min(lines), f"uses {name}, which no strategy needs"

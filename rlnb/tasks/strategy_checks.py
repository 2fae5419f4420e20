"""Reading a strategy before it is run: what no honest one needs, and what a person should look at.

The sandbox is what keeps a program from doing harm; what is here says in words why one is refused, and counts
what is suspicious. Both read the syntax tree alone, so some ways to make up names at run time pass.
"""

import ast
import importlib
import symtable
import types
import warnings
from collections.abc import Iterator
from functools import lru_cache

from rlnb.tasks.extraction import UNREADABLE, parse
from rlnb.tasks.reflection import (
    DUNDER,
    FORMATS,
    HARMLESS_DUNDERS,
    WITHHELD,
    dunder_in,
    leads_out,
    made_up_reads,
)

ALLOWED_MODULES = (
    "bisect",
    "collections",
    "copy",
    "dataclasses",
    "functools",
    "heapq",
    "itertools",
    "math",
    "operator",
    "random",
    "statistics",
    "typing",
)
SUBMODULES = ("collections.abc",)
# fmt: off
FORBIDDEN_NAMES = frozenset((
    "breakpoint", "compile", "delattr", "eval", "exec", "exit", "getattr", "globals", "help", "input",
    "locals", "open", "quit", "setattr", "vars",
))
FORBIDDEN_ATTRIBUTES = frozenset((
    "_os", "_sys", "_urandom", "builtins", "importlib", "inspect", "modules", "os", "subprocess", "sys",
))
# fmt: on
LONGEST_PROGRAM = 2**14  # characters: the time to parse may grow with the square
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def check_strategy(code: str) -> str:
    """Why a strategy is refused, a sentence on its first fault; "" where it is not.

    Refused: imports but ALLOWED_MODULES, what these modules hold besides their own, names with two
    underscores on both sides, frames, names that run text or reach the process. Changing the board is not: a
    strategy has a copy, and honest ones try moves on it.
    """
    try:
        tree, scopes = parse(code), list(scopes_of(code))
    except UNREADABLE as error:
        return unreadable(error)
    faults = [*faults_in(tree), *forbidden_names(tree, scopes)]
    line, said = min(faults, default=(0, ""))
    return f"Line {line} {said}." if said else ""


def unreadable(error: BaseException) -> str:
    """Why a text is no program, as a sentence."""
    if isinstance(error, SyntaxError):
        said = "".join(letter for letter in error.msg[:200] if letter.isprintable())
        return f"Line {error.lineno or 1} is no Python: {said}."
    if isinstance(error, ValueError):
        return "It has characters that no program can have."
    return "It is nested too deeply."


def scopes_of(code: str) -> Iterator[symtable.SymbolTable]:
    """The scopes of a program. Raises what parsing raises, also for what only the compiler sees."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        waiting = [symtable.symtable(code, "<strategy>", "exec")]
    while waiting:
        scope = waiting.pop()
        yield scope
        waiting += scope.get_children()


def faults_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, what stands there and must not) of a program, names that hold at run time left out."""
    modules = modules_of(tree)
    texts_alone = {id(s.value) for s in ast.walk(tree) if isinstance(s, ast.Expr)}  # docstrings
    line = 1
    for node in ast.walk(tree):
        line = getattr(node, "lineno", line)
        if isinstance(node, ast.Import):
            said = next(filter(None, (import_fault(alias.name) for alias in node.names)), "")
        elif isinstance(node, ast.ImportFrom):
            said = from_fault(node)
        elif isinstance(node, ast.Attribute):
            module = modules.get(node.value.id, "") if isinstance(node.value, ast.Name) else ""
            said = attribute_fault(node.attr, module)
            if module and not isinstance(node.ctx, ast.Load):
                said = f"changes {module}.{shown(node.attr)}, which is not the program's own"
        elif isinstance(node, ast.Constant):
            said = "" if id(node) in texts_alone else text_fault(node.value)
        else:
            said = identifier_fault(node)
        if said:
            yield line, said


def modules_of(tree: ast.Module) -> dict[str, str]:
    """{name: module that it stands for}; `random` is there unasked."""
    modules = {"random": "random"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                outermost = alias.name.partition(".")[0]
                modules[alias.asname or outermost] = alias.name if alias.asname else outermost
    return modules


def import_fault(module: str) -> str:
    if module in ALLOWED_MODULES or module in SUBMODULES:
        return ""
    return f"imports {shown(module)}, which is not among {', '.join(ALLOWED_MODULES)}"


def from_fault(node: ast.ImportFrom) -> str:
    module = "." * node.level + (node.module or "")
    if said := import_fault(module):
        return said
    for alias in node.names:
        if alias.name == "*":
            return f"imports everything from {module}; name what is needed"
        if alias.name in withheld_names(module) or alias.name.startswith("_"):
            return f"imports {shown(alias.name)} from {module}, which no strategy needs"
    return ""


def attribute_fault(name: str, module: str = "") -> str:
    """module: that the attribute is one of, if known."""
    if leads_out(name, HARMLESS_DUNDERS) or name in FORBIDDEN_ATTRIBUTES:
        return f"reads the attribute {shown(name)}, which reaches out of the program"
    if module and (name.startswith("_") or (module in ALLOWED_MODULES and name in withheld_names(module))):
        return f"uses {module}.{shown(name)}, which no strategy needs"
    return ""


def text_fault(value: object) -> str:
    """Names in texts are for str.format and the like."""
    name = dunder_in(value, HARMLESS_DUNDERS)
    return f"has {shown(name)} in a text, which names what reaches out of the program" if name else ""


def identifier_fault(node: ast.AST) -> str:
    """Of the names that any other node holds: its own, of arguments, of `global`, attributes in patterns."""
    if isinstance(node, FUNCTIONS):
        return ""  # special methods of its own classes
    if isinstance(node, ast.MatchClass):
        return next(filter(None, map(attribute_fault, node.kwd_attrs)), "")
    for _, value in ast.iter_fields(node):
        for name in value if isinstance(value, list) else [value]:
            if isinstance(name, str) and is_dunder(name):
                return f"uses the name {shown(name)}, which reaches out of the program"
    return ""


def is_dunder(name: str) -> bool:
    return bool(DUNDER.fullmatch(name)) and name not in HARMLESS_DUNDERS


def shown(name: str) -> str:
    """A name of an untrusted program in a sentence of ours."""
    return "".join(letter for letter in name[:60] if letter.isprintable())


@lru_cache(maxsize=len(ALLOWED_MODULES) + len(SUBMODULES))
def withheld_names(module: str) -> frozenset[str]:
    """What an allowed module holds that is not for strategies: its own imports, and WITHHELD."""
    found = importlib.import_module(module)
    names = set(dir(found))
    public = getattr(found, "__all__", None)
    if public is None:
        public = {name for name in names if not isinstance(vars(found)[name], types.ModuleType)}
    return frozenset(names - set(public) - {"abc"} | WITHHELD.get(module, set()))


def forbidden_names(tree: ast.Module, scopes: list[symtable.SymbolTable]) -> Iterator[tuple[int, str]]:
    """Uses of FORBIDDEN_NAMES where they may mean Python's; a function may have a local `input` or `open`.

    getattr and str.format are refused only where the attribute's name or the template is not written out.
    """
    made_up = set()
    for use, name in made_up_reads(tree, attribute_fault):
        made_up.add(id(use))
        if name in FORMATS:
            yield use.lineno, f"uses {name} on a text that is not written out, which no strategy needs"
    uses: dict[str, list[int]] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
            continue
        if node.id in FORBIDDEN_NAMES and (node.id != "getattr" or id(node) in made_up):
            uses.setdefault(node.id, []).append(node.lineno)
    for scope in scopes:
        for symbol in scope.get_symbols():
            name = symbol.get_name()
            is_pythons = symbol.is_global() or scope.get_type() != "function"
            if name in uses and symbol.is_referenced() and is_pythons:
                lines = [line for line in uses[name] if line >= scope.get_lineno()] or uses[name]
                yield min(lines), f"uses {name}, which no strategy needs"


def root_of(node: ast.AST) -> str:
    """`a` of a, a.b, a[1].b; "" where it is no name."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def names_in(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}

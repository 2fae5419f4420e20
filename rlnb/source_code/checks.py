"""Helpers for reading programs, and other texts, without running them."""

import ast
import builtins
import re
import symtable
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Literal

PIECE = re.compile(r"[\0-\x7f]*+[^\0-\x7f]{0,100}+")
PYTHON = frozenset(dir(builtins))
LONGEST_PROGRAM = 2**14  # characters: the time to parse may grow with the square
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def shown(name: str) -> str:
    """Return a name of an untrusted program for a sentence of ours."""
    return "".join(letter for letter in name[:60] if letter.isprintable())


def normalise(form: Literal["NFC", "NFKC"], text: str) -> str:
    """Return a text in a normal form of Unicode.

    Python takes the square of the length of a run of accents, so characters that are not ASCII are taken in
    pieces of 100.
    """
    return "".join(unicodedata.normalize(form, piece) for piece in PIECE.findall(text))


def root_name(node: ast.AST) -> str:
    """Return `a` of a, a.b, a[1].b; "" for an expression that does not begin with a name."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def names_in(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def count_bindings(tree: ast.AST) -> Counter[str]:
    """Return how often a program gives names to something, except modules imported under their own names."""
    names: list[str | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.append(node.id)
        elif not isinstance(node, ast.alias | ast.keyword | ast.Name):
            names += [getattr(node, field, None) for field in ("arg", "name", "rest")]
        elif isinstance(node, ast.alias):
            names.append(node.asname)
    return Counter(name for name in names if isinstance(name, str))


def imported_names(tree: ast.AST) -> dict[str, set[str]]:
    """Return what names may mean by all imports, such as {"m": {"math"}, "out": {"sys.stdout"}}."""
    imports: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            name = alias.asname or alias.name
            meaning = f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
            if isinstance(node, ast.Import) and not alias.asname:
                name = meaning = alias.name.partition(".")[0]
            imports.setdefault(name, set()).add(meaning)
    return imports


def iterate_scopes(code: str) -> Iterator[symtable.SymbolTable]:
    """Yield the scopes of a program. Raises the errors of parsing, and those that only the compiler finds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        waiting = [symtable.symtable(code, "<program>", "exec")]
    while waiting:
        scope = waiting.pop()
        yield scope
        waiting += scope.get_children()


def names_of_python(tree: ast.Module, scopes: Sequence[symtable.SymbolTable]) -> set[str]:
    """Return the names of PYTHON that a program may read, since it does not surely bind them.

    It binds those local to a function there, by Python's own symbol table, and those that the first statement
    of the module that mentions them assigns or defines, or the only one loops over. Deleted names are never
    sure, and none is where `__del__` may run while globals are destroyed.
    """
    nodes = list(ast.walk(tree))
    updated = {n.target.id for n in nodes if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)}
    reads = {
        symbol.get_name()
        for scope in scopes
        for symbol in map(scope.lookup, PYTHON.intersection(scope.get_identifiers()))
        if symbol.is_global() or scope.get_type() != "function" and not symbol.is_free()
        if symbol.is_referenced() or symbol.get_name() in updated
    }
    if any(getattr(node, "name", "") == "__del__" for node in nodes):
        return reads
    unsure = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del)}
    unsure |= {node.name for node in nodes if isinstance(node, ast.ExceptHandler) and node.name}
    mentions = Counter(chain.from_iterable(map(names_in, tree.body)))
    for statement in tree.body:
        bound: set[str] = set()
        before: list[ast.AST] = [statement]
        if isinstance(statement, FUNCTIONS) and not statement.decorator_list:
            bound, before = {statement.name}, [statement.args, statement.returns or ast.Pass()]
        elif isinstance(statement, ast.For):  # its targets are bound in its body alone
            bound = {name for name in names_in(statement.target) if mentions[name] == 1}
            before = [statement.target, statement.iter, *statement.orelse]
        elif isinstance(statement, ast.Assign):
            bound = set().union(*map(names_in, statement.targets))
        elif isinstance(statement, ast.AnnAssign) and statement.value:
            bound = names_in(statement.target)
        names = (name for node in before for name in ast.walk(node) if isinstance(name, ast.Name))
        reads -= bound - unsure - {name.id for name in names if isinstance(name.ctx, ast.Load)}
        unsure |= names_in(statement)
    return reads

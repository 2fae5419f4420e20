"""Helpers for reading programs, and other texts, without running them."""

import ast
import re
import symtable
import unicodedata
import warnings
from collections.abc import Iterator
from typing import Literal

PIECE = re.compile(r"[\0-\x7f]*+[^\0-\x7f]{0,100}+")
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


def bound_names(tree: ast.AST) -> set[str]:
    """Return the names that a program gives to something, except modules imported under their own names."""
    names: list[str | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.append(node.id)
        elif not isinstance(node, ast.alias | ast.keyword | ast.Name):
            names += [getattr(node, field, None) for field in ("arg", "name", "rest")]
        elif isinstance(node, ast.alias):
            names.append(node.asname)
    return {name for name in names if isinstance(name, str)}


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

"""Helpers for reading programs without running them."""

import ast

LONGEST_PROGRAM = 2**14  # characters: the time to parse may grow with the square
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def shown(name: str) -> str:
    """Return a name of an untrusted program for a sentence of ours."""
    return "".join(letter for letter in name[:60] if letter.isprintable())


def root_name(node: ast.AST) -> str:
    """Return `a` of a, a.b, a[1].b; "" for an expression that does not begin with a name."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def names_in(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}

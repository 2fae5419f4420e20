"""The code game: what a program does with sys.stdout and sys.stderr. Nothing is run."""

import ast
from collections.abc import Callable, Iterator

from rlnb.tasks.strategy_checks import FUNCTIONS

STREAM_AS_VALUE = "which leads to files; write to it, or print(..., file=sys.stderr)"
STREAMS = frozenset(("stderr", "stdout"))
HARMLESS = frozenset(("flush", "getvalue", "write", "writelines"))


def streams_as_values(
    tree: ast.AST, is_sys: Callable[[ast.expr], bool], *, sees_all: bool
) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of uses of sys.stdout and sys.stderr that could reach the files they write to.

    A name, not one of a class, may keep one, to write to it or to give it back. sees_all: whether no text is
    run, which could use such names, and `print` is Python's.
    """
    nodes, fine = list(ast.walk(tree)), set[int]()
    in_classes = {id(node) for node in in_class_bodies(tree)}
    streams = {id(n) for n in nodes if isinstance(n, ast.Attribute) and n.attr in STREAMS and is_sys(n.value)}
    kept = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module == "sys"
        for alias in node.names
        if alias.name in STREAMS
    }
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in HARMLESS:
            fine.add(id(node.value))
        elif not sees_all or id(node) in in_classes:
            continue
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            fine.update(id(keyword.value) for keyword in node.keywords if keyword.arg == "file")
        elif isinstance(node, ast.Assign) and all(id(target) in streams for target in node.targets):
            fine.add(id(node.value))
        elif isinstance(node, ast.Assign) and id(node.value) in streams:
            named = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if len(named) == len(node.targets):
                fine.add(id(node.value))
                kept.update(named)
    for node in nodes:
        is_kept = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in kept
        is_read = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and id(node) in streams
        if isinstance(node, ast.expr) and (is_kept or is_read) and id(node) not in fine:
            yield node.lineno, ast.unparse(node)


def in_class_bodies(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield what the bodies of classes hold, what is in functions there left out."""
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, is_inside = waiting.pop()
        if is_inside:
            yield node
        is_inside = isinstance(node, ast.ClassDef) or is_inside and not isinstance(node, FUNCTIONS)
        waiting += [(child, is_inside) for child in ast.iter_child_nodes(node)]

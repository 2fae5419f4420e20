"""Which names of a program may stand for Python's own, as `open` does. Nothing is run."""

import ast
from collections.abc import Iterable, Iterator

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTION_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, *COMPREHENSIONS)
NAMED = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar,
)  # fmt: skip
SCOPES = (*FUNCTION_SCOPES, ast.ClassDef)
RUNNING_TEXT = frozenset(("compile", "eval", "exec"))
Place = tuple[int, int]  # line, column
END = (2**31, 0)


def names_of_python(tree: ast.Module, *, is_text: bool = False) -> list[ast.Name]:
    """Return the names that are read, or deleted, where the program has not surely bound them.

    Bound are parameters and locals of the functions around, and what a statement of the module has bound
    before. Only the first count where globals may vanish: in a text that is run, or beside one, where one is
    deleted, and beside `__del__`, which may run while they are destroyed.
    """
    nodes = list(ast.walk(tree))
    augmented = {id(n.target) for n in nodes if isinstance(n, ast.AugAssign)}
    imported = set(imported_as_they_are(tree))
    reads = [
        (name, place, name.id in local and name.id not in imported)
        for name, place, local in names_in_scopes(tree)
        if not isinstance(name.ctx, ast.Store) or id(name) in augmented
    ]
    unbound = {n.name for n in nodes if isinstance(n, ast.ExceptHandler)} | imported
    unbound |= {n.id for n, _, is_local in reads if isinstance(n.ctx, ast.Del) and not is_local}
    places = [bound for statement in tree.body for bound in bound_by(statement) if bound[0] not in unbound]
    not_local = [(name, place) for name, place, is_local in reads if not is_local]
    found = [n for n, at in not_local if not any(b == n.id and i <= at < j for b, i, j in places)]
    globals_vanish = is_text or any(map(names_destructor, nodes)) or any(n.id in RUNNING_TEXT for n in found)
    return [name for name, _ in not_local] if globals_vanish else found


def names_destructor(node: ast.AST) -> bool:
    text = node.value if isinstance(node, ast.Constant) else ""
    names = (getattr(node, field, "") for field in ("name", "attr", "id", "arg"))
    return "__del__" in names or isinstance(text, str) and "__del__" in text


def imported_as_they_are(tree: ast.AST) -> Iterator[str]:
    """Yield what imports give its own name: `attrgetter` of `from operator import attrgetter`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (a.name for a in node.names if a.asname in (None, a.name))


def bound_by(statement: ast.stmt) -> Iterator[tuple[str, Place, Place]]:
    """Yield (name, from where, up to where) that a statement of the module surely binds."""
    first = statement.end_lineno or 0, statement.end_col_offset or 0
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        body = statement.body[0]  # which runs when the name is bound, unless a decorator calls it
        yield statement.name, first if statement.decorator_list else (body.lineno, body.col_offset), END
    elif isinstance(statement, ast.ClassDef):
        yield statement.name, first, END
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        yield from ((a.asname, first, END) for a in statement.names if a.asname)
    elif isinstance(statement, ast.For):
        body = statement.body[0]
        last = statement.body[-1].end_lineno or 0, statement.body[-1].end_col_offset or 0
        yield from ((name, (body.lineno, body.col_offset), last) for name in targets_of([statement.target]))
    elif isinstance(statement, ast.Assign):
        yield from ((name, first, END) for name in targets_of(statement.targets))
    elif isinstance(statement, ast.AnnAssign) and statement.value:
        yield from ((name, first, END) for name in targets_of([statement.target]))


def targets_of(targets: Iterable[ast.expr]) -> Iterator[str]:
    for target in targets:
        if isinstance(target, ast.Name):
            yield target.id
        elif isinstance(target, ast.Tuple | ast.List):
            yield from targets_of(target.elts)
        elif isinstance(target, ast.Starred):
            yield from targets_of([target.value])


def names_in_scopes(tree: ast.Module) -> Iterator[tuple[ast.Name, Place, frozenset[str]]]:
    """Yield (name, where, names that are locals of functions there) of all names.

    The body of a class sees less of the functions around than functions in it do. In an f-string all stands
    where that begins: old Pythons place its parts wrongly.
    """
    nothing: frozenset[str] = frozenset()
    waiting: list[tuple[ast.AST, Place | None, frozenset[str], frozenset[str]]] = []
    waiting += [(node, None, nothing, nothing) for node in tree.body]
    while waiting:
        node, place, local, around = waiting.pop()
        if isinstance(node, ast.JoinedStr):
            place = place or (node.lineno, node.col_offset)
        if isinstance(node, ast.Name):
            yield node, place or (node.lineno, node.col_offset), local
        if not isinstance(node, SCOPES):
            waiting += [(child, place, local, around) for child in ast.iter_child_nodes(node)]
            continue
        inside, outside = parts_of(node)
        waiting += [(child, place, local, around) for child in outside]
        bound, is_global = bound_in(inside)
        if isinstance(node, COMPREHENSIONS):
            bound = set(targets_of(part.target for part in node.generators))  # `:=` binds around it
        elif not isinstance(node, ast.ClassDef):
            bound |= {argument.arg for argument in arguments_of(node)}
        seen = around - is_global
        inner = seen - bound if isinstance(node, ast.ClassDef) else seen | (bound - is_global)
        seen = seen if isinstance(node, ast.ClassDef) else inner
        waiting += [(child, place, inner, seen) for child in inside]


def parts_of(scope: ast.AST) -> tuple[list[ast.AST], list[ast.AST]]:
    """Return what of a scope runs inside it, and what around it: decorators, defaults, the first iterable."""
    if isinstance(scope, COMPREHENSIONS):
        first = scope.generators[0]
        own = [n for n in ast.iter_child_nodes(scope) if n is not first]
        return [*own, first.target, *first.ifs], [first.iter]
    body = getattr(scope, "body", [])
    inside = list(body) if isinstance(body, list) else [body]
    ran = {id(node) for node in inside}
    return inside, [node for node in ast.iter_child_nodes(scope) if id(node) not in ran]


def arguments_of(function: ast.AST) -> list[ast.arg]:
    return [n for n in ast.iter_child_nodes(getattr(function, "args")) if isinstance(n, ast.arg)]  # noqa: B009


def bound_in(nodes: Iterable[ast.AST]) -> tuple[set[str], set[str]]:
    """Return the names that a scope binds, and those that it declares to be global."""
    bound: set[str] = set()
    is_global: set[str] = set()
    waiting = [(node, False) for node in nodes]  # whether it is in a comprehension, which binds only by `:=`
    while waiting:
        node, is_inner = waiting.pop()
        if isinstance(node, ast.Global):
            is_global.update(node.names)
        elif isinstance(node, ast.NamedExpr):
            bound.add(node.target.id)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and not is_inner:
            bound.add(node.id)
        elif isinstance(node, ast.alias):
            bound.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, NAMED) and node.name:
            bound.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            bound.add(node.rest)
        if isinstance(node, COMPREHENSIONS):
            waiting += [(child, True) for child in ast.iter_child_nodes(node)]
        elif isinstance(node, SCOPES):
            waiting += [(child, is_inner) for child in parts_of(node)[1]]
        else:
            waiting += [(child, is_inner) for child in ast.iter_child_nodes(node)]
    return bound, is_global

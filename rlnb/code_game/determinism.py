"""Which programs depend on more than their source: a list of what a program may use, read from its tree.

The varied interpreters (rlnb/sandbox/reruns.py) catch what differs from run to run: the clock, random
numbers, the order of sets. They cannot catch what is equal in all of them: files, the version of Python,
texts of its library. So imports and attributes of modules come from a list, and whatever leads from there
to other modules, files, frames or texts of Python is refused, as is an attribute that only the run names.
"""

import ast
import importlib
import operator
import symtable
import types
import warnings
from collections.abc import Iterator

from rlnb.code_game.programs import bound_names, parse_program
from rlnb.source_code.checks import FUNCTIONS, names_in
from rlnb.source_code.extraction import UNREADABLE
from rlnb.source_code.reflection import (
    HARMLESS_DUNDERS,
    READERS,
    WITHHELD,
    dunder_in,
    leads_out,
    made_up_reads,
)

ALLOWED_MODULES = (
    "__future__", "abc", "array", "base64", "bisect", "calendar", "cmath", "collections", "collections.abc",
    "contextlib", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools", "heapq",
    "io", "itertools", "json", "math", "numbers", "operator", "pprint", "random", "re", "statistics",
    "string", "sys", "textwrap", "typing",
)  # fmt: skip
STREAMS = ("sys.stderr", "sys.stdout")
# The only names of these modules and streams that a program may use.
NARROW = {
    "io": ("BytesIO", "StringIO"),
    "sys": (
        "exit", "intern", "maxsize", "set_int_max_str_digits", "setrecursionlimit", "stderr", "stdout",
    ),
    **dict.fromkeys(STREAMS, ("flush", "getvalue", "write", "writelines")),
}  # fmt: skip

MACHINE = "which tells of this machine or of its Python; compute from what the program holds"
OUTSIDE = "which reaches out of the program; write what it needs as a constant"
ADDRESS = "which differs from run to run; compute from the value itself"
HIDDEN = "which hides what is run or read; write it out at that place"
UNLISTED = f"which is none of {', '.join(ALLOWED_MODULES)}; use one of these or none"

FORBIDDEN_BUILTINS = {
    **dict.fromkeys(
        ("__builtins__", "__file__", "__loader__", "__spec__", "copyright", "credits", "dir", "globals",
         "license", "locals", "vars"), MACHINE),
    **dict.fromkeys(("breakpoint", "help", "input", "open"), OUTSIDE),
    **dict.fromkeys(("hash", "id"), ADDRESS),
    **dict.fromkeys(("__import__", "compile", "eval", "exec"), HIDDEN),
}  # fmt: skip
FORBIDDEN_ATTRIBUTES = {"__hash__": ADDRESS, "__import__": HIDDEN, "_old_targets": MACHINE}
OPERATORS = (f"__{side}{name.rstrip('_')}__" for name in operator.__all__ for side in ("", "r"))
# Dunders that lead to nothing but what a program holds, or can name.
ALLOWED_DUNDERS = HARMLESS_DUNDERS.union(OPERATORS, (
    "__aenter__", "__aexit__", "__aiter__", "__anext__", "__args__", "__await__", "__bases__", "__bool__",
    "__bytes__", "__call__", "__cause__", "__ceil__", "__class__", "__class_getitem__", "__closure__",
    "__complex__", "__context__", "__copy__", "__debug__", "__deepcopy__", "__defaults__", "__del__",
    "__delattr__", "__delete__", "__divmod__", "__enter__", "__exit__", "__float__", "__floor__",
    "__format__", "__func__", "__get__", "__init_subclass__", "__int__", "__iter__", "__len__", "__members__",
    "__missing__", "__module__", "__mro__", "__new__", "__next__", "__origin__", "__qualname__",
    "__rdivmod__", "__repr__", "__reversed__", "__round__", "__set__", "__set_name__", "__setattr__",
    "__str__", "__suppress_context__", "__trunc__", "__wrapped__",
))  # fmt: skip


def find_forbidden_use(code: str) -> str:
    """Return a sentence on the first use of something outside the program, with a remedy; "" without one.

    code: as `strip_comments` writes it. Nothing is said of texts that are not programs.
    """
    tree = parse_program(code)
    if tree is None:
        return ""
    faults = [*import_faults(tree), *module_faults(tree), *name_faults(tree, names_of_python(tree, code))]
    return "Line {} {}.".format(*min(faults)) if faults else ""


def import_faults(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, reason) of each import that is not on the list, or makes an attribute of a class."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    in_classes = {id(node) for of_class in classes for node in ast.walk(of_class)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        modules = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            modules = ["." * node.level + (node.module or "")]
            for alias in node.names:
                is_renamed_reader = alias.name in READERS and alias.asname not in (None, alias.name)
                if is_withheld(modules[0], alias.name) or is_renamed_reader:
                    yield node.lineno, f"imports {alias.name[:60]} from {node.module}, {MACHINE}"
        for module in modules:
            if module not in ALLOWED_MODULES:
                yield node.lineno, f"imports {module[:60]}, {UNLISTED}"
        if id(node) in in_classes:
            yield node.lineno, f"imports in a class, {HIDDEN}"


def module_faults(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, reason) of each use of a module or stream other than for its allowed names behind a dot.

    The streams sys.stdout and sys.stderr may also be replaced, and given to Python's `print`.
    """
    nodes = list(ast.walk(tree))
    imports = imported_names(nodes)
    parents = {id(child): node for node in nodes for child in ast.iter_child_nodes(node)}
    prints = [n for n in nodes if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "print"]
    files = {id(keyword.value) for call in prints for keyword in call.keywords if keyword.arg == "file"}
    if "print" in bound_names(tree):
        files = set()
    for node in nodes:
        if not isinstance(node, ast.Name | ast.Attribute):
            continue
        parent, variable = parents[id(node)], node.value if isinstance(node, ast.Attribute) else node
        suffix = f".{node.attr}" if isinstance(node, ast.Attribute) else ""
        meanings = imports.get(variable.id, set()) if isinstance(variable, ast.Name) else set()
        for name in sorted({*ALLOWED_MODULES, *STREAMS} & {meaning + suffix for meaning in meanings}):
            if isinstance(parent, ast.Attribute):
                if is_withheld(name, parent.attr):
                    yield node.lineno, f"uses {name}.{parent.attr[:60]}, {MACHINE}"
            elif isinstance(node.ctx, ast.Load) and not (name in STREAMS and id(node) in files):
                yield node.lineno, f"uses {name} as a value, {HIDDEN}"


def name_faults(tree: ast.Module, names: set[str]) -> Iterator[tuple[int, str]]:
    """Yield (line, reason) of builtins among `names`, attributes and texts that lead out of the program."""
    made_up = {id(node): name for node, name in made_up_reads(tree, explain_attribute)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name | ast.Attribute | ast.Constant | ast.MatchClass):
            continue
        name = node.id if isinstance(node, ast.Name) else ""
        if name in names and name in FORBIDDEN_BUILTINS:
            yield node.lineno, f"uses {name}, {FORBIDDEN_BUILTINS[name]}"
        if id(node) in made_up and (name != "getattr" or name in names):
            yield node.lineno, f"uses {made_up[id(node)]} on a made-up text, {HIDDEN}"
        attributes = [node.attr] if isinstance(node, ast.Attribute) else getattr(node, "kwd_attrs", [])
        yield from ((node.lineno, reason) for reason in map(explain_attribute, attributes) if reason)
        if isinstance(node, ast.Constant) and (dunder := dunder_in(node.value, ALLOWED_DUNDERS)):
            yield node.lineno, f"has {dunder[:60]} in a text, {FORBIDDEN_ATTRIBUTES.get(dunder, MACHINE)}"


def explain_attribute(name: str) -> str:
    """Return why an attribute of any object is refused, "" where it is not."""
    if name in FORBIDDEN_ATTRIBUTES or leads_out(name, ALLOWED_DUNDERS):
        return f"uses {name[:60]}, {FORBIDDEN_ATTRIBUTES.get(name, MACHINE)}"
    return ""


def is_withheld(module: str, name: str) -> bool:
    """Return whether a name of an allowed module is another module, private, or a fact of the machine."""
    if module in NARROW:
        return name not in NARROW[module]
    if module not in ALLOWED_MODULES or f"{module}.{name}" in ALLOWED_MODULES or module == "__future__":
        return False
    if name == "*" and module in WITHHELD or name in WITHHELD.get(module, set()) - READERS.keys():
        return True
    value = vars(importlib.import_module(module)).get(name)
    return name.startswith("_") or isinstance(value, types.ModuleType)


def imported_names(nodes: list[ast.AST]) -> dict[str, set[str]]:
    """Return what names may mean by all imports, such as {"m": {"math"}, "out": {"sys.stdout"}}."""
    imports: dict[str, set[str]] = {}
    for node in nodes:
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            name = alias.asname or alias.name
            meaning = f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
            if isinstance(node, ast.Import) and not alias.asname:
                name = meaning = alias.name.partition(".")[0]
            imports.setdefault(name, set()).add(meaning)
    return imports


def names_of_python(tree: ast.Module, code: str) -> set[str]:
    """Return the names that a program may read from Python's builtins, since it does not surely bind them.

    It binds those local to a function there, by Python's own symbol table, and those that the first statement
    of the module that mentions them assigns or defines, or the only one loops over. Deleted names are never
    sure, and none is where `__del__` may run while globals are destroyed.
    """
    nodes = list(ast.walk(tree))
    updated = {n.target.id for n in nodes if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)}
    reads = set()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scopes = [symtable.symtable(code, "<program>", "exec")]
    except UNREADABLE:
        return names_in(tree)
    while scopes:
        scope = scopes.pop()
        scopes += scope.get_children()
        for symbol in scope.get_symbols():
            is_outer = symbol.is_global() or scope.get_type() != "function" and not symbol.is_free()
            if is_outer and (symbol.is_referenced() or symbol.get_name() in updated):
                reads.add(symbol.get_name())
    if "__del__" in code:
        return reads
    deleted = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del)}
    deleted |= {node.name for node in nodes if isinstance(node, ast.ExceptHandler) and node.name}
    names = [names_in(statement) for statement in tree.body]
    for index, statement in enumerate(tree.body):
        bound = reads & bound_first(statement) - deleted
        if bound:
            elsewhere = names[:index] + (names[index + 1 :] if isinstance(statement, ast.For) else [])
            reads -= bound.difference(*elsewhere)
    return reads


def bound_first(statement: ast.stmt) -> set[str]:
    """Return the names that a statement of the module surely binds, and does not read before.

    The targets of a loop are bound in its body alone: it may be one that is never entered.
    """
    targets: list[ast.expr] = []
    before: list[ast.AST] = [statement]
    if isinstance(statement, FUNCTIONS) and not statement.decorator_list:
        return {statement.name}.difference(*map(names_in, [statement.args, statement.returns or ast.Pass()]))
    if isinstance(statement, ast.For):
        targets, before = [statement.target], [statement.target, statement.iter, *statement.orelse]
    elif isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign) and statement.value:
        targets = [statement.target]
    names = [name for node in before for name in ast.walk(node) if isinstance(name, ast.Name)]
    loaded = {name.id for name in names if isinstance(name.ctx, ast.Load)}
    return {name for target in targets for name in names_in(target)} - loaded

"""Which programs depend on more than their source: read from the syntax tree, nothing is run.

The varied interpreters (rlnb/sandbox/reruns.py) catch what differs from run to run: addresses, the clock,
random numbers. They cannot catch what is equal in all of them: files, the version of Python, texts of its
library. So imports and attributes of modules come from a list, and whatever leads from there to other
modules, files, frames or texts of Python is refused, as are attributes whose names only the run makes up.
"""

import ast
import importlib
import operator
import symtable
import types
from collections.abc import Iterator

from rlnb.code_game.programs import FUNCTIONS, bound_names, last_name, parse_program
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
# The only names of these modules that a program may use.
NARROW_MODULES = {
    "io": frozenset(("BytesIO", "StringIO")),
    "sys": frozenset(
        ("exit", "intern", "maxsize", "set_int_max_str_digits", "setrecursionlimit", "stderr", "stdout")
    ),
}
STREAMS = frozenset(("sys.stderr", "sys.stdout"))
STREAM_METHODS = frozenset(("flush", "getvalue", "write", "writelines"))
SEEDED = frozenset(("Random", "SystemRandom", "seed"))  # functions of `random` that take a seed

CLOCK_READS = frozenset(("now", "today", "utcnow"))  # methods of datetime; how long something takes, too
CHANCE = "which differs from run to run; draw from random.Random(7), say"
CLOCK = "which reads the clock; write the moment as a constant"
MACHINE = "which tells of this machine or of its Python; compute from what the program holds"
OUTSIDE = "which reaches out of the program; write what it needs as a constant"
ADDRESS = "which differs from run to run; compute from the value itself"
HIDDEN_CODE = "which hides what is run; write the code itself"
HIDDEN_IMPORT = "which hides what is imported; write an import statement at the top"
HIDDEN_NAME = "on a text that only the run makes up; write the text itself at that place"
MODULE_AS_VALUE = "which hides what is read from it; write a dot and the name behind it"
STREAM_AS_VALUE = "which leads to files; write to it, or print(..., file=sys.stderr)"
UNLISTED = f"which is none of {', '.join(ALLOWED_MODULES)}; use one of these or none"

FORBIDDEN_BUILTINS = {
    **dict.fromkeys(
        ("__builtins__", "__file__", "__loader__", "__spec__", "copyright", "credits", "dir", "globals",
         "license", "locals", "vars"), MACHINE),
    **dict.fromkeys(("breakpoint", "help", "input", "open"), OUTSIDE),
    **dict.fromkeys(("hash", "id"), ADDRESS),
    **dict.fromkeys(("compile", "eval", "exec"), HIDDEN_CODE),
    "__import__": HIDDEN_IMPORT,
}  # fmt: skip
FORBIDDEN_ATTRIBUTES = {"__hash__": ADDRESS, "__import__": HIDDEN_IMPORT, "_old_targets": MACHINE}
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

    Names that the program has surely given to values of its own (`id = 7`) may be used. Nothing is said of
    texts that are not programs.
    """
    tree = parse_program(code)
    if tree is None:
        return ""
    faults = [*import_faults(tree), *module_faults(tree), *name_faults(tree)]
    return "Line {} {}.".format(*min(faults)) if faults else ""


def import_faults(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, reason) of each import that is not on the list, and of `random` without a seed."""
    parents = parent_nodes(tree)
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
            elif module == "random" and not is_seeded(tree):
                yield node.lineno, f"uses random without a seed, {CHANCE}"
        scope = parents[id(node)]
        while not isinstance(scope, (*FUNCTIONS, ast.ClassDef, ast.Module)):
            scope = parents[id(scope)]
        if isinstance(scope, ast.ClassDef):  # what is imported there is an attribute
            yield node.lineno, f"imports in the body of a class, {HIDDEN_IMPORT}"


def module_faults(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, reason) of each use of a module other than for its allowed names behind a dot.

    The streams sys.stdout and sys.stderr may be replaced, written to and given to Python's `print`.
    """
    imports = imported_names(tree)
    parents = parent_nodes(tree)
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "print"]
    keywords = [] if "print" in bound_names(tree) else [k for call in calls for k in call.keywords]
    printed_to = {id(keyword.value) for keyword in keywords if keyword.arg == "file"}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name | ast.Attribute):
            continue
        parent = parents[id(node)]
        if isinstance(node, ast.Attribute):
            for module in sorted(dotted_names(node.value, imports)):
                if is_withheld(module, node.attr):
                    yield node.lineno, f"uses {module}.{node.attr[:60]}, {MACHINE}"
        for name in sorted(dotted_names(node, imports)) if isinstance(node.ctx, ast.Load) else ():
            if name in ALLOWED_MODULES and not isinstance(parent, ast.Attribute):
                yield node.lineno, f"uses the module {name} as a value, {MODULE_AS_VALUE}"
            is_written_to = isinstance(parent, ast.Attribute) and parent.attr in STREAM_METHODS
            if name in STREAMS and not is_written_to and id(node) not in printed_to:
                yield node.lineno, f"uses {ast.unparse(node)} as a value, {STREAM_AS_VALUE}"


def name_faults(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, reason) of names of Python, attributes and texts that lead out of the program."""
    imports_datetime = any(meaning.partition(".")[0] == "datetime" for _, meaning in imported_names(tree))

    def attribute_fault(name: str) -> str:
        is_clock = imports_datetime and name in CLOCK_READS
        return f"uses {name}, {CLOCK}" if is_clock else explain_attribute(name)

    made_up = {id(node): name for node, name in made_up_reads(tree, attribute_fault)}
    for statement, builtins_read in reads_of_builtins(tree):
        for node in ast.walk(statement):
            line = getattr(node, "lineno", statement.lineno)
            name = node.id if isinstance(node, ast.Name) else ""
            if name in builtins_read and name in FORBIDDEN_BUILTINS:
                yield line, f"uses {name}, {FORBIDDEN_BUILTINS[name]}"
            if id(node) in made_up and (name != "getattr" or name in builtins_read):
                yield line, f"uses {made_up[id(node)]} {HIDDEN_NAME}"
            attributes = [node.attr] if isinstance(node, ast.Attribute) else getattr(node, "kwd_attrs", [])
            yield from ((line, reason) for reason in map(attribute_fault, attributes) if reason)
            if isinstance(node, ast.Constant) and (dunder := dunder_in(node.value, ALLOWED_DUNDERS)):
                yield line, f"has {dunder[:60]} in a text, {FORBIDDEN_ATTRIBUTES.get(dunder, MACHINE)}"


def explain_attribute(name: str) -> str:
    """Return why an attribute of any object is refused, "" where it is not."""
    if name in FORBIDDEN_ATTRIBUTES or leads_out(name, ALLOWED_DUNDERS):
        return f"uses {name[:60]}, {FORBIDDEN_ATTRIBUTES.get(name, MACHINE)}"
    return ""


def parent_nodes(tree: ast.Module) -> dict[int, ast.AST]:
    """Return the parent of each node, by the node's id()."""
    return {id(child): node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}


def is_withheld(module: str, name: str) -> bool:
    """Return whether a name of an allowed module is another module, private, or a fact of the machine."""
    if module in NARROW_MODULES:
        return name not in NARROW_MODULES[module]
    if module not in ALLOWED_MODULES or f"{module}.{name}" in ALLOWED_MODULES or module == "__future__":
        return False
    if name == "*" and module in WITHHELD or name in WITHHELD.get(module, set()) - READERS:
        return True
    value = vars(importlib.import_module(module)).get(name)
    return name.startswith("_") or isinstance(value, types.ModuleType)


def imported_names(tree: ast.Module) -> set[tuple[str, str]]:
    """Return (name, what it may mean) of all imports, such as ("m", "math") and ("out", "sys.stdout")."""
    imports = set()
    for node in ast.walk(tree):
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            if isinstance(node, ast.ImportFrom):
                imports.add((alias.asname or alias.name, f"{node.module}.{alias.name}"))
            else:
                outermost = alias.name.partition(".")[0]
                imports.add((alias.asname or outermost, alias.name if alias.asname else outermost))
    return imports


def dotted_names(node: ast.expr, imports: set[tuple[str, str]]) -> set[str]:
    """Return what a name, or a name and an attribute, may stand for: {"collections.abc"}, {"sys.stdout"}."""
    attribute = ""
    if isinstance(node, ast.Attribute):
        attribute, node = f".{node.attr}", node.value
    return {
        meaning + attribute for name, meaning in imports if isinstance(node, ast.Name) and node.id == name
    }


def is_seeded(tree: ast.Module) -> bool:
    """Return whether `random` gets a seed, and gets one wherever it takes one."""
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and last_name(n.func) in SEEDED]
    return bool(calls) and all(
        (call.args or call.keywords)
        and not any(isinstance(seed, ast.Constant) and seed.value is None for seed in call.args)
        for call in calls
    )


def reads_of_builtins(tree: ast.Module) -> Iterator[tuple[ast.stmt, set[str]]]:
    """Yield each statement with the names that it may read from Python's builtins.

    These are not local to a function there, and no earlier statement has surely bound them. Names that are
    deleted somewhere are never sure, and none is where `__del__` may run while globals are destroyed.
    """
    nodes = list(ast.walk(tree))
    unsure = {node.name for node in nodes if isinstance(node, ast.ExceptHandler) and node.name}
    texts = (value for node in nodes for _, value in ast.iter_fields(node) if isinstance(value, str))
    has_destructor = any("__del__" in text for text in texts)
    for node in nodes:
        if isinstance(node, ast.Name) and (has_destructor or isinstance(node.ctx, ast.Del)):
            unsure.add(node.id)
    bound: set[str] = set()
    for statement in tree.body:
        names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
        suspects = names.intersection([*FORBIDDEN_BUILTINS, *READERS]) - bound
        yield statement, suspects and suspects & global_reads(statement, unsure)
        bound |= names_bound_by(statement) - unsure


def names_bound_by(statement: ast.stmt) -> set[str]:
    """Return the names that a statement of the module has surely bound when it is done."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.AnnAssign) and statement.value:
        return stored_names(statement.target)
    return stored_names(*statement.targets) if isinstance(statement, ast.Assign) else set()


def stored_names(*nodes: ast.expr) -> set[str]:
    names = [name for node in nodes for name in ast.walk(node) if isinstance(name, ast.Name)]
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


def global_reads(statement: ast.stmt, unsure: set[str]) -> set[str]:
    """Return the names that a statement of the module reads from its globals, or from Python's builtins.

    Left out, unless unsure, are a function's own name in its body, which runs later, and the targets of a
    loop in its body. A decorator may call the function at once.
    """
    try:
        if isinstance(statement, ast.For):
            head = ast.Assign([statement.target], statement.iter, lineno=0)
            targets = stored_names(statement.target) - unsure
            return nonlocal_reads(statement.body) - targets | nonlocal_reads([head, *statement.orelse])
        if isinstance(statement, FUNCTIONS) and not statement.decorator_list:
            return nonlocal_reads([statement], own_name="" if statement.name in unsure else statement.name)
        return nonlocal_reads([statement])
    except UNREADABLE:  # nested too deeply
        return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}


def nonlocal_reads(statements: list[ast.stmt], *, own_name: str = "") -> set[str]:
    """Return the names that statements read from outside their functions, by Python's own symbol table.

    own_name: of the function that the only statement defines; it is left out in that function.
    """
    nodes = [node for statement in statements for node in ast.walk(statement)]
    updated = {n.target.id for n in nodes if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)}
    module = symtable.symtable(ast.unparse(ast.Module(statements, [])), "<program>", "exec")
    scopes, reads = [(module, "")], set()
    while scopes:
        scope, left_out = scopes.pop()
        for symbol in scope.get_symbols():
            name = symbol.get_name()
            is_outer = symbol.is_global() or scope.get_type() != "function" and not symbol.is_free()
            if is_outer and name != left_out and (symbol.is_referenced() or name in updated):
                reads.add(name)
        for child in scope.get_children():
            is_own = scope is module and child.get_name() == own_name
            scopes.append((child, own_name if is_own else left_out))
    return reads

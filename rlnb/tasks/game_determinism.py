"""The code game: whether a program says all that its output depends on, and what its names stand for.

Read from the syntax tree; nothing is run.
"""

import ast
import importlib
import types
from collections.abc import Iterator

from rlnb.tasks.extraction import UNREADABLE, parse
from rlnb.tasks.own_names import RUNNING_TEXT, names_of_python
from rlnb.tasks.reflection import HARMLESS_IN_PROGRAMS, READERS, WITHHELD, dunder_in, made_up_reads
from rlnb.tasks.reflection import leads_out as attribute_leads_out
from rlnb.tasks.strategy_checks import FUNCTIONS, LONGEST_PROGRAM, shown
from rlnb.tasks.streams import STREAM_AS_VALUE, in_class_bodies, streams_as_values

CHANCE = "which differs from run to run; draw from random.Random(7), say"
CLOCK = "which reads the clock; write the moment as a constant"
MACHINE = "which tells of this machine or of its Python; compute from what the program holds"
OUTSIDE = "which reaches out of the program; write what it needs as a constant"
ADDRESS = "which differs from run to run; compute from the value itself"
HIDDEN_IMPORT = "which hides what is imported; write an import statement"
HIDDEN_NAME = "on a text that only the run makes up; write the text itself at that place"
HIDDEN_CODE = "on a text that only the run makes up; write the code itself"
TEXT_WITH_IMPORTS = "on a text with imports, or with what is imported; write the code itself"
MODULE_AS_VALUE = "which hides what is read from it; write out the name behind the dot"
ALLOWED_MODULES = (
    "__future__", "abc", "array", "base64", "bisect", "calendar", "cmath", "collections", "collections.abc",
    "contextlib", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools", "heapq",
    "io", "itertools", "json", "math", "numbers", "operator", "pprint", "random", "re", "statistics",
    "string",
    "sys", "textwrap", "typing",
)  # fmt: skip
UNLISTED = f"which is none of {', '.join(ALLOWED_MODULES)}; use one of these or none"
FORBIDDEN_MODULES = {
    **dict.fromkeys(("secrets", "uuid"), CHANCE),
    "time": CLOCK,
    **dict.fromkeys(
        ("gc", "getpass", "inspect", "linecache", "locale", "os", "pathlib", "platform", "posix", "pwd",
         "resource", "site", "sysconfig", "traceback", "tracemalloc"), MACHINE),
    **dict.fromkeys(
        ("_thread", "concurrent", "ctypes", "fileinput", "glob", "http", "mmap", "multiprocessing", "shutil",
         "signal", "socket", "subprocess", "tempfile", "threading", "urllib"), OUTSIDE),
    **dict.fromkeys(("builtins", "importlib", "pkgutil", "runpy"), HIDDEN_IMPORT),
}  # fmt: skip
FORBIDDEN_NAMES = {
    **dict.fromkeys(
        ("__builtins__", "__file__", "__loader__", "__spec__", "copyright", "credits", "dir", "globals",
         "license", "locals", "vars"), MACHINE),
    **dict.fromkeys(("breakpoint", "help", "input", "open"), OUTSIDE),
    **dict.fromkeys(("hash", "id"), ADDRESS),
    "__import__": HIDDEN_IMPORT,
}  # fmt: skip
# Of anything; further ones are those that `reflection` knows no harmless use of.
FORBIDDEN_ATTRIBUTES = {"__hash__": ADDRESS, "__import__": HIDDEN_IMPORT, "_old_targets": MACHINE}
NOW = frozenset(("astimezone", "fromtimestamp", "now", "timestamp", "today", "utcnow"))
HARMLESS_IN = {
    "io": frozenset(("BytesIO", "StringIO")),
    "sys": frozenset(
        ("exit", "intern", "maxsize", "set_int_max_str_digits", "setrecursionlimit", "stderr", "stdout")
    ),
}
GENERATORS = frozenset(("Random", "SystemRandom", "seed"))
# Behind these, names may be read that are not written down, or an assignment may free an object for others.
READING_NAMES = frozenset(
    (
        "__annotations__",
        "__builtins__",
        "__import__",
        "compile",
        "dir",
        "eval",
        "exec",
        "globals",
        "locals",
        "vars",
    )
)
READ_BY_PYTHON = ("__builtins__", "__loader__", "__name__", "__package__", "__path__", "__spec__")
READING_MODULES = frozenset(("__main__", "builtins", "gc", "importlib", "inspect", "runpy", "weakref"))
READING_ATTRIBUTES = frozenset(
    (
        "__annotations__",
        "__builtins__",
        "__code__",
        "__del__",
        "__dict__",
        "__globals__",
        "_getframe",
        "f_globals",
        "f_locals",
        "gi_frame",
        "modules",
    )
)


def forbidden_use(code: str, *, is_text: bool = False) -> str:
    """What makes the output depend on more than the program, one sentence with a remedy; "" for nothing.

    Facts of the interpreter and of the machine are the same in every run, so that only this refuses them:
    imports but ALLOWED_MODULES, what these modules hold besides their own, what leads out of an object.
    Allowed: random that is seeded or drawn from a seeded Random, datetime without its clock, sys.stdout,
    names that the program gives itself (`id = 7`), and exec of a text that is written out, read as well
    (is_text).
    """
    try:
        tree = parse(code) if len(code) <= LONGEST_PROGRAM else ast.Module([], [])
    except UNREADABLE:
        return ""
    found = list(faults_in(tree, is_text=is_text))
    return "Line {} {}.".format(*min(found)) if found else ""


def faults_in(tree: ast.Module, *, is_text: bool = False) -> Iterator[tuple[int, str]]:
    """(line, what stands there and must not)."""
    seeded, modules, line = is_seeded(tree), modules_of(tree), 1
    of_python = {id(name) for name in names_of_python(tree, is_text=is_text)}
    nodes, in_classes = list(ast.walk(tree)), {id(node) for node in in_class_bodies(tree)}
    reads_dates = any("datetime" in modules_in(node) for node in nodes)
    run = {id(n.func): n for n in nodes if isinstance(n, ast.Call)}
    rebound = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    rebound |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    behind_dots = {id(n.value) for n in nodes if isinstance(n, ast.Attribute)}
    for node in nodes:
        line = getattr(node, "lineno", line)
        faults = [*import_faults(node, seeded), *attribute_faults(node, modules, reads_dates)]
        if isinstance(node, ast.Name) and id(node) in of_python:
            faults += name_faults(node, run.get(id(node)), imported_names(tree))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "object":
            faults.append(f"uses object(), {ADDRESS}")
        elif isinstance(node, ast.Constant) and (hidden := dunder_in(node.value, HARMLESS_IN_PROGRAMS)):
            faults.append(f"has {shown(hidden)} in a text, {FORBIDDEN_ATTRIBUTES.get(hidden, MACHINE)}")
        elif isinstance(node, ast.MatchClass):
            faults += [said for name in node.kwd_attrs if (said := attribute_fault(name))]
        elif isinstance(node, ast.Import | ast.ImportFrom) and id(node) in in_classes:
            faults.append(f"imports in the body of a class, {HIDDEN_IMPORT}")
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            module = "" if id(node) in behind_dots else module_at(node, modules)
            if module == "sys" or (module and getattr(node, "id", "") not in rebound):
                faults.append(f"uses the module {module} as a value, {MODULE_AS_VALUE}")
        yield from ((line, said) for said in faults)
    for node, name in made_up_reads(tree, attribute_fault):
        if not isinstance(node, ast.Name) or id(node) in of_python:
            yield node.lineno, f"uses {name} {HIDDEN_NAME}"
    sees_all = "print" not in names_bound(tree) and not any(
        isinstance(node, ast.Name) and node.id in RUNNING_TEXT and id(node) in of_python for node in nodes
    )
    for line, text in streams_as_values(tree, lambda n: module_at(n, modules) == "sys", sees_all=sees_all):
        yield line, f"uses {text} as a value, {STREAM_AS_VALUE}"


def imported_names(tree: ast.AST) -> set[str]:
    """Names that imports bind."""
    aliases = [a for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom) for a in n.names]
    return {a.asname or a.name.partition(".")[0] for a in aliases}


def modules_of(tree: ast.Module) -> dict[str, str]:
    """{name: module that an import gives it}."""
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                outermost = alias.name.partition(".")[0]
                modules[alias.asname or outermost] = alias.name if alias.asname else outermost
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if f"{node.module}.{alias.name}" in ALLOWED_MODULES:
                    modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return modules


def module_at(node: ast.expr, modules: dict[str, str]) -> str:
    """The module that a name, or names with dots, stand for; "" for none."""
    if isinstance(node, ast.Name):
        return modules.get(node.id, "")
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return ""
    dotted = f"{modules.get(node.value.id, '')}.{node.attr}"
    return dotted if dotted in ALLOWED_MODULES else ""


def import_faults(node: ast.AST, seeded: bool) -> Iterator[str]:
    for module in modules_in(node):
        if module == "random" and not seeded:
            yield f"uses random without a seed, {CHANCE}"
        elif module in FORBIDDEN_MODULES:
            yield f"imports {module}, {FORBIDDEN_MODULES[module]}"
        elif module not in ALLOWED_MODULES:
            yield f"imports {shown(module) or 'a package around it'}, {UNLISTED}"
    if isinstance(node, ast.Import | ast.ImportFrom):
        whole = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        for name in sorted(set(whole) - set(ALLOWED_MODULES)):
            if name.partition(".")[0] in ALLOWED_MODULES:
                yield f"imports {shown(name)}, {UNLISTED}"
    if isinstance(node, ast.ImportFrom):
        for name in sorted({alias.name for alias in node.names}):
            if leads_out(node.module or "", name) or name in READERS and renames(node, name):
                yield f"imports {shown(name)} from {node.module}, {MACHINE}"


def renames(node: ast.ImportFrom, name: str) -> bool:
    return any(alias.name == name and alias.asname not in (None, name) for alias in node.names)


def leads_out(module: str, name: str) -> bool:
    """Whether a name of an allowed module is another module, a private matter or a fact of the machine."""
    if name == "*" and module in WITHHELD:
        return True
    if module in HARMLESS_IN:
        return name not in HARMLESS_IN[module]
    if module not in ALLOWED_MODULES or f"{module}.{name}" in ALLOWED_MODULES:
        return False
    if name in WITHHELD.get(module, set()) - READERS:
        return True
    held = vars(importlib.import_module(module)).get(name)
    return name.startswith("_") and module != "__future__" or isinstance(held, types.ModuleType)


def attribute_faults(node: ast.AST, modules: dict[str, str], reads_dates: bool) -> Iterator[str]:
    """modules: {name: module}. reads_dates: whether datetime is imported."""
    if not isinstance(node, ast.Attribute):
        return
    module = module_at(node.value, modules)
    if node.attr in NOW and reads_dates:
        yield f"uses {node.attr}, {CLOCK}"
    elif leads_out(module, node.attr):
        yield f"uses {module}.{shown(node.attr)}, {MACHINE}"
    elif said := attribute_fault(node.attr):
        yield said


def attribute_fault(name: str) -> str:
    """Of an attribute of anything; "" for none."""
    if name in FORBIDDEN_ATTRIBUTES or attribute_leads_out(name, HARMLESS_IN_PROGRAMS):
        return f"uses {shown(name)}, {FORBIDDEN_ATTRIBUTES.get(name, MACHINE)}"
    return ""


def name_faults(node: ast.Name, call: ast.Call | None, imported: set[str]) -> Iterator[str]:
    """Of a name that is Python's own. call: that of the name, if it is called. imported: names."""
    if node.id in FORBIDDEN_NAMES:
        yield f"uses {node.id}, {FORBIDDEN_NAMES[node.id]}"
    elif node.id in RUNNING_TEXT:
        text = call.args[0] if call and call.args else None
        if not isinstance(text, ast.Constant):
            yield f"uses {node.id} {HIDDEN_CODE}"
        elif isinstance(text.value, str) and (said := forbidden_use(text.value.strip(), is_text=True)):
            yield f"uses {node.id} on a text that {said.split(' ', 2)[2].rstrip('.')}"
        elif isinstance(text.value, str | bytes) and has_imports(text.value, imported):
            yield f"uses {node.id} {TEXT_WITH_IMPORTS}"


def has_imports(text: str | bytes, imported: set[str]) -> bool:
    """Whether a text that is run imports, or uses a name that an import has bound; bytes are not read."""
    if isinstance(text, bytes):
        return True
    try:
        nodes = list(ast.walk(parse(text.strip())))
    except UNREADABLE:
        return False
    return any(isinstance(n, ast.Import | ast.ImportFrom) or getattr(n, "id", "") in imported for n in nodes)


def is_seeded(tree: ast.Module) -> bool:
    """Whether random is seeded, or a generator made, and never without a seed."""
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and last_name(n.func) in GENERATORS]
    return bool(calls) and all(
        last_name(call.func) != "SystemRandom"
        and bool(call.args or call.keywords)
        and not any(isinstance(seed, ast.Constant) and seed.value is None for seed in call.args)
        for call in calls
    )


def modules_in(node: ast.AST) -> Iterator[str]:
    """Outermost modules that a node imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield (node.module or "").partition(".")[0]


def last_name(function: ast.expr) -> str:
    """`f` of f and of a.f, "" of anything else."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def names_bound(tree: ast.AST) -> set[str]:
    """Names that a program gives to something, modules that it imports under their own name left out."""
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
            bound.add(node.name or "")
        elif isinstance(node, ast.alias):
            bound.add(node.asname or "")
    return bound - {""}


def names_read(node: ast.AST) -> Iterator[str]:
    """Names that a node reads, or declares to be another scope's."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        yield node.target.id
    elif isinstance(node, ast.Global | ast.Nonlocal):
        yield from node.names


def reads_unwritten_names(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id in READING_NAMES
    if isinstance(node, ast.Constant):
        text = node.value if isinstance(node.value, str) and "_" in node.value else ""
        return any(name in text for name in READING_ATTRIBUTES if "_" in name)
    if isinstance(node, ast.Import | ast.ImportFrom):
        return not READING_MODULES.isdisjoint(modules_in(node))
    name = getattr(node, "attr", "") or (node.name if isinstance(node, FUNCTIONS) else "")
    return name in READING_ATTRIBUTES


def names_unbound(node: ast.AST) -> Iterator[str]:
    """Names that a node deletes, also at the end of an except clause."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del):
        yield node.id
    elif isinstance(node, ast.ExceptHandler) and node.name:
        yield node.name


def bound_before(statements: list[ast.stmt], unbound: set[str]) -> Iterator[tuple[ast.stmt, frozenset[str]]]:
    """Each statement with the names that those before it have surely bound. unbound: deleted somewhere."""
    bound: frozenset[str] = frozenset()
    for statement in statements:
        yield statement, bound
        if isinstance(statement, ast.Assign):
            bound |= {t.id for t in statement.targets if isinstance(t, ast.Name)} - unbound


def suites_of(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """(node, field that holds statements) of a program, bodies of classes left out."""
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, in_class = waiting.pop()
        in_class = isinstance(node, ast.ClassDef) or (in_class and not isinstance(node, FUNCTIONS))
        for field in ("body", "orelse", "finalbody"):
            if not in_class and isinstance(getattr(node, field, None), list) and getattr(node, field):
                yield node, field
        waiting += [(child, in_class) for child in ast.iter_child_nodes(node)]

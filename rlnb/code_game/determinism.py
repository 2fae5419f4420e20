"""Which programs depend on more than their source: a list of what a program may use, read from its tree.

The game needs programs that print the same everywhere. That is tested: varied interpreters
(rlnb/sandbox/reruns.py) catch what differs from run to run, as the clock, random numbers and the order of
sets. They cannot catch what is equal in all of them, as files, the version of Python and texts of its
library. So imports and attributes of modules come from a list, and what leads from there to other modules,
files, frames or texts of Python is refused by its name. Only written names are read: a program that makes one
up while it runs passes. It gains nothing over a seeded random number, which passes too; it may print
something else elsewhere.
"""

import ast
import importlib
import operator
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from rlnb.source_code.checks import bound_names, imported_names, iterate_scopes, names_in, shown
from rlnb.source_code.extraction import UNREADABLE, parse_program

ALLOWED_MODULES = (
    "__future__", "abc", "array", "base64", "bisect", "calendar", "cmath", "collections", "collections.abc",
    "contextlib", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools", "heapq",
    "io", "itertools", "json", "math", "numbers", "operator", "pprint", "random", "re", "statistics",
    "string", "sys", "textwrap", "typing",
)  # fmt: skip
OUTSIDE = "which reaches out of the program; write what it needs as a constant"
HIDDEN = "which hides what is run or read; write it out at that place"
MACHINE = "which tells of this machine or of its Python; compute from what the program holds"
ADDRESS = "which differs from run to run; compute from the value itself"
STREAMS = ("sys.stderr", "sys.stdout")
NARROW = {
    "io": ("BytesIO", "StringIO"),
    "sys": (
        "exit", "intern", "maxsize", "set_int_max_str_digits", "setrecursionlimit", "stderr", "stdout",
    ),
    **dict.fromkeys(STREAMS, ("flush", "getvalue", "write", "writelines")),
}  # fmt: skip
# Public, and refused: what looks at the machine, or ignores seeds.
WITHHELD = {
    "abc": {"get_cache_token"},
    "calendar": {"LocaleHTMLCalendar", "LocaleTextCalendar"},
    "contextlib": {"chdir"},
    "random": {"SystemRandom"},
}
BUILTINS = {
    **dict.fromkeys(("copyright", "credits", "dir", "globals", "license", "locals", "vars"), MACHINE),
    **dict.fromkeys(("breakpoint", "help", "input", "open"), OUTSIDE),
    **dict.fromkeys(("hash", "id"), ADDRESS),
    **dict.fromkeys(("compile", "eval", "exec"), HIDDEN),
}
# Of frames, and of streams that were replaced.
MACHINERY = ("_getframe", "_old_targets", "f_back", "f_builtins", "f_code", "f_globals", "f_locals")
FRAME_PREFIXES = ("ag_", "cr_", "gi_", "tb_")
DUNDER = re.compile(r"__[^\W_]\w*?__")
# They lead to nothing but what a program holds, or can name.
SPECIAL = (
    "aenter aexit aiter all anext args author await bases bool bytes call cause ceil class class_getitem "
    "closure complex context copy debug deepcopy defaults del delattr delete divmod enter exit float "
    "floor format func future get getattr hash init init_subclass int iter len main members missing "
    "module mro name new next origin post_init qualname rdivmod repr reversed round set set_name setattr "
    "slots str suppress_context trunc version wrapped"
)
OPERATORS = (side + name.rstrip("_") for name in operator.__all__ for side in ("", "r"))
DUNDERS = frozenset(f"__{name}__" for name in (*SPECIAL.split(), *OPERATORS))
READERS = ("attrgetter", "delattr", "getattr", "methodcaller", "setattr")  # they take names as texts


@dataclass(frozen=True)
class ProgramNames:
    """The names of a program."""

    tree: ast.Module

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        return imported_names(self.tree)

    @cached_property
    def bound(self) -> set[str]:
        return bound_names(self.tree)

    def meanings(self, node: ast.Name | ast.Attribute) -> set[str]:
        """Return what a name, or an attribute of one, may mean by the imports, such as {"sys.stdout"}."""
        if isinstance(node, ast.Name):
            return self.imports.get(node.id, set())
        modules = self.imports.get(node.value.id, set()) if isinstance(node.value, ast.Name) else set()
        return {f"{module}.{node.attr}" for module in modules}


def find_forbidden_use(code: str) -> str:
    """Return a sentence on the first use of something outside the program, with a remedy; "" without one.

    code: as `strip_comments` writes it. Nothing is said of texts that are not programs.
    """
    if not (tree := parse_program(code)):
        return ""
    names = ProgramNames(tree)
    faults = [*import_faults(names), *module_faults(names), *name_faults(names)]
    faults += builtin_faults(names, read_globally(code, tree))
    return "Line {} {}.".format(*min(faults)) if faults else ""


def import_faults(names: ProgramNames) -> Iterator[tuple[int, str]]:
    """Yield (line, fault) of each import that is not on the list, or makes an attribute of a class."""
    for node in names.nodes:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        modules = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            modules = ["." * node.level + (node.module or "")]
            refused = [alias.name for alias in node.names if not is_allowed(modules[0], alias.name)]
            for name in refused:
                yield node.lineno, f"imports {shown(name)} from {modules[0]}, {MACHINE}"
        for module in set(modules).difference(ALLOWED_MODULES):
            said = f"imports {shown(module)}, which is none of {', '.join(ALLOWED_MODULES)}"
            yield node.lineno, f"{said}; use one of these or none"
        owner = names.parents[node]
        while not isinstance(owner, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            owner = names.parents[owner]
        if isinstance(owner, ast.ClassDef):
            yield node.lineno, f"imports in a class, {HIDDEN}"


def module_faults(names: ProgramNames) -> Iterator[tuple[int, str]]:
    """Yield (line, fault) of each use of a module other than for its allowed names behind a dot.

    The streams may also be replaced, and given to Python's `print`.
    """
    for node in names.nodes:
        if not isinstance(node, ast.Name | ast.Attribute):
            continue
        for meaning in names.meanings(node) & {*ALLOWED_MODULES, *STREAMS}:
            parent = names.parents[node]
            if isinstance(parent, ast.Attribute):
                attribute = f"{meaning}.{shown(parent.attr)}"
                is_set = not isinstance(parent.ctx, ast.Load) and attribute not in STREAMS
                if is_set or not is_allowed(meaning, parent.attr):
                    yield parent.lineno, f"uses {attribute}, {MACHINE}"
            elif isinstance(node.ctx, ast.Load):
                call = names.parents.get(parent) if getattr(parent, "arg", "") == "file" else None
                is_printed = isinstance(call, ast.Call) and getattr(call.func, "id", "") == "print"
                if meaning not in STREAMS or not is_printed or "print" in names.bound:
                    yield node.lineno, f"uses {meaning} as a value, {HIDDEN}"


def name_faults(names: ProgramNames) -> Iterator[tuple[int, str]]:
    """Yield (line, fault) of each name of Python's own that leads out of the program, also in a text."""
    for node in names.nodes:
        given = [getattr(node, kind, None) for kind in ("id", "name", "arg", "asname", "rest")]
        given += getattr(node, "names", ())
        attributes = [getattr(node, "attr", ""), *getattr(node, "kwd_attrs", ()), *names_in_texts(node)]
        wrong = [name for name in given if isinstance(name, str) and is_special(name)]
        for name in [*wrong, *filter(is_refused, attributes)]:
            yield getattr(node, "lineno", 1), f"uses {shown(name)}, {MACHINE}"


def names_in_texts(node: ast.AST) -> list[str]:
    """Return the attributes that a text reads as a format, or that a call takes as texts."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and "{" in node.value:
        return re.findall(r"\.(\w+)", node.value)
    function = getattr(node, "func", None)
    if getattr(function, "id", getattr(function, "attr", "")) not in READERS:
        return []
    texts = [getattr(argument, "value", None) for argument in getattr(node, "args", ())]
    return [name for text in texts if isinstance(text, str) for name in text.split(".")]


def builtin_faults(names: ProgramNames, read: set[str]) -> Iterator[tuple[int, str]]:
    """Yield (line, fault) of each use of one of BUILTINS. read: see `read_globally`."""
    for node in names.nodes:
        if isinstance(node, ast.Name) and node.id in BUILTINS.keys() & read:
            yield node.lineno, f"uses {node.id}, {BUILTINS[node.id]}"


def read_globally(code: str, tree: ast.Module) -> set[str]:
    """Return the global names of a program that it does not bind outside of functions and classes."""
    try:
        scopes = list(iterate_scopes(code))
    except UNREADABLE:  # it is nested too deeply, or no program
        return names_in(tree)
    symbols = [symbol for scope in scopes for symbol in scope.get_symbols() if symbol.is_global()]
    bound = {each.get_name() for each in scopes[0].get_symbols() if each.is_assigned() or each.is_imported()}
    return {symbol.get_name() for symbol in symbols} - bound


def is_special(name: str) -> bool:
    """Return whether a name of any kind is one of Python's that may lead out of the program."""
    return bool(DUNDER.fullmatch(name)) and name not in DUNDERS


def is_refused(name: str) -> bool:
    """Return whether an attribute of any object is refused."""
    return is_special(name) or name in MACHINERY or name.startswith(FRAME_PREFIXES)


def is_allowed(module: str, name: str) -> bool:
    """Return whether a program may use a name of a module or a stream; "*" for all that are public."""
    if module in NARROW or module not in ALLOWED_MODULES or module == "__future__":
        return name in NARROW.get(module, (name,))
    if name == "*":
        return module not in WITHHELD
    members, withheld = vars(importlib.import_module(module)), WITHHELD.get(module, ())
    is_public = name in members.get("__all__", members) and not name.startswith("_") and name not in withheld
    is_value = is_public and not isinstance(members[name], types.ModuleType)
    return is_value or f"{module}.{name}" in ALLOWED_MODULES

"""Which programs depend on more than their source: a list of what a program may use, read from its tree.

The game needs programs that print the same everywhere. That is tested: varied interpreters
(rlnb/sandbox/reruns.py) catch what differs from run to run, as the clock, random numbers and the order of
sets. They cannot catch what is equal in all of them, as files, the version of Python and texts of its
library. So imports and attributes of modules come from a list, and what leads from there to other modules,
files, frames or texts of Python is refused by name, as is what makes names from data
(rlnb/source_code/reflection.py); the interpreters check the names that Python's library takes from objects. A
program that finds another way gains nothing over a seeded random number, which passes; it may print something
else elsewhere.
"""

import ast
import importlib
import operator
import re
import types
from collections.abc import Iterator
from itertools import chain

from rlnb.source_code.checks import (
    PYTHON,
    imported_names,
    iterate_scopes,
    names_in,
    names_of_python,
    shown,
)
from rlnb.source_code.extraction import UNREADABLE, parse_program
from rlnb.source_code.reflection import HIDDEN, OUTSIDE, PLACES, READERS, ProgramNames

ALLOWED_MODULES = (
    "__future__", "abc", "array", "base64", "bisect", "calendar", "cmath", "collections", "collections.abc",
    "contextlib", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools", "heapq",
    "io", "itertools", "json", "math", "numbers", "operator", "pprint", "random", "re", "statistics",
    "string", "sys", "textwrap", "typing",
)  # fmt: skip
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
# Public, and refused: what evaluates texts, makes classes, reads or sets attributes by name, looks at the
# machine, or ignores seeds.
WITHHELD = {
    "abc": {"ABCMeta", "get_cache_token"},
    "calendar": {"LocaleHTMLCalendar", "LocaleTextCalendar"},
    "contextlib": {"chdir"},
    "dataclasses": {"Field", "fields", "make_dataclass"},
    "enum": {"EnumMeta", "EnumType", "global_enum"},
    "functools": {"singledispatch", "singledispatchmethod", "update_wrapper"},
    "random": {"SystemRandom"},
    "string": {"Formatter"},
    "typing": {"ForwardRef", "evaluate_forward_ref", "get_origin", "get_type_hints"},
}
BUILTINS = {
    **dict.fromkeys(("copyright", "credits", "dir", "globals", "license", "locals", "vars"), MACHINE),
    **dict.fromkeys(("breakpoint", "help", "input", "open"), OUTSIDE),
    **dict.fromkeys(("hash", "id"), ADDRESS),
    **dict.fromkeys(("compile", "eval", "exec"), HIDDEN),
}
# Of frames, and private to classes of the library that take names as texts.
MACHINERY = frozenset((
    "_convert_", "_create_", "_dump_registry", "_evaluate", "_getframe", "_old_targets", "_stream",
    "_vformat", "f_back", "f_builtins", "f_code", "f_globals", "f_locals",
))  # fmt: skip
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
# They lead to an unfinished dataclass, or to the class of its fields: it runs their names as texts.
HOOKS = ("__class__", "__class_getitem__", "__get__", "__init_subclass__", "__origin__", "__set_name__")


def find_forbidden_use(code: str) -> str:
    """Return a sentence on the first use of something outside the program, with a remedy; "" without one.

    code: as `strip_comments` writes it. Nothing is said of texts that are not programs.
    """
    if not (tree := parse_program(code)):
        return ""
    try:
        scopes = list(iterate_scopes(code))
    except UNREADABLE:  # it is nested too deeply, or no program
        scopes = []
    of_python = names_of_python(tree, scopes) if scopes else names_in(tree) & PYTHON
    imports = imported_names(tree)
    has_dataclasses = any(meaning.startswith("dataclasses") for meaning in chain(*imports.values()))
    hooks = HOOKS if has_dataclasses else ()
    names = ProgramNames(tree, imports, of_python, lambda name: is_refused(name) or name in hooks)
    faults = [*import_faults(names), *module_faults(names), *name_faults(names), *names.iterate_hidden()]
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
                if meaning not in STREAMS or not is_printed or "print" in names.bindings:
                    yield node.lineno, f"uses {meaning} as a value, {HIDDEN}"


def name_faults(names: ProgramNames) -> Iterator[tuple[int, str]]:
    """Yield (line, fault) of each name that leads out of the program."""
    hidden = BUILTINS | ({"type": HIDDEN} if names.is_refused("__class__") else {})  # among dataclasses
    for node in names.nodes:
        if is_class_named(node, names):
            continue
        fields = [getattr(node, kind, None) for kind in ("id", "attr", "name", "arg", "asname", "rest")]
        for name in [*fields, *getattr(node, "kwd_attrs", ()), *getattr(node, "names", ())]:
            is_wrong = isinstance(name, str) and names.is_refused(name)
            if is_wrong and (DUNDER.fullmatch(name) or isinstance(node, ast.Attribute | ast.MatchClass)):
                yield getattr(node, "lineno", 1), f"uses {shown(name)}, {MACHINE}"
        declaration = names.parents.get(node)
        is_declared = isinstance(declaration, ast.AnnAssign) and declaration.target is node
        if isinstance(node, ast.Name) and node.id in names.of_python & hidden.keys() and not is_declared:
            yield node.lineno, f"uses {node.id}, {hidden[node.id]}"


def is_class_named(node: ast.AST, names: ProgramNames) -> bool:
    """Return whether a node is `type` or `__class__`, of which only `__name__` or the identity is read."""
    place = names.parents.get(node)
    if getattr(node, "id", "") == "type" and isinstance(place, ast.Call) and place.func is node:
        place = names.parents[place]
    elif getattr(node, "attr", "") != "__class__":
        return False
    is_compared = isinstance(place, ast.Compare) and all(isinstance(o, ast.Is | ast.IsNot) for o in place.ops)
    return is_compared or getattr(place, "attr", "") in ("__name__", "__qualname__")


def is_refused(name: str) -> bool:
    """Return whether an attribute of any object is refused: it may lead out of the program."""
    is_special = bool(DUNDER.fullmatch(name)) and name not in DUNDERS
    return is_special or name in MACHINERY or name.startswith(FRAME_PREFIXES)


def is_allowed(module: str, name: str) -> bool:
    """Return whether a program may use a name of a module or a stream; "*" for all that are public."""
    if module in NARROW or module not in ALLOWED_MODULES or module == "__future__":
        return name in NARROW.get(module, (name,))
    if name == "*":
        return module not in WITHHELD and not any(key.startswith(f"{module}.") for key in (*PLACES, *READERS))
    imported, withheld = importlib.import_module(module), WITHHELD.get(module, ())
    members = getattr(imported, "__all__", vars(imported))  # some of typing's are made on demand
    is_public = name in members and not name.startswith("_") and name not in withheld
    is_value = is_public and not isinstance(getattr(imported, name), types.ModuleType)
    return is_value or f"{module}.{name}" in ALLOWED_MODULES

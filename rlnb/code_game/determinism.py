"""Which programs depend on more than their source: a list of what a program may use, read from its tree.

The varied interpreters (rlnb/sandbox/reruns.py) catch what differs from run to run: the clock, random
numbers, the order of sets. They cannot catch what is equal in all of them: files, the version of Python,
texts of its library. So imports and attributes of modules come from a list, and whatever leads from there
to other modules, files, frames or texts of Python is refused, as is an attribute that only the run names.
"""

import operator

from rlnb.source_code.extraction import parse_program
from rlnb.source_code.reflection import HARMLESS_DUNDERS, HIDDEN, OUTSIDE, WITHHELD, ProgramRules

ALLOWED_MODULES = (
    "__future__", "abc", "array", "base64", "bisect", "calendar", "cmath", "collections", "collections.abc",
    "contextlib", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools", "heapq",
    "io", "itertools", "json", "math", "numbers", "operator", "pprint", "random", "re", "statistics",
    "string", "sys", "textwrap", "typing",
)  # fmt: skip
MACHINE = "which tells of this machine or of its Python; compute from what the program holds"
ADDRESS = "which differs from run to run; compute from the value itself"
OPERATORS = (f"__{side}{name.rstrip('_')}__" for name in operator.__all__ for side in ("", "r"))
RULES = ProgramRules(
    modules=ALLOWED_MODULES,
    narrow={
        "io": ("BytesIO", "StringIO"),
        "sys": (
            "exit", "intern", "maxsize", "set_int_max_str_digits", "setrecursionlimit", "stderr", "stdout",
        ),
        **dict.fromkeys(("sys.stderr", "sys.stdout"), ("flush", "getvalue", "write", "writelines")),
    },
    withheld={**WITHHELD, "operator": set()},  # they may read attributes whose names are written out
    builtins={
        **dict.fromkeys(
            ("__builtins__", "__file__", "__loader__", "__spec__", "copyright", "credits", "dir", "globals",
             "license", "locals", "vars"), MACHINE),
        **dict.fromkeys(("breakpoint", "help", "input", "open"), OUTSIDE),
        **dict.fromkeys(("hash", "id"), ADDRESS),
        **dict.fromkeys(("__import__", "compile", "eval", "exec"), HIDDEN),
    },
    attributes={"__hash__": ADDRESS, "__import__": HIDDEN, "_old_targets": MACHINE},
    # They lead to nothing but what a program holds, or can name.
    dunders=HARMLESS_DUNDERS.union(OPERATORS, (
        "__aenter__", "__aexit__", "__aiter__", "__anext__", "__args__", "__await__", "__bases__", "__bool__",
        "__bytes__", "__call__", "__cause__", "__ceil__", "__class__", "__class_getitem__", "__closure__",
        "__complex__", "__context__", "__copy__", "__debug__", "__deepcopy__", "__defaults__", "__del__",
        "__delattr__", "__delete__", "__divmod__", "__enter__", "__exit__", "__float__", "__floor__",
        "__format__", "__func__", "__get__", "__init_subclass__", "__int__", "__iter__", "__len__",
        "__members__", "__missing__", "__module__", "__mro__", "__new__", "__next__", "__origin__",
        "__qualname__", "__rdivmod__", "__repr__", "__reversed__", "__round__", "__set__", "__set_name__",
        "__setattr__", "__str__", "__suppress_context__", "__trunc__", "__wrapped__",
    )),
    reason=MACHINE,
)  # fmt: skip


def find_forbidden_use(code: str) -> str:
    """Return a sentence on the first use of something outside the program, with a remedy; "" without one.

    code: as `strip_comments` writes it. Nothing is said of texts that are not programs.
    """
    tree = parse_program(code)
    return RULES.find_fault(tree, code) if tree else ""

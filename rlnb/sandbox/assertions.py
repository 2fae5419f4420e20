"""What tests may say. They come with data, which others write, and run in this process.

A test is made of asserts and the plain statements around them, calls, literals, builtins that neither read
nor write anything outside, and the modules' members listed here. That is checked on its syntax tree. It then
runs with these builtins and members alone: the modules themselves, the environment and files are not there.
"""

import ast
import builtins
import cmath
import functools
import importlib.util
import itertools
import math
import re
import warnings
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from types import CodeType, SimpleNamespace

BUILTINS: tuple[Callable[..., object], ...] = (
    abs, all, any, ascii, bin, bool, bytearray, bytes, callable, chr, complex, dict, divmod, enumerate,
    filter, float, format, frozenset, hash, hex, int, isinstance, issubclass, iter, len, list, map, max, min,
    next, oct, ord, pow, range, repr, reversed, round, set, slice, sorted, str, sum, tuple, type, zip,
    *(each for each in vars(builtins).values() if isinstance(each, type) and issubclass(each, Exception)),
)  # fmt: skip
LISTED = {
    "cmath": [name for name in dir(cmath) if name[0] != "_"],
    "collections": ["Counter", "OrderedDict", "defaultdict", "deque"],
    "copy": ["copy", "deepcopy"],
    "datetime": ["date", "datetime", "time", "timedelta", "timezone"],
    "decimal": ["Decimal"],
    "fractions": ["Fraction"],
    "functools": ["cmp_to_key", "reduce"],
    "itertools": [name for name in dir(itertools) if name[0] != "_"],
    "math": [name for name in dir(math) if name[0] != "_"],
    "numpy": ["allclose", "array", "array_equal", "isclose"],
    "pytest": ["approx", "raises"],
    "re": ["compile", "escape", "findall", "finditer", "fullmatch", "match", "search", "split", "sub"],
    "string": ["ascii_letters", "ascii_lowercase", "ascii_uppercase", "digits", "punctuation"],
    "sys": ["getsizeof", "maxsize"],
}
MODULES = {name: members for name, members in LISTED.items() if importlib.util.find_spec(name)}  # pytest?
TYPES = (bytes, dict, float, frozenset, complex, int, list, set, str, tuple, re.Match, re.Pattern, Counter,
         OrderedDict, deque, date, datetime, time, timedelta, Decimal, Fraction)  # fmt: skip
# `format` of a text reads attributes of any name.
ATTRIBUTES = {name for kind in TYPES for name in dir(kind) if name[0] != "_"} - {"format", "format_map"}
ATTRIBUTES |= {name for members in MODULES.values() for name in members}
NODES = (
    # Statements
    ast.Assert, ast.Assign, ast.AugAssign, ast.Expr, ast.For, ast.FunctionDef, ast.If, ast.Import,
    ast.ImportFrom, ast.Pass, ast.Raise, ast.Return, ast.Try, ast.With,
    # Expressions
    ast.Attribute, ast.BinOp, ast.BoolOp, ast.Call, ast.Compare, ast.Constant, ast.Dict, ast.DictComp,
    ast.FormattedValue, ast.GeneratorExp, ast.IfExp, ast.JoinedStr, ast.Lambda, ast.List, ast.ListComp,
    ast.Name, ast.Set, ast.SetComp, ast.Slice, ast.Starred, ast.Subscript, ast.Tuple, ast.UnaryOp,
    # Parts of them
    ast.Module, ast.alias, ast.arg, ast.arguments, ast.boolop, ast.cmpop, ast.comprehension,
    ast.ExceptHandler, ast.expr_context, ast.keyword, ast.operator, ast.unaryop, ast.withitem,
)  # fmt: skip


def import_listed(name: str, *_: object) -> SimpleNamespace:
    """Return the listed members of a module in place of the module."""
    members = MODULES[name]
    module = importlib.import_module(name)
    return SimpleNamespace(**{member: getattr(module, member) for member in members})


def plain_type(value: object) -> type:
    """Return the type of plain data. Those of classes and modules make objects with any attributes."""
    if (kind := type(value)) in KINDS:
        return kind
    raise TypeError(f"a test may ask for types of plain data alone, not for that of {kind.__name__}")


KINDS = frozenset((*TYPES, type(None), *(each for each in BUILTINS if isinstance(each, type)))) - {type}
# The builtins of tests.
PLACE: dict[str, object] = {
    **{each.__name__: each for each in BUILTINS},
    "type": plain_type,
    "__import__": import_listed,
}


@functools.cache
def compile_test(source: str, functions: frozenset[str] = frozenset()) -> CodeType:
    """Return the code of a test, or of its imports. functions: the names that the program defines.

    As it is written: PYTHONOPTIMIZE would leave out its asserts. Raises ValueError with what is not listed,
    and SyntaxError.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # doubtful escapes
        tree = ast.parse(source)
        nodes = list(ast.walk(tree))
        given = functions | {node.arg for node in nodes if isinstance(node, ast.arg)}
        given |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        for node in nodes:
            if unlisted := find_unlisted(node, given):
                raise ValueError(f"{unlisted} is not on the list of what a test may use")
        return compile(tree, "<test>", "exec", dont_inherit=True, optimize=0)


def find_unlisted(node: ast.AST, given: frozenset[str]) -> str:
    """Return what a node says that is not listed, "" where all is. given: names that are defined."""
    if not isinstance(node, NODES):
        return type(node).__name__
    names: list[str | None] = [getattr(node, field, None) for field in ("name", "asname", "arg", "id")]
    private = [name for name in names if isinstance(name, str) and name.startswith("__")]
    match node:
        case ast.Attribute(attr=name, ctx=ast.Load()) if name in ATTRIBUTES:
            return ""
        case ast.Attribute(attr=name):
            return f".{name}"
        case ast.Name(id=name) if name in dir(builtins) and name not in {*PLACE, *given}:
            return name
        case ast.Import(names=aliases):
            unknown = [f"import {alias.name}" for alias in aliases if alias.name not in MODULES]
            return ", ".join(unknown)
        case ast.ImportFrom(module=module, names=aliases):
            known = {"*", *MODULES.get(module or "", ())}
            unknown = [alias.name for alias in aliases if module not in MODULES or alias.name not in known]
            return f"from {module} import {', '.join(unknown)}" if unknown else ""
    return private[0] if private else ""

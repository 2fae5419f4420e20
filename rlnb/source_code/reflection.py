"""Find what leads out of a program: attributes of Python's own machinery, and names built at run time.

Strategies for 2048 and programs of the code game are both checked for these. Nothing is run.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from string import Formatter

DUNDER = re.compile(r"__[^\W_]\w*?__")
FRAME_PREFIXES = ("ag_", "cr_", "gi_", "tb_")
FRAMES = frozenset(("_getframe", "f_back", "f_builtins", "f_code", "f_globals", "f_locals"))
# Dunder names that reveal nothing of Python's machinery. All others are refused.
HARMLESS_DUNDERS = frozenset(("__init__", "__main__", "__name__", "__post_init__", "__slots__"))
# Public in allowed modules, and refused: what evaluates text, reads attributes by name, or ignores seeds.
WITHHELD = {
    "dataclasses": {"make_dataclass"},
    "functools": {"singledispatch", "singledispatchmethod"},
    "operator": {"attrgetter", "methodcaller"},
    "random": {"SystemRandom"},
    "string": {"Formatter"},
    "typing": {"ForwardRef", "evaluate_forward_ref", "get_type_hints"},
}
# What reads attributes by name, and which of its arguments are names.
READERS = {"attrgetter": slice(0, None), "getattr": slice(1, 2), "methodcaller": slice(0, 1)}
FORMATS = frozenset(("format", "format_map"))
FIELD_ATTRIBUTE = re.compile(r"\.([^\W\d]\w*)")


def leads_out(name: str, harmless: frozenset[str]) -> bool:
    """Return whether an attribute leads out of the program. harmless: the dunders that do not."""
    is_frame = name in FRAMES or name.startswith(FRAME_PREFIXES)
    return is_frame or bool(DUNDER.fullmatch(name)) and name not in harmless


def dunder_in(text: object, harmless: frozenset[str]) -> str:
    """Return the first dunder in a text that is not harmless, "" where there is none."""
    dunders = DUNDER.findall(text) if isinstance(text, str) else []
    return next((name for name in dunders if name not in harmless), "")


def made_up_reads(tree: ast.AST, is_refused: Callable[[str], object]) -> Iterator[tuple[ast.expr, str]]:
    """Yield (node, name) for each use of READERS and FORMATS whose text is not written out, or is refused.

    A template of format may also be a name that is assigned once, to a text that is written out.
    """
    nodes = list(ast.walk(tree))
    texts = names_of_texts(nodes)
    calls = {id(node.func): node for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        if not isinstance(node, ast.Name | ast.Attribute):
            continue
        name = node.attr if isinstance(node, ast.Attribute) else node.id
        arguments = calls[id(node)].args if id(node) in calls else []
        is_template = name in FORMATS and isinstance(node, ast.Attribute)
        if isinstance(node, ast.Attribute) and is_template:
            is_function = isinstance(node.value, ast.Name) and node.value.id == "str"
            named = arguments[:1] if is_function else [node.value]
            named = [texts.get(n.id, n) if isinstance(n, ast.Name) else n for n in named]
        elif name in READERS:
            named = arguments[READERS[name]]
        else:
            continue
        if not named or not all(is_harmless_text(n, is_refused, is_template=is_template) for n in named):
            yield node, name


def is_harmless_text(node: ast.expr, is_refused: Callable[[str], object], *, is_template: bool) -> bool:
    """Return whether an expression is a text that is written out and names no refused attribute."""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return False
    try:
        fields = [part[1] or "" for part in Formatter().parse(node.value)] if is_template else []
    except ValueError:  # half a template
        return False
    names = [name for text in fields for name in FIELD_ATTRIBUTE.findall(text)]
    return not any(map(is_refused, names if is_template else node.value.split(".")))


def names_of_texts(nodes: list[ast.AST]) -> dict[str, ast.expr]:
    """Return {name: constant} of the names that are bound once, to a constant."""
    bound = Counter(n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load))
    for field in ("arg", "name", "asname", "rest"):  # arguments, functions, imports, patterns
        bound.update(name for node in nodes if isinstance(name := getattr(node, field, None), str))
    return {
        target.id: node.value
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and bound[target.id] == 1
    }

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
READERS = frozenset(("attrgetter", "getattr", "methodcaller"))  # of attributes, by name
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
    written_out = set()
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        is_template = isinstance(call.func, ast.Attribute) and call.func.attr in FORMATS
        named = named_in(call)
        if is_template:
            named = [texts.get(n.id, n) if isinstance(n, ast.Name) else n for n in named]
        if named and all(is_harmless_text(n, is_refused, is_template=is_template) for n in named):
            written_out.add(id(call.func))
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in FORMATS:
            is_harmless = is_harmless_text(node.value, is_refused, is_template=True)  # also where not called
            if not is_harmless and id(node) not in written_out:
                yield node, node.attr
        elif isinstance(node, ast.Name | ast.Attribute) and id(node) not in written_out:
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            if name in READERS:
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


def named_in(call: ast.Call) -> list[ast.expr]:
    """Return the arguments of a call that name attributes, or its template; [] for other calls."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if name in FORMATS and isinstance(call.func, ast.Attribute):
        is_function = isinstance(call.func.value, ast.Name) and call.func.value.id == "str"
        return call.args[:1] if is_function else [call.func.value]
    places = {"getattr": slice(1, 2), "methodcaller": slice(0, 1), "attrgetter": slice(0, None)}
    return call.args[places[name]] if name in places else []


def names_of_texts(nodes: list[ast.AST]) -> dict[str, ast.expr]:
    """Return {name: constant} of the names that are bound once, to a constant."""
    bound = Counter(n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load))
    bound.update(value for n in nodes for value in names_given(n))
    texts: dict[str, ast.expr] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            texts |= {t.id: node.value for t in node.targets if isinstance(t, ast.Name) and bound[t.id] == 1}
    return texts


def names_given(node: ast.AST) -> Iterator[str]:
    """Yield names that a node binds other than by a `Name`: arguments, functions, imports, patterns."""
    for field in ("arg", "name", "asname", "rest"):
        value = getattr(node, field, None)
        if isinstance(value, str):
            yield value

"""Where a program turns data into names, read from its syntax tree; nothing is run.

A rule about the names in a program holds only while the run makes up no others. So what takes a name as a
text gets it written out, classes come from class statements, and what runs texts or copies attributes has its
place. Python is too rich for a proof: this closes the ways that are known, and nothing may rest on it alone.
"""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from rlnb.source_code.checks import PYTHON, count_bindings

OUTSIDE = "which reaches out of the program; write what it needs as a constant"
HIDDEN = "which hides what is run or read; write it out at that place"
# What takes names as texts, and which of its arguments they are.
READERS = {
    **dict.fromkeys(("delattr", "getattr", "setattr"), slice(1, 2)),
    **dict.fromkeys(("object.__delattr__", "object.__setattr__"), slice(1, 2)),
    "operator.attrgetter": slice(0, None),
    "operator.methodcaller": slice(0, 1),
}
# Methods that do the same. Where a text or a pattern names one, nothing is known of its arguments.
METHODS = frozenset(("__delattr__", "__setattr__", "format", "format_map"))
# What makes classes, runs texts or copies attributes by name, and its only place.
PLACES = {
    "contextlib.redirect_stderr": "other than in a with statement",
    "contextlib.redirect_stdout": "other than in a with statement",
    "dataclasses.dataclass": "other than as the only decorator of a class statement without bases",
    "functools.wraps": "other than with one argument",
    "type": "other than with one argument",
}
IDENTIFIER = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True)
class ProgramNames:
    """The names of a program.

    imports: what imports may have made them, such as {"m": {"math"}, "out": {"sys.stdout"}}. of_python: those
    that may be read from Python's builtins. is_refused: whether an attribute of any object is.
    """

    tree: ast.Module
    imports: dict[str, set[str]]
    of_python: set[str]
    is_refused: Callable[[str], bool]

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}

    @cached_property
    def bindings(self) -> dict[str, int]:
        return count_bindings(self.tree)

    @cached_property
    def constants(self) -> dict[str, ast.expr]:
        """The names that are bound once, to a constant."""
        assigned = (n for n in self.nodes if isinstance(n, ast.Assign) and isinstance(n.value, ast.Constant))
        pairs = ((getattr(target, "id", ""), node.value) for node in assigned for target in node.targets)
        return {name: value for name, value in pairs if self.bindings.get(name) == 1}

    def meanings(self, node: ast.AST) -> set[str]:
        """Return what a name, or an attribute of a module, may be, such as {"math.pi"} or {"getattr"}."""
        suffix = ""
        while isinstance(node, ast.Attribute) and suffix.count(".") < 3:
            suffix = f".{node.attr}{suffix}"
            node = node.value
        name = node.id if isinstance(node, ast.Name) else ""
        return {each + suffix for each in self.imports.get(name, set()) | {name} & self.of_python}

    def iterate_hidden(self) -> Iterator[tuple[int, str]]:
        """Yield (line, fault) of what may make names from data."""
        for node in self.nodes:
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                parent, meanings = self.parents[node], self.meanings(node)
                call = parent if isinstance(parent, ast.Call) and parent.func is node else None
                for meaning in meanings & PLACES.keys():
                    if not self.is_in_place(meaning, node, call):
                        yield node.lineno, f"uses {meaning} {PLACES[meaning]}, {HIDDEN}"
                if not self.is_written_out(node, meanings, call.args if call else []):
                    name = getattr(node, "attr", getattr(node, "id", ""))
                    yield node.lineno, f"uses {name} on a made-up text, {HIDDEN}"
            elif isinstance(node, ast.MatchClass):
                name = getattr(node.cls, "id", "")
                if node.patterns and (name not in PYTHON or name in self.bindings):
                    yield node.lineno, f"matches attributes by their order, {HIDDEN}"
                if named := METHODS.intersection(node.kwd_attrs):
                    yield node.lineno, f"matches {min(named)}, {HIDDEN}"
            elif isinstance(node, ast.ClassDef) and {k.arg for k in node.keywords} & {None, "metaclass"}:
                yield node.lineno, f"has a metaclass, {HIDDEN}"

    def is_in_place(self, meaning: str, node: ast.expr, call: ast.Call | None) -> bool:
        """Return whether one of PLACES is used in its place. call: of the node, if it is called."""
        place = self.parents[call or node]
        if meaning.startswith("contextlib."):
            return isinstance(place, ast.withitem)
        if isinstance(place, ast.ClassDef):
            is_alone = place.decorator_list == [call or node] and not place.bases
            return is_alone and meaning == "dataclasses.dataclass"
        if meaning == "type" and not call:
            return not isinstance(place, ast.Attribute)
        if not call or call.keywords or meaning == "dataclasses.dataclass":
            return False
        return [isinstance(argument, ast.Starred) for argument in call.args] == [False]

    def is_written_out(
        self, node: ast.Name | ast.Attribute, meanings: set[str], arguments: list[ast.expr]
    ) -> bool:
        """Return whether the names that a use takes as texts are written out, and none is refused."""
        attribute, positions = getattr(node, "attr", ""), [READERS[m] for m in meanings & READERS.keys()]
        if attribute in ("format", "format_map"):
            positions, template = [slice(0, 1)], getattr(node, "value", node)
            arguments = arguments if getattr(template, "id", "") == "str" else [template]
            arguments = [self.constants.get(getattr(text, "id", ""), text) for text in arguments[:1]]
        elif attribute in ("__delattr__", "__setattr__") and not positions:
            positions = [slice(0, 1)]
        for named in positions:
            texts = [getattr(argument, "value", None) for argument in arguments[named]]
            if not texts or any(isinstance(argument, ast.Starred) for argument in arguments[: named.stop]):
                return False
            names = list(chain.from_iterable(IDENTIFIER.findall(t) for t in texts if isinstance(t, str)))
            if not all(isinstance(text, str) for text in texts) or any(map(self.is_refused, names)):
                return False
            if attribute not in METHODS and METHODS.intersection(names):
                return False
        return True

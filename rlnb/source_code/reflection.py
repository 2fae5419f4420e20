"""What a program may use of Python, read from its syntax tree; nothing is run.

Strategies for 2048 and programs of the code game are both checked, each by rules of its own: imports and
attributes of modules come from a list, and what leads from there to other modules, files, frames or texts of
Python is refused, as is an attribute or a template that only the run makes up.
"""

import ast
import importlib
import re
import types
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from string import Formatter

from rlnb.source_code.checks import FUNCTIONS, bound_names, iterate_scopes, names_in, shown
from rlnb.source_code.extraction import UNREADABLE

DUNDER = re.compile(r"__[^\W_]\w*?__")
FRAME_PREFIXES = ("ag_", "cr_", "gi_", "tb_")
FRAMES = frozenset(("_getframe", "f_back", "f_builtins", "f_code", "f_globals", "f_locals"))
# Dunder names that reveal nothing of Python's machinery. All others are refused unless the rules allow them.
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
OUTSIDE = "which reaches out of the program; write what it needs as a constant"
HIDDEN = "which hides what is run or read; write it out at that place"


@dataclass(frozen=True)
class ProgramRules:
    """What programs may use.

    modules: those that may be imported. given: those that are there without. narrow: {module, or object in
    one: its only names}. withheld: {module: names that it has, but not for programs}. builtins, attributes:
    {refused name: why}. dunders: those that are not refused. reason: why anything else is refused.
    modules_are_values: a module may be used without a dot, but not be changed.
    """

    modules: tuple[str, ...]
    builtins: Mapping[str, str]
    attributes: Mapping[str, str]
    reason: str
    dunders: frozenset[str] = HARMLESS_DUNDERS
    withheld: Mapping[str, set[str]] = field(default_factory=lambda: WITHHELD)
    narrow: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    given: tuple[str, ...] = ()
    modules_are_values: bool = False

    def find_fault(self, tree: ast.Module, code: str) -> str:
        """Return a sentence on the first refused use, with a remedy; "" without one. tree: of `code`."""
        nodes = list(ast.walk(tree))
        names = names_of_python(tree, code)
        faults = [*self.import_faults(nodes), *self.module_faults(tree), *self.name_faults(nodes, names)]
        return "Line {} {}.".format(*min(faults)) if faults else ""

    def import_faults(self, nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
        """Yield (line, fault) of each import that is not on the list, or makes an attribute of a class."""
        in_classes = {id(n) for node in nodes if isinstance(node, ast.ClassDef) for n in ast.walk(node)}
        for node in nodes:
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            modules = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                modules = ["." * node.level + (node.module or "")]
                for alias in node.names:
                    is_renamed_reader = alias.name in READERS and alias.asname not in (None, alias.name)
                    if self.is_withheld(modules[0], alias.name) or is_renamed_reader:
                        yield node.lineno, f"imports {shown(alias.name)} from {modules[0]}, {self.reason}"
            for module in set(modules).difference(self.modules):
                allowed = ", ".join(self.modules)
                yield (
                    node.lineno,
                    f"imports {shown(module)}, which is none of {allowed}; use one of these or none",
                )
            if id(node) in in_classes and not self.modules_are_values:
                yield node.lineno, f"imports in a class, {HIDDEN}"

    def module_faults(self, tree: ast.Module) -> Iterator[tuple[int, str]]:
        """Yield (line, fault) of each use of a module other than for its allowed names behind a dot.

        Objects of `narrow`, such as sys.stdout, may also be replaced, and given to Python's `print`.
        """
        nodes = list(ast.walk(tree))
        imports = {name: {name} for name in self.given} | imported_names(nodes)
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
            for name in sorted({*self.modules, *self.narrow} & {meaning + suffix for meaning in meanings}):
                is_changed = isinstance(parent, ast.Attribute) and not isinstance(parent.ctx, ast.Load)
                if isinstance(parent, ast.Attribute) and self.is_withheld(name, parent.attr):
                    yield node.lineno, f"uses {name}.{shown(parent.attr)}, {self.reason}"
                elif self.modules_are_values and is_changed:
                    yield node.lineno, f"changes {name}, which is not the program's own"
                elif self.modules_are_values or isinstance(parent, ast.Attribute):
                    continue
                elif isinstance(node.ctx, ast.Load) and (name in self.modules or id(node) not in files):
                    yield node.lineno, f"uses {name} as a value, {HIDDEN}"

    def name_faults(self, nodes: list[ast.AST], names: set[str]) -> Iterator[tuple[int, str]]:
        """Yield (line, fault) of builtins among `names`, and attributes and texts that lead out."""
        made_up = {id(node): name for node, name in self.made_up_reads(nodes)}
        docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if not isinstance(node, ast.Name | ast.Attribute | ast.Constant | ast.MatchClass):
                continue
            name = node.id if isinstance(node, ast.Name) else ""
            if name in names and name in self.builtins:
                yield node.lineno, f"uses {name}, {self.builtins[name]}"
            if id(node) in made_up and (name != "getattr" or name in names):
                yield node.lineno, f"uses {made_up[id(node)]} on a made-up text, {HIDDEN}"
            attributes = [node.attr] if isinstance(node, ast.Attribute) else getattr(node, "kwd_attrs", [])
            for attribute in filter(self.is_refused, attributes):
                yield node.lineno, f"uses {shown(attribute)}, {self.attributes.get(attribute, self.reason)}"
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                for dunder in [name for name in DUNDER.findall(node.value) if name not in self.dunders][:1]:
                    reason = self.attributes.get(dunder, self.reason)
                    yield node.lineno, f"has {shown(dunder)} in a text, {reason}"

    def is_refused(self, name: str) -> bool:
        """Return whether an attribute of any object is refused."""
        is_frame = name in FRAMES or name.startswith(FRAME_PREFIXES)
        is_dunder = bool(DUNDER.fullmatch(name)) and name not in self.dunders
        return is_frame or is_dunder or name in self.attributes

    def is_withheld(self, module: str, name: str) -> bool:
        """Return whether a name of an allowed module is another module, private, or withheld."""
        if module in self.narrow:
            return name not in self.narrow[module]
        if module not in self.modules or f"{module}.{name}" in self.modules or module == "__future__":
            return False
        if name in self.withheld.get(module, set()) or name == "*" and module in self.withheld:
            return True
        value = vars(importlib.import_module(module)).get(name)
        return name.startswith("_") or isinstance(value, types.ModuleType)

    def made_up_reads(self, nodes: list[ast.AST]) -> Iterator[tuple[ast.expr, str]]:
        """Yield (node, name) of uses of READERS and FORMATS whose text is not written out, or is refused.

        A template of format may also be a name that is assigned once, to a text that is written out.
        """
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
            if not named or not all(self.is_harmless_text(n, is_template=is_template) for n in named):
                yield node, name

    def is_harmless_text(self, node: ast.expr, *, is_template: bool) -> bool:
        """Return whether an expression is a text that is written out and names no refused attribute."""
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            return False
        try:
            fields = [part[1] or "" for part in Formatter().parse(node.value)] if is_template else []
        except ValueError:  # half a template
            return False
        names = [name for text in fields for name in FIELD_ATTRIBUTE.findall(text)]
        return not any(map(self.is_refused, names if is_template else node.value.split(".")))


def names_of_texts(nodes: list[ast.AST]) -> dict[str, ast.expr]:
    """Return {name: constant} of the names that are bound once, to a constant."""
    bound = Counter(n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load))
    for kind in ("arg", "name", "asname", "rest"):  # arguments, functions, imports, patterns
        bound.update(name for node in nodes if isinstance(name := getattr(node, kind, None), str))
    return {
        target.id: node.value
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and bound[target.id] == 1
    }


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
        scopes = list(iterate_scopes(code))
    except UNREADABLE:
        return names_in(tree)
    for scope in scopes:
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

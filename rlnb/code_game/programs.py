"""What the code game reads from a program's syntax tree: it is never run here.

A text that is not a program, is longer than LONGEST_PROGRAM or is nested too deeply has no tree; then the
answers are None, "", False or ().
"""

import ast
import builtins
import random
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from rlnb.code_game.prediction import normalise_output
from rlnb.source_code.checks import FUNCTIONS, LONGEST_PROGRAM, bound_names, names_in
from rlnb.source_code.extraction import UNREADABLE, parse


def parse_program(code: str) -> ast.Module | None:
    """Return the syntax tree, None where there is none."""
    try:
        return parse(code) if len(code) <= LONGEST_PROGRAM else None
    except UNREADABLE:
        return None


def strip_comments(code: str) -> str | None:
    """Return the program as code alone, None where it cannot be read or written again.

    Dropped: comments, layout, docstrings and other bare constants (a body that becomes empty gets `pass`),
    annotations with text in them, and messages of asserts where nothing could catch them.
    """
    tree = parse_program(code)
    if tree is None:
        return None
    nodes = list(ast.walk(tree))
    may_catch = any(isinstance(node, ast.ExceptHandler | ast.With | ast.AsyncWith) for node in nodes)
    for node in nodes:
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list) and statements:
                setattr(node, field, [s for s in statements if not is_bare_constant(s)] or [ast.Pass()])
        if isinstance(node, ast.AnnAssign) and holds_text(node.annotation):
            node.annotation = ast.Constant(None)  # it also declares: a field of a dataclass, a local name
        elif isinstance(node, ast.arg) and holds_text(node.annotation):
            node.annotation = None
        elif isinstance(node, FUNCTIONS) and holds_text(node.returns):
            node.returns = None
        elif isinstance(node, ast.Assert) and not may_catch:
            node.msg = None
    try:
        written = ast.unparse(tree)
        # Python up to 3.11 writes some nested f-strings such that they are read differently.
        return written if ast.dump(parse(written)) == ast.dump(tree) else None
    except UNREADABLE:
        return None


def is_bare_constant(statement: ast.stmt) -> bool:
    """Return whether a statement is a docstring or another constant, alone or in tuples and lists."""
    constants = (ast.Constant, ast.JoinedStr, ast.List, ast.Load, ast.Tuple)
    if not isinstance(statement, ast.Expr):
        return False
    return all(isinstance(node, constants) for node in ast.walk(statement.value))


def holds_text(annotation: ast.expr | None) -> bool:
    """Return whether an annotation holds text and calls nothing, so that it may go."""
    nodes = list(ast.walk(annotation)) if annotation else []
    has_text = any(isinstance(n, ast.Constant) and isinstance(n.value, str | bytes) for n in nodes)
    return has_text and not any(isinstance(n, ast.Call | ast.NamedExpr | ast.Await) for n in nodes)


# Nodes of a program that computes nothing: literals and names, printed, under names, in functions of its own.
PLAIN = (
    ast.AnnAssign, ast.Assign, ast.Constant, ast.Dict, ast.Expr, ast.FunctionDef, ast.Import, ast.ImportFrom,
    ast.JoinedStr, ast.List, ast.Module, ast.Name, ast.Pass, ast.Return, ast.Set, ast.Starred, ast.Tuple,
    ast.USub, ast.alias, ast.arg, ast.arguments, ast.expr_context, ast.keyword,
)  # fmt: skip


@lru_cache(maxsize=4096)
def is_trivial(code: str) -> bool:
    """Return whether a program computes nothing: it names literals, and prints literals and names.

    f-strings of names, negative numbers, calls of functions of its own that do no more, and the guard of
    `__main__` do not count as computation.
    """
    tree = parse_program(code)
    if tree is None:
        return False
    body: list[ast.stmt] = []
    for statement in tree.body:
        if isinstance(statement, ast.If) and names_in(statement.test) == {"__name__"}:
            body += statement.body + statement.orelse
        else:
            body.append(statement)
    callable_names = {"print"} | {statement.name for statement in body if isinstance(statement, FUNCTIONS)}

    def is_plain(node: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            return getattr(node.func, "id", "") in callable_names
        if isinstance(node, ast.UnaryOp):
            return isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)
        if isinstance(node, ast.FormattedValue):
            return node.format_spec is None
        return isinstance(node, PLAIN)

    return all(is_plain(node) for statement in body for node in ast.walk(statement))


@lru_cache(maxsize=4096)
def is_echo(code: str, output: str) -> bool:
    """Return whether the output stands in the code, as a whole piece of its source or of a text in it.

    3 is not a whole piece of 13, x3 or 3.5, nor `gar` of 'garden'. Comments do not count.
    """
    source, output = strip_comments(code) or "", normalise_output(output)
    tree = parse_program(source)
    if tree is None or not output.strip():
        return False
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    before = r"(?<!\w)(?<!\d\.)" if re.match(r"\w|-\d", output) else ""
    after = r"(?!\w)(?!\.\d)" if re.match(r"\w", output[-1]) else ""
    piece = re.compile(before + re.escape(output) + after)
    return any(len(output) <= len(text) and piece.search(text) for text in [source, *texts])


@lru_cache(maxsize=4096)
def program_shape(code: str) -> str:
    """Return the program's tree with its constants and its own names masked, "" where there is none.

    Programs of one shape differ in these alone. Builtins, modules, attributes, True, False and None stay.
    """
    source = strip_comments(code)
    tree = parse_program(source) if source else None
    if tree is None:
        return ""
    numbers: dict[str, str] = {}
    own_names = bound_names(tree)
    try:
        for node in ast.walk(ConstantsMasked().visit(tree)):
            for field in ("id", "arg", "name", "asname", "rest"):
                name = getattr(node, field, None)
                if name in own_names and not isinstance(node, ast.alias) or field == "asname" and name:
                    setattr(node, field, numbers.setdefault(str(name), f"name{len(numbers)}"))
            if isinstance(node, ast.Global | ast.Nonlocal):
                node.names = [numbers.setdefault(name, f"name{len(numbers)}") for name in node.names]
        return ast.dump(tree)
    except UNREADABLE:
        return ""


class ConstantsMasked(ast.NodeTransformer):
    """Replaces constants by the names of their types; the sign of a number is a part of it."""

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        is_masked = type(node.value) in (int, float, complex, str, bytes)
        return ast.Constant(type(node.value).__name__) if is_masked else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        is_negative = isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)
        return self.visit(node.operand) if is_negative else self.generic_visit(node)


# Tags of nodes (see `tags_of`) that show a construct. + and * are arithmetic unless a side is a literal text.
CONSTRUCTS: Mapping[str, frozenset[str]] = {
    name: frozenset(tags.split())
    for name, tags in {
        "trivial": "",  # of whole programs: `is_trivial`
        "arithmetic": "+Add +Sub +Mult +MatMult +LShift +RShift +BitAnd +BitOr +BitXor",
        "powers": "+Pow pow()",
        "division": "+Div +FloorDiv +Mod divmod()",
        "indexing": "Subscript",
        "loops": "For AsyncFor While",
        "comprehensions": "ListComp SetComp DictComp GeneratorExp",
        "functions": "FunctionDef AsyncFunctionDef Lambda",
        "recursion": "recursion",
        "methods": "method()",
        "strings": "text JoinedStr str()",
        "lists": "List ListComp list()",
        "conditions": "If IfExp Compare BoolOp Match",
        "builtins": " ".join(
            f"{name}()" for name in {*dir(builtins)} - {"print", "range", "pow", "divmod", "list", "str"}
        ),
    }.items()
}


@lru_cache(maxsize=4096)
def find_constructs(code: str) -> tuple[str, ...]:
    """Return those of CONSTRUCTS that a program shows, in their order."""
    tree = parse_program(code)
    tags = {tag for node in ast.walk(tree) for tag in tags_of(node)} if tree else set()
    is_shown = {name: bool(shown_by & tags) for name, shown_by in CONSTRUCTS.items()}
    is_shown["trivial"] = is_trivial(code)
    return tuple(name for name in CONSTRUCTS if is_shown[name])


def tags_of(node: ast.AST) -> Iterator[str]:
    """Yield the kind of a node, +Operator, function() and what else says which construct it shows."""
    yield type(node).__name__
    if isinstance(node, ast.Call):
        yield "method()" if isinstance(node.func, ast.Attribute) else f"{getattr(node.func, 'id', '')}()"
    elif isinstance(node, ast.BinOp | ast.AugAssign):
        sides = [getattr(node, field, None) for field in ("left", "right", "value")]
        has_text_side = any(isinstance(getattr(side, "value", None), str) for side in sides)
        yield "text" if has_text_side else f"+{type(node.op).__name__}"
    elif isinstance(getattr(node, "value", None), str):
        yield "text"
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
        if any(names_in(target) & names_in(node.value) for target in node.targets):
            yield "recursion"
    elif isinstance(node, FUNCTIONS) and any(node.name in names_in(inner) for inner in node.body):
        yield "recursion"


# Mutants: programs near a program, whose outputs are wrong answers that look like the right one.

Edit = tuple[ast.AST, dict[str, object]]  # a node, and new values of its fields
# Operators that may replace an operator. None becomes a power, which could take minutes.
OPERATORS: Mapping[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Add: (ast.Sub, ast.Mult), ast.Sub: (ast.Add, ast.Mult), ast.Mult: (ast.Add, ast.Sub),
    ast.Div: (ast.Mult, ast.FloorDiv), ast.FloorDiv: (ast.Mod, ast.Mult), ast.Mod: (ast.FloorDiv, ast.Add),
    ast.Pow: (ast.Mult, ast.Add), ast.LShift: (ast.RShift,), ast.RShift: (ast.Add, ast.Sub),
    ast.BitAnd: (ast.BitOr, ast.BitXor), ast.BitOr: (ast.BitAnd, ast.BitXor),
    ast.BitXor: (ast.BitAnd, ast.BitOr), ast.And: (ast.Or,), ast.Or: (ast.And,),
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE), ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
}  # fmt: skip
OTHER_NAMES = {
    "all": "any", "any": "all", "max": "min", "min": "max", "sum": "max",
    "lower": "upper", "upper": "lower", "title": "upper", "capitalize": "upper", "swapcase": "upper",
    "lstrip": "rstrip", "rstrip": "lstrip", "find": "rfind", "index": "count", "count": "index",
}  # fmt: skip
TRIES_PER_MUTANT = 4


def make_mutants(code: str, *, count: int, seed: int) -> list[str]:
    """Return up to `count` distinct programs that differ from `code` by one small change, in random order.

    Changed: a number, a letter of a text, an operator, the order of its sides, a comparison, a slice, a
    builtin for its counterpart. All are written without comments, and none equals the program written so.
    They may fail, or print the same.
    """
    original = strip_comments(code)
    tree = parse_program(original) if original else None
    if original is None or tree is None:
        return []
    generator = random.Random(seed)
    formats = [n.format_spec for n in ast.walk(tree) if isinstance(n, ast.FormattedValue)]
    fixed = {id(node) for spec in formats if spec for node in ast.walk(spec)}  # most changes are errors
    nodes = [node for node in ast.walk(tree) if id(node) not in fixed]
    edits = [edit for node in nodes for edit in possible_edits(node, generator)]
    generator.shuffle(edits)
    mutants: dict[str, None] = {}
    for edit in edits[: TRIES_PER_MUTANT * count]:
        if len(mutants) < count and (mutant := apply_edit(tree, edit)) not in ("", original):
            mutants[mutant] = None
    return list(mutants)


def apply_edit(tree: ast.Module, edit: Edit) -> str:
    """Return the program with one node changed, "" where that cannot be written; the tree is restored."""
    node, fields = edit
    before = {field: getattr(node, field) for field in fields}
    vars(node).update(fields)
    try:
        written = ast.unparse(tree)
        return written if parse_program(written) else ""
    except UNREADABLE:
        return ""
    finally:
        vars(node).update(before)


def possible_edits(node: ast.AST, generator: random.Random) -> Iterator[Edit]:
    if isinstance(node, ast.Constant):
        for value in dict.fromkeys(near_values(node.value, generator)):
            if value != node.value and node.value != "__main__":
                yield node, {"value": value}
    elif isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp):
        for replacement in OPERATORS.get(type(node.op), ()):
            yield node, {"op": replacement()}
        if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Pow | ast.LShift):
            yield node, {"left": node.right, "right": node.left}
    elif isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            for comparison in OPERATORS[type(operator)]:
                yield node, {"ops": [*node.ops[:index], comparison(), *node.ops[index + 1 :]]}
    elif isinstance(node, ast.Slice):
        bounds = ("lower", 1), ("lower", 2), ("upper", -1), ("upper", 3), ("step", 2), ("step", -1)
        for field, value in bounds:
            if getattr(node, field) is None:
                yield node, {field: ast.Constant(value)}
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in OTHER_NAMES:
        yield node, {"id": OTHER_NAMES[node.id]}
    elif isinstance(node, ast.Attribute) and node.attr in OTHER_NAMES:
        yield node, {"attr": OTHER_NAMES[node.attr]}


def near_values(value: object, generator: random.Random) -> Iterator[object]:
    """Yield a value's neighbours; of a text those with a letter doubled, dropped, swapped or replaced."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value - 1, value * 2, value + generator.randint(2, 9))
    elif isinstance(value, float):
        yield from (value + 1, value * 2, value / 2)
    elif value == "":
        yield "a"
    elif isinstance(value, str):
        at = generator.randrange(len(value))
        before, letter, after = value[:at], value[at], value[at + 1 :]
        yield before + letter + letter + after
        yield before + after
        yield before + after[:1] + letter + after[1:]
        yield before + letter.swapcase() + after
        yield before + generator.choice("aeiorst") + after

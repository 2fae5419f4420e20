"""Programs near a program: their outputs are wrong answers that look like the right one."""

import ast
import random
from collections.abc import Iterator
from typing import Any

from rlnb.tasks.extraction import UNREADABLE
from rlnb.tasks.game_programs import tree_of, without_comments

Edit = tuple[ast.AST, dict[str, Any]]  # a node, and {field: what it is to hold}
# What may stand in an operator's place. No power is made: it could take minutes where the original did not.
OPERATORS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Add: (ast.Sub, ast.Mult),
    ast.Sub: (ast.Add, ast.Mult),
    ast.Mult: (ast.Add, ast.Sub),
    ast.Div: (ast.Mult, ast.FloorDiv),
    ast.FloorDiv: (ast.Mod, ast.Mult),
    ast.Mod: (ast.FloorDiv, ast.Add),
    ast.Pow: (ast.Mult, ast.Add),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.Add, ast.Sub),
    ast.BitAnd: (ast.BitOr, ast.BitXor),
    ast.BitOr: (ast.BitAnd, ast.BitXor),
    ast.BitXor: (ast.BitAnd, ast.BitOr),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
}
COMPARISONS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
OTHER_NAMES = {
    "all": "any", "any": "all", "max": "min", "min": "max", "sum": "max",
    "lower": "upper", "upper": "lower", "title": "upper", "capitalize": "upper", "swapcase": "upper",
    "lstrip": "rstrip", "rstrip": "lstrip", "find": "rfind", "index": "count", "count": "index",
}  # fmt: skip
TRIES_PER_MUTANT = 4


def mutants(code: str, *, count: int, seed: int) -> list[str]:
    """Up to `count` distinct programs that differ from `code` by one small change; the same for one seed.

    Changed: a number, a letter of a text, an operator, the order of its sides, a comparison, a slice, one
    builtin for its counterpart. In random order; fewer where there is little to change, none where a program
    cannot be read. Written without comments; none equals the program written so. They may fail, or print the
    same.
    """
    original = without_comments(code)
    tree = tree_of(original) if original else None
    if original is None or tree is None:
        return []
    generator = random.Random(seed)
    formats = [n.format_spec for n in ast.walk(tree) if isinstance(n, ast.FormattedValue)]
    fixed = {id(node) for spec in formats if spec for node in ast.walk(spec)}  # most changes are errors
    edits = [edit for node in ast.walk(tree) if id(node) not in fixed for edit in edits_of(node, generator)]
    generator.shuffle(edits)
    found: dict[str, None] = {}
    for edit in edits[: TRIES_PER_MUTANT * count]:
        if len(found) == count:
            break
        mutant = edited(tree, edit)
        if mutant not in ("", original):
            found[mutant] = None
    return list(found)


def edited(tree: ast.Module, edit: Edit) -> str:
    """The program with one node changed, "" where that cannot be written; the tree stays as it was."""
    node, fields = edit
    before = {field: getattr(node, field) for field in fields}
    vars(node).update(fields)
    try:
        written = ast.unparse(tree)
        return written if tree_of(written) else ""
    except UNREADABLE:
        return ""
    finally:
        vars(node).update(before)


def edits_of(node: ast.AST, generator: random.Random) -> Iterator[Edit]:
    """The small changes of one node."""
    if isinstance(node, ast.Constant):
        for value in dict.fromkeys(near(node.value, generator)):
            if value != node.value and node.value != "__main__":
                yield node, {"value": value}
    elif isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp):
        for operator in OPERATORS.get(type(node.op), ()):
            yield node, {"op": operator()}
        if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Pow | ast.LShift):
            yield node, {"left": node.right, "right": node.left}
    elif isinstance(node, ast.Compare):
        for index, found in enumerate(node.ops):
            for comparison in COMPARISONS[type(found)]:
                yield node, {"ops": [*node.ops[:index], comparison(), *node.ops[index + 1 :]]}
    elif isinstance(node, ast.Slice):
        bounds = {"lower": (1, 2), "upper": (-1, 3), "step": (2, -1)}
        for field, values in bounds.items():
            if getattr(node, field) is None:
                yield from ((node, {field: ast.Constant(value)}) for value in values)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in OTHER_NAMES:
        yield node, {"id": OTHER_NAMES[node.id]}
    elif isinstance(node, ast.Attribute) and node.attr in OTHER_NAMES:
        yield node, {"attr": OTHER_NAMES[node.attr]}


def near(value: object, generator: random.Random) -> Iterator[object]:
    """Constants near a constant."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value - 1, value * 2, value + generator.randint(2, 9))
    elif isinstance(value, float):
        yield from (value + 1, value * 2, value / 2)
    elif isinstance(value, str):
        yield from near_text(value, generator)


def near_text(text: str, generator: random.Random) -> Iterator[str]:
    """A text with a letter more, a letter less, two neighbours swapped, another case, another letter."""
    if not text:
        yield "a"
        return
    at = generator.randrange(len(text))
    yield text[:at] + text[at] + text[at:]
    yield text[:at] + text[at + 1 :]
    yield text[:at] + text[at : at + 2][::-1] + text[at + 2 :]
    yield text[:at] + text[at].swapcase() + text[at + 1 :]
    yield text[:at] + generator.choice("aeiorst") + text[at + 1 :]

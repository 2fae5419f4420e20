"""What the code game reads from a program's syntax tree: it is never run here.

A text that is not a program, is longer than LONGEST_PROGRAM or is nested too deeply has no tree; then the
answers are None, "" or False.
"""

import ast
import re
from functools import lru_cache

from rlnb.code_game.prediction import normalise_output
from rlnb.source_code.checks import FUNCTIONS, names_in
from rlnb.source_code.extraction import UNREADABLE, parse, parse_program

LITERAL = re.compile(r"'(?:[^'\\]|\\.)*+'|\"(?:[^\"\\]|\\.)*+\"|\b\d[\w.]*+")


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
    """Return whether the code holds the output, as a whole piece of its source or of a text in it.

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


def program_shape(code: str) -> str:
    """Return a program with its texts and numbers masked, "" where it cannot be read."""
    return LITERAL.sub("_", strip_comments(code) or "")

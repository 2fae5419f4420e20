"""The code game: what can be said of a program by reading it.

Read from the syntax tree, comments from the tokens; nothing is run. A text that is no program, is longer than
LONGEST_PROGRAM or is nested too deeply has no tree: the answer is None, "", False or ().
"""

import ast
import builtins
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator

from rlnb.tasks.extraction import UNREADABLE, parse
from rlnb.tasks.game_determinism import (
    READ_BY_PYTHON,
    bound_before,
    last_name,
    modules_in,
    names_bound,
    names_read,
    names_unbound,
    reads_unwritten_names,
    suites_of,
)
from rlnb.tasks.prediction import normalised
from rlnb.tasks.strategy_checks import FUNCTIONS, LONGEST_PROGRAM, names_in

CONSTRUCTS = (
    "trivial", "arithmetic", "powers", "division", "indexing", "loops", "comprehensions", "functions",
    "recursion", "methods", "strings", "lists", "conditions", "builtins",
)  # fmt: skip
BUILTINS = frozenset(dir(builtins)) - {"print", "range"}
IDLE = (
    ast.Constant, ast.Dict, ast.FormattedValue, ast.JoinedStr, ast.List, ast.Load, ast.Set, ast.Tuple,
    ast.UAdd, ast.UnaryOp, ast.USub,
)  # fmt: skip
LISTED = (ast.Tuple, ast.List)
Trimmed = tuple[ast.stmt | None, list[ast.expr]]  # what is left, and the values that went
NODES_OF = {
    "indexing": (ast.Subscript,),
    "loops": (ast.For, ast.AsyncFor, ast.While),
    "comprehensions": (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
    "functions": (*FUNCTIONS, ast.Lambda),
    "strings": (ast.JoinedStr,),
    "lists": (ast.List, ast.ListComp),
    "conditions": (ast.If, ast.IfExp, ast.Compare, ast.BoolOp, ast.Match),
}
DIVISIONS = (ast.Div, ast.FloorDiv, ast.Mod)
# What a program without any computation consists of; see `is_plain` for those that need a second look.
PLAIN = (
    ast.AnnAssign, ast.Assign, ast.Constant, ast.Dict, ast.Expr, ast.FunctionDef, ast.Import, ast.ImportFrom,
    ast.JoinedStr, ast.List, ast.Module, ast.Name, ast.Pass, ast.Return, ast.Set, ast.Starred, ast.Tuple,
    ast.alias, ast.arg, ast.arguments, ast.expr_context, ast.keyword,
)  # fmt: skip
# How comments state a value: behind a word for it, with or without a colon, behind a sign, or all alone.
SAID = re.compile(
    r"\b(?:answer|displays?|equals?|expected|gives?|outputs?|prints?|printed|results?|returns?|shows?|value)\b"
    r"(?:\s+(?:is|are|will be|should be|output|result|value))?\s*(?P<colon>[:=])?|=+>?|-+>|→",
    re.IGNORECASE,
)
VALUE = re.compile(
    r"'[^'\n]{0,200}'|\"[^\"\n]{0,200}\"|`[^`\n]{0,200}`|\[[^\]\n]{0,200}\]|\{[^}\n]{0,200}\}"
    r"|\((?=[-\d'\"])[^)\n]{0,200}\)|(?<![\w.])-?\d+(?:\.\d+)?(?![\w])|\b(?:True|False|None)\b"
)


def tree_of(code: str) -> ast.Module | None:
    """The syntax tree, None where there is none."""
    try:
        return parse(code) if len(code) <= LONGEST_PROGRAM else None
    except UNREADABLE:
        return None


def without_comments(code: str) -> str | None:
    """The program without what is for its reader alone, None where it cannot be read or written again.

    Dropped: comments, layout, docstrings and other bare constants (a body that becomes empty gets `pass`),
    annotations with text in them, messages of asserts, constants under names that nothing reads. It does what
    the original does, unless that reads its own docstrings, annotations or line numbers. Messages that the
    program may catch, fields of classes, functions, imports and code that never runs stay: they are code.
    """
    tree = tree_of(code)
    if tree is None:
        return None
    strip(tree)
    try:
        written = ast.unparse(tree)
        # What is written must be read as what was meant: in old Pythons some nested f-strings are not.
        return written if ast.dump(parse(written)) == ast.dump(tree) else None
    except UNREADABLE:
        return None


def strip(tree: ast.Module) -> None:
    """Take out of a tree what `without_comments` drops."""
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list) and statements:
                kept = [s for s in statements if not (isinstance(s, ast.Expr) and is_idle(s.value))]
                setattr(node, field, kept or [ast.Pass()])
        if isinstance(node, ast.AnnAssign) and is_prose(node.annotation):
            node.annotation = ast.Constant(None)  # it also declares: a field of a dataclass, a local name
        elif isinstance(node, ast.arg) and is_prose(node.annotation):
            node.annotation = None
        elif isinstance(node, FUNCTIONS) and is_prose(node.returns):
            node.returns = None
    drop_messages(tree)
    drop_unread(tree)


def is_idle(value: ast.expr, known: frozenset[str] = frozenset()) -> bool:
    """Whether a value is made of constants, and of `known` names, by nothing that could fail or do more."""
    for node in ast.walk(value):
        if isinstance(node, ast.Name) and node.id in known:
            continue
        is_formatted = isinstance(node, ast.FormattedValue) and (node.format_spec or names_in(node.value))
        if not isinstance(node, IDLE) or is_formatted:
            return False
        operand = getattr(node.operand, "value", None) if isinstance(node, ast.UnaryOp) else 0
        keys = node.keys if isinstance(node, ast.Dict) else node.elts if isinstance(node, ast.Set) else []
        has_hashes = all(isinstance(key, ast.Constant) for key in keys)
        if not isinstance(operand, int | float | complex) or not has_hashes:
            return False
    return True


def drop_messages(tree: ast.Module) -> None:
    """Take out the messages of asserts but those that the program could show, or that do something."""
    nodes = list(ast.walk(tree))
    catches = any(isinstance(n, ast.ExceptHandler | ast.With | ast.AsyncWith) for n in nodes)
    exits = ("__exit__", "__aexit__")
    shows = any(
        n.name if isinstance(n, ast.ExceptHandler) else getattr(n, "name", "") in exits for n in nodes
    )
    for node in nodes:
        if isinstance(node, ast.Assert) and node.msg:
            never_fails = isinstance(node.test, ast.Constant) and bool(node.test.value)
            if never_fails or not (shows if is_idle(node.msg) else catches):
                node.msg = None


def drop_unread(tree: ast.Module) -> list[ast.expr]:
    """Take out assignments of constants to names that nothing reads. The values that went.

    A copy of a name goes as well where that name is sure to be bound. Bodies of classes are left alone: their
    names are attributes. So is a program that may read names which are not written down.
    """
    nodes = list(ast.walk(tree))
    if any(map(reads_unwritten_names, nodes)):
        return []
    reads = Counter([*READ_BY_PYTHON, *(name for node in nodes for name in names_read(node))])
    unbound = {name for node in nodes for name in names_unbound(node)}
    suites, went, before = list(suites_of(tree)), list[ast.expr](), -1
    while before < len(went):
        before = len(went)
        for owner, field in suites:
            kept: list[ast.stmt] = []
            for statement, known in reversed(list(bound_before(getattr(owner, field), unbound))):
                left, values = trimmed(statement, reads, known)
                kept += [left] if left else []
                went += values
                reads.subtract(n.id for value in values for n in ast.walk(value) if isinstance(n, ast.Name))
            setattr(owner, field, kept[::-1] or [ast.Pass()])
    return went


def trimmed(statement: ast.stmt, reads: Counter[str], known: frozenset[str]) -> Trimmed:
    """A statement without what it gives to names that nothing reads. known: names bound before it."""

    def is_waste(target: ast.expr, value: ast.expr | None) -> bool:
        is_unread = isinstance(target, ast.Name) and not reads[target.id]
        return is_unread and (value is None or is_idle(value, known))

    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.NamedExpr):
        if is_waste(statement.value.target, statement.value.value):
            return None, [statement.value.value]
    elif isinstance(statement, ast.AnnAssign) and is_waste(statement.target, statement.value):
        went, statement.value = [statement.value] if statement.value else [], None
        hint = statement.annotation  # reading any other could fail
        is_plain_hint = hint.id in BUILTINS if isinstance(hint, ast.Name) else isinstance(hint, ast.Constant)
        return None if is_plain_hint else statement, went
    elif isinstance(statement, ast.Assign):
        value, targets = statement.value, statement.targets
        names = targets[0].elts if len(targets) == 1 and isinstance(targets[0], LISTED) else []
        parts = value.elts if isinstance(value, LISTED) else []
        if names and len(names) == len(parts) and not any(isinstance(p, ast.Starred) for p in names + parts):
            kept = [pair for pair in zip(names, parts, strict=True) if not is_waste(*pair)]
            went = [part for name, part in zip(names, parts, strict=True) if is_waste(name, part)]
            left, given = [name for name, _ in kept], [part for _, part in kept]
            if went and left:
                is_one = len(left) == 1
                statement.targets = left if is_one else [ast.Tuple(left, ast.Store())]
                statement.value = given[0] if is_one else ast.Tuple(given, ast.Load())
            return statement if left else None, went
        statement.targets = [target for target in targets if not is_waste(target, value)]
        return (statement, []) if statement.targets else (None, [value])
    return statement, []


def is_prose(annotation: ast.expr | None) -> bool:
    """Whether an annotation holds text; one that calls something may do something, and is no prose."""
    nodes = list(ast.walk(annotation)) if annotation else []
    holds_text = any(isinstance(n, ast.Constant) and isinstance(n.value, str | bytes) for n in nodes)
    return holds_text and not any(isinstance(n, ast.Call | ast.NamedExpr | ast.Await) for n in nodes)


def is_trivial(code: str) -> bool:
    """Whether a program computes nothing: it names literals and prints literals and names.

    f-strings of names, negative numbers, functions of its own that do no more, the guard of `__main__` are no
    computation. What defines or computes names that nothing reads is left out.
    """
    tree = tree_of(code)
    if tree is None:
        return False
    read = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    body: list[ast.stmt] = []
    for statement in tree.body:
        if isinstance(statement, ast.If) and names_in(statement.test) == {"__name__"}:
            body += statement.body + statement.orelse
        else:
            body.append(statement)
    own = {statement.name for statement in body if isinstance(statement, FUNCTIONS)}
    nodes = (node for statement in body if not is_unread(statement, read) for node in ast.walk(statement))
    return all(is_plain(node, own) for node in nodes)


def is_unread(statement: ast.stmt, read: set[str]) -> bool:
    """Whether a statement only binds names that nothing reads; a call might do more."""
    if isinstance(statement, FUNCTIONS):
        return statement.name not in read and not statement.decorator_list
    if not isinstance(statement, ast.Assign) or any(isinstance(n, ast.Call) for n in ast.walk(statement)):
        return False
    return not any(names_in(target) & read for target in statement.targets)


def is_plain(node: ast.AST, own: set[str]) -> bool:
    """own: functions of the program, whose bodies are looked at as well."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in {"print", *own}
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)
    if isinstance(node, ast.FormattedValue):
        return node.format_spec is None
    return isinstance(node, (*PLAIN, ast.USub))


def echoes(code: str, output: str) -> bool:
    """Whether the output stands in the code, comments left out: as a piece of its source, or of a text in it.

    A whole piece: 3 is in neither 13, x3 nor 3.5, and `gar` is not in 'garden'.
    """
    source, output = without_comments(code) or "", normalised(output)
    tree = tree_of(source)
    if tree is None or not output.strip():
        return False
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    before = r"(?<!\w)(?<!\d\.)" if re.match(r"\w|-\d", output) else ""
    after = r"(?!\w)(?!\.\d)" if re.match(r"\w", output[-1]) else ""
    whole = re.compile(before + re.escape(output) + after)
    return any(len(output) <= len(text) and whole.search(text) for text in [source, *texts])


class Masked(ast.NodeTransformer):
    """Replaces constants by their types, and the program's own names by numbers in order of appearance."""

    def __init__(self, own: set[str]) -> None:
        self.own = own
        self.numbers: dict[str, int] = {}

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        is_kept = type(node.value) not in (int, float, complex, str, bytes)
        return node if is_kept else ast.Name(type(node.value).__name__.upper(), ast.Load())

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        is_negative = isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)
        return self.visit(node.operand) if is_negative else self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        for part in node.values:
            if isinstance(part, ast.Constant):
                part.value = "STR"
            else:
                self.generic_visit(part)
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for field in ("id", "arg", "name", "asname", "rest", "names"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                setattr(node, field, self.masked(value))
            elif isinstance(node, ast.Global | ast.Nonlocal) and field == "names":
                node.names = [self.masked(name) for name in node.names]
        return super().generic_visit(node)

    def masked(self, name: str) -> str:
        return f"name{self.numbers.setdefault(name, len(self.numbers))}" if name in self.own else name


def shape_of(code: str) -> str:
    """The program with constants and its own names masked: programs of one shape differ in these alone.

    Builtins, modules, attributes, True, False and None are kept. "" where there is no tree.
    """
    tree = tree_of(without_comments(code) or "") or ast.Module([], [])
    try:
        return ast.unparse(Masked(names_bound(tree)).visit(tree))
    except UNREADABLE:
        return ""


def states_value(original_code: str, output: str) -> str:
    """Whether what `without_comments` drops states a value: "true", "false", or "" where none does.

    Stated: what stands behind `Output:` and the like, values behind such a word or behind `=` or `->`, and a
    comment that is nothing but a value. "true": one of them is the output, or a line of it, quotes aside.
    """
    printed = [line.strip() for line in normalised(output).split("\n")]
    real = {*printed, " ".join(" ".join(printed).split())}
    stated = [claim for lines in prose_of(original_code) for claim in claims_in(lines)]
    claims = {bare for claim in stated for bare in (claim, claim.strip("'\"`"))}
    return "" if not claims else "true" if claims & real else "false"


def prose_of(code: str) -> Iterator[list[str]]:
    """Lines of the comments, and of each docstring, bare text, assert's message, text that nothing reads."""
    tree = tree_of(code)
    if tree is None:
        return
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
        yield [token.string.lstrip("#! ") for token in tokens if token.type == tokenize.COMMENT]
    except (*UNREADABLE, tokenize.TokenError):
        yield []  # the tokenizer of the library is stricter than the compiler's
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value.value.splitlines() if isinstance(node.value.value, str) else []
    messages = [node.msg for node in ast.walk(tree) if isinstance(node, ast.Assert) and node.msg]
    for value in [*messages, *drop_unread(tree)]:
        held = [node.value for node in ast.walk(value) if isinstance(node, ast.Constant)]
        if any(isinstance(part, str) for part in held):
            short = (str(part) for part in held if not isinstance(part, int) or part.bit_length() < 999)
            yield " ".join(short).splitlines()


def claims_in(lines: list[str]) -> Iterator[str]:
    """Values that lines of prose state; a word for it at the end of a line speaks of the next line."""
    is_announced = False
    for line in lines:
        text = " ".join(line.split()).rstrip(" .;!")
        said = SAID.search(text)
        if is_announced and text or VALUE.fullmatch(text):
            yield text
        elif said:
            rest = text[said.end() :].strip()
            if rest and (said["colon"] or not said[0][0].isalpha()):
                yield rest
            yield from (match[0] for match in VALUE.finditer(rest))
        is_announced = bool(said and said["colon"] and said.end() == len(text))


def constructs_of(code: str) -> tuple[str, ...]:
    """Which of CONSTRUCTS a program shows, in their order.

    + and * count as arithmetic unless a side is a text that is written out; what names hold is not known.
    """
    tree = tree_of(code) or ast.Module([], [])
    own = names_bound(tree)
    imported = {name for node in ast.walk(tree) for name in modules_in(node)}
    found = {kind for node in ast.walk(tree) for kind in kinds_of(node, own, imported)}
    if is_trivial(code):
        found.add("trivial")
    return tuple(kind for kind in CONSTRUCTS if kind in found)


def kinds_of(node: ast.AST, own: set[str], imported: set[str]) -> Iterator[str]:
    """Of CONSTRUCTS, with repetitions, what one node shows. own: names that the program binds."""
    yield from (kind for kind, nodes in NODES_OF.items() if isinstance(node, nodes))
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield "strings"
    elif isinstance(node, ast.BinOp | ast.AugAssign):
        sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,)
        is_text = any(isinstance(getattr(side, "value", None), str) for side in sides)
        is_division = isinstance(node.op, DIVISIONS)
        kind = "powers" if isinstance(node.op, ast.Pow) else "division" if is_division else "arithmetic"
        yield "strings" if is_text else kind
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if not isinstance(node.func.value, ast.Name) or node.func.value.id not in imported:
            yield "methods"
    elif isinstance(node, ast.Call) and last_name(node.func) in BUILTINS - own:
        name = last_name(node.func)
        yield {"pow": "powers", "divmod": "division", "list": "lists", "str": "strings"}.get(name, "builtins")
    elif isinstance(node, FUNCTIONS) and any(node.name in names_in(inner) for inner in node.body):
        yield "recursion"
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
        yield from ["recursion"] * any(names_in(target) & names_in(node.value) for target in node.targets)

"""The code game: what can be said of a program by reading it.

Read from the syntax tree, comments from the tokens; nothing is run. A text that is no program, is longer than
LONGEST_PROGRAM or is nested too deeply has no tree: the answer is None, "", False or ().
"""

import ast
import builtins
import io
import re
import tokenize
from collections.abc import Iterator

from rlnb.tasks.extraction import UNREADABLE, parse
from rlnb.tasks.prediction import normalised
from rlnb.tasks.strategy_checks import FUNCTIONS, LONGEST_PROGRAM, names_in, shown

CONSTRUCTS = (
    "trivial", "arithmetic", "powers", "division", "indexing", "loops", "comprehensions", "functions",
    "recursion", "methods", "strings", "lists", "conditions", "builtins",
)  # fmt: skip
CHANCE = "which differs from run to run; draw from random.Random(7), say"
CLOCK = "which reads the clock; write the moment as a constant"
MACHINE = "which tells of this machine; compute from what the program holds"
OUTSIDE = "which reaches out of the program; write what it needs as a constant"
ADDRESS = "which differs from run to run; compute from the value itself"
FORBIDDEN_MODULES = {
    **dict.fromkeys(("secrets", "uuid"), CHANCE),
    "time": CLOCK,
    **dict.fromkeys(
        ("gc", "getpass", "inspect", "linecache", "locale", "os", "pathlib", "platform", "posix", "pwd",
         "resource", "site", "sysconfig", "traceback", "tracemalloc"), MACHINE),
    **dict.fromkeys(
        ("_thread", "concurrent", "ctypes", "fileinput", "glob", "http", "mmap", "multiprocessing", "shutil",
         "signal", "socket", "subprocess", "tempfile", "threading", "urllib"), OUTSIDE),
}  # fmt: skip
FORBIDDEN_NAMES = {
    **dict.fromkeys(("__builtins__", "__file__", "__spec__", "dir", "globals", "locals", "vars"), MACHINE),
    **dict.fromkeys(("breakpoint", "help", "input", "open"), OUTSIDE),
    **dict.fromkeys(("hash", "id"), ADDRESS),
}
NOW = frozenset(("astimezone", "fromtimestamp", "now", "timestamp", "today", "utcnow"))
HARMLESS_IN_SYS = frozenset(("exit", "set_int_max_str_digits", "setrecursionlimit", "stdout"))
GENERATORS = frozenset(("Random", "SystemRandom", "seed"))
BUILTINS = frozenset(dir(builtins)) - {"print", "range"}
IDLE = (ast.Constant, ast.FormattedValue, ast.JoinedStr, ast.List, ast.Load, ast.Tuple)
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
    annotations with text in them. It does what the original does, unless that reads its own docstrings,
    annotations or line numbers. Names, unused values and code that never runs stay: they are code.
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


def is_idle(value: ast.expr) -> bool:
    """Whether a value is made of constants alone, by nothing that could fail."""
    return all(
        isinstance(node, IDLE) and getattr(node, "format_spec", None) is None for node in ast.walk(value)
    )


def is_prose(annotation: ast.expr | None) -> bool:
    """Whether an annotation holds text; one that calls something may do something, and is no prose."""
    nodes = list(ast.walk(annotation)) if annotation else []
    holds_text = any(isinstance(n, ast.Constant) and isinstance(n.value, str | bytes) for n in nodes)
    return holds_text and not any(isinstance(n, ast.Call | ast.NamedExpr | ast.Await) for n in nodes)


def forbidden_use(code: str) -> str:
    """What makes the output depend on more than the program, one sentence with a remedy; "" for nothing.

    A message for people, from names alone: what hides from it shows when the program runs several times.
    Allowed: random that is seeded or drawn from a seeded Random, datetime without its clock, sys.stdout,
    names that the program gives itself (`id = 7`), and exec of a text, since the opponent reads it as well.
    """
    tree = tree_of(code) or ast.Module([], [])
    own, seeded, found, line = names_bound(tree), is_seeded(tree), [], 1
    imported = {name for node in ast.walk(tree) for name in modules_in(node)}
    for node in ast.walk(tree):
        line = getattr(node, "lineno", line)
        faults = [*module_faults(node, seeded), *name_faults(node, own, imported)]
        found += [(line, said) for said in faults]
    return "Line {} {}.".format(*min(found)) if found else ""


def modules_in(node: ast.AST) -> Iterator[str]:
    """Outermost modules that a node imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield (node.module or "").partition(".")[0]


def module_faults(node: ast.AST, seeded: bool) -> Iterator[str]:
    for module in modules_in(node):
        if module == "random" and not seeded:
            yield f"uses random without a seed, {CHANCE}"
        elif module in FORBIDDEN_MODULES:
            yield f"imports {module}, {FORBIDDEN_MODULES[module]}"
    if isinstance(node, ast.ImportFrom) and node.module == "sys":
        for name in sorted({alias.name for alias in node.names} - HARMLESS_IN_SYS):
            yield f"imports {shown(name)} from sys, {MACHINE}"


def name_faults(node: ast.AST, own: set[str], imported: set[str]) -> Iterator[str]:
    """own: names that the program binds. imported: modules."""
    if isinstance(node, ast.Name) and node.id in FORBIDDEN_NAMES and node.id not in own:
        yield f"uses {node.id}, {FORBIDDEN_NAMES[node.id]}"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "object":
        yield f"uses object(), {ADDRESS}"
    elif isinstance(node, ast.Attribute):
        if node.attr in NOW and "datetime" in imported:
            yield f"uses {node.attr}, {CLOCK}"
        elif isinstance(node.value, ast.Name) and node.value.id == "sys" and "sys" in imported:
            if node.attr not in HARMLESS_IN_SYS:
                yield f"uses sys.{shown(node.attr)}, {MACHINE}"
        elif node.attr == "__hash__":
            yield f"uses __hash__, {ADDRESS}"


def is_seeded(tree: ast.Module) -> bool:
    """Whether random is seeded, or a generator made, and never without a seed."""
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and last_name(n.func) in GENERATORS]
    return bool(calls) and all(
        last_name(call.func) != "SystemRandom"
        and bool(call.args or call.keywords)
        and not any(isinstance(seed, ast.Constant) and seed.value is None for seed in call.args)
        for call in calls
    )


def last_name(function: ast.expr) -> str:
    """`f` of f and of a.f, "" of anything else."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def names_bound(tree: ast.AST) -> set[str]:
    """Names that a program gives to something, modules that it imports under their own name left out."""
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
            bound.add(node.name or "")
        elif isinstance(node, ast.alias):
            bound.add(node.asname or "")
    return bound - {""}


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
    """Whether a comment, docstring or bare text states a value: "true", "false", or "" where none does.

    Stated: what stands behind `Output:` and the like, values behind such a word or behind `=` or `->`, and a
    comment that is nothing but a value. "true": one of them is the output, or a line of it, quotes aside.
    """
    printed = [line.strip() for line in normalised(output).split("\n")]
    real = {*printed, " ".join(" ".join(printed).split())}
    stated = [claim for lines in prose_of(original_code) for claim in claims_in(lines)]
    claims = {bare for claim in stated for bare in (claim, claim.strip("'\"`"))}
    return "" if not claims else "true" if claims & real else "false"


def prose_of(code: str) -> Iterator[list[str]]:
    """Lines of the comments, and of each docstring or bare text."""
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

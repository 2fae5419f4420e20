"""The static check of strategies: a rule about the imports that are written.

As with the published rewards, only a package outside the standard library counts as cheating, and a relative
import, which finds nothing, does not. The check reads import statements, and texts given to `__import__` and
`import_module`. It is not what protects the game: the board, the tiles to come and the score are never in a
strategy's process (rlnb/game_2048/play.py), and the sandbox keeps programs from doing harm, and has no other
package under whatever name the run makes up.
"""

import ast
import re
import sys
from collections.abc import Iterator

from rlnb.source_code.checks import iterate_scopes, shown
from rlnb.source_code.extraction import UNREADABLE, parse, parse_program

# Modules that compute from a board; a program that imports others is one to look at.
USUAL_MODULES = frozenset((
    "bisect", "collections", "copy", "dataclasses", "functools", "heapq", "itertools", "math", "operator",
    "random", "statistics", "typing",
))  # fmt: skip
# What a person should look at, in a program as `ast.unparse` writes it: it catches everything, keeps state
# between moves, reads the clock or seeds random, names the game, runs texts, or names Python's machinery.
SUSPICIOUS = re.compile(
    r"^ *except(:| .*\b(Base)?Exception\b)|^ *global |\b(GameBoard|engine|game)\b"
    r"|\brandom\.(_|Random|SystemRandom|getstate|seed|setstate|\w+ =)"
    r"|\b(compile|eval|exec|getattr|globals|locals|open|setattr|vars)\("
    r"|__(?!(init|lt|eq|len|name|main)__)[a-z]\w*__",
    re.MULTILINE,
)


def is_suspicious(code: str) -> bool:
    """Return whether a person should look at a program; it may be honest all the same.

    It shows what SUSPICIOUS says, or imports more than USUAL_MODULES.
    """
    if not (tree := parse_program(code)):
        return False
    modules = {module.partition(".")[0] for _, module in iterate_imports(tree)}
    try:
        return not modules <= USUAL_MODULES or SUSPICIOUS.search(ast.unparse(tree)) is not None
    except UNREADABLE:  # also chains so deep that a walk along them raises RecursionError
        return False


def check_strategy(code: str) -> str:
    """Return why a strategy is refused, a sentence about its first fault; "" for a fine one."""
    try:
        tree, _ = parse(code), list(iterate_scopes(code))
    except UNREADABLE as error:
        return explain_unreadable(error)
    allowed = {"", *sys.stdlib_module_names}
    packages = [pair for pair in iterate_imports(tree) if pair[1].partition(".")[0] not in allowed]
    if not packages:
        return ""
    line, name = min(packages)
    return f"Line {line} imports {shown(name)}, which is not in the standard library; do without it."


def iterate_imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, module) of each import that is written, also as a text in a call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "." * node.level + (node.module or "")
        elif isinstance(node, ast.Call):
            function = getattr(node.func, "id", getattr(node.func, "attr", ""))
            named = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "name")]
            texts = [getattr(argument, "value", None) for argument in named]
            if function in ("__import__", "import_module"):
                yield from ((node.lineno, text) for text in texts if isinstance(text, str))


def explain_unreadable(error: BaseException) -> str:
    """Return why a text is not a program, as a sentence. error: one of UNREADABLE."""
    if isinstance(error, SyntaxError):
        message = "".join(filter(str.isprintable, error.msg[:200]))
        return f"Line {error.lineno or 1} is not Python: {message}."
    is_text = isinstance(error, ValueError)
    return "It has characters that no program can have." if is_text else "It is nested too deeply."

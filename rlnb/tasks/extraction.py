"""The program in a completion."""

import ast
import re

FENCE = re.compile(
    r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w+-]*)[^\n`]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.DOTALL | re.MULTILINE
)
PYTHON_NAMES = ("python", "py", "python3")
CODE_START = re.compile(
    r"^(?:def |class |import |from \w+ import |@|print\(|for |while |if |[A-Za-z_]\w* *=[^=])", re.MULTILINE
)


def extract_code(completion: str, *, prefix: str = "") -> str | None:
    """The program in a completion, or None where there is none.

    prefix: the opening of the answer that the prompt already holds (a fence and the function's first line); the
    completion goes on from there. The first complete python block wins, then the first complete block of no named
    language, then an unclosed block, then bare text from the first line that looks like code, provided it parses.
    """
    text = (prefix + completion).replace("\r\n", "\n")
    blocks = [(match[2].lower(), match[3], is_closed(match)) for match in FENCE.finditer(text)]
    ranked = [
        [code for name, code, closed in blocks if closed and name in PYTHON_NAMES],
        [code for name, code, closed in blocks if closed and not name],
        [code for name, code, closed in blocks if not closed and (name in PYTHON_NAMES or not name)],
    ]
    for codes in ranked:
        for code in codes:
            if code.strip():
                return code.strip("\n") + "\n"
    return None if blocks else bare_code(text)


def is_closed(match: re.Match[str]) -> bool:
    """Whether the block ends with its fence and not with the text."""
    return match[0].rstrip().endswith(match[1]) and match.end(3) < match.end()


def bare_code(text: str) -> str | None:
    """Unfenced code: from the first line that looks like code to the last line with which it still parses."""
    start = CODE_START.search(text)
    if start is None:
        return None
    lines = text[start.start() :].rstrip().splitlines()
    for end in range(len(lines), 0, -1):
        code = "\n".join(lines[:end]) + "\n"
        try:
            ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        return code
    return "\n".join(lines) + "\n"

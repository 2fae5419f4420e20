"""What is read from a program without running it; hostile texts in time."""

import pytest

from rlnb.code_game.determinism import find_forbidden_use
from rlnb.code_game.programs import is_echo, is_trivial, program_shape, strip_comments

NO_PROGRAMS = ("print(", "\0", "print('\ud800", "-" * 9000 + "1", "(" * 9000, "x = 1\n" * 10**6)
STRIPPED = {
    "# 42\nprint(7)  # Output: 42\n\n\n# 42\n": "print(7)",
    '"""Prints 42."""\n\'b\'\nprint(7); 42; ...; None; b\'42\'': "print(7)",
    'def f():\n    """42"""\nprint(f())': "def f():\n    pass\nprint(f())",
    "match 7:\n    case 7:\n        '42'\nprint(7)": "match 7:\n    case 7:\n        pass\nprint(7)",
    "x: 'prints 42' = 7  # type: 'prints 42'\nprint(x)": "x: None = 7\nprint(x)",
    "def f(x: 'prints', *y: '42') -> b'42':\n    return x\nprint(f(7))": (
        "def f(x, *y):\n    return x\nprint(f(7))"
    ),
    "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: '42' = 7\nprint(A())": (
        "from dataclasses import dataclass\n\n@dataclass\nclass A:\n    x: None = 7\nprint(A())"
    ),
    "n = 7\nassert n, f'Output: {n}'\nprint(n)": "n = 7\nassert n\nprint(n)",
    # Kept: it does something, or it is code.
    "x: int = 7\nf'{42:d}'\nprint(x)": "x: int = 7\nf'{42:d}'\nprint(x)",
    "x: print('a') = 7\nlambda: '42'\nprint('# x')": "x: print('a') = 7\nlambda: '42'\nprint('# x')",
    "x = 1e999\nprint(x, -x, '\\ud800'.encode('utf-8', 'replace'))": (
        "x = 1e309\nprint(x, -x, '\\ud800'.encode('utf-8', 'replace'))"
    ),
}
SAME = [
    "class A:\n    'doc'\n    x: 'int' = 3\n    def g(self) -> 'int':\n        return self.x\nprint(A().g())",
    'print(f\'{7!r:>{4}}|{"a" + "b"}|{{}}|{3.5:.3f}|{7=}\')',
    "if 1:\n    '''nothing'''\nelse:\n    print('no')\nprint(not 0, -2 ** 2, (-2) ** 2, 2 ** -1)",
    "try:\n    assert 0, 'caught'\nexcept AssertionError as e:\n    print(e)",
    "try:\n    assert 0, print('said')\nexcept AssertionError:\n    pass",
]


def test_a_program_is_written_without_what_is_for_its_reader_alone():
    assert {code: strip_comments(code) for code in STRIPPED} == STRIPPED
    assert all(strip_comments(code) == code for code in STRIPPED.values())
    assert {strip_comments(code) for code in ("", "# 42\n", "#", "\n\n")} == {""}


def test_what_is_left_does_what_the_original_does(sandbox):
    programs = [*STRIPPED, *SAME]
    stripped = [strip_comments(code) or "" for code in programs]
    before, after = sandbox.run_many(programs), sandbox.run_many(stripped)
    for code, first, second in zip(programs, before, after, strict=True):
        assert first.status == second.status == "ok" and first.stdout == second.stdout != "", code


def test_of_what_is_no_program_nothing_is_said():
    for code in NO_PROGRAMS:
        assert strip_comments(code) is None
        assert [find_forbidden_use(code), program_shape(code)] == ["", ""]
        assert [is_trivial(code), is_echo(code, "1")] == [False, False]


TRIVIAL = [
    "", "import math", "print('a', -7, sep='-')", "a, b = 1, 2\nprint(a, b)", "print([1, 'a', (2,)], *[1])",
    "n: int = 7\nprint(f'n is {n}')", "def f(x):\n    return x\nprint(f(7))",
    "def main():\n    print('a')\nif __name__ == '__main__':\n    main()", "print({'a': 1}, {1, 2}, None)",
]  # fmt: skip
COMPUTING = [
    "n = 7\nprint(n * 2)", "s = 'a'\nprint(len(s))", "s = 'a'\nprint(s.upper())", "print(xs[0])",
    "n = 7\nprint(-n)", "n = 7\nprint(f'{n:08b}')", "for k in range(3):\n    print(k)", "print(3 < 5)",
    "n = 7\nprint(f'{n + 1}')", "if n:\n    print(7)", "def f(x=3 * 4):\n    return x\nprint(f())",
]  # fmt: skip


def test_a_program_is_trivial_where_nothing_is_computed():
    assert [code for code in TRIVIAL if not is_trivial(code)] == []
    assert [code for code in COMPUTING if is_trivial(code)] == []


ECHOES = [
    ("s = 'red fox'\nprint(s.split()[0])", "red"), ("print([1,2])", "[1, 2]"), ("print(0x2A)", "42"),
    ("print('a\\nb')", "a\nb  \n\n"), ("print(-3)", "-3"), ("print(abs(-3))", "3"), ("print(3.50)", "3.5"),
]  # fmt: skip
NO_ECHOES = [
    ("print(10 + 3)", "13"), ("print(13 - 10)", "4"), ("x3 = 13\nprint(x3 - 10)", "3"), ("print()", "\n"),
    ("print(int(3.5))", "3"), ("print('garden'[:3])", "gar"), ("print(5 - 8)", "-3"), ("print(1, 2)", "1 2"),
    ("print(7)  # 42", "42"), ('"""42"""\nprint(6 * 7)', "42"), ("print('ab'.upper())", "AB"),
]  # fmt: skip


def test_an_output_is_an_echo_where_it_stands_whole_in_the_code():
    assert [pair for pair in ECHOES if not is_echo(*pair)] == []
    assert [pair for pair in NO_ECHOES if is_echo(*pair)] == []


def test_programs_have_one_shape_where_they_differ_in_literals_alone():
    for twins in (("n = 7\nprint(n * 2)", "n = 12\nprint(n * 9)  # 42"), ("s = 'b\\''\ns", 's = "d"\ns')):
        assert len({*map(program_shape, twins), ""}) == 2, twins
    for strangers in (("print(n * 2)", "print(n + 2)"), ("print(1)", "print(1, 2)"), ("x1", "x2")):
        assert len(set(map(program_shape, strangers))) == 2, strangers


HOSTILE = {
    "a long sum": "print(" + "1 + " * 4000 + "1)",
    "lambdas in lambdas": "f = " + "lambda: " * 1500 + "1",
    "a chain of calls": "f" + "()" * 7000,
    "a number without end": "print(0x" + "f" * 15000 + ")",
    "copies of copies": "x0=1\n" + "".join(f"x{n}=x{n - 1}\n" for n in range(1, 1000)),
    "classes in classes": "".join(" " * n + "class A:\n" for n in range(99)) + " " * 99 + "import os",
    "megabytes": "x = 1\n" * 10**6,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_text_is_read_to_its_end(name):
    """The square of any of these would take hours, and too deep a tree would raise."""
    code = HOSTILE[name]
    assert isinstance(find_forbidden_use(code), str) and isinstance(program_shape(code), str)
    assert isinstance(is_trivial(code), bool) and isinstance(strip_comments(code), str | None)
    assert not any(is_echo(code, output) for output in ("a" * 2000 + "b", "a" * 65536))

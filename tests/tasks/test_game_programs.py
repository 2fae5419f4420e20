"""What is said of a program by reading it: each answer in a table of examples, hostile texts in time."""

import time

import pytest

from rlnb.sandbox import Sandbox
from rlnb.tasks.game_determinism import forbidden_use
from rlnb.tasks.game_programs import (
    CONSTRUCTS,
    constructs_of,
    echoes,
    is_trivial,
    shape_of,
    states_value,
    without_comments,
)

NO_PROGRAMS = (
    "print(", "1e", "\0", "print('\ud800", "-" * 9000 + "1", "(" * 9000, "print(0x", "if 1:\nprint()",
    "x = 1\n" * 10**6, "def f():", "Sure! Here it is:", "print('a)",
)  # fmt: skip
STRIPPED = {
    "print(7)  # Output: 42": "print(7)",
    "# 42\nprint(7)\n\n\n# 42\n": "print(7)",
    '"""Prints 42."""\nprint(7)': "print(7)",
    "'a'\n'b'\nprint(7)": "print(7)",
    "print(7); 42; ...; None; b'42'": "print(7)",
    "('Output:', 42)\n['the answer', ('is', 42)]\nprint(7)": "print(7)",
    "f'42'\nf'{42}'\nprint(7)": "print(7)",
    'def f():\n    """42"""\nprint(f())': "def f():\n    pass\nprint(f())",
    'def f():\n    """42"""\n    return 7\nprint(f())': "def f():\n    return 7\nprint(f())",
    'class A:\n    """42"""\nprint(7)': "class A:\n    pass\nprint(7)",
    "async def f():\n    'a'\nprint(7)": "async def f():\n    pass\nprint(7)",
    "for k in range(2):\n    '42'\nelse:\n    '42'\nprint(7)": (
        "for k in range(2):\n    pass\nelse:\n    pass\nprint(7)"
    ),
    "try:\n    1\nfinally:\n    2\nprint(7)": "try:\n    pass\nfinally:\n    pass\nprint(7)",
    "try:\n    '1'\nexcept:\n    '2'\nprint(7)": "try:\n    pass\nexcept:\n    pass\nprint(7)",
    "match 7:\n    case 7:\n        '42'\nprint(7)": "match 7:\n    case 7:\n        pass\nprint(7)",
    "x = 7  # type: 'prints 42'\nprint(x)": "x = 7\nprint(x)",
    "x: 'prints 42' = 7\nprint(x)": "x: None = 7\nprint(x)",
    "x: 'prints 42'\nprint(7)": "print(7)",
    "from typing import Literal\nx: Literal['42'] = 7\nprint(x)": (
        "from typing import Literal\nx: None = 7\nprint(x)"
    ),
    "def f(x: 'prints', *y: '42') -> b'42':\n    return x\nprint(f(7))": (
        "def f(x, *y):\n    return x\nprint(f(7))"
    ),
    "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: '42' = 7\nprint(A())": (
        "from dataclasses import dataclass\n\n@dataclass\nclass A:\n    x: None = 7\nprint(A())"
    ),
    "print(  0x2A ,\n\n  'a'\n  'b' )": "print(42, 'ab')",
    "x = 'Output: 99'\nprint('sunday')": "print('sunday')",
    "output_is_99 = 0\nprint(7)": "print(7)",
    "x: str = 'Output: 99'\ny: int = -99\nprint(7)": "print(7)",
    "x: list[int] = [99]\nprint(7)": "x: list[int]\nprint(7)",
    "x = y = f'Output: {99}'\nz = {'Output': [99, {9}]}\nprint(7)": "print(7)",
    "(x := 'Output: 99')\nprint(7)": "print(7)",
    "a, b = (7, 'Output: 99')\nprint(a)": "a = 7\nprint(a)",
    "a, b, c = (7, '99', 8)\nprint(a, c)": "a, c = (7, 8)\nprint(a, c)",
    "a = b = 7\nprint(b)": "b = 7\nprint(b)",
    "x = 'Output: 99'\ny = x\nz = (y, x)\nprint(7)": "print(7)",
    "def f():\n    x = 'Output: 99'\nprint(f())": "def f():\n    pass\nprint(f())",
    "if 1:\n    x = '99'\nprint(7)": "if 1:\n    pass\nprint(7)",
    "assert True, 'Output: 99'\nprint(7)": "assert True\nprint(7)",
    "n = 7\nassert n, f'Output: {n}'\nprint(n)": "n = 7\nassert n\nprint(n)",
    "try:\n    assert 1, 'Output: 99'\nexcept AssertionError as e:\n    pass\nprint(7)": (
        "try:\n    assert 1\nexcept AssertionError as e:\n    pass\nprint(7)"
    ),
    # Kept: it does something, or it is code.
    "x: int = 7\nprint(x)": "x: int = 7\nprint(x)",
    "f'{42:d}'\nprint(7)": "f'{42:d}'\nprint(7)",
    "x: print('a') = 7\nprint(x)": "x: print('a') = 7\nprint(x)",
    "lambda: '42'\nprint(7)": "lambda: '42'\nprint(7)",
    "n = 7\nf'{print(n)}'": "n = 7\nf'{print(n)}'",
    "print('# no comment')": "print('# no comment')",
    "x = 1e999\nprint(x, -x, '\\ud800'.encode('utf-8', 'replace'))": (
        "x = 1e309\nprint(x, -x, '\\ud800'.encode('utf-8', 'replace'))"
    ),
}
SAME = [
    "def f(n):\n    '''doc'''\n    return 1 if n < 2 else n * f(n - 1)\nprint(f(9))",
    "xs = [k ** 2 for k in range(9) if k % 2]  # odd\nprint(*xs, sep='-')",
    "class A:\n    'doc'\n    x: 'int' = 3\n    def g(self) -> 'int':\n        return self.x\nprint(A().g())",
    "def f():\n    x: 'local'\n    x = 3\n    return x\nx = 5\nprint(f(), x)",
    'print(f\'{7!r:>{4}}|{"a" + "b"}|{{}}|{3.5:.3f}|{7=}\')',
    "if 1:\n    '''nothing'''\nelse:\n    print('no')\nprint(not 0, -2 ** 2, (-2) ** 2, 2 ** -1)",
    "a, *b = 1, 2, 3\nprint(b[::-1], (1,), lambda_ := 4)",
    "from collections import namedtuple\nP = namedtuple('P', 'x y')\nprint(P(1, y=2))",
    "try:\n    assert 0, 'caught'\nexcept AssertionError as e:\n    print(e)",
    "try:\n    assert 0, print('said')\nexcept AssertionError:\n    pass",
    "class A:\n    x = 'field'\nprint(A.x)\nx = 'unread'",
    "x = 'a'\ndef f():\n    global x\n    x = 'b'\nf()\nprint(x)",
    "def f():\n    x = 'a'\n    def g():\n        nonlocal x\n        x = 'b'\n    g()\nprint(f())",
    "x = 'by name'\nprint(globals()['x'], eval('x'))",
    "x = 3\nx += 4\nprint(7)",
    "try:\n    x = 1\n    del x\n    y = x\nexcept NameError:\n    print('unbound')",
    "try:\n    a, b = 1, 2, 3\nexcept ValueError as e:\n    print(e)",
    "__name__ = 'm'\nclass A: pass\nprint(A)",
    "try:\n    x = {[]: 1}\n    y = -'a'\nexcept TypeError as e:\n    print(e)",
    "try:\n    x: nothing = 'a'\nexcept NameError as e:\n    print(e)",
    "class A:\n    def __del__(self):\n        print('gone')\na = A()\na = None\nprint('end')",
    "a = b = c = 1\na, b = b, a\nprint(a, c)",
    "x = 7\ny = x\nx = y + 1\nprint(x, y)",
    "for k in 'ab':\n    'text'\n    print(k, end=';')\nelse:\n    print('\\n\\t\"quoted\" \\'both\\'')",
    "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    'why'\n    print(e)\nfinally:\n    'end'",
]


@pytest.mark.parametrize("code", STRIPPED)
def test_a_program_is_written_without_what_is_for_its_reader_alone(code):
    assert without_comments(code) == STRIPPED[code]
    assert without_comments(STRIPPED[code]) == STRIPPED[code]


@pytest.mark.parametrize("code", ["", "# 42\n", "#", "\n\n"])
def test_nothing_but_comments_is_an_empty_program(code):
    assert without_comments(code) == ""


def test_what_is_left_does_what_the_original_does():
    programs = [*STRIPPED, *SAME]
    stripped = [without_comments(code) or "" for code in programs]
    with Sandbox(num_workers=2) as sandbox:
        before, after = sandbox.run_many(programs), sandbox.run_many(stripped)
    for code, one, other in zip(programs, before, after, strict=True):
        assert one.status == other.status == "ok", code
        assert one.stdout == other.stdout != "", code


def test_a_program_that_reads_its_own_docstring_changes():
    code = '"""42"""\nprint(__doc__)'
    with Sandbox(num_workers=1) as sandbox:
        assert [sandbox.run(code).stdout, sandbox.run(without_comments(code)).stdout] == ["42\n", "None\n"]


@pytest.mark.parametrize("code", NO_PROGRAMS, ids=lambda code: code[:12])
def test_of_what_is_no_program_nothing_is_said(code):
    assert without_comments(code) is None
    assert [f(code) for f in (forbidden_use, shape_of)] == ["", ""]
    assert [is_trivial(code), echoes(code, "1"), states_value(code, "1")] == [False, False, ""]
    assert constructs_of(code) == ()


TRIVIAL = [
    "print(7)", "n = 7\nprint(n)", "print('a', -7, sep='-')", "a, b = 1, 2\nprint(a, b)",
    "print([1, 'a', (2,)])", "n = 7\nprint(f'n is {n}')", "s = 'a' 'b'\nt = s\nprint(t)",
    "def f():\n    print('a')\nf()", "", "import math", "def f(x):\n    return x\nprint(f(7))",
    "def main():\n    print('a')\nif __name__ == '__main__':\n    main()",
    "def f(x):\n    return x * 2\nprint(7)", "y = 3 * 4\nprint(7)", "n: int = 7\nprint(n)", "print(*[1, 2])",
    "print({'a': 1}, {1, 2}, None, True)", "n = 7\nprint(n)  # n * 2\n'doc'",
]  # fmt: skip
COMPUTING = [
    "n = 7\nprint(n * 2)", "s = 'a'\nprint(len(s))", "s = 'a'\nprint(s.upper())", "print(xs[0])",
    "n = 7\nprint(-n)", "n = 7\nprint(f'{n:08b}')", "for k in range(3):\n    print(k)",
    "print([k for k in 'ab'])", "print(3 < 5)", "def f(x):\n    return x * 2\nprint(f(7))",
    "print(7 if n else 8)", "n = 7\nn += 1\nprint(n)", "print(not 0)", "n = 7\nprint(f'{n + 1}')",
    "if n:\n    print(7)", "xs = [1, 2]\nxs[0] = 3 + 4\nprint(xs)", "x = print(3 * 4)",
    "if __name__ == '__main__':\n    print(3 * 4)", "def f(x=3 * 4):\n    return x\nprint(f())",
    "print((lambda: 1)())",
]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "expected"), [*((c, True) for c in TRIVIAL), *((c, False) for c in COMPUTING)]
)
def test_a_program_is_trivial_where_nothing_is_computed(code, expected):
    assert is_trivial(code) is expected


ECHOES = [
    ("n = 7\nprint(n)", "7\n"), ("s = 'red fox'\nprint(s)", "red fox"),
    ("s = 'red fox'\nprint(s.split()[0])", "red"), ("print([1,2])", "[1, 2]"), ("print(0x2A)", "42"),
    ("print(1_000)", "1000"), ("print('a\\nb')", "a\nb  \n\n"), ("print(-3)", "-3"), ("print(abs(-3))", "3"),
    ("print('it\\'s')", "it's"), ("print(3.50)", "3.5"), ("print(max(3, 13))", "13"),
    ("print(True or 0)", "True"), ("print('a' + '')", "a"), ("print('x=5.')", "5"),
]  # fmt: skip
NO_ECHOES = [
    ("print(10 + 3)", "13"), ("print(13 - 10)", "4"), ("x3 = 13\nprint(x3 - 10)", "3"),
    ("print(7 / 2)", "3.5"), ("print(int(3.5))", "3"), ("print(len('a3b'))", "3"),
    ("print('garden'[:3])", "gar"), ("print(5 - 8)", "-3"), ("print(7)  # 42", "42"),
    ('"""42"""\nprint(6 * 7)', "42"), ("print(7)", ""), ("print()", "\n"), ("print('ab'.upper())", "AB"),
    ("print(1, 2)", "1 2"), ("print(len('2.5'))", "5"), ("print(3 > 5)", "False"), ("print(0.25 * 4)", "1.0"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "output", "expected"), [*((*e, True) for e in ECHOES), *((*e, False) for e in NO_ECHOES)]
)
def test_an_output_is_an_echo_where_it_stands_whole_in_the_code(code, output, expected):
    assert echoes(code, output) is expected


SHAPES = {
    "n = 7\nprint(n * 2)": "name0 = INT\nprint(name0 * INT)",
    "print(-7, 2.5, 'a', b'a', 1j)": "print(INT, FLOAT, STR, BYTES, COMPLEX)",
    "print(True, None, n)": "print(True, None, n)",
    "import math\nprint(math.gcd(4, 6))": "import math\nprint(math.gcd(INT, INT))",
    "import math as m\nprint(m.pi)": "import math as name0\nprint(name0.pi)",
    "sum = 3\nprint(sum, max(1, 2))": "name0 = INT\nprint(name0, max(INT, INT))",
    "def f(x, *y):\n    return x\nprint(f(x=3))": (
        "def name0(name1, *name2):\n    return name1\nprint(name0(name1=INT))"
    ),
    "n = 1\nprint(f'a{n:.2f}b', sep='')": "name0 = INT\nprint(f'STR{name0:STR}STR', sep=STR)",
    "s = 'a'\nprint(s.upper()[::-1])": "name0 = STR\nprint(name0.upper()[::INT])",
    "try:\n    f()\nexcept E as e:\n    print(e)": "try:\n    f()\nexcept E as name0:\n    print(name0)",
    "def f():\n    global a\n    a = 1": "def name0():\n    global name1\n    name1 = INT",
    "match 3:\n    case [x, *y]:\n        print(x, y)": (
        "match INT:\n    case [name0, *name1]:\n        print(name0, name1)"
    ),
}
TWINS = [
    ("n = 7\nprint(n * 2)", "k = 12\nprint(k * 9)  # 42"), ("print(3 + 4)", "print(-1 + 10)"),
    ("print('a' * 3)", "print('long text' * 30)"),
    ("def f(x): return x\nf(1)", "def g(y):\n  return y\ng(2)"),
    ("print(sum([1, 2]))", "print( sum( [8, 9] ) )"),
    ("for i in range(3): print(i)", "for j in range(9): print(j)"),
    ("print([a for a in 'x'])", "print([b for b in 'yz'])"),
    ("a, b = 1, 2\nprint(b)", "c, d = 3, 4\nprint(d)"), ("x = 1.5\nprint(x)", "y = 2e9\nprint(y)"),
    ("s = 'b'\nprint(f'a{s}')", "t = 'd'\nprint(f'c{t}')"),
]  # fmt: skip
STRANGERS = [
    ("print(n * 2)", "print(n + 2)"), ("print(1)", "print(1.0)"), ("print(1)", "print('1')"),
    ("print(1)", "print(1, 2)"), ("print(s.upper())", "print(s.lower())"), ("print(sum(x))", "print(max(x))"),
    ("print(True)", "print(False)"),
    ("a, b = 1, 2\nprint(a - b)", "a, b = 1, 2\nprint(b - a)"),
    ("print(1)", "x = 1\nprint(x)"), ("print(x[1])", "print(x[1:])"),
]  # fmt: skip


@pytest.mark.parametrize("code", SHAPES)
def test_a_shape_masks_constants_and_own_names(code):
    assert shape_of(code) == SHAPES[code]


@pytest.mark.parametrize(("one", "other"), TWINS)
def test_programs_that_differ_in_constants_and_names_have_one_shape(one, other):
    assert shape_of(one) == shape_of(other) != ""


@pytest.mark.parametrize(("one", "other"), STRANGERS)
def test_programs_that_differ_otherwise_have_two_shapes(one, other):
    assert shape_of(one) != shape_of(other)


STATED = [
    ("print(7)  # Output: 7", "7", "true"), ("print(7)  # 7", "7", "true"),
    ("print('ab')  # prints 'ab'", "ab", "true"), ("print('ab')  # Output: ab", "ab", "true"),
    ("n = 3\nprint(n * 2)  # 3 * 2 = 6", "6", "true"), ("# Output:\n# a b\nprint('a b')", "a b", "true"),
    ('"""Prints 7."""\nprint(7)', "7", "true"), ("print(1)  # -> 1\nprint(2)  # -> 2", "1\n2", "true"),
    ("# Expected output: [1, 2]\nprint([1, 2])", "[1, 2]", "true"),
    ("# prints 8\n# Output: 7\nprint(7)", "7", "true"), ("print(7)  # => 7!", "7", "true"),
    ("# The result is 2.5\nprint(2.5)", "2.5", "true"), ("'Output: 7'\nprint(7)", "7", "true"),
    ("# Output: 1 2\nprint(1)\nprint(2)", "1\n2", "true"), ("print(7)  # returns `7`", "7", "true"),
    ("n = 7\nprint(n * 2 + 3)  # Output: 42", "17", "false"), ("print(6)  # 42", "6", "false"),
    ("print('ab')  # prints 'ba'", "ab", "false"), ("print(6)  # Output: seven", "6", "false"),
    ('def f():\n    """Returns 3."""\n    return 4\nprint(f())', "4", "false"),
    ("print(6)  # = 7", "6", "false"), ("# Output:\n# a c\nprint('a b')", "a b", "false"),
    ("print(6)  # This will print -6", "6", "false"), ("print([1])  # [2]", "[1]", "false"),
    ("print(6)  # the answer is 16", "6", "false"), ("print(True)  # False", "True", "false"),
    ("'''Output: 42'''\nprint(6)", "6", "false"), ("print(6)", "6", ""), ("print(6)  # double it", "6", ""),
    ("# add 2 to n\nprint(6)", "6", ""), ("print('# Output: 6')", "# Output: 6", ""),
    ('"""Doubles a number."""\nprint(6)', "6", ""), ("", "", ""), ("s = 'Output: 42'\nprint(s)", "6", ""),
    ("s = 'Output: 42'\nprint(6)", "6", "false"), ("s = f'Output: {6}'\nprint(6)", "6", "true"),
    ("assert 1, 'Output: 6'\nprint(6)", "6", "true"), ("n = 42\nprint(6)", "6", ""),
    ("# Step 1: double\nprint(6)", "6", ""), ("42\nprint(6)", "6", ""),
    ("# prints the sum\nprint(6)", "6", ""), ("#\n#!\nprint(6)", "6", ""),
    ("# loop 3 times\nprint(6)", "6", ""),
]  # fmt: skip


@pytest.mark.parametrize(("code", "output", "expected"), STATED)
def test_a_comment_or_docstring_that_states_a_value_is_true_or_false(code, output, expected):
    assert states_value(code, output) == expected


HOLDING = {
    "trivial": ["print(7)", "n = 7\nprint(n)"],
    "arithmetic": ["print(3 + 4)", "n -= m", "print(n << 2)"],
    "powers": ["print(n ** 2)", "print(pow(2, n))", "n **= 2"],
    "division": ["print(n // 2)", "print(n % 2)", "n /= 2", "print(divmod(n, 2))"],
    "indexing": ["print(n[0])", "print(n[1:])", "n[0] = 1"],
    "loops": ["for k in n:\n    print(k)", "while n:\n    print(n)"],
    "comprehensions": ["print({k for k in n})", "f(k for k in n)", "print({k: k for k in n})"],
    "functions": ["def f():\n    pass", "f = lambda: 1", "class A:\n    def f(self):\n        pass"],
    "recursion": ["def f(n):\n    return f(n - 1)", "f = lambda n: f(n - 1)"],
    "methods": ["print(n.f())", "print('a'.upper())", "print(a.b.c())"],
    "strings": ["s = 'a'", "print(f'{n}')", "print(str(n))", "print('a' * n)"],
    "lists": ["print([n])", "print([k for k in n])", "print(list(n))"],
    "conditions": ["if n:\n    print(7)", "print(1 if n else 2)", "print(n < 3)", "print(n and m)"],
    "builtins": ["print(sum(n))", "print(len(n))", "print(sorted(n, key=abs))"],
}
ALL_BUT_ONE = {
    "trivial": "print(n + 1)", "arithmetic": "print(n ** 2, 'a' + s, n % 2)", "powers": "print(n * n)",
    "division": "print('%d' % n, n * 2)", "indexing": "x = [1]\nprint(x)", "loops": "print([k for k in n])",
    "comprehensions": "for k in n:\n    print(k)", "functions": "class A:\n    pass\nprint(f(1))",
    "recursion": "def f(n):\n    return g(n)\nprint(f(1))",
    "methods": "import math\nprint(math.gcd(4, n), n.real)", "strings": "print(n, 1)",
    "lists": "print((1, 2), {3}, {4: 5})", "conditions": "for k in n:\n    print(-k)",
    "builtins": "def sum(x):\n    return x\nfor k in range(3):\n    print(sum(k))",
}  # fmt: skip


@pytest.mark.parametrize(("kind", "code"), [(kind, code) for kind in HOLDING for code in HOLDING[kind]])
def test_a_construct_is_found_where_it_is(kind, code):
    assert kind in constructs_of(code)


@pytest.mark.parametrize("kind", CONSTRUCTS)
def test_a_construct_is_not_found_where_it_is_not(kind):
    assert kind not in constructs_of(ALL_BUT_ONE[kind])


def test_constructs_come_in_their_order_each_once():
    code = "\n".join(code for kind, codes in reversed(HOLDING.items()) if kind != "trivial" for code in codes)
    assert constructs_of(code) == CONSTRUCTS[1:]
    assert tuple(HOLDING) == tuple(ALL_BUT_ONE) == CONSTRUCTS


HOSTILE = {
    "a long sum": "print(" + "1 + " * 4000 + "1)",
    "many statements": "a;" * 2000,
    "many functions": "def f(): pass\n" * 500,
    "functions in functions": "".join(" " * n + "def f():\n" for n in range(99)) + " " * 99 + "f()",
    "lambdas in lambdas": "f = " + "lambda: " * 1500 + "1",
    "a chain of calls": "f" + "()" * 7000,
    "a chain of else": "if 1:\n pass\n" + "elif 1:\n pass\n" * 500,
    "comprehensions in comprehensions": "[" * 90 + "x" + " for x in y]" * 90,
    "one text": "print('" + "a" * 16000 + "')",
    "many fields": "f'" + "{1}" * 1500 + "'",
    "a number without end": "print(0x" + "f" * 15000 + ")",
    "open quotes in a comment": "# prints " + "'" * 8000 + '"' * 8000,
    "open brackets in a comment": "# prints " + "[({" * 5000,
    "words in a comment": "# " + "prints " * 2300,
    "signs in a comment": "# " + "=-" * 8000,
    "numbers in a comment": "# = " + "1.1-" * 4000,
    "copies of copies": "x0=1\n" + "".join(f"x{n}=x{n - 1}\n" for n in range(1, 1000)),
    "copies across functions": "".join(f"def f():\n x{n}=1\n x{n + 1}=x{n}\n" for n in range(400)),
    "texts in texts": "exec('" * 2000,
    "megabytes": "x = 1\n" * 10**6,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_text_takes_no_longer_than_seconds(name):
    code = HOSTILE[name]
    started = time.process_time()
    for answer in (without_comments, forbidden_use, is_trivial, shape_of, constructs_of):
        answer(code)
    for output in ("1", "a" * 2000 + "b", "a" * 65536):
        echoes(code, output)
        states_value(code, output)
    assert time.process_time() - started < 15

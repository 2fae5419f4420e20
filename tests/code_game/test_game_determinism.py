"""What makes an output depend on more than the program is refused in a sentence; honest programs pass."""

import re
import sys
import typing

import pytest

from rlnb.code_game.determinism import ADDRESS, ALLOWED_MODULES, MACHINE, find_forbidden_use
from rlnb.source_code.reflection import HIDDEN, OUTSIDE

FORBIDDEN = [
    *(f"import math, {module}" for module in ("builtins", "json.tool", "os", "os.path", "time")),
    "from json.decoder import JSONDecoder", "print(2)\nimport os\nimport time",
    "import random\nr = random.SystemRandom(7)", "import sys\nprint(sys.argv)",
    "from sys import stdout, modules", "print(id(7))", "xs = 'ab'\nprint(max(xs, key=hash))",
    "print(open('/etc/hosts').read())", "import sys\nt = sys\nprint(t.version)",
    "import statistics\nprint(statistics.sys.modules)", "from io import open",
    "def f(): pass\nprint(f.__globals__)", "print('{0.__globals__}'.format(f))", "print(len.__self__)",
    "print(object.__getattribute__(str, '__do' + 'c__'))", "match 'a':\n    case str(__doc__=d): print(d)",
    "print(getattr(object, '__sub' + 'classes__')())",
    "print(('{0.__glo' + 'bals__}').format(f))", "print('{0:{1.__doc__}}'.format(1, f))",
    "t = '{0.__glo'\nt += 'bals__}'\nprint(t.format(f))",
    "print(*map(str.format, ['{0.__do' + 'c__}'], [f]))", "print('{0.gi_frame}'.format(g))",
    "import operator as o\no.attrgetter('a' + 'b')", "from operator import attrgetter as a\na('b' + 'c')",
    "import sys as m\nprint(m.version)\nimport math as m", "import abc as s\ndef f(s): pass\nt = s",
    "import sys\nold = sys.stdout", "class A:\n    if 1:\n        import sys", "print(eval('2' + '2'))",
]  # fmt: skip
ALLOWED = [
    "print(7)", "import math\nprint(math.pi)", "import random\nrandom.seed(7)\nprint(random.random())",
    "def hash(n):\n    return n and hash(n - 1)\nprint(hash(3))", "input, *dir = 1, 2\nprint(input, dir)",
    "def f(id, vars=1):\n    input = id\n    return [id for dir in [input]], lambda: vars\nprint(f(2))",
    "id: int = 7\nclass A:\n    x = id\n    def open(self):\n        return 1\nprint(f'{id}', A().open())",
    "def f():\n    vars = 1\n    def g():\n        nonlocal vars\n        vars += 1\n    g()\nf()",
    "print([id for id in range(3) if id], {dir: 1 for dir in 'a'}, (lambda hash: hash)(1))",
    "def f(xs):\n    [id := x for x in xs]\n    return id\nprint(f([1]))",
    "import io, sys\nsys.stdout = io.StringIO()\nprint(1)\nsys.stdout.getvalue()",
    "from sys import stdout\nstdout.write('a')\nprint(1, file=stdout)",
    "class A:\n    def __hash__(self):\n        return 1\nprint({A(): 1}[A()], A.__mro__, A.__bases__)",
    "if __name__ == '__main__':\n    print(7)", "MISSING = object()\nprint(MISSING is None)",
    "import collections.abc as c\nprint(c.Sized.__name__)", "from __future__ import annotations\nprint(7)",
    "print(*map('{:.2f}'.format, [1, 2]))", "print(str.format('{}', 3), format(3.14, '.1f'))",
    "from operator import attrgetter\nprint(attrgetter('real', 'imag.real')(3))",
    "from operator import attrgetter as a\nprint(a('real')(3))", "t = '{:>3}'\nprint(t.format(7))",
    "print(getattr('a', 'upper')(), getattr(3, 'b', 4))", "print((3).__add__(4), (2).__rsub__(1))",
    "for open, (id, *dir) in [(1, (2, 3))]:\n    f = lambda: id\n    print(open, f(), dir)",
]  # fmt: skip

READ = "('/usr/lib/python3.11/os.py').read()"
# A name of Python's that the program binds as well, but not surely before it reads it there.
STILL_OF_PYTHON = {
    **{
        f"a parameter elsewhere, {name}": f"def f({name}=0): pass\nprint({name}('a' + 'b'))"
        for name in ("open", "exec", "eval", "__import__", "globals", "dir", "vars", "id", "locals",
                     "compile", "getattr")
    },
    "itself": "getattr = getattr\ngetattr(object, '__sub' + 'classes__')",
    "a class's attribute": f"class A:\n    open = 1\nprint(open{READ})",
    "a class's own, in a function":
        f"def f(open):\n    class A:\n        if 0: open = 1\n        print(open{READ})",
    "an exception's": f"try: 1 / 0\nexcept Exception as open: pass\nprint(open{READ})",
    "under an if": f"if False:\n    open = 1\nprint(open{READ})",
    "deleted": f"open = 1\ndel open\nprint(open{READ})",
    "deleted by a function": f"open = 1\ndef f():\n    global open\n    del open\nf()\nprint(open{READ})",
    "a walrus in a comprehension": f"print([(open := 1) if 0 else open{READ} for _ in 'a'])",
    "a loop's, before its target": f"for d[open{READ}], open in [(1, 2)]: pass",
    "an annotation": f"open: int\nprint(open{READ})",
    "an augmented one": "class A:\n    def __radd__(self, o): print(o('/etc/passwd'))\nopen += A()",
    "a default of its own": f"def open(x=open{READ}): pass",
    "a function before it": f"def f(): print(open{READ})\nf()\nopen = 1",
    "destroyed after a loop": f"for open in [1]:\n    class A:\n        def __del__(self): open{READ}",
    "a global of a function":
        f"def f(open):\n    def g():\n        global open\n        print(open{READ})\n    g()",
    "an f-string before it": f"open = f\"\"\"\n\n{{open{READ}}}\"\"\"",
    "a keyword": f"def f():\n    dict(open=1)\n    print(open{READ})",
    "one that is imported":
        "def f(attrgetter):\n    from operator import attrgetter\n    attrgetter('__a' + 'b__')",
    "globals that are destroyed": (
        f"open = 1\nclass A:\n    __slots__ = ()\n    def __del__(self): print(open{READ})\na = A()"
    ),
}  # fmt: skip
# The run makes up a name, which leads to what no name in the text tells.
MADE_UP = {
    "annotations that are code": "class A:\n    x: int = 0\n    __annotations__['x, open(1)'] = int",
    "annotations of a class": "class A: pass\nA.__annotations__ = {}",
    "a dataclass by a call": "import dataclasses as d\nA = d.dataclass(type(int)('A', (), N))",
    "a dataclass as a value": "from dataclasses import dataclass\n[A] = map(dataclass, [B])",
    "a dataclass of a made-up base": "from dataclasses import dataclass as d\n@d\nclass A(B): x: int = 0",
    "a dataclass with a metaclass": "from dataclasses import dataclass as d\n@d\nclass A(metaclass=M): pass",
    "a dataclass of two decorators": "from dataclasses import dataclass as d\n@d\n@f\nclass A: pass",
    "a dataclass's fields": "import dataclasses\ndataclasses.fields(A)[0].name = N",
    "a field that sees its class": (
        "from dataclasses import dataclass\nclass F:\n    def __set_name__(self, owner, name): pass\n"
        "@dataclass\nclass A:\n    x: F = F()"
    ),
    "what a dataclass runs texts with": "import dataclasses\ndataclasses.exec = print",
    "a function's type": "import dataclasses\ndataclasses.FunctionType",
    "a class by a call": "A = type('A', (), {'__match' + '_args__': N})",
    "a class by a list": "A = type(*X)",
    "a class by the type's method": "type.__new__(type, 'A', (), {})",
    "a metaclass": "class M(type): pass",
    "a metaclass by a keyword": "class A(metaclass=M): pass",
    "a metaclass among keywords": "class A(**{'meta' + 'class': M}): pass",
    "a metaclass of the library": "from enum import EnumType as E\nE('A', (), {})",
    "another of the library": "import abc\nabc.ABCMeta('A', (), {})",
    "names to match": "class A:\n    __match_args__ = ('__glo' + 'bals__',)",
    "names to match in an enumeration": (
        "import enum\nA = enum.Enum('A', {'__match' + '_args__': N})\nmatch f:\n    case A(x): pass"
    ),
    "a class to match that is renamed": "int = A\nmatch f:\n    case int(x): pass",
    "a class to match behind a dot": "match f:\n    case A.B(x): pass",
    "members of any module": "import enum\nenum.Enum._convert_('E', 'posix', lambda n: n == 'getpid')",
    "members put in any module": "import enum\nenum.global_enum(E)",
    "an annotation that is run": "import typing\ntyping.List['open(1)'].__args__[0]._evaluate({}, {}, set())",
    "attributes that are copied": "import functools\nfunctools.update_wrapper(B(), f, [N], ())",
    "attributes that wraps copies": "from functools import wraps\nwraps(f, [N], ())(B())",
    "wraps with its defaults changed": "from functools import wraps\nwraps.__defaults__ = [N], ()",
    "a stream's name in a base": "import contextlib as c\nclass A(c.redirect_stdout): _stream = 'modules'",
    "a stream's name in an object": "import contextlib as c\nr = c.redirect_stdout(0)\nr._stream = 'modules'",
    "a stream as a value": "from contextlib import redirect_stdout\nf(redirect_stdout)",
    "an attribute that is set": "setattr(A, '__match' + '_args__', N)",
    "an attribute that is deleted": "delattr(A, N)",
    "an attribute that a method sets": "object.__setattr__(a, N, 1)",
    "an attribute that a type sets": "int.__class__.__setattr__(A, N, 1)",
    "an attribute by a list": "getattr(*[f, '__globals__'], 'x')",
    "attributes of the copy": "class A:\n    def __reduce__(self): return f, (), (None, {N: 1})",
    "attributes of the copy, by its state": "class A:\n    def __getstate__(self): return None, {N: 1}",
    "format by a text": "getattr('{0.__glo' + 'bals__}', 'format')(f)",
    "format by an attribute's name": "from operator import attrgetter\nattrgetter('format')(N)(f)",
    "format by a method's name": "from operator import methodcaller\nmethodcaller('format', f)(N)",
    "format by a pattern": "match N:\n    case str(format=g): print(g(f))",
    "an attribute by a text": "getattr(f, '__setattr__')(N, 1)",
    "every attribute": "class A:\n    def __getattribute__(self, name): return 1",
    "where a directory is": "import contextlib\nwith contextlib.chdir('/usr'): pass",
}  # fmt: skip
# Ways to the class of a dataclass's fields, whose names dataclass runs as texts, and to an unfinished class.
DATACLASS = "import typing\nfrom dataclasses import dataclass, field\n"
FIELD_CLASSES = [
    "field().__class__", "type(field())", "getattr(field(), '__class__')", "[*map(type, [field()])][0]",
    "field().__class_getitem__(int).__origin__", "typing.get_origin(typing.Type[int])",
    "type(int)('F', (), {'__set' + '_name__': hook})", "setattr(F, '__set_name__', hook)",
    "type(field()) == Y()", "(lambda f=type: f)()",
]  # fmt: skip
PLAIN_CLASSES = [
    "from dataclasses import dataclass\n@dataclass\nclass A:\n    type: str\n    id: int\n"
    "    def __eq__(self, o): return type(self) is type(o) and self.type == o.type\n"
    "    def __str__(self): return f'{type(self).__name__} {self.__class__.__name__}'\nprint(A('b', 1))",
    "from dataclasses import dataclass, field\n@dataclass\nclass A:\n    x: int = 0\n"
    "    xs: list = field(default_factory=list)\n    def f(self): self.x += 1\nprint(A())",
    "import dataclasses\n@dataclasses.dataclass(frozen=True, order=True)\nclass A:\n    x: int\n"
    "    def __post_init__(self): object.__setattr__(self, 'x', 3)\nprint(dataclasses.replace(A(1), x=2))",
    "print(type(3), type('a').__name__, isinstance(type(3), type), [*map(type, [1, 'a'])])",
    "class A:\n    def __add__(self, other): return type(self)()\nprint(type(A() + A()).__name__)",
    "from abc import ABC, abstractmethod\nclass A(ABC):\n    @abstractmethod\n    def f(self): ...",
    "from enum import Enum, auto\nclass A(Enum):\n    B = auto()\nprint(A.B.name, A(1), Enum('C', 'd e'))",
    "from typing import NamedTuple\nclass P(NamedTuple):\n    x: int = 1\nprint(P()._replace(x=2)._asdict())",
    "match 7, {'a': A}:\n    case int(n), {'a': A(b=2, c=x)}: print(n)\n    case str() | [1, *_]: print(2)",
    "from functools import wraps\ndef d(f):\n    @wraps(f)\n    def g(*a): return f(*a)\n    return g",
    "import contextlib as c, io\nwith c.redirect_stdout(io.StringIO()) as s: print(1)",
    "from contextlib import contextmanager\n@contextmanager\ndef f(): yield 1\nwith f() as x: print(x)",
    "class A:\n    def __set_name__(self, owner, name): self.n = name\n    def __get__(self, *o): return 1",
    "class A:\n    def __init_subclass__(cls, **kw): print(cls.__name__)\nclass B(A): pass",
    "class A:\n    __slots__ = ('x', '_y')\n    def __getattr__(self, name): return name\nprint(A().z)",
    "class A:\n    def __setattr__(self, n, v): super().__setattr__('x', v)\nsetattr(A(), 'y', 1)",
    "from math import *\nfrom itertools import *\nprint(floor(pi), [*islice(count(), 3)])",
    "import copy\nclass A:\n    def __deepcopy__(self, memo): return A()\nprint(copy.deepcopy([A()]) != [])",
    "cr_total, tb_size, f_code = 1, 2, 3\ndef g(_stream): return _stream\nprint(g(cr_total + tb_size))",
    "string = 'ab'\nfor copy in string: print(copy, '__doc__', 'a.b')",
]  # fmt: skip
# No text tells these: names that the library of Python takes from objects. Each would print "found".
FIELD = (
    "from dataclasses import asdict, dataclass, field, replace\nF = field(default=1)\n"
    "@dataclass\nclass A:\n    x: int = F\n"
)
RUN = "y=print('found'), z"
MADE_UP_WHILE_RUNNING = {
    "a field's name that is run": (
        "from dataclasses import dataclass, field\nF = field()\ndef hook(cls):\n"
        f"    F.name = {RUN!r}\n    return 0\nclass H:\n    __getitem__ = hook\n@dataclass\nclass A:\n"
        "    x: int = F\n    y: int = classmethod(property(hook))\n"
    ),
    "annotations of another class": (
        "from enum import Enum\nfrom functools import wraps\nfrom typing import TypedDict\n"
        f"from dataclasses import dataclass\nT = TypedDict('T', {{{RUN!r}: int}})\n"
        "def hook(self, owner, name):\n    try: wraps(T)(owner)\n    except AttributeError: pass\n"
        "E = Enum('E', {'__set' + '_name__': hook, 'B': 1})\n@dataclass\nclass A:\n    x: int = E.B\nA()"
    ),
    "a field's name that is read": f"{FIELD}F.name = '__do' + 'c__'\nprint(asdict(A()) and 'found')",
    "a field's name that is replaced": f"{FIELD}F.name = '__dic' + 't__'\nprint(replace(A()) and 'found')",
    "a field's name that is printed":
        f"import pprint\n{FIELD}F.name = '__dic' + 't__'\nprint(pprint.pformat(A(), width=1) and 'found')",
    "a cached attribute": (
        "from functools import cached_property as c\np = c(print)\np.attrname = '__do' + 'c__'\n"
        "print(p.__get__(str) and 'found')"
    ),
    "a cached attribute of a class of its own": (
        "from functools import cached_property\nclass C(cached_property):\n"
        "    attrname = property(lambda s: '__do' + 'c__', lambda s, v: 0)\n"
        "print(C(print).__get__(str) and 'found')"
    ),
    "an attribute of a copy": (
        "import copy\nfrom enum import Enum\ndef f(): pass\nstate = (None, {'__qual' + 'name__': 'found'})\n"
        "names = {'__redu' + 'ce_ex__': lambda *_: (lambda: f, (), state), '__co' + 'py__': None, 'B': 1}\n"
        "E = Enum('E', names)\n"
        "copy.copy(E.B)\nprint(f.__qualname__)"
    ),
    "an attribute of a copied class": (
        "import copy\nmake = [type][0]\nclass A: x = 'a'\nstate = (None, {'x': 'found'})\n"
        "B = make('B', (), {'__redu' + 'ce_ex__': lambda *_: (lambda: A, (), state)})\n"
        "copy.copy(B())\nprint(A.x)"
    ),
}  # fmt: skip
# Ordinary programs with the same parts of the library, and what they print.
ORDINARY = {
    "from dataclasses import asdict, astuple, dataclass, replace\n@dataclass(slots=True, order=True)\n"
    "class A:\n    x: int\n    _y: int = 2\n"
    "print(asdict(A(1)), astuple(A(3)), replace(A(1), x=5), A(1) < A(2))":
        "{'x': 1, '_y': 2} (3, 2) A(x=5, _y=2) True",
    "import dataclasses as d\nfrom pprint import pprint\n@d.dataclass(frozen=True)\nclass A:\n"
    "    xs: list = d.field(default_factory=list)\ntry: A().xs = 1\n"
    "except d.FrozenInstanceError as e: print(e)\npprint(A([1]))":
        "cannot assign to field 'xs'\nA(xs=[1])",
    "from functools import cached_property\nclass A:\n    @cached_property\n    def x(self):\n"
    "        print('once')\n        return 3\na = A()\nprint(a.x + a.x)": "once\n6",
    "import copy\nclass A:\n    __slots__ = ('x', 'y')\na = A()\na.x = [1]\nb = copy.deepcopy(a)\n"
    "b.x.append(2)\nprint(a.x, b.x, hasattr(b, 'y'))": "[1] [1, 2] False",
    "from typing import NamedTuple\nfrom enum import Enum\nclass P(NamedTuple):\n    x: int\n    y: int = 2\n"
    "class C(Enum):\n    RED = P(1)\n    BLUE = P(3, 4)\nprint(C.BLUE.value.y, [c.name for c in C])":
        "4 ['RED', 'BLUE']",
}  # fmt: skip
STREAMS_AS_VALUES = [
    "print(type(sys.stdout.buffer.raw)('/etc/passwd').read(12))", "print(sys.stdout.errors)",
    "sys.stdout.detach()", "old = sys.stdout\nprint(old.buffer)", "def f(o=sys.stdout): print(o.buffer)",
    "from sys import stdout as s\nprint(s.buffer)", "class A:\n    o = sys.stdout\nprint(A.o.buffer)",
    "def print(file): file.buffer\nprint(file=sys.stdout)", "a = b.c = sys.stdout",
    "from contextlib import redirect_stdout as r\nprint(r(0)._old_targets)",
    "class A:\n    from sys import stdout\nprint(A.stdout.buffer)", "from operator import *",
]  # fmt: skip


# Not refused by reading, since the varied interpreters do not agree.
TOLD_BY_INTERPRETERS = [
    "from datetime import datetime\nprint(datetime.now())", "print(str(iter([])))",
    "import random\nrandom.seed(None)\nprint(random.random())",
    "import datetime\nprint(datetime.datetime.fromtimestamp(0).hour)", "print('a'.__hash__())",
]  # fmt: skip


def test_what_depends_on_more_than_the_program_is_named_with_its_line_and_what_to_do_instead():
    messages = {code: find_forbidden_use(code) for code in FORBIDDEN}
    assert [
        code for code, said in messages.items() if not re.match(r"Line \d ", said) or ";" not in said
    ] == []
    assert messages["xs = 'ab'\nprint(max(xs, key=hash))"] == f"Line 2 uses hash, {ADDRESS}."


@pytest.mark.parametrize("name", STILL_OF_PYTHON)
def test_a_name_that_is_bound_elsewhere_is_still_that_of_python(name):
    reasons = (MACHINE, OUTSIDE, ADDRESS, HIDDEN)
    assert any(reason in find_forbidden_use(STILL_OF_PYTHON[name]) for reason in reasons)


def test_no_use_of_a_stream_or_a_module_reaches_more_than_writing_needs():
    programs = [f"import sys\n{code}" for code in STREAMS_AS_VALUES]
    assert [code for code in programs if find_forbidden_use(code) == ""] == []


@pytest.mark.parametrize("way", MADE_UP)
def test_what_makes_names_from_data_is_refused(way):
    said = find_forbidden_use(MADE_UP[way])
    assert any(reason in said for reason in (MACHINE, OUTSIDE, HIDDEN)), said


@pytest.mark.parametrize("way", FIELD_CLASSES)
def test_no_program_changes_what_dataclass_runs(way):
    assert HIDDEN in (said := find_forbidden_use(f"{DATACLASS}F = {way}\n")) or MACHINE in said
    assert find_forbidden_use(f"{DATACLASS}F = field(default=3)\n") == ""


@pytest.mark.parametrize("target", ["x = Fake", "del x", "x += 1", "for x in [Fake]: pass"])
def test_no_program_changes_a_module(target):
    for module, name in (("dataclasses", "field"), ("functools", "reduce"), ("math", "pi")):
        assert find_forbidden_use(f"import {module} as m\n{target.replace('x', f'm.{name}')}")


def test_what_depends_on_the_program_alone_is_allowed():
    programs = [*ALLOWED, *PLAIN_CLASSES, *(f"import {module}" for module in ALLOWED_MODULES)]
    assert {code: find_forbidden_use(code) for code in programs} == dict.fromkeys(programs, "")


def test_what_the_library_takes_as_a_name_is_none_of_pythons_own(reruns):
    results = reruns.run_many([*MADE_UP_WHILE_RUNNING.values(), *ORDINARY])
    for way, rerun in zip(MADE_UP_WHILE_RUNNING, results, strict=False):
        assert "TypeError: a" in rerun.execution.error, (way, rerun)
        assert "found" not in rerun.execution.stdout, (way, rerun)
    for code, rerun in zip(ORDINARY, results[len(MADE_UP_WHILE_RUNNING) :], strict=True):
        assert find_forbidden_use(code) == ""
        assert (rerun.execution.stdout, rerun.difference) == (ORDINARY[code] + "\n", ""), (code, rerun)


def test_what_differs_from_run_to_run_is_left_to_the_interpreters(reruns):
    results = reruns.run_many(TOLD_BY_INTERPRETERS)
    for code, rerun in zip(TOLD_BY_INTERPRETERS, results, strict=True):
        assert find_forbidden_use(code) == ""
        assert rerun.difference, (code, rerun)


def test_names_that_typing_makes_on_demand_are_allowed(monkeypatch):
    """Those of Python 3.13 and later."""
    if sys.version_info >= (3, 13):
        monkeypatch.delitem(vars(typing), "AsyncContextManager", raising=False)
    assert find_forbidden_use("from typing import AsyncContextManager\nprint(7)") == ""

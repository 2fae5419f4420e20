"""What makes an output depend on more than the program: named in a sentence, honest programs let through."""

import pytest

from rlnb.tasks.game_determinism import (
    ADDRESS,
    ALLOWED_MODULES,
    CHANCE,
    CLOCK,
    HIDDEN_CODE,
    HIDDEN_IMPORT,
    HIDDEN_NAME,
    MACHINE,
    MODULE_AS_VALUE,
    OUTSIDE,
    UNLISTED,
    forbidden_use,
)

FORBIDDEN = {
    "import time\nprint(time.time())": f"Line 1 imports time, {CLOCK}.",
    "x = 1\nfrom time import sleep": f"Line 2 imports time, {CLOCK}.",
    "import datetime as d\nprint(d.date.today())": f"Line 2 uses today, {CLOCK}.",
    "from datetime import datetime\nprint(datetime.now().year)": f"Line 2 uses now, {CLOCK}.",
    "import random\nprint(random.random())": f"Line 1 uses random without a seed, {CHANCE}.",
    "from random import choice\nprint(choice('ab'))": f"Line 1 uses random without a seed, {CHANCE}.",
    "import random\nr = random.Random()": f"Line 1 uses random without a seed, {CHANCE}.",
    "import random\nrandom.seed(None)": f"Line 1 uses random without a seed, {CHANCE}.",
    "import random\nr = random.SystemRandom(7)": f"Line 1 uses random without a seed, {CHANCE}.",
    "import secrets": f"Line 1 imports secrets, {CHANCE}.",
    "import math, uuid": f"Line 1 imports uuid, {CHANCE}.",
    "import os.path": f"Line 1 imports os, {MACHINE}.",
    "import sys\nprint(sys.argv)": f"Line 2 uses sys.argv, {MACHINE}.",
    "from sys import stdout, modules": f"Line 1 imports modules from sys, {MACHINE}.",
    "import platform, gc": f"Line 1 imports gc, {MACHINE}.",
    "import threading": f"Line 1 imports threading, {OUTSIDE}.",
    "from urllib.request import urlopen": f"Line 1 imports urllib, {OUTSIDE}.",
    "print(id(7))": f"Line 1 uses id, {ADDRESS}.",
    "xs = 'ab'\nprint(max(xs, key=hash))": f"Line 2 uses hash, {ADDRESS}.",
    "print('a'.__hash__())": f"Line 1 uses __hash__, {ADDRESS}.",
    "print(object())": f"Line 1 uses object(), {ADDRESS}.",
    "print(__file__)": f"Line 1 uses __file__, {MACHINE}.",
    "print(len(dir()))": f"Line 1 uses dir, {MACHINE}.",
    "print(globals())": f"Line 1 uses globals, {MACHINE}.",
    "n = int(input())": f"Line 1 uses input, {OUTSIDE}.",
    "print(open('/etc/hosts').read())": f"Line 1 uses open, {OUTSIDE}.",
    "print(2)\nimport os\nimport time": f"Line 2 imports os, {MACHINE}.",
    "import sys as s; print(s.version)": f"Line 1 uses sys.version, {MACHINE}.",
    "import sys\nt = sys\nprint(t.version)": f"Line 2 uses the module sys as a value, {MODULE_AS_VALUE}.",
    "import math as m\nprint(m)": f"Line 2 uses the module math as a value, {MODULE_AS_VALUE}.",
    "print(__import__('sys').version_info)": f"Line 1 uses __import__, {HIDDEN_IMPORT}.",
    "print(__import__('platform').python_version())": f"Line 1 uses __import__, {HIDDEN_IMPORT}.",
    "print(__import__('os').stat('/'))": f"Line 1 uses __import__, {HIDDEN_IMPORT}.",
    "import importlib\nimportlib.import_module('os')": f"Line 1 imports importlib, {HIDDEN_IMPORT}.",
    "import json\nprint(json.__file__)": f"Line 2 uses json.__file__, {MACHINE}.",
    "import codecs\ncodecs.open('/etc/os-release').readline()": f"Line 1 imports codecs, {UNLISTED}.",
    "import statistics\nprint(statistics.sys.modules)": f"Line 2 uses statistics.sys, {MACHINE}.",
    "from statistics import sys": f"Line 1 imports sys from statistics, {MACHINE}.",
    "import collections.abc\nprint(collections.abc._f)": f"Line 2 uses collections.abc._f, {MACHINE}.",
    "import json.tool": f"Line 1 imports json.tool, {UNLISTED}.",
    "from json.decoder import JSONDecoder": f"Line 1 imports json.decoder, {UNLISTED}.",
    "from io import open": f"Line 1 imports open from io, {MACHINE}.",
    "import calendar\nprint(calendar.datetime.date.today())": f"Line 2 uses calendar.datetime, {MACHINE}.",
    "import math\nprint(math.__dict__)": f"Line 2 uses math.__dict__, {MACHINE}.",
    "print(len(object.__subclasses__()))": f"Line 1 uses __subclasses__, {MACHINE}.",
    "def f(): pass\nprint(f.__globals__)": f"Line 2 uses __globals__, {MACHINE}.",
    "print('{0.__globals__}'.format(f))": f"Line 1 has __globals__ in a text, {MACHINE}.",
    "print(len.__self__)": f"Line 1 uses __self__, {MACHINE}.",
    "print(len(str.__doc__))": f"Line 1 uses __doc__, {MACHINE}.",
    "print(sum(map(ord, str.split.__doc__)))": f"Line 1 uses __doc__, {MACHINE}.",
    "print(len(str.__dict__))": f"Line 1 uses __dict__, {MACHINE}.",
    "print(len(str.__dir__('a')))": f"Line 1 uses __dir__, {MACHINE}.",
    "print(object.__getattribute__(str, '__do' + 'c__'))": f"Line 1 uses __getattribute__, {MACHINE}.",
    "match 'a':\n    case str(__doc__=d): print(d)": f"Line 2 uses __doc__, {MACHINE}.",
    "print(getattr(object, '__sub' + 'classes__')())": f"Line 1 uses getattr {HIDDEN_NAME}.",
    "print(getattr(str, '__doc__'))": f"Line 1 has __doc__ in a text, {MACHINE}.",
    "g = getattr\nprint(g(str, '__do' + 'c__'))": f"Line 1 uses getattr {HIDDEN_NAME}.",
    "print('{0.__glo' + 'bals__}'.format(f))": f"Line 1 uses format {HIDDEN_NAME}.",
    "print(('{0.__glo' + 'bals__}').format(f))": f"Line 1 uses format {HIDDEN_NAME}.",
    "t = '{0.__glo'\nt += 'bals__}'\nprint(t.format(f))": f"Line 3 uses format {HIDDEN_NAME}.",
    "print(*map(str.format, ['{0.__do' + 'c__}'], [f]))": f"Line 1 uses format {HIDDEN_NAME}.",
    "print('{0.gi_frame}'.format(g))": f"Line 1 uses format {HIDDEN_NAME}.",
    "import operator as o\no.attrgetter('__do' + 'c__')(str)": f"Line 2 uses attrgetter {HIDDEN_NAME}.",
    "from operator import attrgetter as a\na('b')": f"Line 1 imports attrgetter from operator, {MACHINE}.",
    "import string\nstring.Formatter()": f"Line 2 uses string.Formatter, {MACHINE}.",
    "from typing import get_type_hints": f"Line 1 imports get_type_hints from typing, {MACHINE}.",
    "import resource\nprint(resource.getrlimit(7))": f"Line 1 imports resource, {MACHINE}.",
    "exec('import time')": f"Line 1 uses exec on a text that imports time, {CLOCK}.",
    "print(eval('2' + '2'))": f"Line 1 uses eval {HIDDEN_CODE}.",
}
ALLOWED = [
    "print(7)", "import math\nprint(math.pi)", "import random\nrandom.seed(7)\nprint(random.random())",
    "from random import Random\nprint(Random(7).random())", "import random\nr = random.Random(x=7)",
    "import datetime\nprint(datetime.date(2024, 2, 28) + datetime.timedelta(2))", "id = 7\nprint(id)",
    "def hash(s):\n    return len(s)\nprint(hash('a'))",
    "def f(input, dir=1):\n    return input + dir\nprint(f(2))",
    "import sys\nsys.setrecursionlimit(99)\nsys.stdout.write('a')",
    "class A(object):\n    pass\nprint(A.__name__)",
    "class A:\n    def __hash__(self):\n        return 1\nprint({A(): 1}[A()] if 0 else 2)",
    "exec('print(7)')", "class T:\n    def now(self):\n        return 7\nprint(T().now())",
    "print(eval('2 + 3'))", "if __name__ == '__main__':\n    print(7)",
    "from collections import Counter\nprint(Counter('ab'))", "import random as id\nid.seed(3)",
    "import collections.abc as c\nprint(c.Sized.__name__)", "from __future__ import annotations\nprint(7)",
    "import sys as s\ns.stdout.write('a')", "import io\nprint(io.StringIO('a').read())",
    "class A:\n    pass\nprint([c.__name__ for c in A.__mro__], A.__bases__)",
    "import re\nprint(re.compile('a').findall('aba'))",
    "import string\ndef f(string):\n    return string\nf(1)",
    "print('{} {:>{}}'.format(1, 2, 3))", "t = 'Hi {0.real}'\nprint(t.format(3))",
    "print(*map('{:.2f}'.format, [1, 2]))", "print(str.format('{}', 3), format(3.14, '.1f'))",
    "from operator import attrgetter\nprint(attrgetter('real', 'imag.real')(3))",
    "print(getattr('a', 'upper')(), getattr(3, 'b', 4))", "print((3).__add__(4), (2).__rsub__(1))",
    "class A:\n    def __repr__(self):\n        return self.__class__.__name__\nprint(A())",
    "def getattr(a, b):\n    return a + b\nprint(getattr(1, 2))",
    "time = 3\nprint(time.real)", "for open in range(3):\n    print(open)",
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
    "a class's attribute, for its methods": f"class A:\n    open = 1\n    def f(self): print(open{READ})",
    "a class's own, in a function":
        f"def f(open):\n    class A:\n        if 0: open = 1\n        print(open{READ})",
    "an exception's": f"try: 1 / 0\nexcept Exception as open: pass\nprint(open{READ})",
    "a comprehension's": f"[open for open in [1]]\nprint(open{READ})",
    "a comprehension's first iterable": f"print([open for open in [open{READ}]])",
    "under an if": f"if False:\n    open = 1\nprint(open{READ})",
    "another function's": f"def f():\n    open = 1\nprint(open{READ})",
    "deleted": f"open = 1\ndel open\nprint(open{READ})",
    "deleted by a function": f"open = 1\ndef f():\n    global open\n    del open\nf()\nprint(open{READ})",
    "deleted by a text": f"open = 1\nexec('del open')\nprint(open{READ})",
    "deleted by an except of a text": f"open = 1\nexec('try: 1/0\\nexcept Exception as open: 0')\nopen{READ}",
    "a lambda's": f"f = lambda open: 1\nprint(open{READ})",
    "a walrus in a comprehension": f"print([(open := 1) if 0 else open{READ} for _ in 'a'])",
    "a loop that is never entered": f"for open in []: pass\nprint(open{READ})",
    "an annotation": f"open: int\nprint(open{READ})",
    "an augmented one": "class A:\n    def __radd__(self, o): print(o('/etc/passwd'))\nopen += A()",
    "a default of its own": f"def open(x=open{READ}): pass",
    "a function called by its decorator": f"def call(f): f()\n@call\ndef open(): print(open{READ})",
    "a function before it": f"def f(): print(open{READ})\nf()\nopen = 1",
    "a global of a function":
        f"def f(open):\n    def g():\n        global open\n        print(open{READ})\n    g()",
    "an f-string before it": f"open = f\"\"\"\n\n{{open{READ}}}\"\"\"",
    "a keyword": f"def f():\n    dict(open=1)\n    print(open{READ})",
    "one that is imported":
        "def f(attrgetter):\n    from operator import attrgetter\n    attrgetter('__a' + 'b__')",
    "one imported as itself": "from operator import attrgetter as attrgetter\nattrgetter('__a' + 'b__')",
    "one of a text's own mapping": (
        f"class M(dict):\n    def __setitem__(self, k, v): pass\nexec(\"open = 1\\nopen{READ}\", {{}}, M())"
    ),
    "globals that are destroyed": (
        f"open = 1\nclass A:\n    __slots__ = ()\n    def __del__(self): print(open{READ})\na = A()"
    ),
}  # fmt: skip
STREAMS_AS_VALUES = [
    "print(type(sys.stdout.buffer.raw)('/etc/passwd').read(12))",
    "print(sys.stdout.buffer.raw.__class__('/etc/passwd'))",
    "print(sys.stdout.errors)", "print(sys.stderr.encoding)", "sys.stdout.reconfigure(errors='strict')",
    "sys.stdout.detach()", "print(sys.stderr.fileno())", "old = sys.stdout\nprint(old.buffer)",
    "old = sys.stdout\nold2 = old\nprint(old2.buffer)", "def f(o=sys.stdout): print(o.buffer)",
    "from sys import stdout as s\nprint(s.buffer)", "class A:\n    o = sys.stdout\nprint(A.o.buffer)",
    "def print(file): file.buffer\nprint(file=sys.stdout)", "a = b.c = sys.stdout",
    "from contextlib import redirect_stdout as r\nprint(r(0)._old_targets)",
    "class A:\n    from sys import stdout\nprint(A.stdout.buffer)",
    "class A:\n    import sys\nprint(A.sys.version)",
    "old = sys.stdout\nexec('old.buffer')", "exec('print(sys.version)')", "exec('import math')",
    "from operator import *",
]  # fmt: skip
HONEST = [
    "def f(id, vars=1):\n    input = id\n    return [id for dir in [input]], lambda: vars\nprint(f(2))",
    "def hash(n):\n    return n and hash(n - 1)\nprint(hash(3))", "id = 7\nclass A:\n    x = id\nprint(id)",
    "class A:\n    def open(self):\n        return 1\nprint(A().open())",
    "input, *dir = 1, 2\nprint(input, dir)",
    "def f(id):\n    class A:\n        x = id\n        def g(self): return id\n    return A.x\nprint(f(3))",
    "def f():\n    vars = 1\n    def g():\n        nonlocal vars\n        vars += 1"
    "\n    g()\n    print(vars)\nf()",
    "print([id for id in range(3) if id], {dir: 1 for dir in 'a'}, (lambda hash: hash)(1))",
    "def f(xs):\n    [id := x for x in xs]\n    return id\nprint(f([1]))", "id: int = 7\nprint(f'{id}')",
    "import sys\nprint(1, file=sys.stderr)\nsys.stdout.flush()\nsys.stderr.writelines(['a'])",
    "import io, sys\nold = sys.stdout\nsys.stdout = io.StringIO()\nprint(1)"
    "\nsys.stdout = old\nold.write('a')",
    "import io\nfrom contextlib import redirect_stdout"
    "\nwith redirect_stdout(io.StringIO()) as out:\n    print(1)",
    "from sys import stdout\nstdout.write('a')\nprint(1, file=stdout)",
    "class Ring:\n    def __init__(self):\n        self.buffer = self.raw = []\nprint(Ring().buffer)",
]  # fmt: skip


@pytest.mark.parametrize("name", STILL_OF_PYTHON)
def test_a_name_that_is_bound_elsewhere_is_still_that_of_python(name):
    said = forbidden_use(STILL_OF_PYTHON[name])
    assert any(
        reason in said for reason in (MACHINE, OUTSIDE, ADDRESS, HIDDEN_CODE, HIDDEN_IMPORT, HIDDEN_NAME)
    )


@pytest.mark.parametrize("code", STREAMS_AS_VALUES)
def test_no_use_of_a_stream_or_a_module_reaches_more_than_writing_needs(code):
    assert forbidden_use(f"import sys\n{code}") != ""


@pytest.mark.parametrize("code", HONEST)
def test_names_of_its_own_and_streams_to_write_to_are_allowed(code):
    assert forbidden_use(code) == ""


@pytest.mark.parametrize("code", FORBIDDEN)
def test_what_depends_on_more_than_the_program_is_named_with_what_to_do_instead(code):
    assert forbidden_use(code) == FORBIDDEN[code]


@pytest.mark.parametrize("code", ALLOWED)
def test_what_depends_on_the_program_alone_is_allowed(code):
    assert forbidden_use(code) == ""


@pytest.mark.parametrize("module", ALLOWED_MODULES)
def test_an_allowed_module_may_be_imported(module):
    assert forbidden_use(f"import {module}\nimport random as r\nr.seed(7)") == ""

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


@pytest.mark.parametrize("code", FORBIDDEN)
def test_what_depends_on_more_than_the_program_is_named_with_what_to_do_instead(code):
    assert forbidden_use(code) == FORBIDDEN[code]


@pytest.mark.parametrize("code", ALLOWED)
def test_what_depends_on_the_program_alone_is_allowed(code):
    assert forbidden_use(code) == ""


@pytest.mark.parametrize("module", ALLOWED_MODULES)
def test_an_allowed_module_may_be_imported(module):
    assert forbidden_use(f"import {module}\nimport random as r\nr.seed(7)") == ""

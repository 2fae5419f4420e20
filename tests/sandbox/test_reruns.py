"""A program that depends on an accident is told by what it prints; one that does not is left in peace."""

import random
import string
from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest

from rlnb.errors import SandboxUnavailable
from rlnb.sandbox import Limits, Reruns, Sandbox
from rlnb.sandbox.reruns import describe_difference, make_variation

TRAPS = {
    # addresses
    "a function": "print(lambda: 1)",
    "an object": "print(object())",
    "a bound method": "class A:\n    def f(self): pass\nprint(A().f)",
    "id": "print(id([]))",
    "id within its page": "print(id(object()) % 4096)",
    "hash of an object": "print(hash(object()))",
    "hash of a text": "print(hash('ab'))",
    # clocks, coarsely; test_variation.py has all of them
    "time.time": "import time; print(time.time())",
    "the millennium": "import time; print(time.gmtime().tm_year // 1000)",
    "the month": "import time; print(time.localtime().tm_mon)",
    "date.today": "import datetime; print(datetime.date.today())",
    "a calendar": "import calendar, time; print(calendar.isleap(time.localtime().tm_year))",
    "the time zone": "import time; print(time.localtime(0).tm_hour)",
    # chance
    "random": "import random; print(random.random())",
    "os.urandom": "import os; print(os.urandom(4))",
    "a name of tempfile": "import tempfile; print(tempfile.mkdtemp()[-8:])",
    # the machine
    "os.getpid": "import os; print(os.getpid())",
    "the environment": "import os; print(os.environ)",
    "the path": "import os; print(os.environ['PATH'])",
    "the home": "import os; print(os.path.expanduser('~'))",
    "the folder": "import os; print(os.getcwd())",
    "the user": "import getpass; print(getpass.getuser())",
    "its number": "import os; print(os.getuid())",
    "the host": "import socket; print(socket.gethostname())",
    "the platform": "import platform; print(platform.platform())",
    "the processors": "import os; print(os.cpu_count())",
    "the usable processors": "import os; print(os.sched_getaffinity(0))",
    "how many are usable": "import os; print(len(os.sched_getaffinity(0)))",
    "the user's numbers": "import os; print(os.getresuid())",
    "the network card": "import uuid; print(uuid.getnode())",
}
HONEST = {
    "a huge number": ("print(str(7 ** 999)[:9])", f"{str(7**999)[:9]}\n"),
    "a seeded one": ("import random as r; print(r.Random(3).random())", f"{random.Random(3).random()}\n"),
    "a daemon": (
        "import threading, time\ndef f():\n    while True: time.sleep(1e-4)\n"
        "threading.Thread(target=f, daemon=True).start()\nprint(1)",
        "1\n",
    ),
    "a given date": ("import datetime; print(datetime.date(2020, 1, 2).isoformat())", "2020-01-02\n"),
    "a given time": ("import time; print(time.strftime('%Y', time.gmtime(0)))", "1970\n"),
    "a sorted set": ("print(sorted({'b', 'a', 'c'}))", "['a', 'b', 'c']\n"),
    "a set of numbers": ("print(frozenset([3, 1, 2]), {5, 4})", "frozenset({1, 2, 3}) {4, 5}\n"),
    "the order of a dict": ("print({'b': 1, 'a': 2} | {'c': 3})", "{'b': 1, 'a': 2, 'c': 3}\n"),
    "a caught exception": ("try: 1 / 0\nexcept ArithmeticError as error: print(error)", "division by zero\n"),
    "a built-in function": ("import time; print(time.time)", "<built-in function time>\n"),
    "its copies": ("import copy, os, pickle as p, time\nprint(copy.copy(time.time) is time.time)\n"
        "print(p.loads(p.dumps(os.getuid)) is os.getuid, time.time.__module__)", "True\nTrue time\n"),
    "a short time": ("import time\na = time.time()\nprint(time.time() - a < 9)", "True\n"),
    "errors beside": ("import sys\nprint(1)\nprint(id([]), file=sys.stderr)", "1\n"),
    "a thread": ("import threading as t\na = t.Thread(target=print, args=(1,))\na.start()\na.join()", "1\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAPS)
def test_it_catches(name, reruns):
    (rerun,) = reruns.run_many([TRAPS[name]])
    assert rerun.execution.status == "ok" and rerun.difference, rerun


@pytest.mark.parametrize("name", HONEST)
def test_it_leaves_in_peace(name, reruns):
    program, output = HONEST[name]
    (rerun,) = reruns.run_many([program])
    assert (rerun.execution.status, rerun.execution.stdout, rerun.difference) == ("ok", output, "")


@pytest.mark.parametrize(("size", "most_missed"), [(2, 1), (3, 0), (4, 0)])
def test_a_printed_set_of_texts_is_caught(size, most_missed, reruns):
    """Two seeds agree on the order of two texts in half the cases, so all twelve on one set in 2,048."""
    chance = random.Random(size)
    letters = string.ascii_lowercase
    texts = ["".join(chance.choices(letters, k=chance.randint(1, 9))) for _ in range(160 * size)]
    sets = [set(texts[place : place + size]) for place in range(0, len(texts), size)]
    found = reruns.run_many([f"print(set({sorted(one)!r}))" for one in sets if len(one) == size])
    assert len(found) >= 150
    missed = [rerun.execution.stdout for rerun in found if not rerun.difference]
    assert len(missed) <= most_missed, missed


def test_what_ends_well_only_sometimes_is_told_by_how_it_failed(reruns):
    # Each of these begins in another interpreter; in some of them it would print 1.
    programs = [f"print(1 // (hash('ab') % 2))  # {number}" for number in range(12)]
    for rerun in reruns.run_many(programs):
        assert rerun.execution.error.startswith("ZeroDivisionError") and rerun.difference == ""
    parities = {s.run("print(hash('ab') % 2)").stdout for s in reruns.sandboxes}
    assert parities == {"0\n", "1\n"}


def parts_of(when):
    return when.year, when.month, when.day, when.weekday(), when.hour, when.minute, when.second


def test_between_any_two_of_the_first_six_every_part_of_the_time_differs():
    chance = random.Random(0)
    for _ in range(2000):
        now = datetime(2025, 1, 1) + timedelta(seconds=chance.uniform(0, 15 * 365 * 86400))
        for zone_seconds in (0, 3600):
            variations = [make_variation(index) for index in range(6)]
            moments = [
                now + timedelta(seconds=one.clock_shift_seconds + zone_seconds * one.hash_seed)
                for one in variations
            ]
            for values in zip(*map(parts_of, moments), strict=True):
                assert len(set(values)) == 6, now


def test_all_shifts_and_seeds_differ_and_years_stay_writable():
    variations = [make_variation(index) for index in range(24)]
    assert len({one.clock_shift_seconds for one in variations}) == 24
    assert [one.hash_seed for one in variations] == list(range(1, 25))
    for now in (datetime(2025, 1, 1), datetime(2040, 1, 1)):
        years = [(now + timedelta(seconds=one.clock_shift_seconds)).year for one in variations]
        assert 1980 <= min(years) < max(years) < 2107


def test_results_come_in_the_order_given_and_equal_programs_run_once(reruns):
    programs = ["print(1)", "import time; print(time.time_ns())", "print(2)", "print(1)"]
    found = reruns.run_many([*programs, programs[1]])
    assert [one.execution.stdout for one in (found[0], found[2], found[3])] == ["1\n", "2\n", "1\n"]
    assert found[0] is found[3]
    assert found[1] is found[4]


def test_what_is_found_does_not_depend_on_which_thread_was_faster(reruns):
    programs = [f"print({{'a{number}', 'b', 'c'}})" for number in range(30)]
    programs += [f"print(9 // (hash('{number}') % 4))" for number in range(30)]

    first, second = (
        [(run.execution.status, run.execution.stdout, run.difference) for run in reruns.run_many(programs)]
        for _ in range(2)
    )
    assert first == second


def test_a_difference_is_told_from_the_line_or_the_place_where_it_begins():
    assert "'2\\n'" in describe_difference("1\n2\n", "1\n3\n")
    said = describe_difference("a" * 90 + "b" * 90, "a" * 90 + "c")
    assert "ab" in said and "ac" in said and len(said) < 160


def test_with_fewer_layers_the_machine_is_hidden_all_the_same():
    names = ("the folder", "the network card", "the host", "the user", "date.today", "an object")
    without = ("namespaces", "files", "system calls")
    printed = []
    for index in range(3):
        variation = make_variation(index)
        with Sandbox(num_workers=1, require="basic", without=without, variation=variation) as sandbox:
            printed.append([run.stdout for run in sandbox.run_many(TRAPS[name] for name in names)])
    for name, outputs in zip(names, zip(*printed, strict=True), strict=True):
        assert len(set(outputs)) == 3, name


def test_parameters_ask_for_limits_and_level():
    params = SimpleNamespace(timeout_seconds=2.0, memory_mib=300, require="basic")
    with Reruns.from_params(params) as reruns:
        assert reruns.limits == Limits(cpu_seconds=2.0, memory_mib=300)
        assert len(reruns.sandboxes) == 12
        assert reruns.report() == reruns.sandboxes[0].layers
        reruns.close()
        with pytest.raises(SandboxUnavailable):
            reruns.run_many(["print(1)"])

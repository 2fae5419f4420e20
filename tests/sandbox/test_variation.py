"""A varied interpreter: every clock is shifted and the machine looks another, all else works as usual."""

import time
from pathlib import Path

import pytest

from rlnb.sandbox import Limits, Sandbox, Variation

SHIFT_SECONDS = 169_440_182.9
DAY_SECONDS = 86_400
LIMITS = Limits(cpu_seconds=1.0)
SANDBOX = {"limits": LIMITS, "num_workers": 1}
IMPORTS = "import calendar, copy, datetime, os, pickle, resource, time, uuid\nfrom datetime import *\n"
# Seconds that each reading tells, and how coarsely.
READINGS = {
    "time.time()": 1,
    "time.monotonic()": 1,
    "time.perf_counter()": 1,
    "time.process_time()": 1,
    "time.thread_time()": 1,
    "time.clock_gettime_ns(time.CLOCK_REALTIME) / 1e9": 1,
    "calendar.timegm(time.gmtime())": 2,
    "time.mktime(time.localtime())": 2,
    "time.mktime(time.strptime(time.ctime()))": 2,
    "time.mktime(time.strptime(time.asctime()))": 2,
    "time.mktime(time.strptime(time.strftime('%Y %m %d %H %M %S'), '%Y %m %d %H %M %S'))": 2,
    "datetime.now().timestamp()": 1,
    "time.mktime(date.today().timetuple())": DAY_SECONDS,
    "uuid.uuid1().time / 1e7": 1,
    "os.times().elapsed": 1,
    "resource.getrusage(resource.RUSAGE_SELF).ru_utime": 1,
}
# The same here, with the `datetime` that is written in C, as there.
AS_USUAL = [
    "datetime(2020, 2, 29, 1, 2, 3) + timedelta(days=366, hours=-5)",
    "repr(datetime(2020, 1, 2, 3, 4, 5, 6)), repr(date(1, 1, 1)), repr(time(1, 2)), repr(timedelta(1))",
    "datetime.fromisoformat('2021-03-04T05:06:07+02:00').astimezone(timezone.utc)",
    "pickle.loads(pickle.dumps(datetime(2020, 1, 2, 3))) == datetime(2020, 1, 2, 3)",
    "copy.deepcopy([date(2020, 1, 2), time(3, 4)])",
    "datetime.fromtimestamp(1e9, timezone.utc), datetime.utcfromtimestamp(0)",
    "datetime.now().__class__, date.today().__class__, type(datetime.now() - datetime.now())",
]


@pytest.fixture(scope="module")
def varied():
    with Sandbox(LIMITS, num_workers=1, variation=Variation(7, SHIFT_SECONDS)) as opened:
        yield opened


def printed(sandbox, expression, *, before=IMPORTS):
    execution = sandbox.run(f"{before}print({expression})")
    assert execution.status == "ok", execution
    return execution.stdout.removesuffix("\n")


@pytest.mark.parametrize("reading", READINGS)
def test_a_varied_interpreter_shifts(reading, sandbox, varied):
    before = IMPORTS + "import time\n"  # the module, not the class
    here, there, later = (float(printed(box, reading, before=before)) for box in (sandbox, varied, sandbox))
    assert here - READINGS[reading] - 1 < there - SHIFT_SECONDS < later + READINGS[reading] + 1


@pytest.mark.parametrize("expression", AS_USUAL)
def test_in_a_varied_interpreter_it_is_as_usual_that(expression, varied):
    names = {}
    exec(IMPORTS, names)
    assert printed(varied, f"repr([{expression}])") == repr(eval(f"[{expression}]", names))


def test_without_a_variation_the_interpreter_is_as_it_was(sandbox):
    looks = "import sys\nimport datetime, os, time\nprint(type(time.time).__name__, type(datetime.date.today)"
    looks += ".__name__, '_variation' in sys.modules, os.environ['PYTHONHASHSEED'], time.tzname[0])"
    kind = "builtin_function_or_method"
    assert sandbox.run(looks).stdout == f"{kind} {kind} False 0 UTC\n"


LIKE_BUILT_IN = [
    "a = time.time()\ntime.sleep(0.05)\nprint(0.04 < time.time() - a < 1e6)",
    "class Timer:\n    clock = time.perf_counter\nprint(Timer().clock() > 1e8)",
    "print(repr(time.time) == '<built-in function time>')",
]


@pytest.mark.parametrize("program", LIKE_BUILT_IN)
def test_a_shifted_clock_is_like_a_built_in_one(program, varied):
    assert varied.run(f"import time\n{program}").stdout == "True\n"


def test_the_limit_of_cpu_time_is_not_shifted(varied):
    execution = varied.run("while True: pass", limits=Limits(cpu_seconds=0.5))
    assert (execution.status, execution.error) == ("timeout", "time limit")
    assert execution.seconds < SHIFT_SECONDS / 2


@pytest.mark.parametrize("module", ["sqlite3", "ctypes"])
def test_what_knows_the_time_from_c_cannot_be_imported(module, varied):
    execution = varied.run(f"import {module}")
    assert (execution.status, execution.error.split(":")[0]) == ("runtime_error", "ModuleNotFoundError")


def test_modules_that_lean_on_datetime_can_be_imported(varied):
    assert varied.run("import zoneinfo, email.utils, logging, plistlib, sched, asyncio").status == "ok"


def test_functions_of_a_varied_interpreter_can_be_called(varied):
    with varied.load("import time\ndef year(): return time.gmtime().tm_year") as program:
        shifted = time.gmtime(time.time() + SHIFT_SECONDS)
        assert program.call("year").value == shifted.tm_year


@pytest.mark.parametrize("without", [(), ("namespaces",), ("namespaces", "files", "system calls")])
def test_programs_leave_nothing_for_the_next_one_in_their_folder(without):
    variation = Variation(7, SHIFT_SECONDS)
    with Sandbox(LIMITS, num_workers=1, require="basic", without=without, variation=variation) as sandbox:
        first = sandbox.run("import os\nopen('left', 'w').write('x')\nprint(os.getcwd(), os.listdir())")
        assert first.stdout.endswith("vvvvvvvv0000000007 ['left']\n"), first
        second = sandbox.run("import os, tempfile\nprint(os.listdir(), tempfile.gettempdir() == os.getcwd())")
        assert second.stdout == "[] True\n"
        sandbox.run("print(1)")
        folders = {idle.folder for idle in sandbox._idle}
        assert len(folders) == 1
    assert not any(Path(folder).exists() for folder in folders)


def test_above_the_folder_of_its_programs_nothing_can_be_written(varied):
    if varied.layers["files"] != "on":
        pytest.skip(f"this machine lacks the layer: {varied.layers['files']}")
    assert varied.run("open('../left', 'w')").error == (
        "PermissionError: [Errno 13] Permission denied: '../left'"
    )

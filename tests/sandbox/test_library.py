"""Programs import the standard library from memory, and see no other file."""

import subprocess
import sys

import pytest
from patched import patch_script

from rlnb.sandbox import Limits, Sandbox, zygotes
from rlnb.sandbox.zygotes import INTERPRETER

WITHOUT_LAYERS = {"strict": (), "standard": ("namespaces",)}
# Those that need a screen, print, or are no part of what programs use.
SKIPPED = {"antigravity", "this", "idlelib", "turtledemo", "lib2to3", "test", "tkinter", "turtle", "_tkinter"}
SKIPPED |= {"__main__", "nis", "ossaudiodev"}
IMPORT_ALL = f"""
import contextlib, io, sys, warnings
warnings.simplefilter("ignore")
failed = []
for name in sorted(sys.stdlib_module_names - set({SKIPPED!r})):
    if not name.startswith(("_test", "_xx", "xx", "_ctypes_test")):
        try: __import__(name)
        except ImportError: failed.append(name)
print(failed)
"""
LOCAL_TIME = """
import datetime, zoneinfo
for zone in ("Europe/Paris", "America/St_Johns", "UTC"):
    print(datetime.datetime(2024, 7, 1, 12, tzinfo=zoneinfo.ZoneInfo(zone)).isoformat())
print({"Europe/Paris", "UTC"} <= zoneinfo.available_timezones())
for key in ("Nowhere/Else", "../passwd"):
    try: zoneinfo.ZoneInfo(key)
    except Exception as error: print(type(error).__name__)
"""


THREADS = """
from multiprocessing.dummy import Pool
from multiprocessing.pool import ThreadPool
with Pool(3) as pool:
    print(pool.map(abs, range(-5, 0)))
with ThreadPool() as pool:
    print(pool.apply_async(pow, (2, 5)).get(), sorted(pool.imap_unordered(str, range(4))))
pool.join()
"""


@pytest.fixture(scope="module", params=WITHOUT_LAYERS)
def sandbox(request):
    without = WITHOUT_LAYERS[request.param]
    with Sandbox(Limits(cpu_seconds=20), num_workers=1, require="none", without=without) as opened:
        if opened.level != request.param:
            pytest.skip(f"this machine lacks a layer: {opened.layers}")
        yield opened


def printed_by_python(program):
    plain = [INTERPRETER, "-I", "-S", "-c", program]
    return subprocess.run(plain, capture_output=True, text=True, check=True).stdout


def test_every_module_that_python_has_can_be_imported(sandbox):
    execution = sandbox.run(IMPORT_ALL)
    assert execution.stdout == printed_by_python(IMPORT_ALL), execution.stderr


def test_time_zones_are_as_in_python(sandbox):
    assert sandbox.run(LOCAL_TIME).stdout == printed_by_python(LOCAL_TIME)


def test_pools_of_threads_work_as_in_python(sandbox):
    execution = sandbox.run(THREADS)
    assert execution.stdout == printed_by_python(THREADS), execution.stderr


def test_the_source_of_the_last_line_is_a_whole_line(sandbox):
    assert (
        sandbox.run("import inspect\nf = 1\nprint(inspect.getsource(lambda: 0), end='|')").stdout[-2:]
        == "\n|"
    )


def test_what_an_import_raises_shows_the_programs_frames_and_the_modules(sandbox):
    execution = sandbox.run("import antigravity.missing")
    assert execution.error.startswith("ModuleNotFoundError") and "_library" not in execution.stderr


def test_at_strict_no_other_name_can_be_looked_up(sandbox):
    if sandbox.level != "strict":
        pytest.skip("below strict a program has the root of all")
    names = ["/proc", "/sys", "/usr/share", "/etc/passwd", "/proc/self", sys.prefix, __file__, sys.executable]
    assert sandbox.run(f"import os; print([p for p in {names!r} if os.path.lexists(p)])").stdout == "[]\n"


def test_a_program_that_is_called_wakes_its_event_loop_from_threads(sandbox):
    program = "import asyncio\nasync def f(n): return await asyncio.to_thread(lambda: 2 * n)\n"
    program += "def g(n): return [asyncio.run(f(n)) for _ in range(2)]"
    with sandbox.load(program) as loaded:
        assert loaded.call("g", 4).value == [8, 8]


def test_a_file_that_cannot_be_read_is_left_out(monkeypatch, tmp_path):
    zones, scripts = tmp_path / "zones", tmp_path / "scripts"
    for folder in (zones, scripts):
        folder.mkdir()
    (zones / "localtime").symlink_to("nowhere")
    patch_script(monkeypatch, scripts, "_library.py", '"/usr/share/zoneinfo"', repr(str(zones)))
    zygotes.load_library.cache_clear()
    try:
        with Sandbox(num_workers=1) as sandbox:
            assert sandbox.run("print(1)").stdout == "1\n"
    finally:
        zygotes.load_library.cache_clear()

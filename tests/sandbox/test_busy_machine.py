"""A program's time is its own: a busy machine ends none, and one that sleeps ends at its limit."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rlnb.game_2048.board import BoardKind
from rlnb.game_2048.play import BoardRules, play_many
from rlnb.sandbox import Limits, Sandbox

LIMITS = Limits(cpu_seconds=0.3)
WORK = "while time.process_time() < 0.1: pass"  # which takes two seconds and a half on such a core
NUM_OTHERS = 24


@pytest.fixture(scope="module")
def busy() -> Iterator[Sandbox]:
    """A sandbox on one core, which other processes want as well."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    others: list[subprocess.Popen[bytes]] = []
    try:
        with Sandbox(LIMITS, num_workers=1) as sandbox:
            command = [sys.executable, "-S", "-c", "while True: pass"]
            # In sessions of their own, since the processes of a session may share their time.
            others += [subprocess.Popen(command, start_new_session=True) for _ in range(NUM_OTHERS)]
            yield sandbox
    finally:
        for process in others:
            process.kill()
            process.wait()
        os.sched_setaffinity(0, cores)


def test_a_busy_machine_ends_no_program_and_no_call(busy):
    execution = busy.run(f"import time\n{WORK}\nprint('done')")
    assert (execution.status, execution.stdout) == ("ok", "done\n"), execution
    with busy.load(f"import time\ndef f(n):\n    {WORK}\n    return n") as program:
        answered = program.call("f", 7)
    assert (answered.status, answered.value) == ("ok", 7), answered


def test_on_a_busy_machine_a_program_that_sleeps_is_ended(busy):
    assert busy.run("import time; time.sleep(60)").status == "timeout"
    with busy.load("import time\ndef f(): time.sleep(60)") as program:
        assert program.call("f").status == "timeout"


def test_a_busy_machine_ends_no_game_of_2048(busy):
    code = f"import time\ndef strategy(board):\n    {WORK}\n    return None\n"
    rules = BoardRules(move_cpu_seconds=0.3, board_cpu_seconds=0.3, wall_seconds=0.3)
    (game,) = play_many([(code, BoardKind(4, 256), 1)], busy, rules=rules)
    assert game.ending == "illegal", game  # and no time limit: None is its answer


def test_threads_that_sleep_are_a_program_that_sleeps():
    """Its own thread waits for another one. After how long: see test_clock.py."""
    program = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()"
    with Sandbox(LIMITS, num_workers=1) as sandbox:
        assert sandbox.run(program).status == "timeout"

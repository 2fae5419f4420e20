"""The number of threads that torch computes with, by the cores that others leave free."""

import subprocess
import sys
import time

import psutil
import pytest
import torch

from rlnb.machine import threads
from rlnb.machine.threads import FreeCores, adapt_threads


class Scripted(FreeCores):
    """Reads (time, busy seconds, our own seconds) from a list."""

    def __init__(self, *readings: tuple[float, float, float], cores: int) -> None:
        self.cores, self.count, self._last = list(range(cores)), cores, (0.0, 0.0, 0.0)
        self._readings = iter(readings)

    def _read(self) -> tuple[float, float, float]:
        return next(self._readings)


@pytest.mark.parametrize(
    "busy, ours, free",
    [(0, 0, 4), (40, 40, 4), (10, 0, 3), (24, 0, 2), (40, 20, 2), (40, 0, 1), (50, 0, 1), (5, 9, 4)],
)
def test_free_cores_are_those_that_others_did_not_use(busy, ours, free):
    assert Scripted((10.0, busy, ours), cores=4).measure() == free


def test_a_moment_is_too_short_to_measure():
    cores = Scripted((10.0, 30.0, 0.0), (10.1, 30.0, 0.0), (20.0, 30.0, 0.0), cores=4)
    assert [cores.measure() for _ in range(3)] == [1, 1, 4]


ENDLESS = [sys.executable, "-c", "while True: pass"]
ORPHAN = [sys.executable, "-c", f"from subprocess import *; print(Popen({ENDLESS!r}, stdout=DEVNULL).pid)"]


def test_a_busy_process_takes_a_core():
    cores = FreeCores()
    busy = psutil.Process(int(subprocess.check_output(ORPHAN)))
    try:
        time.sleep(0.5)
        cores.measure()
        time.sleep(1.0)
        assert 1 <= cores.measure() <= max(1, len(cores.cores) - 1)
    finally:
        busy.kill()


def test_the_time_of_a_child_is_ours():
    cores = FreeCores()
    with subprocess.Popen(ENDLESS) as child:
        before = cores._read()
        time.sleep(1.0)
        after = cores._read()
        child.kill()
    assert after[2] - before[2] > 0.2
    child.wait()
    assert cores._read()[2] >= after[2]  # and stays ours when it has ended


def test_threads_follow_the_free_cores_unless_their_number_is_given(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setattr(threads, "_free_cores", lambda: Scripted((10.0, 10.0, 0.0), cores=3))
    try:
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        assert adapt_threads() == before
        monkeypatch.delenv("OMP_NUM_THREADS")
        assert adapt_threads() == torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)

"""The number of threads that torch computes with, by the cores that others leave free."""

import subprocess
import sys
import time

import pytest
import torch

from rlnb.machine import threads
from rlnb.machine.threads import FreeCores, adapt_threads, set_threads


class Scripted(FreeCores):
    """Reads (time, busy seconds, our own seconds) from a list."""

    def __init__(self, *readings: tuple[float, float, float], cores: int) -> None:
        self.num_cores = self.limit = self.count = cores
        self._last = (0.0, 0.0, 0.0)
        self._readings = iter(readings)

    def _read(self) -> tuple[float, float, float]:
        return next(self._readings)


@pytest.mark.parametrize(
    "busy, ours, free", [(0, 0, 4), (40, 40, 4), (24, 0, 2), (40, 20, 2), (50, 0, 1), (5, 9, 4)]
)
def test_free_cores_are_those_that_others_did_not_use(busy, ours, free):
    assert Scripted((10.0, busy, ours), cores=4).measure() == free


def test_a_moment_is_too_short_to_measure():
    cores = Scripted((10.0, 30.0, 0.0), (10.1, 30.0, 0.0), (20.0, 30.0, 0.0), cores=4)
    assert [cores.measure() for _ in range(3)] == [1, 1, 4]


def test_a_job_has_no_more_free_cores_than_its_share(monkeypatch):
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    assert FreeCores().measure() == FreeCores().limit == 1


def test_the_time_of_a_child_is_ours():
    cores = FreeCores()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        before = after = cores._read()
        deadline = time.monotonic() + 60  # on a busy machine the child waits for a core
        while after[2] - before[2] <= 0.5 and time.monotonic() < deadline:
            time.sleep(0.1)
            after = cores._read()
        child.kill()
    assert after[2] - before[2] > 0.5 and after[1] - before[1] > 0.3
    child.wait()
    # It stays ours when the child has ended, but for the rounding to hundredths of each of its parts.
    assert cores._read()[2] - before[2] > 0.4


@pytest.fixture
def torch_threads(monkeypatch):
    """Scripted cores: three, one of which others use, from the second reading on all three."""
    before = torch.get_num_threads()
    cores = Scripted((10.0, 10.0, 0.0), (20.0, 40.0, 0.0), cores=3)
    monkeypatch.setattr(threads, "_free_cores", lambda: cores)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_threads_follow_the_free_cores_unless_a_job_has_a_number(torch_threads, monkeypatch):
    assert adapt_threads() == torch.get_num_threads() == 2
    assert adapt_threads() == torch.get_num_threads() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert adapt_threads() == 1


def test_threads_that_a_script_has_set_stay(torch_threads):
    torch.set_num_threads(1)
    assert [adapt_threads(), adapt_threads()] == [1, 1]


def test_a_parameter_s_number_stays_until_there_is_none(torch_threads):
    set_threads(3)
    assert [adapt_threads(), adapt_threads()] == [3, 3]
    set_threads(0)
    assert adapt_threads() == 2

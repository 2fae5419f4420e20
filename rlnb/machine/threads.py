"""How many threads torch computes with on a CPU: as many as other processes leave cores free.

OpenMP's threads wait for each other by spinning. Two of them next to one busy process on two cores take seven
times as long; one takes no longer than alone.
"""

import os
import time
from contextlib import suppress
from functools import cache

import psutil

from rlnb.machine.facts import usable_cores

MIN_SECONDS = 0.2  # shorter measurements say nothing


class FreeCores:
    """Counts the cores that other processes left free since it was last asked.

    Processor time of our children counts as ours: a sandbox's workers rest while torch computes.
    threads: what torch was last set to by this count; None before, 0 if a parameter gave another number.
    """

    threads: int | None = None

    def __init__(self) -> None:
        self.limit = self.count = usable_cores(os.environ)
        self.num_cores = psutil.cpu_count() or 1
        self._last = self._read()

    def measure(self) -> int:
        """Return the number of free cores, at least 1."""
        now = self._read()
        seconds, busy, ours = (new - old for new, old in zip(now, self._last, strict=True))
        if seconds >= MIN_SECONDS:
            self._last = now
            others = max(0.0, busy - ours) / seconds
            self.count = max(1, min(self.limit, round(self.num_cores - others)))
        return self.count

    def _read(self) -> tuple[float, float, float]:
        """Return the time, the busy seconds of all cores, and our own processor seconds."""
        times, ours = psutil.cpu_times(), 0.0
        busy = sum(times[:8]) - times.idle - getattr(times, "iowait", 0.0)  # guests are counted in user
        for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
            with suppress(psutil.Error):  # it has ended
                ours += sum(process.cpu_times()[:4])
        return time.monotonic(), busy, ours


@cache
def _free_cores() -> FreeCores:
    return FreeCores()


def adapt_threads() -> int:
    """Set torch's threads to the free cores and return their number.

    Nothing changes where somebody else has set it: `set_threads`, torch.set_num_threads, or OMP_NUM_THREADS
    as for a job's allocation. Sums in another order differ in their last bits: a run is repeated bit for bit
    with a fixed number only.
    """
    import torch

    cores, present = _free_cores(), torch.get_num_threads()
    if cores.threads is None:  # torch begins with one for each core
        is_ours = present >= min(cores.limit, psutil.cpu_count(logical=False) or 1)
    else:
        is_ours = present == cores.threads
    if is_ours and "OMP_NUM_THREADS" not in os.environ:
        cores.threads = cores.measure()
        if cores.threads != present:
            torch.set_num_threads(cores.threads)
    return torch.get_num_threads()


def set_threads(count: int) -> None:
    """Set torch's threads until the next call; 0 = as many as are free, before each step and batch."""
    cores = _free_cores()
    if count or cores.threads == 0:
        import torch

        if count:
            torch.set_num_threads(count)
        cores.threads = 0 if count else torch.get_num_threads()

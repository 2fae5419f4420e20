"""How many threads torch computes with on a CPU: as many as other processes leave cores free.

OpenMP's threads wait for each other by spinning. Two of them beside one busy process on two cores take seven
times as long; one takes no longer than alone.
"""

import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from rlnb.machine.facts import usable_cores

MIN_SECONDS = 0.2  # shorter measurements say nothing


class FreeCores:
    """Counts the cores that other processes left free since it was last asked.

    Processor time of our children counts as ours: a sandbox's workers rest while torch computes.
    limit: the most there may be, by a container's quota or a job's allocation. threads: what torch was last
    set to by this count; None before, 0 if a parameter gave another number.
    """

    threads: int | None = None

    def __init__(self) -> None:
        self.process = psutil.Process()
        has_affinity = hasattr(self.process, "cpu_affinity")  # not on macOS
        known = _times_by_core()
        wanted = self.process.cpu_affinity() if has_affinity else []
        self.cores = [core for core in wanted if core in known] or list(known)
        self.limit = min(len(self.cores), usable_cores(os.environ))
        self.count = self.limit
        self._last = self._read()

    def measure(self) -> int:
        """Return the number of free cores, at least 1."""
        now = self._read()
        seconds, busy, ours = (new - old for new, old in zip(now, self._last, strict=True))
        if seconds >= MIN_SECONDS:
            self._last = now
            others = max(0.0, busy - ours) / seconds
            self.count = max(1, min(self.limit, round(len(self.cores) - others)))
        return self.count

    def _read(self) -> tuple[float, float, float]:
        """Return the time, the busy seconds of all our cores, and our own processor seconds."""
        times = _times_by_core()
        ticks = [times[core] for core in self.cores if core in times]
        idle = sum(each.idle + getattr(each, "iowait", 0.0) for each in ticks)
        busy = sum(sum(each[:8]) for each in ticks) - idle  # guests are counted in user
        family = [self.process, *self.process.children(recursive=True)]
        return time.monotonic(), busy, sum(map(_processor_seconds, family))


def _times_by_core() -> Mapping[int, Any]:
    """Return psutil's processor times by the number of the core; numbers may have gaps."""
    times = psutil.cpu_times(percpu=True)
    numbers: list[int] = []
    with suppress(OSError):  # only Linux has the file
        stat = Path("/proc/stat").read_text(encoding="ascii")
        numbers = [int(core) for core in re.findall(r"^cpu([0-9]+) ", stat, re.MULTILINE)]
    return dict(zip(numbers if len(numbers) == len(times) else range(len(times)), times, strict=True))


def _processor_seconds(process: psutil.Process) -> float:
    """Return the seconds of a process and of its children that have ended; 0 if it has ended itself."""
    with suppress(psutil.Error):
        return float(sum(process.cpu_times()[:4]))
    return 0.0


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

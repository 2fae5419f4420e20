"""How many threads torch computes with on a CPU: as many as other processes leave cores free.

OpenMP's threads wait for each other by spinning. Two of them beside one busy process on two cores take seven
times as long; one takes no longer than alone.
"""

import os
import time
from contextlib import suppress
from functools import cache

import psutil

MIN_SECONDS = 0.2  # shorter measurements say nothing


class FreeCores:
    """Counts the cores that other processes left free since it was last asked.

    Processor time of our children counts as ours: a sandbox's workers rest while torch computes.
    """

    is_fixed = False

    def __init__(self) -> None:
        self.process = psutil.Process()
        has_affinity = hasattr(self.process, "cpu_affinity")  # not on macOS
        self.cores: list[int] = (
            self.process.cpu_affinity() if has_affinity else list(range(os.cpu_count() or 1))
        )
        self.count = len(self.cores)
        self._last = self._read()

    def measure(self) -> int:
        """Return the number of free cores, at least 1."""
        now = self._read()
        seconds, busy, ours = (new - old for new, old in zip(now, self._last, strict=True))
        if seconds >= MIN_SECONDS:
            self._last = now
            others = max(0.0, busy - ours) / seconds
            self.count = max(1, min(len(self.cores), round(len(self.cores) - others)))
        return self.count

    def _read(self) -> tuple[float, float, float]:
        """Return the time, the busy seconds of all our cores, and our own processor seconds."""
        times = psutil.cpu_times(percpu=True)
        idle = [times[core].idle + getattr(times[core], "iowait", 0.0) for core in self.cores]
        busy = sum(sum(times[core][:8]) for core in self.cores) - sum(idle)  # guests are counted in user
        family = [self.process, *self.process.children(recursive=True)]
        return time.monotonic(), busy, sum(map(_processor_seconds, family))


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

    Nothing changes after `fix_threads`, nor where OMP_NUM_THREADS is set, as for a job's allocation. Sums in
    another order differ in their last bits: a run is repeated bit for bit with a fixed number only.
    """
    import torch

    if "OMP_NUM_THREADS" not in os.environ and not _free_cores().is_fixed:
        count = _free_cores().measure()
        if count != torch.get_num_threads():
            torch.set_num_threads(count)
    return torch.get_num_threads()


def fix_threads(count: int) -> None:
    """Set torch's threads for the rest of the process."""
    import torch

    _free_cores().is_fixed = True
    torch.set_num_threads(count)

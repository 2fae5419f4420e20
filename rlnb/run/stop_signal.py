"""Stop a training loop after SIGTERM or SIGUSR1, once its checkpoint is saved."""

import signal
import threading
from collections.abc import Callable
from types import FrameType

import torch

from rlnb.errors import Preempted


class StopSignal:
    """A context in which SIGTERM and SIGUSR1 (SLURM: time is nearly up, or preemption) are recorded.

    A loop calls `after_step` and saves and stops where that returns True. On exit the handlers are restored,
    and Preempted is raised if a signal has stopped the loop early.
    """

    def __init__(self) -> None:
        self.received = ""
        self._finished = False
        self._previous: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():
            for each in (signal.SIGTERM, signal.SIGUSR1):
                self._previous[each] = signal.signal(each, self._receive)
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        for each, handler in self._previous.items():
            signal.signal(each, handler)
        if error_type is None and self.received and not self._finished:
            raise Preempted(
                f"{self.received}: the checkpoint of this step is saved; run again to go on from it"
            )

    def _receive(self, signal_number: int, _: FrameType | None) -> None:
        self.received = signal.Signals(signal_number).name

    def after_step(self, *, is_last: bool) -> bool:
        """Return whether to save and stop now; the same on all ranks."""
        self._finished = is_last
        self.received = received_by_any_rank(self.received)
        return bool(self.received)


def received_by_any_rank(received: str) -> str:
    """Return the signal that any rank received: all must stop at the same step, or some wait forever."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return received
    device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
    largest = torch.tensor(signal.Signals[received] if received else 0, device=device)
    torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX)
    return signal.Signals(largest.item()).name if largest else ""

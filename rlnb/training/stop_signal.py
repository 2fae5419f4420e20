"""SIGTERM and SIGUSR1: a checkpoint, then the end."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

import torch

from rlnb.errors import Preempted


class StopSignal:
    """Hears SIGTERM and SIGUSR1 (SLURM: time is nearly up, or preemption) while it is entered.

    A loop asks it after each step and saves and stops where it says so. On leaving it puts the handlers back,
    and raises Preempted where a signal has cut the loop short.
    """

    def __init__(self) -> None:
        self.received = ""
        self._finished = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGUSR1):
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if error_type is None and self.received and not self._finished:
            raise Preempted(
                f"{self.received}: the checkpoint of this step is saved; run again to go on from it"
            )

    def _receive(self, number: int, _: FrameType | None) -> None:
        self.received = signal.Signals(number).name

    def after_step(self, *, is_last: bool) -> bool:
        """Whether to save and stop now; the same on all ranks."""
        self._finished = is_last
        self.received = received_by_any_rank(self.received)
        return bool(self.received)


def received_by_any_rank(received: str) -> str:
    """The signal that one of the ranks got: all stop at the same step, or some would wait for ever."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return received
    device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
    number = torch.tensor(signal.Signals[received] if received else 0, device=device)
    torch.distributed.all_reduce(number, op=torch.distributed.ReduceOp.MAX)
    return signal.Signals(number.item()).name if number else ""

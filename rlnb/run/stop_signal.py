"""When a training loop saves: after minutes, and after SIGTERM or SIGUSR1, which stop it."""

import signal
import time
from contextlib import ExitStack
from types import FrameType

import torch
from accelerate.utils import broadcast_object_list

from rlnb.errors import Preempted
from rlnb.run.directory import handling_signals

SAVE_MINUTES = 15.0  # between two checkpoints, however long a step takes


class StopSignal:
    """A context in which SIGTERM and SIGUSR1 (SLURM: time is nearly up, or preemption) are recorded.

    A loop calls `after_step` and saves and stops where that returns True. On exit the handlers are restored,
    and Preempted is raised if a signal has stopped the loop early.
    """

    def __init__(self) -> None:
        self.received = ""
        self._finished = False
        self._handlers = ExitStack()

    def __enter__(self) -> "StopSignal":
        self._handlers.enter_context(handling_signals(self._receive, (signal.SIGTERM, signal.SIGUSR1)))
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        self._handlers.close()
        if error_type is None and self.received and not self._finished:
            raise Preempted(
                f"{self.received}: the checkpoint of this step is saved; run again to go on from it"
            )

    def _receive(self, signal_number: int, _: FrameType | None) -> None:
        self.received = signal.Signals(signal_number).name

    def after_step(self, *, is_last: bool) -> bool:
        """Return whether to save and stop now; the same on all ranks."""
        self._finished = is_last
        agreed = received_by_any_rank(self.received)
        self.received = (
            agreed or self.received
        )  # it may have come while the ranks agreed: then after the next
        return bool(agreed)


class SaveTimer:
    """Says when a checkpoint is due by time: SAVE_MINUTES after the last one, or the start."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._last_save = time.monotonic()

    def is_due(self) -> bool:
        """Return whether the time has come by rank 0's clock; each rank has to ask."""
        passed = time.monotonic() - self._last_save
        return bool(broadcast_object_list([passed >= 60 * SAVE_MINUTES])[0])


def received_by_any_rank(received: str) -> str:
    """Return the signal that any rank received: all must stop at the same step, or some wait forever."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return received
    device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
    largest = torch.tensor(signal.Signals[received] if received else 0, device=device)
    torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX)
    return signal.Signals(largest.item()).name if largest else ""

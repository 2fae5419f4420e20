"""When a training loop saves: after minutes, and after SIGTERM, SIGUSR1 or SIGINT, which stop it.

The signal comes from papermill_engine/engine.py, which passes it on to the kernel; the checkpoint is saved by
`StopOnSignal` in grpo/training.py and by `GameRun` in selfplay/run.py.
"""

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import FrameType

from accelerate.utils import broadcast_object_list, gather_object

from rlnb.errors import Preempted
from rlnb.machine import world_size
from rlnb.run.directory import handling_signals

SAVE_MINUTES = 15.0  # between two checkpoints, however long a step takes


class EvaluationCut(BaseException):
    """A signal that came during an evaluation. Not an Exception, like KeyboardInterrupt."""


class StopSignal:
    """A context in which SIGTERM, SIGUSR1 (SLURM: time is nearly up) and SIGINT (an interrupt) are recorded.

    A loop calls `after_step` and saves and stops where that returns True. Evaluations of a step that is saved
    are called by `evaluate`, which a signal cuts short. A second interrupt ends the loop at once. On exit the
    handlers are restored, and Preempted is raised if a signal has stopped the loop early.
    """

    def __init__(self) -> None:
        self.received = ""
        self._cuts_short = False
        self._finished = False
        self._handlers = ExitStack()

    def __enter__(self) -> "StopSignal":
        signals = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
        self._handlers.enter_context(handling_signals(self._receive, signals))
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        self._handlers.close()
        if error_type is None and self.received and not self._finished:
            raise self.preempted()

    def preempted(self) -> Preempted:
        """Return the error of a loop that stops early, to be raised where leaving the context is too late."""
        return Preempted(
            f"{self.received}: stopped, and this step is saved; run the cell again to go on from it"
        )

    def _receive(self, signal_number: int, _: FrameType | None) -> None:
        if signal_number == signal.SIGINT and self.received:
            raise KeyboardInterrupt
        self.received = signal.Signals(signal_number).name
        if self._cuts_short:
            raise EvaluationCut

    def evaluate(self, evaluate: Callable[[int], Mapping[str, float]], step: int) -> Mapping[str, float]:
        """Return the metrics of a step's evaluation, {} where a signal has cut it short.

        Ask `after_step` once more after it. Of several ranks each would be cut at another point, so they
        finish the evaluation.
        """
        try:
            self._cuts_short = world_size() == 1
            if self._cuts_short and self.received:  # while the step was saved
                return {}
            return evaluate(step)
        except EvaluationCut:
            return {}
        finally:
            self._cuts_short = False

    def after_step(self, *, is_last: bool = False) -> bool:
        """Return whether to save and stop now; the same on all ranks."""
        self._finished = is_last
        # What any rank has received: all must stop at the same step, or some wait forever.
        agreed = next(filter(None, gather_object([self.received])), "")
        # A signal that came while the ranks agreed stops them after the next step.
        self.received = agreed or self.received
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

"""papermill's engine `rlnb`: signals reach the notebook, and status.json says how it ended.

What papermill and nbclient lack, and this module adds:

1. A signal ends papermill at once, the notebook unsaved and the kernel an orphan. Here it is passed on to
   the kernel, whose training cell saves a checkpoint and raises Preempted; then the notebook is saved.
2. The notebook's own metadata calls every cell completed after a kill. Here status.json tells the truth.
3. A kernel on TCP ports can be taken for another's. Here it listens on sockets in a private directory.
"""

import functools
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbformat import NotebookNode
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, NotebookExecutionManager
from papermill.iorw import LocalHandler, NoDatesSafeLoader, papermill_io
from papermill.log import logger

from rlnb.errors import DiskFull, Preempted, RlnbError
from rlnb.params.reading import read_numbers_plainly
from rlnb.run import directory as runs
from rlnb.run.checkpoints import checkpoint_step, latest_checkpoint
from rlnb.run.disk import describe_full_disk, lacks_room, telling_full_disk

read_numbers_plainly(NoDatesSafeLoader)  # papermill's -y and -f, which read this module when it starts
OWN_KERNELS = ("rlnb", "python3")
CLEAN_EXITS = (("SystemExit", ""), ("SystemExit", "0"))


class Stopped(Preempted):
    """A signal ended the run; `signal` is its name, "" when only the kernel got it."""

    def __init__(self, reason: str, *, signal: str) -> None:
        super().__init__(reason)
        self.signal = signal


class KernelDied(DeadKernelError):
    """The kernel is gone, not by a signal that we passed on; `signal` names what killed it, if one did."""

    def __init__(self, reason: str, *, signal: str = "") -> None:
        super().__init__(reason)
        self.signal = signal


class KernelNotStarted(RlnbError):
    """The kernel never answered, so no cell has run."""

    def __init__(self, reason: object) -> None:
        super().__init__(f"the kernel did not start: {reason}")


def _count_saved(directory: Path) -> int:
    """Return the step of a run's newest checkpoint, or the number of lines that an evaluation has kept."""
    kept = directory / "completions.jsonl"
    num_kept = sum(map(bool, kept.read_bytes().splitlines())) if kept.exists() else 0
    return checkpoint_step(latest_checkpoint(directory)) or num_kept


class RlnbEngine(NBClientEngine):
    """papermill's engine `rlnb`: writes status.json next to the output and uses `ForwardingClient`."""

    @classmethod
    def execute_notebook(
        cls, nb: NotebookNode, kernel_name: str, output_path: str | None = None, **kwargs: Any
    ) -> NotebookNode:
        """Run the notebook; raises what `ForwardingClient` does."""
        directory = _status_directory(output_path)
        if directory is None:
            return super().execute_notebook(nb, kernel_name, output_path, **kwargs)
        first_step = _count_saved(directory)
        status = runs.start_attempt(directory, notebook=Path(str(output_path)).name, first_step=first_step)

        def note_signal(name: str) -> None:
            nonlocal status
            status = runs.note_signal(directory, status, name)

        with ExitStack() as handlers:  # a signal must not cut off what is written here
            kwargs |= {"handlers": handlers, "note_signal": note_signal}
            try:
                with runs.heartbeat(directory), telling_full_disk(directory):
                    nb = super().execute_notebook(nb, kernel_name, output_path, **kwargs)
            except BaseException as error:
                runs.end_attempt(directory, status, **describe_error(error))
                raise
            runs.end_attempt(directory, status, **describe_cells(nb))
        return nb

    @classmethod
    def execute_managed_notebook(
        cls,
        nb_man: NotebookExecutionManager,
        kernel_name: str,
        start_timeout: int = 60,
        execution_timeout: int | None = None,
        handlers: ExitStack | None = None,
        note_signal: Callable[[str], None] = lambda _: None,
        **options: Any,
    ) -> NotebookNode:
        """Run the cells as NBClientEngine does, with our client.

        It handles signals until `handlers` ends, and gives the first one's name to note_signal.
        """
        options.pop("input_path", None)
        if options.get("stdout_file") is not None:
            options["on_cell_execute"] = functools.partial(_announce_cell, nb_man.nb, options["stdout_file"])
        client = ForwardingClient(
            nb_man,
            kernel_name=kernel_name,
            kernel_manager_class=UninterruptedKernel,
            startup_timeout=start_timeout,
            timeout=execution_timeout,
            iopub_timeout=60,  # on a busy machine outputs lag behind by more than nbclient's 4 s
            log=logger,
            **options,
        )
        client.note_signal = note_signal
        with ExitStack() as until_here:
            (handlers or until_here).enter_context(runs.handling_signals(client.forward))
            return client.execute()

    @classmethod
    def nb_kernel_name(cls, nb: NotebookNode | None, name: str | None = None) -> str:
        """Return the given kernel, else `rlnb` where setup.sh registered it, else this interpreter's own."""
        try:
            return name or ("rlnb" if "rlnb" in KernelSpecManager().find_kernel_specs() else "python3")
        except OSError as error:  # the folder of Jupyter's or IPython's files cannot be made
            raise KernelNotStarted(error) from error

    @classmethod
    def nb_language(cls, nb: NotebookNode, language: str | None = None) -> str:
        """Return the given language, else Python: papermill needs one, and templates need not name it."""
        return language or "python"


class UninterruptedKernel(AsyncKernelManager):
    """A kernel that is not interrupted before it is asked to shut down, since it is idle at that point.

    jupyter_client 8.10 sends SIGINT to the whole process group first, W&B's service and sandboxes included,
    and now and then ipykernel 7.4 prints an error about it. Can go when it asks before it interrupts.
    """

    async def _async_interrupt_kernel(self) -> None:
        if not self.shutting_down:
            await super()._async_interrupt_kernel()


class ForwardingClient(PapermillNotebookClient):
    """Runs the cells of one notebook and passes signals on to the kernel.

    Each signal is passed on once, and no further cell starts after it. SIGINT after any kills the kernel.
    Only the kernel gets it, not its process group: data loaders, sandboxes and W&B's service must still run
    while it saves. A kernel whose run is killed ends by itself within a second (ipykernel's parent poller).
    """

    note_signal: Callable[[str], None]
    process: Any = None  # the kernel's
    has_started = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.signals: list[signal.Signals] = []
        self.sent: list[int] = []  # to the kernel

    def execute(self, **kwargs: Any) -> NotebookNode:
        """Run all cells; raises Stopped, KernelDied, KernelNotStarted or DiskFull when it ended early."""
        self.tenths: dict[str, int] = {}
        try:
            with runs.socket_directory() as self.socket_directory:
                return super().execute(**kwargs)
        except Exception as error:
            if isinstance(error, KernelDied):
                raise
            is_dead = isinstance(error, RuntimeError)  # nbclient's DeadKernelError, at the start its parent
            if is_dead and self.signals:
                raise self._stopped("between two cells") from error
            if not self.has_started:
                raise self._not_started(error) from error
            if is_dead:
                raise KernelDied(f"{error}, outside any cell") from error
            raise

    def start_new_kernel(self, **kwargs: Any) -> None:
        """Start the kernel's process."""
        super().start_new_kernel(**kwargs)
        self.process = self.km.provisioner.process

    def papermill_execute_cells(self) -> None:
        """Run all cells in the kernel, which has answered."""
        self.has_started = True
        super().papermill_execute_cells()

    def create_kernel_manager(self) -> AsyncKernelManager:
        """Return a kernel of this interpreter, on Unix sockets in the run's private directory."""
        kernel = super().create_kernel_manager()
        kernel.transport = "ipc"
        kernel.connection_file = str(self.socket_directory / "kernel.json")
        if self.kernel_name in OWN_KERNELS:  # the kernelspec of this name may be another project's
            kernel.kernel_spec.argv[0] = sys.executable
        return kernel

    def execute_cell(self, cell: NotebookNode, cell_index: int, **kwargs: Any) -> NotebookNode:
        """Run one cell, unless a signal has come before it."""
        place = f"cell {cell_index + 1} of {len(self.nb.cells)}"
        try:
            if self.signals and cell.cell_type == "code":
                raise self._stopped(f"before {place}")
            return super().execute_cell(cell, cell_index, **kwargs)
        except CellExecutionError as error:
            if error.ename == "Preempted" or (error.ename == "KeyboardInterrupt" and self.signals):
                self.nb_man.cell_exception(cell, cell_index)
                raise self._stopped(f"in {place}: {error.evalue or error.ename}") from error
            raise
        except (DeadKernelError, Stopped) as error:
            self.nb_man.cell_exception(cell, cell_index)
            if isinstance(error, Stopped):
                raise
            code = self.process.returncode or 0
            if self.signals and (code >= 0 or -code in self.sent):
                raise self._stopped(f"in {place}: the kernel did not handle it") from error
            raise self._kernel_died(place) from error

    def output(
        self, outs: list[NotebookNode], msg: dict[str, Any], display_id: str | None, cell_index: int
    ) -> NotebookNode | None:
        """Append an output; text joins the text before it, as far back as the last figure.

        nbclient's own `coalesce_streams` works only after the cell, so not for one that is killed, and it
        moves text across figures, so that a later `handle.update(figure)` writes to the wrong place.
        """
        out = super().output(outs, msg, display_id, cell_index)
        if out is None or out.output_type != "stream":
            return out
        for earlier in reversed(outs[:-1]):
            if earlier.output_type != "stream":
                break
            if earlier.name == out.name:
                outs.pop()
                earlier.text = _join_text(earlier.text, out.text)
                break
        return out

    def process_message(
        self, msg: dict[str, Any], cell: NotebookNode, cell_index: int
    ) -> NotebookNode | None:
        """Handle a message of the kernel; print a line of progress on the terminal at each tenth."""
        progress = msg["content"].get("metadata", {}).get(runs.PROGRESS)
        if progress and self.stdout_file:
            label, tenth = progress["label"], 10 * progress["done"] // progress["total"]
            before = self.tenths.get(label, 0)
            self.tenths[label] = tenth  # 0 where the same work begins again
            if tenth > before:
                self.stdout_file.write("{label} {done}/{total}\n".format(**progress))
                self.stdout_file.flush()
        try:
            return super().process_message(msg, cell, cell_index)
        except OSError:  # the autosave's; the notebook is saved again after the cell
            return None

    def forward(self, signal_number: int, _: FrameType | None) -> None:
        """Pass a signal on to the kernel."""
        kills = signal_number == signal.SIGINT and bool(self.signals)
        if signal_number in self.signals and not kills:
            return
        self.signals.append(signal.Signals(signal_number))
        name = self.signals[-1].name
        told = "killing the kernel" if kills else "passed on to the kernel, waiting for the cell to end"
        told += "; Ctrl-C again kills it" if signal_number == signal.SIGINT and not kills else ""
        with suppress(OSError):  # after SIGHUP the terminal is gone
            os.write(2, f"\n{name}: {told}\n".encode())  # print is not safe in a handler
        if self.process is not None and self.process.poll() is None:
            # As SIGTERM: SIGINT between two cells, or just after a training has stopped, ipykernel swallows
            # with the answer that nbclient waits for.
            stops = (signal.SIGHUP, signal.SIGINT)
            passed_on = signal.SIGTERM if signal_number in stops else signal_number
            self.sent.append(signal.SIGKILL if kills else passed_on)
            self.process.send_signal(self.sent[-1])
            if len(self.signals) == 1:
                with suppress(OSError):  # it may pass, and the kernel is saving
                    self.note_signal(name)

    def _stopped(self, where: str) -> Stopped:
        name = self.signals[0].name if self.signals else ""
        return Stopped(f"stopped by {name or 'the notebook'} {where}", signal=name)

    def _not_started(self, error: Exception) -> Exception:
        """Return what to raise for an error before the kernel answered."""
        if lacks_room(error):  # only the sockets' directory was written to
            reason = describe_full_disk(getattr(self, "socket_directory", tempfile.gettempdir()))
            return DiskFull(f"the kernel did not start: {reason}")
        code = self.process.poll() if self.process else None
        if code is None or "died" not in str(error):  # not there, or killed by us after it stayed silent
            return KernelNotStarted(error)
        if code < 0:
            return self._kernel_died("its start")
        return KernelNotStarted(f"its process ended by itself, exit code {code}")

    def _kernel_died(self, place: str) -> KernelDied:
        code = self.process.returncode
        if code is None or code >= 0:
            return KernelDied(f"the kernel ended by itself in {place}, exit code {code}")
        name = signal.Signals(-code).name
        hint = ", most often because memory ran out" if name == "SIGKILL" else ""
        return KernelDied(f"the kernel was killed by {name} in {place}{hint}", signal=name)


def describe_error(error: BaseException) -> dict[str, str]:
    """Return how an attempt ended in which the engine raised `error`, for `end_attempt`."""
    if isinstance(error, Stopped | runs.StoppedEarly | KernelDied):
        state = "killed" if isinstance(error, KernelDied) else "preempted"
        return {"state": state, "signal": error.signal, "reason": str(error)}
    if isinstance(error, KernelNotStarted):
        return {"state": "failed", "reason": str(error)}
    return {"state": "failed", "reason": f"{type(error).__name__}: {error}"}


def describe_cells(nb: NotebookNode) -> dict[str, str]:
    """Return how a notebook ended that ran to its end or to a cell that raised, by papermill's rule."""
    for index, cell in enumerate(nb.cells, start=1):
        for output in cell.get("outputs", []):
            if output.output_type == "error" and (output.ename, output.evalue) not in CLEAN_EXITS:
                reason = f"cell {index} of {len(nb.cells)}: {output.ename}: {output.evalue}"
                return {"state": "failed", "reason": reason}
    return {"state": "done"}


def _status_directory(output_path: str | None) -> Path | None:
    """Return where status.json is written: next to a local output, None for any other."""
    if output_path is None:
        return None
    handler = papermill_io.get_handler(output_path)
    if not isinstance(handler, LocalHandler):
        return None
    # With --cwd, papermill keeps the folder it came from in the handler.
    return Path(handler._cwd or "", output_path).parent


def _join_text(text: str, more: str) -> str:
    """Return text + more as a terminal would show it: a carriage return starts the line over."""
    lines, newline, last = text.rpartition("\n")
    return lines + newline + re.sub(r"[^\n]*\r(?=[^\r\n])", "", last + more)


def _announce_cell(nb: NotebookNode, stream: TextIO, *, cell: NotebookNode, cell_index: int) -> None:
    """Print a line for the cell that starts: its place among the code cells, and the heading above it."""
    code_cells = [index for index, other in enumerate(nb.cells) if other.cell_type == "code"]
    above = "\n".join(other.source for other in nb.cells[:cell_index] if other.cell_type == "markdown")
    headings = re.findall(r"^#+ +(.+)$", above, flags=re.MULTILINE) or cell.source.strip().splitlines()[:1]
    stream.write(f"[{code_cells.index(cell_index) + 1}/{len(code_cells)}] {headings[-1]}\n")
    stream.flush()

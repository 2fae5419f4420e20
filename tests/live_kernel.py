"""A kernel that runs cells as JupyterLab does: one by one, interrupted, edited, run again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from jupyter_client.manager import KernelManager
from waiting import wait_for

from rlnb.run.directory import socket_directory

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
PATIENCE = 900.0  # seconds, for a machine that is busy with other things


class Ran(NamedTuple):
    """What came of a cell: "" or the name of its error, the lines of that error, and what was printed."""

    error: str
    traceback: list[str]
    printed: str


class Kernel:
    def __init__(self, manager: Any, client: Any) -> None:
        self.manager, self.client = manager, client

    def run(self, source: str, *, interrupt_when: Callable[[], object] | None = None) -> Ran:
        """Run a cell. interrupt_when: press the square button once this is true."""
        cell = self.client.execute(source)
        if interrupt_when is not None:
            wait_for(interrupt_when, seconds=PATIENCE)
            self.manager.interrupt_kernel()
        printed, message = "", {"msg_type": "", "content": {}}
        while message["content"].get("execution_state") != "idle":
            message = self.client.get_iopub_msg(timeout=PATIENCE)
            if message["parent_header"].get("msg_id") != cell:
                message = {"msg_type": "", "content": {}}
            if message["msg_type"] == "stream":
                printed += message["content"]["text"]
        reply = {"parent_header": {}}
        while reply["parent_header"].get("msg_id") != cell:
            reply = self.client.get_shell_msg(timeout=PATIENCE)
        content = reply["content"]
        return Ran(content.get("ename", ""), content.get("traceback", []), printed)

    def work(self, *sources: str) -> str:
        """Run cells that raise nothing, and return what they printed."""
        printed = ""
        for source in sources:
            ran = self.run(source)
            assert not ran.error, ran
            printed += ran.printed
        return printed


@contextmanager
def kernel_in(folder: Path) -> Iterator[Kernel]:
    """Start a kernel in a folder, which is where JupyterLab starts that of a notebook there.

    On Unix sockets: a port that is free now may be taken when the kernel wants it.
    """
    with socket_directory() as sockets:
        place = {"transport": "ipc", "connection_file": str(sockets / "kernel.json")}
        manager = KernelManager(kernel_name="python3", shutdown_wait_time=PATIENCE, **place)
        manager.start_kernel(cwd=str(folder))
        client = manager.client()
        client.start_channels()
        try:
            client.wait_for_ready(PATIENCE)
            yield Kernel(manager, client)
        finally:
            client.stop_channels()
            manager.shutdown_kernel()


def cells_until(notebook: str, tag: str, *, num_more: int = 0) -> list[str]:
    """Return the sources of the code cells after the parameters, to that of this tag, and `num_more`."""
    cells = nbformat.read(NOTEBOOKS / f"{notebook}.ipynb", as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    (last,) = [place for place, cell in enumerate(code) if tag in cell.metadata.get("tags", [])]
    return [cell.source for cell in code[1 : last + 1 + num_more]]


def parameters(notebook: str, output_dir: Path, cache_dir: Path, **overrides: object) -> str:
    """Return a parameters cell at the profile tiny, whose steps alone take time."""
    overrides = {"evaluation.enabled": False, "model.cache_dir": str(cache_dir), **overrides}
    if notebook == "grpo_code_game":
        overrides["evaluation.control"] = False
    return f"profile: str = 'tiny'\noutput_dir: str = {str(output_dir)!r}\noverrides: dict = {overrides!r}"

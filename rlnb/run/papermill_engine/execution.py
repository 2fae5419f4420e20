"""The cells of one attempt by papermill with our engine, their output on this terminal."""

import sys
from pathlib import Path

import papermill
from nbclient.exceptions import DeadKernelError
from papermill.engines import papermill_engines
from papermill.exceptions import PapermillExecutionError
from papermill.iorw import LocalHandler, papermill_io

from rlnb.errors import DiskFull, see
from rlnb.machine import rank
from rlnb.run import directory as runs
from rlnb.run.disk import telling_full_disk, write_text
from rlnb.run.papermill_engine.engine import KernelNotStarted, RlnbEngine, Stopped
from rlnb.run.slurm import how_to_go_on

TRACEBACK_LINES = 12


class WholeFileHandler(LocalHandler):
    """Writes notebooks by rename: a full disk or a crash leaves the one that was saved before."""

    def write(self, buf: str, path: str) -> None:
        write_text(Path(self._cwd or "", path), buf)


def execute(
    notebook: Path, output: Path, *, parameters: dict[str, object], says_how_it_ended: bool = True
) -> int:
    """Run the cells with rank 0's output on this terminal, print how it ended, and return the exit code."""
    papermill_engines.register("rlnb", RlnbEngine)  # this module, whatever version is installed
    papermill_io.register("local", WholeFileHandler())
    streams = {"stdout_file": sys.stdout, "stderr_file": sys.stderr} if rank() == 0 else {}
    # Papermill fills in names in braces.
    paths = [str(path).replace("{", "{{").replace("}", "}}") for path in (notebook, output)]
    try:
        with telling_full_disk(output.parent):
            papermill.execute_notebook(
                *paths,
                parameters=parameters,
                engine_name="rlnb",
                kernel_name=RlnbEngine.nb_kernel_name(None),
                language="python",
                progress_bar=False,
                **streams,
            )
    except (DiskFull, KernelNotStarted) as error:
        text, code = f"failed: {error}", runs.EXIT_FAILED
    except PapermillExecutionError as error:
        traceback = "\n".join(str(error).strip().splitlines()[-TRACEBACK_LINES:])
        text = f"{traceback}\nfailed: a cell raised {error.ename}; all of it is in {output}"
        if error.ename == DiskFull.__name__:
            text = f"failed: {error.evalue}"
        code = runs.EXIT_FAILED
    except Stopped as error:
        text = f"{error}\npreempted: {how_to_go_on()}; so far: {output}"
        code = runs.EXIT_PREEMPTED
    except runs.NoProgress as error:
        text, code = f"failed: {error} So far: {output}", runs.EXIT_FAILED
    except DeadKernelError as error:
        text = f"killed: {error}; so far: {output}{see('out-of-memory')}"
        code = runs.EXIT_KILLED
    else:
        if rank() == 0 and says_how_it_ended:
            print(f"done: {output}")
        return runs.EXIT_DONE
    if says_how_it_ended:
        print(text, file=sys.stderr)
    return code

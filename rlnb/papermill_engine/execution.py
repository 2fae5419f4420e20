"""The cells of one attempt by papermill with our engine, their output on this terminal."""

import sys
from pathlib import Path
from typing import Any

import papermill
from nbclient.exceptions import DeadKernelError
from papermill.engines import papermill_engines
from papermill.exceptions import PapermillExecutionError

from rlnb import runs
from rlnb.machine import rank
from rlnb.papermill_engine.engine import RlnbEngine, Stopped

TRACEBACK_LINES = 12


def execute(notebook: Path, output: Path, *, parameters: dict[str, Any]) -> int:
    """Run the cells with output on this terminal; a word on how it ended, and the exit code."""
    papermill_engines.register("rlnb", RlnbEngine)  # this very module, whatever version is installed
    shown = {"stdout_file": sys.stdout, "stderr_file": sys.stderr} if rank() == 0 else {}
    try:
        papermill.execute_notebook(
            notebook,
            output,
            parameters=parameters,
            engine_name="rlnb",
            kernel_name=RlnbEngine.nb_kernel_name(None),
            language="python",
            progress_bar=False,
            **shown,
        )
    except PapermillExecutionError as error:
        traceback = "\n".join(str(error).strip().splitlines()[-TRACEBACK_LINES:])
        return _say(
            runs.EXIT_FAILED, f"{traceback}\nfailed: a cell raised {error.ename}; all of it is in {output}"
        )
    except Stopped as error:
        return _say(
            runs.EXIT_PREEMPTED, f"{error}\npreempted: run the same command again to go on; so far: {output}"
        )
    except DeadKernelError as error:
        return _say(runs.EXIT_KILLED, f"killed: {error}; so far: {output}")
    if rank() == 0:
        print(f"done: {output}")
    return runs.EXIT_DONE


def _say(code: int, text: str) -> int:
    print(text, file=sys.stderr)
    return code

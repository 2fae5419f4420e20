"""Small notebooks for tests of runs."""

from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

PARAMETERS = 'profile: str = "auto"\noutput_dir: str = "outputs"\nseed: int = 42\n'
PARAMETERS += "training: dict = {}\noverrides: dict = {}\n"
TRAINS_UNTIL_SIGTERM = """
import pathlib, signal, time
from rlnb.errors import Preempted
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
checkpoint = pathlib.Path(output_dir, "checkpoint")
print("going on" if checkpoint.exists() else "starting", flush=True)
while not checkpoint.exists():
    pathlib.Path(output_dir, "training").touch()
    time.sleep(0.02)
    if stop:
        checkpoint.touch()
        raise Preempted("stopped at step 1 of 90")
"""


def write_notebook(path: Path, *sources: str, parameters: str = PARAMETERS) -> Path:
    """Write a notebook of a parameters cell, if any, and these cells; one beginning with "# " is Markdown."""
    cells = [new_code_cell(parameters, metadata={"tags": ["parameters"]})] if parameters else []
    cells += [new_markdown_cell(text) if text.startswith("# ") else new_code_cell(text) for text in sources]
    nbformat.write(new_notebook(cells=cells), path)
    return path

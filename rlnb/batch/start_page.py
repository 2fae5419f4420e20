"""The start page of JupyterLab: each notebook with its picture, its minutes, and its runs on this machine."""

import json
import os
from collections import Counter
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from IPython.display import HTML

from rlnb.batch.overview import find_runs
from rlnb.params.loading import ROOT
from rlnb.run.directory import read_status
from rlnb.run.slurm import jobs_in_queue

CELL = "text-align:left;vertical-align:top"


def show_notebooks(*names: str, root: Path = ROOT) -> HTML:
    """Return a table of notebooks with links that work from notebooks/, for what is in a project's folder."""
    rows = "".join(make_row(root, name) for name in names)
    return HTML(f"<table><tbody>{rows}</tbody></table>")


def make_row(root: Path, name: str) -> str:
    """Return a notebook's row; picture and minutes are of the newest finished run, else the gallery's."""
    notebook = json.loads((root / "notebooks" / f"{name}.ipynb").read_bytes())
    title = notebook["cells"][0]["source"][0].strip("# \n")
    every = (run.directory for run in find_runs(root / "outputs" / name))
    directories = [directory for directory in every if os.access(directory, os.X_OK)]  # not somebody else's
    unasked = [read_status(directory, ask=lambda _: None) for directory in directories]
    queue = jobs_in_queue({each.job for each in unasked if each and each.state in ("running", "killed")})
    statuses = [read_status(directory, ask=lambda _: queue) for directory in directories]
    told = zip(statuses, directories, strict=True)
    runs = sorted(((status, place) for status, place in told if status), key=lambda run: run[0].started)
    states = Counter("finished" if status.state == "done" else status.state for status, _ in runs)
    said = ", ".join(f"{count} {state}" for state, count in states.items()) or "never run here"
    executed = json.loads((root / "docs" / "gallery" / f"{name}.ipynb").read_bytes())
    minutes = f"{executed['metadata']['papermill']['duration'] / 60:.0f} min on two CPU cores"
    for status, directory in runs:
        if status.state != "done":
            continue
        if status.attempt == 1:
            taken = datetime.fromisoformat(status.ended) - datetime.fromisoformat(status.started)
            minutes = f"{taken.total_seconds() / 60:.0f} min here, {directory.name}"
        page = directory / status.notebook
        if page.exists():
            executed = json.loads(page.read_bytes())
        else:  # a run of JupyterLab
            page = directory / "results.json"
        if page.exists():
            said += f"; <a href='../{page.relative_to(root)}'>{directory.name}</a>"
    picture = find_picture(executed)
    image = (
        f"<img width='300' alt='{escape(title)}' src='data:image/png;base64,{picture}'>" if picture else ""
    )
    words = f"<a href='{name}.ipynb'><b>{escape(title)}</b></a><br>{name}<br>{minutes}<br>{said}"
    return f"<tr><td style='{CELL}'>{image}</td><td style='{CELL}'>{words}</td></tr>"


def find_picture(notebook: dict[str, Any]) -> str:
    """Return the first picture of an executed notebook, its result, as base64; "" where it has none."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    pictures = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    return "".join(pictures[0]) if pictures else ""

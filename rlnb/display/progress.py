"""Progress of long work: a bar in the notebook, and for `rlnb run` a line on the terminal at each tenth."""

import time
from collections.abc import Callable
from typing import Any

from IPython.display import display

from rlnb.runs import PROGRESS

SHORTEST_PAUSE_SECONDS = 0.2  # between two redrawings


def progress_bar(label: str) -> Callable[[int, int], None]:
    """A function to be called with (done, all); shows a bar that stays, full, in the saved notebook."""
    handle: Any = display(bundle(label, 0, 1), display_id=True, raw=True)
    drawn = 0.0

    def show(done: int, total: int) -> None:
        nonlocal drawn
        if handle is not None and (done == total or time.monotonic() - drawn > SHORTEST_PAUSE_SECONDS):
            drawn = time.monotonic()
            metadata = {PROGRESS: {"label": label, "done": done, "total": total}}
            handle.update(bundle(label, done, total), raw=True, metadata=metadata)

    return show


def bundle(label: str, done: int, total: int) -> dict[str, str]:
    """The bar for a browser, and as text."""
    bar = f"<progress value='{done}' max='{total}' style='vertical-align:middle'></progress>"
    return {"text/html": f"{label} {bar} {done}/{total}", "text/plain": f"{label} {done}/{total}"}

"""Progress of long work: a bar in the notebook, and for `rlnb run` a line on the terminal at each tenth."""

import time
from collections.abc import Callable
from datetime import timedelta

from IPython.display import DisplayHandle, display

from rlnb.run.directory import PROGRESS

SHORTEST_PAUSE_SECONDS = 0.2  # between two redrawings


def progress_bar(label: str) -> Callable[[int, int], None]:
    """Return a function to call with (done, total), which redraws a bar with the time left.

    Nothing is drawn before the first call. The saved notebook keeps the bar as it was drawn last. Time is
    extrapolated from the calls of this process, so a resumed run starts its estimate over.
    """
    handle: DisplayHandle | None = None
    started, first_done, drawn = -1.0, 0, 0.0

    def show(done: int, total: int) -> None:
        nonlocal handle, started, first_done, drawn
        if not total:  # a file of tasks without held-out ones
            return
        now = time.monotonic()
        is_first = started < 0
        if is_first:
            started, first_done = now, done
        elif done < total and now - drawn <= SHORTEST_PAUSE_SECONDS:
            return
        drawn, counts = now, f"{done}/{total}"
        if first_done < done < total:
            seconds_left = (total - done) * (now - started) / (done - first_done)
            counts += f", {timedelta(seconds=round(seconds_left))} left"
        bar = f"<progress value='{done}' max='{total}' style='vertical-align:middle'></progress>"
        bundle = {"text/html": f"{label} {bar} {counts}", "text/plain": f"{label} {counts}"}
        metadata = {PROGRESS: {"label": label, "done": done, "total": total}}
        if is_first:
            handle = display(bundle, display_id=True, raw=True, metadata=metadata)
        elif handle is not None:
            handle.update(bundle, raw=True, metadata=metadata)

    return show

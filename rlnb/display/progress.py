"""Progress of long work: a bar in the notebook, and for `rlnb run` a line on the terminal at each tenth."""

import time
from collections.abc import Callable

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
        now = time.monotonic()
        metadata = {PROGRESS: {"label": label, "done": done, "total": total}}
        if started < 0:
            started, first_done, drawn = now, done, now
            handle = display(format_bar(label, done, total), display_id=True, raw=True, metadata=metadata)
        elif handle is not None and (done >= total or now - drawn > SHORTEST_PAUSE_SECONDS):
            speed = (done - first_done) / max(now - started, 1e-9)
            drawn = now
            seconds_left = (total - done) / speed if speed > 0 else None
            handle.update(
                format_bar(label, done, total, seconds_left=seconds_left), raw=True, metadata=metadata
            )

    return show


def format_bar(label: str, done: int, total: int, *, seconds_left: float | None = None) -> dict[str, str]:
    """Return the bar for a browser, and as text."""
    bar = f"<progress value='{done}' max='{total}' style='vertical-align:middle'></progress>"
    time_left = f", {format_duration(seconds_left)} left" if seconds_left and done < total else ""
    counts = f"{done}/{total}{time_left}"
    return {"text/html": f"{label} {bar} {counts}", "text/plain": f"{label} {counts}"}


def format_duration(seconds: float) -> str:
    """Return a rounded duration: "40 s", "12 min" or "3 h 5 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"

"""Progress of long work, one line that is rewritten."""

from collections.abc import Callable
from typing import Any

from IPython.display import HTML, display


def progress_bar(label: str) -> Callable[[int, int], None]:
    """A function to be called with (done, all); shows a bar that stays, full, in the saved notebook."""
    handle: Any = display(HTML(bar(label, 0, 1)), display_id=True)

    def show(done: int, total: int) -> None:
        if handle is not None:
            handle.update(HTML(bar(label, done, total)))

    return show


def bar(label: str, done: int, total: int) -> str:
    style = "vertical-align:middle"
    return f"{label} <progress value='{done}' max='{total}' style='{style}'></progress> {done}/{total}"

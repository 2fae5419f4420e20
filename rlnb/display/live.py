"""What is redrawn while a notebook trains: one picture stays in it."""

from collections.abc import Callable
from pathlib import Path

from IPython.display import DisplayHandle, display
from matplotlib.figure import Figure

from rlnb.display.completions import show_best_and_worst, show_last_game
from rlnb.display.progress import progress_bar
from rlnb.run.tracking import read_metrics


class LiveFigure:
    """A progress bar with time left, a figure of a run's metrics.jsonl, and what the policy wrote last.

    That is the best and the worst completion of a step, or a game.

    draw: called with the rows of that file, `max_steps` and the options; returns the figure. All is read from
    the run's files each time, so a resumed run also shows the steps before the interruption; the completions
    are those of the step before, where TRL has not yet written the last.
    """

    def __init__(self, output_dir: str | Path, draw: Callable[..., Figure], **options: object) -> None:
        self.path = Path(output_dir) / "metrics.jsonl"
        self.draw, self.options = draw, options
        self._show_progress: Callable[[int, int], None] | None = None
        self._handles: dict[str, DisplayHandle | None] = {}

    def update(self, step: int, max_steps: int) -> None:
        """Redraw both after a step."""
        if self._show_progress is None:
            self._show_progress = progress_bar("training step")
        self._show_progress(step, max_steps)
        figure = self.draw(read_metrics(self.path), max_steps=max_steps, **self.options)
        written = show_best_and_worst(self.path.parent) or show_last_game(self.path.parent)
        for name, content in (("figure", figure), ("written", written)):
            if handle := self._handles.get(name):
                handle.update(content)
            elif content is not None:
                self._handles[name] = display(content, display_id=True)  # None outside a notebook

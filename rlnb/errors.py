"""One error class per boundary. A bad program or an illegal move is data, never an error."""

import re

TROUBLESHOOTING = "docs/troubleshooting.md"


def see(topic: str) -> str:
    """Return what a message ends with: the address of a heading on the page of troubleshooting."""
    return f" ({TROUBLESHOOTING}#{topic})"


class RlnbError(Exception):
    """Base of the errors below; its message names the place, the value and the remedy.

    Characters that a terminal would obey or hide (escape codes, reversed text) are escaped in the message:
    names and values in it come from files. exit_code: of the command line; 2 = refused before it ran.
    """

    exit_code = 2

    def __str__(self) -> str:
        text = super().__str__()
        return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows instead of a traceback: the message, which says what to do.

        The page that it names is a link above it, from the server's root: `make lab` serves the project.
        """
        if page := re.search(rf"{TROUBLESHOOTING}#[\w-]+", str(self)):
            from IPython.display import display

            link = f"<a href='/{page[0]}'>{page[0]}</a>"
            display({"text/html": link, "text/plain": page[0]}, raw=True)
        return [f"{type(self).__name__}: {self}"]


class ParamsError(RlnbError):
    """A parameter with a wrong name, type or value, or a combination that cannot work."""


class PolicyUnavailable(RlnbError):
    """A model that cannot be loaded here: not cached while offline, too large, or a package is missing."""


class OutOfMemory(RlnbError):
    """A run that needs more memory than the GPU has."""


class DiskFull(RlnbError):
    """A disk, or a quota on it, with no room left for what a run writes."""


class SandboxUnavailable(RlnbError):
    """A machine that cannot isolate programs as much as the parameters require, or cannot judge them."""


class Preempted(RlnbError):
    """A run that a signal stopped after its checkpoint was saved; run it again to continue."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]  # which IPython shows alone: nothing has failed


class TrainingDiverged(RlnbError):
    """A training that more steps cannot repair (NaN, nothing to learn from, no program ran)."""

"""One error for each boundary. A bad program or an illegal move is data, never one of these."""


class RlnbError(Exception):
    """Base of the errors below; its message names the place, the value and the remedy.

    Characters that a terminal would obey or hide (escape codes, reversed text) are escaped in the message:
    names and values in it come from files.
    """

    def __str__(self) -> str:
        text = super().__str__()
        return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


class ParamsError(RlnbError):
    """What the user asked for cannot be: a wrong key, type, range or combination."""


class PolicyUnavailable(RlnbError):
    """The model cannot be loaded here: not cached while offline, too large, or a package is missing."""


class OutOfMemory(RlnbError):
    """The GPU's memory does not suffice for what a run was asked to do."""


class SandboxUnavailable(RlnbError):
    """Programs cannot be run here as isolated as asked."""


class Preempted(RlnbError):
    """A signal stopped the run after its checkpoint was saved; run it again to go on."""


class TrainingDiverged(RlnbError):
    """Training went wrong in a way that more steps do not mend (NaN, nothing learned from, nothing run)."""

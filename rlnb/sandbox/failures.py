"""Counting the programs that the sandbox itself failed to run."""

from collections.abc import Sequence

from rlnb.errors import SandboxUnavailable

MAX_SHARE = 0.01


class FailureCount:
    """How many programs of a run ended as "sandbox_error"; a few are left out, more stop the run."""

    def __init__(self) -> None:
        self.num_programs = 0
        self.num_failed = 0

    def add(self, num_programs: int, errors: Sequence[str]) -> None:
        """Count programs and the errors of those that failed.

        Raises SandboxUnavailable above 1% of all so far, with two at least: one may be an accident.
        """
        self.num_programs += num_programs
        self.num_failed += len(errors)
        if errors and self.num_failed > max(1, MAX_SHARE * self.num_programs):
            raise SandboxUnavailable(
                f"sandbox: {self.num_failed} of {self.num_programs} programs could not be run ({errors[0]}); "
                "`rlnb doctor` shows what this machine allows"
            )

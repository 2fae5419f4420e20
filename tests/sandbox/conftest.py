"""Another user than the one who runs the tests."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rlnb

ANOTHER_USER = "65534"


def open_doors(folder: Path) -> str:
    """Return shell commands that let anybody reach the interpreter and the project, in a mount namespace.

    They may lie in root's home, which others may not enter: a folder that they may takes its place.
    """
    paths = {Path(sys.base_prefix), Path(sys.prefix), Path(rlnb.__file__).parents[1]}
    closed = {p for path in paths for p in path.parents if not p.stat().st_mode & 0o001}
    closed = {path for path in closed if not closed & {*path.parents}}
    hidden = [path for path in paths if closed & {*path.parents}]
    commands = []
    for number, path in enumerate(hidden):
        (folder / str(number)).mkdir()
        commands.append(["mount", "--bind", path, folder / str(number)])
    commands += [["mount", "-t", "tmpfs", "-o", "mode=755", "none", path] for path in closed]
    for number, path in enumerate(hidden):
        commands += [["mkdir", "-p", path], ["mount", "--bind", folder / str(number), path]]
    return " && ".join(shlex.join(map(str, command)) for command in [*commands, ["true"]])


@pytest.fixture
def as_another_user(tmp_path):
    """Run a script as a user who is not root, and return what it printed."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "setpriv", "mount"))):
        pytest.skip("becoming another user takes root, unshare, setpriv and mount")

    def run(script: str) -> str:
        become = ["setpriv", "--reuid", ANOTHER_USER, "--regid", ANOTHER_USER, "--clear-groups"]
        command = shlex.join([*become, sys.executable, "-c", script])
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", f"{open_doors(tmp_path)} && exec {command}"],
            env={**os.environ, "TMPDIR": "/tmp", "HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run

"""The profiles that the project ships, without those that its user saved beside them."""

import subprocess
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "params"


def profiles_of(notebook: str) -> list[str]:
    """Names of the files of params/<notebook>/ that git knows; of all where there is no repository."""
    try:
        tracked = subprocess.run(
            ["git", "ls-files", "-z", "--", notebook], cwd=FOLDER, capture_output=True, text=True, check=True
        ).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):
        tracked = []
    paths = [FOLDER / name for name in tracked if name] or (FOLDER / notebook).glob("*.yaml")
    return sorted(path.stem for path in paths if path.suffix == ".yaml" and path.is_file())

"""Keys that are in .env instead of the environment."""

import io
import os
from collections.abc import MutableMapping
from pathlib import Path

from dotenv import dotenv_values

import rlnb

PROJECT = Path(rlnb.__file__).resolve().parents[1]
SECRETS = ("WANDB_API_KEY", "HF_TOKEN", "OPENAI_API_KEY")


def load_dotenv(
    root: Path, *, environ: MutableMapping[str, str] = os.environ, project: Path = PROJECT
) -> list[str]:
    """Set the keys that are unset from root/.env, else from project/.env; return their names, no values.

    Ignores a file that cannot be read, and values that cannot be keys.
    """
    names = []
    for folder in (root, project):
        try:
            text = (folder / ".env").read_text(encoding="utf-8-sig", errors="replace")
        except OSError:
            continue
        values = dotenv_values(stream=io.StringIO(text), interpolate=False)
        for name, value in values.items():
            if name not in SECRETS or not value or environ.get(name):
                continue
            if value.isascii() and value.isprintable() and not value.startswith("#"):
                environ[name] = value
                names.append(name)
    return names

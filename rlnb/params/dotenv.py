"""Keys that stand in .env instead of the environment."""

import os
import re
from collections.abc import MutableMapping
from pathlib import Path

import rlnb

PROJECT = Path(rlnb.__file__).resolve().parents[1]
SECRETS = ("WANDB_API_KEY", "HF_TOKEN", "OPENAI_API_KEY")
ASSIGNMENT = re.compile(r"\s*(?:export\s+)?(\w+)\s*=\s*(.*)")
COMMENT = re.compile(r"(?:^|\s)#")


def load_dotenv(
    root: Path, *, environ: MutableMapping[str, str] = os.environ, project: Path | None = None
) -> list[str]:
    """Take WANDB_API_KEY and HF_TOKEN, where unset, from root/.env, else from that of the project.

    project: the folder that holds rlnb/, by default this one's. Returns the names taken, never a value.
    """
    taken = []
    for folder in (root, project or PROJECT):
        for name, value in _read_secrets(folder / ".env").items():
            if not environ.get(name):
                environ[name] = value
                taken.append(name)
    return taken


def _read_secrets(path: Path) -> dict[str, str]:
    """The keys of a .env file; what cannot be read, or is no text that a key could be, is none."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError:
        return {}
    secrets = {}
    for name, rest in (match.groups() for line in text.splitlines() if (match := ASSIGNMENT.match(line))):
        value = _value(rest)
        if name in SECRETS and value.isascii() and value.isprintable() and value:
            secrets[name] = value
    return secrets


def _value(text: str) -> str:
    """As a shell reads it: quotes hold all up to their end; without them a # after a space is a comment."""
    if text.startswith(("'", '"')):
        return text[1:].partition(text[0])[0]
    return COMMENT.split(text)[0].strip()

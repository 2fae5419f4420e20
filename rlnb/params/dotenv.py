"""Keys and parameters that are in .env instead of the environment."""

import io
import os
from collections.abc import MutableMapping
from pathlib import Path

from dotenv import dotenv_values

import rlnb
from rlnb.params.reading import OTHER_VARIABLES, PREFIX

PROJECT = Path(rlnb.__file__).resolve().parents[1]
SECRETS = ("WANDB_API_KEY", "HF_TOKEN", "OPENAI_API_KEY")


def load_dotenv(
    root: Path, *, environ: MutableMapping[str, str] = os.environ, project: Path = PROJECT
) -> list[str]:
    """Set what is unset from root/.env, else from project/.env; return the names, no values.

    Takes keys, MBPP_EVAL_NUM_QUESTIONS, MBPP_DATASET_PATH and RLNB_SECTION__FIELD, and nothing else. Ignores
    a file that cannot be read, and values that cannot be keys.
    """
    names = []
    for folder in (root, project):
        try:
            text = (folder / ".env").read_text(encoding="utf-8-sig", errors="replace")
        except OSError:
            continue
        values = dotenv_values(stream=io.StringIO(text), interpolate=False)
        for name, value in values.items():
            is_parameter = name.startswith(PREFIX) or name in dict(OTHER_VARIABLES)
            if not value or environ.get(name) or not (is_parameter or name in SECRETS):
                continue
            if value.isprintable() and (is_parameter or value.isascii()) and not value.startswith("#"):
                environ[name] = value
                names.append(name)
    return names

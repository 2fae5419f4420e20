"""Keys and parameters that are in .env instead of the environment."""

import io
import os
from collections.abc import MutableMapping
from pathlib import Path

from dotenv import dotenv_values

from rlnb.params.loading import ROOT
from rlnb.params.reading import OTHER_VARIABLES, PREFIX

SECRETS = ("WANDB_API_KEY", "HF_TOKEN", "OPENAI_API_KEY")


def load_dotenv(
    root: Path, *, environ: MutableMapping[str, str] | None = None, project: Path = ROOT
) -> list[str]:
    """Set what is unset from root/.env, else from project/.env; return the names, no values.

    Takes keys, MBPP_EVAL_NUM_QUESTIONS, MBPP_DATASET_PATH and RLNB_SECTION__FIELD, and nothing else. Ignores
    a file that cannot be read, and values that cannot be keys.
    """
    environ = os.environ if environ is None else environ
    names = []
    for folder in (root, project):
        path = folder / ".env"
        is_readable = path.is_file() and os.access(path, os.R_OK)
        text = path.read_text(encoding="utf-8-sig", errors="replace") if is_readable else ""
        for name, value in dotenv_values(stream=io.StringIO(text), interpolate=False).items():
            is_parameter = name.startswith(PREFIX) or name in OTHER_VARIABLES
            if not value or environ.get(name) or not (is_parameter or name in SECRETS):
                continue
            if value.isprintable() and (is_parameter or value.isascii()) and not value.startswith("#"):
                environ[name] = value
                names.append(name)
    return names

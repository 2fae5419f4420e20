"""Headless runs of notebooks: `papermill --engine rlnb IN OUT` (engine.py) and `rlnb run` (run.py)."""

from typing import Any


def __getattr__(name: str) -> Any:
    """RlnbEngine, for papermill alone: it asks by entry point in the middle of its own import, just below."""
    if name != "RlnbEngine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rlnb.papermill_engine import engine

    return engine.RlnbEngine


import papermill.engines  # noqa: E402, F401  before engine.py, which it loads itself

from rlnb.papermill_engine.engine import RlnbEngine  # noqa: E402
from rlnb.papermill_engine.run import run_notebook  # noqa: E402

__all__ = ["RlnbEngine", "run_notebook"]

"""Reinforcement learning of language models, run from notebooks."""

from importlib import import_module

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Return `rlnb.watch`, which is loaded when it is asked for: the package itself imports nothing."""
    if name != "watch":
        raise AttributeError(f"module 'rlnb' has no attribute {name!r}")
    return import_module("rlnb.display.watching").watch

"""Reinforcement learning of language models, run from notebooks."""

__version__ = "0.1.0"

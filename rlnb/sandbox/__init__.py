"""Run untrusted Python: isolated, limited, in parallel. What a program did is data, never an exception."""

from rlnb.sandbox.runner import Execution, Limits, Sandbox

__all__ = ["Execution", "Limits", "Sandbox"]

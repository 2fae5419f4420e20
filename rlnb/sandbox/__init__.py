"""Run untrusted Python: isolated, limited, in parallel. What a program did is data, never an exception."""

from rlnb.sandbox.calls import Call, LoadedProgram
from rlnb.sandbox.executions import Execution, Level, Limits, Variation
from rlnb.sandbox.failures import FailureCount
from rlnb.sandbox.oracle import Verdict, check_oracle, check_tests
from rlnb.sandbox.reruns import Rerun, Reruns
from rlnb.sandbox.runner import Sandbox

__all__ = [
    "Call",
    "Execution",
    "FailureCount",
    "Level",
    "Limits",
    "LoadedProgram",
    "Rerun",
    "Reruns",
    "Sandbox",
    "Variation",
    "Verdict",
    "check_oracle",
    "check_tests",
]

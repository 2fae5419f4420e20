"""Facts of this machine, and the choices that follow from them unless the parameters say otherwise.

`probe` looks, `identify` names what was seen, `recommend` chooses. The last two depend on nothing but their
arguments, so every row of the table is tested without its hardware. Nothing here imports torch: what a choice
needs in the environment must be set before torch is imported, by `apply_environment`.
Of the bottom floor, `params` may import this package, and this package `errors`.
"""

from rlnb.machine.choices import Recommendation, apply_environment, installed_version, recommend
from rlnb.machine.facts import (
    Gpu,
    Machine,
    Probe,
    answers,
    identify,
    parse_nvidia_smi,
    probe,
    rank,
    usable_cores,
)
from rlnb.machine.table import MACHINES, Row

__all__ = [
    "MACHINES",
    "Gpu",
    "Machine",
    "Probe",
    "Recommendation",
    "Row",
    "answers",
    "apply_environment",
    "identify",
    "installed_version",
    "parse_nvidia_smi",
    "probe",
    "rank",
    "recommend",
    "usable_cores",
]

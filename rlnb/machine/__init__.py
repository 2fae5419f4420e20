"""Facts of this machine, and the choices that follow from them unless the parameters say otherwise.

`probe` looks, `identify` names the machine, `recommend` chooses. The last two are pure functions, so every
row of the table is tested without its hardware. Nothing here imports torch, since `apply_environment` has to
set variables before torch is imported.
"""

from rlnb.machine.choices import Recommendation, apply_environment, check_python, installed_version, recommend
from rlnb.machine.facts import Machine, probe, rank, world_size

__all__ = [
    "Machine",
    "Recommendation",
    "apply_environment",
    "check_python",
    "installed_version",
    "probe",
    "rank",
    "recommend",
    "world_size",
]

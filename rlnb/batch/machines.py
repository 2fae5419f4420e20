"""The machine that a run will get, as far as it is known on the one where it is prepared."""

import dataclasses
from pathlib import Path

from rlnb.errors import ParamsError
from rlnb.machine import Machine, probe, recommend
from rlnb.machine.table import MACHINES, PROFILE_MEMORY_GIB
from rlnb.params import load_dotenv

# Of the smallest machine that a profile is for.
LEAST_GIB = {**dict(PROFILE_MEMORY_GIB), "v100": 16.0, "gb10": 95.0}


def job_machine(profile: str | None, name: str | None, gpu_memory: float | None) -> Machine:
    """Return the facts of the kind of machine named, else of the kind that the profile is named after.

    It is this machine where that is no kind of GPU, and it is offline where the environment, or .env, says
    so. gpu_memory: in GiB; None means that of the smallest. Raises ParamsError for an unknown name.
    """
    load_dotenv(Path.cwd())
    here = probe(ask_hub=False)
    hub = "offline" if recommend(here).offline else "not asked"
    row = next((row for row in MACHINES if row.name == (name or Path(profile or "").stem)), None)
    if row is None and name is not None:
        raise ParamsError(f"--machine {name}: is none of {', '.join(row.name for row in MACHINES)}")
    if row is None or not row.capabilities:
        if gpu_memory is not None:
            raise ParamsError(f"--gpu-memory {gpu_memory:g}: is of no known GPU; add --machine v100, or h100")
        return dataclasses.replace(here, hub=hub)
    memory_gib = gpu_memory or LEAST_GIB[row.name if row.name in LEAST_GIB else row.profile]
    return Machine(row.name, row.name.upper(), row.capabilities[0], memory_gib, 1, here.environment, hub)

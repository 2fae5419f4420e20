"""The machine that a run will get, as far as it is known on the one where it is prepared."""

import dataclasses
import os
from pathlib import Path

from rlnb.errors import ParamsError
from rlnb.machine import Machine, probe, recommend
from rlnb.machine.table import MACHINES
from rlnb.params import load_dotenv

# GiB that each GPU of a kind has at least. The kinds that are not here have them of many sizes.
LEAST_GIB = {"v100": 16.0, "t4": 15.0, "a100": 38.0, "h100": 70.0, "b200": 170.0, "gb10": 95.0}


def job_machine(profile: str | None, name: str | None, gpu_memory: float | None) -> Machine:
    """Return the facts of the kind of machine named, else of the kind that the profile is named after.

    It is this machine where that is no kind of GPU, without its GPUs where it is a CPU, and it is offline
    where the environment, or .env, says so. gpu_memory: in GiB; None means that of the smallest. Raises
    ParamsError for an unknown name, and for a kind of GPU that needs gpu_memory.
    """
    load_dotenv(Path.cwd())
    kinds = {row.name: row for row in MACHINES if row.capabilities or row.profile == "cpu"}
    if name is not None and name not in kinds:
        raise ParamsError(f"--machine {name}: is none of {', '.join(kinds)}")
    row = kinds.get(name or Path(profile or "").stem)
    is_cpu = row is not None and not row.capabilities
    here = probe(ask_hub=False, environ={**os.environ, **({"CUDA_VISIBLE_DEVICES": ""} if is_cpu else {})})
    hub = "offline" if recommend(here).offline else "not asked"
    if row is None or is_cpu:
        if gpu_memory is not None:
            raise ParamsError(f"--gpu-memory {gpu_memory:g}: is of no known GPU; add --machine v100, or h100")
        return dataclasses.replace(here, hub=hub)
    memory_gib = gpu_memory or LEAST_GIB.get(row.name)
    if memory_gib is None:
        raise ParamsError(f"--gpu-memory: is missing; GPUs of the kind {row.name} have 8 to 96 GiB")
    return Machine(row.name, row.name.upper(), row.capabilities[0], memory_gib, 1, here.environment, hub)

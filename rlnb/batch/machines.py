"""The machine that a run will get, as far as it is known on the one where it is prepared."""

import dataclasses
from pathlib import Path

from rlnb.errors import ParamsError
from rlnb.machine import Machine, probe, recommend
from rlnb.machine.table import MACHINES, PROFILE_MEMORY_GIB
from rlnb.params import check_machine, load_dotenv, resolve
from rlnb.params.sections import NotebookParams

# Of the smallest machine that a profile is for.
LEAST_GIB = {**dict(PROFILE_MEMORY_GIB), "v100": 16.0, "gb10": 119.0}


def target_machine(profile: str | None, name: str | None, gpu_memory: float | None) -> Machine:
    """Return the facts of the kind of machine named, else of the kind that the profile is named after.

    It is this machine where that is not a kind of GPU. gpu_memory: in GiB; None means that of the smallest.
    Raises ParamsError for an unknown name, and for a memory that no GPU has.
    """
    row = next((row for row in MACHINES if row.name == (name or profile)), None)
    if row is None and name is not None:
        raise ParamsError(f"--machine {name}: is none of {', '.join(row.name for row in MACHINES)}")
    if row is None or not row.capabilities:
        if gpu_memory is not None:
            raise ParamsError(
                f"--gpu-memory {gpu_memory:g}: profile {profile} does not tell which GPU that is; write "
                "--machine v100, a100, h100 or gb10 as well"
            )
        return probe(ask_hub=False)
    if gpu_memory is not None and not 1 <= gpu_memory < 10_000:
        raise ParamsError(
            f"--gpu-memory {gpu_memory:g}: is not the memory of a GPU; write its GiB, such as 32"
        )
    memory_gib = gpu_memory or LEAST_GIB[row.name if row.name in LEAST_GIB else row.profile]
    return Machine(row.name, row.name.upper(), row.capabilities[0], memory_gib, 1, "workstation", "reachable")


def job_machine(profile: str | None, name: str | None, gpu_memory: float | None) -> Machine:
    """Return `target_machine`; offline where the environment, or .env, says that the cluster's nodes are."""
    load_dotenv(Path.cwd())
    here, target = probe(ask_hub=False), target_machine(profile, name, gpu_memory)
    hub = "offline" if recommend(here).offline else "unasked"
    return dataclasses.replace(target, environment=here.environment, hub=hub)


def describe_missing(params: NotebookParams, machine: Machine) -> str:
    """Return what a run would lack on such a machine without a network, "" for nothing."""
    offline = dataclasses.replace(machine, hub="offline")
    try:
        check_machine(resolve(params, recommend(offline)), offline)
    except ParamsError as error:
        return str(error)
    return ""

"""The settings to choose on a machine where the parameters leave them open; by GPU they are in table.py."""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from importlib import metadata
from itertools import dropwhile

from rlnb.errors import ParamsError, see
from rlnb.machine.facts import ON, Machine
from rlnb.machine.table import MACHINES, PROFILE_MEMORY_GIB

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
PTXAS = "/usr/local/cuda/bin/ptxas"
LARGER_MODEL_GIB = 24.0  # above this, 3 billion weights with their adapters and batches fit
SMALL_GPU_GIB = 8.0  # below this, 1.5 billion weights of 2 bytes leave no room for a batch


@dataclass(frozen=True)
class Recommendation:
    """The settings that suit a machine; values that a user gives win over them.

    environment: variables to set before torch is imported. warnings: sentences, each with its remedy.
    """

    profile: str
    model_id: str
    dtype: str
    engine: str
    load_in_4bit: bool
    gradient_checkpointing: bool
    environment: dict[str, str]
    warnings: tuple[str, ...]
    offline: bool


def installed_version(package: str) -> str | None:
    """Return the version of a distribution without importing it; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def recommend(
    machine: Machine,
    *,
    files_exist: Callable[[str], bool] = os.path.exists,
    environ: Mapping[str, str] | None = None,
    version: Callable[[str], str | None] = installed_version,
) -> Recommendation:
    """Return the settings that suit a machine, a pure function of the arguments.

    A GPU counts with no more memory than RLNB_GPU_MEMORY says, in GiB: a job of SLURM takes what was checked
    for it, whatever GPU of its kind it gets.
    """
    environ = os.environ if environ is None else environ
    row = next(row for row in MACHINES if row.name == machine.name)
    on_gpu, memory_gib = row.profile != "cpu", machine.memory_gib
    if on_gpu and (checked := environ.get("RLNB_GPU_MEMORY")):
        memory_gib = min(memory_gib, float(checked))  # written by `rlnb submit`
    smaller = dropwhile(lambda step: step[0] != row.profile, PROFILE_MEMORY_GIB)
    unsloth = row.unsloth and version("unsloth") is not None
    # Compute nodes of Supercloud have no network; RLNB_OFFLINE=0 is for its login nodes.
    switch = environ.get("RLNB_OFFLINE", "").lower() or "1"
    is_cut_off = machine.environment == "supercloud" and switch in ON
    offline = is_cut_off or machine.hub in ("offline", "unreachable")
    model_id = "Qwen/Qwen2.5-3B" if memory_gib > LARGER_MODEL_GIB else "Qwen/Qwen2.5-1.5B"
    is_small = on_gpu and 0 < memory_gib < SMALL_GPU_GIB
    return Recommendation(
        profile=next((name for name, least_gib in smaller if memory_gib >= least_gib), row.profile),
        model_id=model_id if on_gpu else "embedded",
        dtype=row.dtype,
        engine="unsloth" if unsloth else "transformers",
        load_in_4bit=is_small and version("bitsandbytes") is not None,
        gradient_checkpointing=on_gpu,
        environment=_environment(row.name, offline=offline, files_exist=files_exist)
        | {"OMP_NUM_THREADS": str(machine.cpu_count)}
        | ({VISIBLE_GPUS: "0"} if on_gpu and "LOCAL_RANK" not in environ else {}),
        warnings=tuple(_warnings(machine, version)),
        offline=offline,
    )


def check_python() -> None:
    """Raise ParamsError for a Python without docstrings: transformers reads its own."""
    if sys.flags.optimize > 1:
        raise ParamsError(
            f"PYTHONOPTIMIZE = {sys.flags.optimize} (or -OO) removes the docstrings that transformers reads; "
            "unset it, or write 1"
        )


def apply_environment(
    recommendation: Recommendation, environ: MutableMapping[str, str] | None = None
) -> None:
    """Set the variables that are unset, before torch and huggingface_hub are imported.

    A process that is not a rank keeps the first of several visible GPUs: transformers' Trainer would spread a
    batch over all of them by torch's DataParallel, which TRL's does not do.
    """
    environ = os.environ if environ is None else environ
    if not environ.get("OMP_NUM_THREADS"):  # empty by =$SLURM_CPUS_PER_TASK in a job that sets none
        environ.pop("OMP_NUM_THREADS", None)
    for name, value in recommendation.environment.items():
        environ.setdefault(name, value)
    if "LOCAL_RANK" not in environ and "," in environ.get(VISIBLE_GPUS, ""):
        environ[VISIBLE_GPUS] = environ[VISIBLE_GPUS].split(",")[0].strip()


def _environment(name: str, *, offline: bool, files_exist: Callable[[str], bool]) -> dict[str, str]:
    # W&B reports its errors to its makers also where the run itself is offline. unsloth counts machines by
    # downloads, and a slow one ends the load.
    variables = {"HF_HUB_DISABLE_TELEMETRY": "1", "WANDB_ERROR_REPORTING": "false"}
    variables |= {"UNSLOTH_DISABLE_STATISTICS": "1", "VLLM_NO_USAGE_STATS": "1"}
    # OpenMP's threads spin while they wait for each other: by default two of them take seven times as long
    # next to a busy process on two cores. With 5000 rounds they take twice as long there, and 15% longer on
    # idle cores; with 1000 a quarter less next to the process, and a third more on idle cores.
    variables["GOMP_SPINCOUNT"] = "5000"
    # oneDNN and torch each keep 1024 kernels, one for every shape of a product in 16 bits, and texts have
    # many: gigabytes (pytorch#98688).
    variables |= {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "64"}
    # GPUs are counted as the driver lists them, and nvidia-smi; by default CUDA calls the fastest one 0.
    variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if offline:
        # transformers and datasets follow the hub's switch.
        variables |= {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled"}
    if name == "older":
        variables[VISIBLE_GPUS] = ""
    if name == "gb10":
        # For packages built from source, of which no set has one.
        variables["TORCH_CUDA_ARCH_LIST"] = "12.1a"
        # Triton before 3.6 brings a ptxas that does not know sm_121a (triton#8539); CUDA 13's does. Those of
        # the sets bring ptxas-blackwell and do not read this for 12.1. Never elsewhere: a wrong path breaks
        # older cards.
        if files_exist(PTXAS):
            variables["TRITON_PTXAS_PATH"] = PTXAS
    return variables


def _warnings(machine: Machine, version: Callable[[str], str | None]) -> Iterator[str]:
    name, gpu, torch = machine.name, machine.accelerator, version("torch") or ""
    if name == "older":
        yield f"{gpu} is older than Volta and not served by torch any more: the CPU computes."
    if name == "newer" and machine.capability:
        capability = "{}.{}".format(*machine.capability)
        yield f"{gpu} (capability {capability}) is not in rlnb/machine/table.py: small batches, no unsloth."
    if name == "v100" and list(map(int, re.findall(r"\d+", torch)[:2])) > [2, 10]:
        yield f"torch {torch} has no kernels for {gpu}: ./setup.sh volta installs torch 2.10."
    if name in ("v100", "gb10") and version("flash-attn") is not None:
        yield f"flash-attn does not work on {gpu}: uninstall it{see('ptxas-and-sm_121a')}."
    if gpu and machine.memory_gib == 0:
        yield f"The memory of {gpu} is not known: choices are those for a small GPU."

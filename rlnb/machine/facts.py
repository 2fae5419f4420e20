"""The facts of this machine: probed without torch, named by a pure function."""

import contextlib
import os
import re
import shutil
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlnb.machine.table import BF16_FLAGS, MACHINES, SHARED_MEMORY

OFFLINE_SWITCHES = ("RLNB_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
# MiB that a job has on a node, and what to multiply them by.
SLURM_MEMORY = {
    "SLURM_MEM_PER_NODE": "",
    "SLURM_MEM_PER_CPU": "SLURM_CPUS_ON_NODE",
    "SLURM_MEM_PER_GPU": "SLURM_GPUS_ON_NODE",
}
ON = ("1", "on", "yes", "true")  # what huggingface_hub takes for yes, in any case
WANDB_HOSTS = ("api.wandb.ai", "api.forge.coreweave.com")  # the second from W&B 0.31 on
SUPERCLOUD_PATHS = ("/state/partition1", "/home/gridsan")
SUPERCLOUD_CLUSTERS = ("txgreen", "tx-green", "txe1", "tx-e1", "supercloud")


@dataclass(frozen=True)
class Machine:
    """The facts of a machine.

    name: a row of the table. accelerator: the GPU's name in the driver, "" without one.
    capability: CUDA compute capability, (8, 0). memory_gib: of the first visible GPU; the system's where
    there is none, and 0.8 of it where the GPU shares it (GB10); 0.0 where unknown. cpu_count: usable cores.
    environment: workstation, slurm or supercloud. hub: reachable, unreachable, offline (the environment
    asks for it) or not asked.
    """

    name: str
    accelerator: str
    capability: tuple[int, int] | None
    memory_gib: float
    cpu_count: int
    environment: str
    hub: str


@dataclass(frozen=True)
class Gpu:
    """A GPU as the driver describes it; memory_gib is 0.0 where it does not know."""

    uuid: str
    name: str
    capability: tuple[int, int]
    memory_gib: float


def probe(*, ask_hub: bool = True, environ: Mapping[str, str] | None = None) -> Machine:
    """Return the facts of this machine, whatever is missing. Asking the hub takes up to 3 s."""
    environ = os.environ if environ is None else environ
    hub = "not asked"
    if any(environ.get(name, "").lower() in ON for name in OFFLINE_SWITCHES):
        hub = "offline"
    elif ask_hub:
        address = environ.get("HF_ENDPOINT") or "https://huggingface.co"
        status = ask_status(address, seconds=3.0)
        # A mirror may not know its own front page; 403 and 407 are how a proxy refuses.
        is_reachable = 0 < status < 500 and status not in (403, 407)
        hub = "reachable" if is_reachable else "unreachable"
    return identify(
        environ,
        gpus=list_gpus(),
        system_memory_gib=given_memory_gib(environ),
        cpu_count=usable_cores(environ),
        cpu_flags=_cpu_flags(),
        hostname=socket.gethostname(),
        has_supercloud_path=any(map(os.path.exists, SUPERCLOUD_PATHS)),
        has_sbatch=shutil.which("sbatch") is not None,
        hub=hub,
    )


def identify(
    environ: Mapping[str, str],
    *,
    gpus: Sequence[Gpu] = (),
    system_memory_gib: float = 0.0,
    cpu_count: int = 1,
    cpu_flags: frozenset[str] = frozenset(),
    hostname: str = "",
    has_supercloud_path: bool = False,
    has_sbatch: bool = False,
    hub: str = "not asked",
) -> Machine:
    """Return the machine of these observations. cpu_flags: the kernel's names of instruction sets."""
    environment = "slurm" if has_sbatch or "SLURM_JOB_ID" in environ else "workstation"
    cluster = environ.get("SLURM_CLUSTER_NAME", "").lower()
    if has_supercloud_path or cluster in SUPERCLOUD_CLUSTERS or "supercloud" in hostname.lower():
        environment = "supercloud"
    gpu = _first_visible(gpus, environ.get("CUDA_VISIBLE_DEVICES"))
    if gpu is None:
        name = "cpu_bf16" if cpu_flags & BF16_FLAGS else "cpu"
        return Machine(name, "", None, system_memory_gib, cpu_count, environment, hub)
    names = {capability: row.name for row in MACHINES for capability in row.capabilities}
    if gpu.capability < (7, 0):  # the CPU computes
        return Machine("older", gpu.name, None, system_memory_gib, cpu_count, environment, hub)
    name = names.get(gpu.capability, "newer")
    shared_gib = round(system_memory_gib * SHARED_MEMORY.get(gpu.capability, 0.0), 1)
    return Machine(name, gpu.name, gpu.capability, gpu.memory_gib or shared_gib, cpu_count, environment, hub)


def rank() -> int:
    """Return this process's rank under torchrun or accelerate, else 0. Only rank 0 writes shared files."""
    return int(os.environ.get("RANK", "0"))


def world_size(environ: Mapping[str, str] | None = None) -> int:
    """Return the number of ranks that run together."""
    return int((os.environ if environ is None else environ).get("WORLD_SIZE", "1"))


def usable_cores(environ: Mapping[str, str], root: Path = Path("/")) -> int:
    """Return the least of this process's affinity, its cgroups' quotas and its SLURM task's share.

    Ranks on one machine share it equally.
    """
    cores = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    quotas = [text.split() for text in read_cgroups("cpu.max", root)]
    of_version_1 = (read_cgroups(f"cpu.cfs_{name}_us", root) for name in ("quota", "period"))
    quotas += [[quota.strip(), period] for quota, period in zip(*of_version_1, strict=False)]
    cores += [int(quota) // int(period) for quota, period in quotas if quota.isdigit()]
    share = environ.get("SLURM_CPUS_PER_TASK", "")
    num_ranks = int(environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, min([*cores, int(share)] if share.isdigit() else cores) // num_ranks)


def _cpu_flags() -> frozenset[str]:
    line = re.search(r"^(?:flags|Features)\s*:(.*)", _read("/proc/cpuinfo"), re.MULTILINE)  # x86-64, aarch64
    return frozenset(line[1].split()) if line else frozenset()


def ask_status(address: str, *, seconds: float) -> int:
    """Return the status that a web address answers with in time, by a proxy too; 0 without an answer."""
    import requests

    statuses = [0]

    def ask() -> None:
        with contextlib.suppress(OSError, ValueError):
            answer = requests.head(
                address,
                timeout=seconds,
                allow_redirects=True,
                auth=lambda request: request,  # else that of ~/.netrc, which may not be UTF-8
            )
            statuses.append(answer.status_code)

    # In a thread: a name server that keeps silent holds up getaddrinfo whatever timeout the request has.
    asker = threading.Thread(target=ask, daemon=True)
    asker.start()
    asker.join(seconds)
    return statuses[-1]


def list_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs of this machine in the driver's order; none without a driver or nvidia-ml-py."""
    try:
        import pynvml
    except ImportError:  # in a Python before ./setup.sh
        return ()
    gpus: list[Gpu] = []
    with contextlib.suppress(pynvml.NVMLError):  # no driver, or a GPU that has fallen off the bus
        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
            try:
                memory_gib = round(pynvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30, 1)
            except pynvml.NVMLError:  # GB10 shares the system's memory
                memory_gib = 0.0
            uuid, name = pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle)
            gpus.append(Gpu(uuid, name, (major, minor), memory_gib))
        pynvml.nvmlShutdown()
    return tuple(gpus)


def count_visible_gpus(environ: Mapping[str, str]) -> int:
    """Return the number of GPUs that torch sees, 0 where it may not use any."""
    visible, num_gpus = environ.get("CUDA_VISIBLE_DEVICES"), len(list_gpus())
    if visible is None or not num_gpus:
        return num_gpus
    return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])


def _first_visible(gpus: Sequence[Gpu], visible: str | None) -> Gpu | None:
    """Return the GPU that CUDA numbers 0: torch heeds CUDA_VISIBLE_DEVICES, the driver's list does not."""
    if visible is None or not gpus:
        return gpus[0] if gpus else None
    first = visible.split(",")[0].strip()
    if first.isdigit():
        return gpus[int(first)] if int(first) < len(gpus) else None
    if first.startswith("MIG-"):  # a slice of a GPU of unknown size
        return Gpu(first, gpus[0].name, gpus[0].capability, 0.0)
    return next((gpu for gpu in gpus if first and gpu.uuid.startswith(first)), None)


def given_memory_gib(environ: Mapping[str, str], root: Path = Path("/")) -> float:
    """Return the least of the machine's memory, its cgroups' limits and what SLURM has given its job."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in ("memory.max", "memory.limit_in_bytes"):  # of cgroups' versions 2 and 1
        limits += [int(text) for text in read_cgroups(name, root) if text.strip().isdigit()]
    for name, count in SLURM_MEMORY.items():
        limits.append(int(environ.get(name) or 0) * int(environ.get(count) or 1) << 20)
    return round(min(limit for limit in limits if limit) / 2**30, 1)


def read_cgroups(name: str, root: Path = Path("/")) -> list[str]:
    """Return what the files of a name say in this process's cgroup and in those above it, which limit it too.

    Version 2 has one tree of groups, version 1 one for each controller. A container may see its own group as
    the root of the tree, and its path from outside.
    """
    folders: set[Path] = set()
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", maxsplit=2)
        group = root / "sys/fs/cgroup" / controllers / path.lstrip("/")
        folders |= {group, *group.parents}
    return [text for folder in folders if (text := _read(folder / name))]


def _read(path: str | Path) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text(encoding="utf-8")
    return ""

"""Every row of the table without its hardware: what was seen goes in, names and choices come out."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from rlnb.machine import Machine, apply_environment, probe, recommend
from rlnb.machine.facts import Gpu, ask_status, given_memory_gib, identify, list_gpus, usable_cores
from rlnb.machine.table import MACHINES

V100 = Gpu("GPU-1a", "Tesla V100-PCIE-32GB", (7, 0), 32.0)
A100 = Gpu("GPU-2b", "NVIDIA A100-SXM4-80GB", (8, 0), 80.0)
GB10 = Gpu("GPU-3c", "NVIDIA GB10", (12, 1), 0.0)
PTXAS = "/usr/local/cuda/bin/ptxas"

CAPABILITIES = {row.name: row.capabilities[0] for row in MACHINES if row.capabilities}
CAPABILITIES["newer"] = (13, 0)
CPU_ROWS = ("cpu", "cpu_bf16", "older")


def choose(
    name, memory_gib, *, environment="workstation", hub="reachable", installed=(), files=(), **environ
):
    capability = CAPABILITIES.get(name)
    gpu = f"a {name}" if capability else ""
    machine = Machine(name, gpu, capability, memory_gib, 8, environment, hub)
    versions = dict(installed)
    return recommend(machine, files_exist=files.__contains__, environ=environ, version=versions.get)


NAMES = {
    (3, 5): "older", (6, 0): "older", (7, 0): "v100", (7, 5): "t4", (8, 0): "a100", (8, 6): "ampere",
    (8, 9): "ada", (9, 0): "h100", (10, 0): "b200", (11, 0): "newer", (12, 0): "rtx_blackwell",
    (12, 1): "gb10", (14, 2): "newer",
}  # fmt: skip


def test_a_gpu_is_named_by_its_capability():
    for capability, name in NAMES.items():
        assert identify({}, gpus=[Gpu("GPU-0", "some GPU", capability, 40.0)]).name == name


def test_without_a_gpu_the_memory_is_the_systems_and_on_a_gb10_what_it_can_lose_of_it():
    seen = {"system_memory_gib": 31.2, "cpu_count": 4}
    machine = identify({}, cpu_flags=frozenset({"fpu", "avx2"}), **seen)
    assert machine == Machine("cpu", "", None, 31.2, 4, "workstation", "not asked")
    assert identify({}, cpu_flags=frozenset({"fpu", "amx_bf16"})).name == "cpu_bf16"
    machine = identify({}, gpus=[GB10], **seen)
    assert machine == Machine("gb10", "NVIDIA GB10", (12, 1), 25.0, 4, "workstation", "not asked")


def test_before_volta_the_machine_is_its_cpu():
    gpu = Gpu("GPU-0", "NVIDIA GeForce MX250", (6, 1), 2.0)
    machine = identify({}, gpus=[gpu], system_memory_gib=16.0, cpu_count=4)
    assert machine == Machine("older", gpu.name, None, 16.0, 4, "workstation", "not asked")


def test_the_gpu_that_cuda_would_take_first_is_the_one_described():
    names = {"0": "v100", "1": "a100", "1,0": "a100", "GPU-2b": "a100", "": "cpu", "-1": "cpu", "7": "cpu"}
    for visible, name in names.items():
        assert identify({"CUDA_VISIBLE_DEVICES": visible}, gpus=[V100, A100]).name == name, visible


def test_a_slice_of_a_gpu_is_treated_as_small_since_its_memory_is_not_known():
    machine = identify({"CUDA_VISIBLE_DEVICES": "MIG-5f"}, gpus=[A100])
    chosen = recommend(machine, environ={}, version={}.get)
    assert (machine.name, machine.memory_gib) == ("a100", 0.0)
    assert (chosen.profile, chosen.model_id) == ("v100", "Qwen/Qwen2.5-1.5B")
    assert "is not known" in chosen.warnings[0]


def test_supercloud_is_told_from_slurm_and_from_a_workstation():
    assert identify({}).environment == "workstation"
    for environ, seen in (({}, {"has_sbatch": True}), ({"SLURM_JOB_ID": "7"}, {})):
        assert identify(environ, **seen).environment == "slurm"
    for environ, seen in (
        ({"SLURM_CLUSTER_NAME": "TXGreen"}, {"has_sbatch": True}),
        ({}, {"has_supercloud_path": True}),
        ({}, {"hostname": "login-3.supercloud.example"}),
    ):
        assert identify(environ, **seen).environment == "supercloud"


def test_gpus_are_listed_by_the_driver_also_one_whose_memory_it_does_not_know(monkeypatch):
    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    gpus = (V100, A100, GB10)
    monkeypatch.setattr(pynvml, "nvmlInit", fail)  # no driver
    assert list_gpus() == ()

    def memory_info(gpu: Gpu) -> SimpleNamespace:
        if not gpu.memory_gib:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(total=int(gpu.memory_gib * 2**30))

    replies = {
        "Init": lambda: None, "Shutdown": lambda: None, "DeviceGetCount": lambda: len(gpus),
        "DeviceGetHandleByIndex": gpus.__getitem__, "DeviceGetMemoryInfo": memory_info,
        "DeviceGetCudaComputeCapability": lambda gpu: gpu.capability,
        "DeviceGetUUID": lambda gpu: gpu.uuid, "DeviceGetName": lambda gpu: gpu.name,
    }  # fmt: skip
    for name, reply in replies.items():
        monkeypatch.setattr(pynvml, f"nvml{name}", reply)
    assert list_gpus() == gpus


def test_each_machine_gets_what_it_can_compute_and_hold():
    for name, memory_gib, profile, dtype, model_id in (
        ("cpu", 512.0, "cpu", "float32", "embedded"),
        ("older", 16.0, "cpu", "float32", "embedded"),
        ("v100", 16.0, "v100", "float16", "Qwen/Qwen2.5-1.5B"),
        ("a100", 40.0, "a100", "bfloat16", "Qwen/Qwen2.5-3B"),
        ("a100", 10.0, "v100", "bfloat16", "Qwen/Qwen2.5-1.5B"),
        ("h100", 79.6, "h100", "bfloat16", "Qwen/Qwen2.5-3B"),
        ("newer", 200.0, "v100", "bfloat16", "Qwen/Qwen2.5-3B"),
    ):
        chosen = choose(name, memory_gib)
        assert (chosen.profile, chosen.dtype, chosen.model_id) == (profile, dtype, model_id)
        assert chosen.gradient_checkpointing == (name not in CPU_ROWS)
        assert (chosen.environment.get("CUDA_VISIBLE_DEVICES") == "") == (name == "older")


def test_packages_are_chosen_where_they_are_installed_and_work():
    unsloth, bitsandbytes = {"unsloth": "2026.10.7"}, {"bitsandbytes": "0.50.2"}
    for name in [row.name for row in MACHINES]:
        engine = "transformers" if name in (*CPU_ROWS, "v100", "newer") else "unsloth"
        assert choose(name, 119.6, installed=unsloth).engine == engine
        assert choose(name, 119.6).engine == "transformers"
    # 4 bits only where the weights would fill the GPU.
    assert choose("ampere", 6.0, installed=bitsandbytes).load_in_4bit
    assert not choose("ampere", 6.0).load_in_4bit
    assert not choose("v100", 16.0, installed=bitsandbytes).load_in_4bit


def test_a_gb10_alone_is_told_its_ptxas_and_what_the_user_has_set_stays():
    for name in [row.name for row in MACHINES]:
        chosen = choose(name, 119.6, files=(PTXAS,))
        assert (chosen.environment.get("TRITON_PTXAS_PATH") == PTXAS) == (name == "gb10")
    assert "TRITON_PTXAS_PATH" not in choose("gb10", 119.6).environment
    environ = {"TRITON_PTXAS_PATH": "/opt/ptxas", "TORCH_CUDA_ARCH_LIST": ""}
    apply_environment(choose("gb10", 119.6, files=(PTXAS,)), environ)
    assert (environ["TRITON_PTXAS_PATH"], environ["TORCH_CUDA_ARCH_LIST"]) == ("/opt/ptxas", "")


def test_a_process_sees_one_gpu_and_a_rank_all_of_them_to_take_its_own():
    """Trainer would put a batch on all that a process sees by DataParallel, which TRL refuses."""
    for given, visible in ((None, "0"), ("2, 3", "2"), ("GPU-1a,GPU-2b", "GPU-1a"), ("1", "1"), ("", "")):
        environ = {} if given is None else {"CUDA_VISIBLE_DEVICES": given}
        apply_environment(choose("a100", 80.0, **environ), environ)
        assert environ["CUDA_VISIBLE_DEVICES"] == visible
    of_rank = {"CUDA_VISIBLE_DEVICES": "2,3", "LOCAL_RANK": "1"}
    apply_environment(choose("a100", 80.0, **of_rank), of_rank)
    assert of_rank["CUDA_VISIBLE_DEVICES"] == "2,3"
    for name, environ in (("a100", {"LOCAL_RANK": "1"}), ("cpu", {})):
        apply_environment(choose(name, 80.0, **environ), environ)
        assert "CUDA_VISIBLE_DEVICES" not in environ


def test_what_is_known_to_break_is_said_with_its_remedy():
    for name, installed, word in (
        ("v100", {"torch": "2.13.0"}, "./setup.sh volta"),
        ("gb10", {"flash-attn": "2.8"}, "flash-attn"),
        ("a100", {"flash-attn": "2.8", "torch": "2.13.0"}, ""),
        ("older", {}, "older than Volta"),
    ):
        said = "".join(choose(name, 32.0, installed=installed).warnings)
        assert word in said and bool(said) == bool(word)


def test_offline_is_asked_for_or_found_or_follows_from_supercloud():
    for environment, hub, environ, offline in (
        ("workstation", "not asked", {}, False),
        ("workstation", "unreachable", {}, True),
        ("supercloud", "not asked", {}, True),
        ("supercloud", "reachable", {"RLNB_OFFLINE": "0"}, False),
    ):
        chosen = choose("v100", 32.0, environment=environment, hub=hub, **environ)
        assert chosen.offline == ("HF_HUB_OFFLINE" in chosen.environment) == offline


def test_slurm_and_affinity_limit_the_cores_and_one_is_left_at_least():
    for share in ("1", "0"):
        assert usable_cores({"SLURM_CPUS_PER_TASK": share}) == 1
    assert 1 <= usable_cores({}) <= (os.cpu_count() or 1)
    assert usable_cores({"SLURM_CPUS_PER_TASK": "100000"}) == usable_cores({})
    assert usable_cores({"LOCAL_WORLD_SIZE": str(usable_cores({}))}) == 1  # ranks share them


@pytest.mark.parametrize(
    ("groups", "files"),
    [
        (  # SLURM's, of version 2: the job is limited, its step is not
            "0::/system.slice/slurmstepd.scope/job_7/step_batch\n",
            {"system.slice/slurmstepd.scope/job_7/memory.max": 2**29, "memory.max": "max",
             "system.slice/slurmstepd.scope/cpu.max": "max 100000",
             "system.slice/slurmstepd.scope/job_7/step_batch/cpu.max": "100000 100000"},
        ),
        (  # SLURM's, of version 1, which has no file for the quota
            "4:memory:/slurm/uid_0/job_7\n1:cpu,cpuacct:/\n0::/\n",
            {"memory/slurm/uid_0/job_7/memory.limit_in_bytes": 2**29,
             "memory/memory.limit_in_bytes": 9223372036854771712, "cpu.max": "100000 100000"},
        ),
        (  # a container's own, of version 1
            "4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n",
            {"memory/memory.limit_in_bytes": 2**29, "cpu,cpuacct/cpu.cfs_quota_us": 150000,
             "cpu,cpuacct/cpu.cfs_period_us": 100000},
        ),
        ("0::/docker/abc\n", {"memory.max": 2**29, "cpu.max": "150000 100000"}),  # a container's own
    ],
)  # fmt: skip
def test_cgroups_limit_memory_and_cores_also_those_above_the_process(tmp_path, groups, files):
    for name, text in {
        "proc/self/cgroup": groups,
        **{f"sys/fs/cgroup/{n}": t for n, t in files.items()},
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(str(text))
    assert given_memory_gib({}, tmp_path) == 0.5
    assert usable_cores({}, tmp_path) == 1


def test_slurm_limits_the_memory():
    per_cpu = {"SLURM_MEM_PER_CPU": "256", "SLURM_CPUS_ON_NODE": "2"}
    assert given_memory_gib({"SLURM_MEM_PER_NODE": "512"}) == given_memory_gib(per_cpu) == 0.5
    assert given_memory_gib({"SLURM_MEM_PER_GPU": "512", "SLURM_GPUS_ON_NODE": "2"}) == 1.0
    assert given_memory_gib({"SLURM_MEM_PER_NODE": "0"}) == given_memory_gib({}) > 1


def test_the_hub_is_asked_only_where_it_may_be():
    assert probe(ask_hub=False, environ={}).hub == "not asked"
    for switch in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "RLNB_OFFLINE"):
        assert probe(environ={switch: "1"}).hub == "offline"


def test_a_hub_answers_but_neither_a_proxy_that_refuses_nor_one_that_keeps_silent(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert ask_status("not an address", seconds=1) == 0
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert ask_status(f"http://127.0.0.1:{silent.getsockname()[1]}", seconds=0.5) == 0
    statuses = iter((200, 404, 403, 407, 502))
    reply = SimpleNamespace(head=lambda *_, **__: SimpleNamespace(status_code=next(statuses)))
    monkeypatch.setitem(sys.modules, "requests", reply)
    hubs = [probe(environ={"HF_ENDPOINT": "hub"}).hub for _ in range(5)]
    assert hubs == ["reachable"] * 2 + ["unreachable"] * 3


@pytest.mark.parametrize("name", [row.name for row in MACHINES])
def test_no_library_reports_how_it_is_used(name):
    machine = Machine(name, "", None, 80.0, 8, "workstation", "reachable")
    names = ("HF_HUB_DISABLE_TELEMETRY", "UNSLOTH_DISABLE_STATISTICS", "VLLM_NO_USAGE_STATS")
    assert [recommend(machine).environment[each] for each in names] == ["1"] * 3


def test_the_table_promises_unsloth_where_setup_installs_it():
    """`./setup.sh cuda` on a GPU of each row, by the capability that nvidia-smi would print."""
    text = (Path(__file__).parents[2] / "setup.sh").read_text()
    function = text[text.index("gpu_set() {") : text.index("choose_set() {")]
    rows = [row for row in MACHINES if row.capabilities]
    versions = ["{}.{}".format(*row.capabilities[0]) for row in rows]
    asked = [f"nvidia-smi() {{ echo {version}; }}; gpu_set" for version in versions]
    script = "\n".join([function, *asked])
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert [name == "unsloth" for name in done.stdout.splitlines()] == [row.unsloth for row in rows]


def test_cuda_numbers_gpus_as_the_driver_lists_them():
    environ = {}
    apply_environment(choose("a100", 80.0), environ)
    assert environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    environ = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    apply_environment(choose("a100", 80.0), environ)
    assert environ["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"

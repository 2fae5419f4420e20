"""Every row of the table without its hardware: what was seen goes in, names and choices come out."""

import http.server
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from rlnb.machine import (
    MACHINES,
    Gpu,
    Machine,
    Probe,
    answers,
    apply_environment,
    identify,
    parse_nvidia_smi,
    probe,
    recommend,
    usable_cores,
)

V100 = Gpu("GPU-1a", "Tesla V100-PCIE-32GB", (7, 0), 32.0)
A100 = Gpu("GPU-2b", "NVIDIA A100-SXM4-80GB", (8, 0), 80.0)
GB10 = Gpu("GPU-3c", "NVIDIA GB10", (12, 1), 0.0)


def a_machine(
    name: str, memory_gib: float, *, environment: str = "workstation", hub: str = "reachable"
) -> Machine:
    row = next(row for row in MACHINES if row.name == name)
    capability = row.capabilities[0] if row.capabilities else (13, 0) if name == "newer" else None
    accelerator = f"a {name}" if capability else ""
    return Machine(name, accelerator, capability, memory_gib, 8, environment, hub)


def choose(
    machine: Machine, *, installed: dict[str, str] | None = None, files: tuple[str, ...] = (), **environ: str
):
    versions = installed or {}
    return recommend(machine, files_exist=files.__contains__, environ=environ, version=versions.get)


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ((3, 5), "older"),
        ((6, 0), "older"),
        ((7, 0), "v100"),
        ((7, 5), "t4"),
        ((8, 0), "a100"),
        ((8, 6), "ampere"),
        ((8, 9), "ada"),
        ((9, 0), "h100"),
        ((10, 0), "b200"),
        ((11, 0), "newer"),
        ((12, 0), "rtx_blackwell"),
        ((12, 1), "gb10"),
        ((14, 2), "newer"),
    ],
)
def test_a_gpu_is_named_by_its_capability(capability, name):
    assert identify(Probe(gpus=(Gpu("GPU-0", "some GPU", capability, 40.0),))).name == name


def test_no_two_rows_claim_the_same_capability():
    claimed = [capability for row in MACHINES for capability in row.capabilities]
    assert len(claimed) == len(set(claimed))


def test_without_a_gpu_the_memory_is_the_systems():
    seen = Probe(system_memory_gib=31.2, cpu_count=4, cpu_flags=frozenset({"fpu", "avx2"}))
    assert identify(seen) == Machine("cpu", "", None, 31.2, 4, "workstation", "unasked")


@pytest.mark.parametrize("flag", ["avx512_bf16", "amx_bf16", "bf16"])
def test_a_cpu_that_multiplies_bfloat16_has_a_row_of_its_own(flag: str) -> None:
    assert identify(Probe(cpu_flags=frozenset({"fpu", flag}))).name == "cpu_bf16"


def test_a_gb10_has_the_systems_memory_since_nvidia_smi_prints_none():
    machine = identify(Probe(gpus=(GB10,), system_memory_gib=119.6, cpu_count=20))
    assert machine == Machine("gb10", "NVIDIA GB10", (12, 1), 119.6, 20, "workstation", "unasked")


@pytest.mark.parametrize(
    ("visible", "name"),
    [
        ("0", "v100"),
        ("1", "a100"),
        ("1,0", "a100"),
        ("GPU-2b", "a100"),
        ("", "cpu"),
        ("-1", "cpu"),
        ("7", "cpu"),
    ],
)
def test_the_gpu_that_cuda_would_take_first_is_the_one_described(visible, name):
    seen = Probe(gpus=(V100, A100), environ={"CUDA_VISIBLE_DEVICES": visible})
    assert identify(seen).name == name


def test_a_slice_of_a_gpu_is_treated_as_small_since_its_memory_is_not_known():
    machine = identify(Probe(gpus=(A100,), environ={"CUDA_VISIBLE_DEVICES": "MIG-5f"}))
    chosen = choose(machine)
    assert (machine.name, machine.memory_gib) == ("a100", 0.0)
    assert (chosen.profile, chosen.model_id) == ("v100", "Qwen/Qwen2.5-1.5B")
    assert chosen.warnings == (
        "The memory of NVIDIA A100-SXM4-80GB is not known: choices are those for a small GPU.",
    )


@pytest.mark.parametrize(
    ("seen", "environment"),
    [
        (Probe(), "workstation"),
        (Probe(has_sbatch=True), "slurm"),
        (Probe(environ={"SLURM_JOB_ID": "7"}), "slurm"),
        (Probe(has_sbatch=True, environ={"SLURM_CLUSTER_NAME": "frontera"}), "slurm"),
        (Probe(has_sbatch=True, environ={"SLURM_CLUSTER_NAME": "TXGreen"}), "supercloud"),
        (Probe(paths=("/state/partition1",)), "supercloud"),
        (Probe(hostname="login-3.supercloud.example"), "supercloud"),
    ],
)
def test_supercloud_is_told_from_slurm_and_from_a_workstation(seen, environment):
    assert identify(seen).environment == environment


def test_nvidia_smi_is_read_with_commas_in_names_and_memory_that_is_not_available():
    printed = (
        "GPU-1a, Tesla V100-PCIE-32GB, 7.0, 32768\n"
        '"GPU-2b", "Odd, Name", 8.0, 81920\n'
        "GPU-3c, NVIDIA GB10, 12.1, [N/A]\n"
        "No devices were found\n"
    )
    assert parse_nvidia_smi(printed) == (V100, Gpu("GPU-2b", "Odd, Name", (8, 0), 80.0), GB10)


@pytest.mark.parametrize(
    ("name", "memory_gib", "profile", "dtype", "model_id"),
    [
        ("cpu", 512.0, "cpu", "float32", "embedded"),
        ("cpu_bf16", 512.0, "cpu", "bfloat16", "embedded"),
        ("older", 16.0, "cpu", "float32", "embedded"),
        ("v100", 16.0, "v100", "float16", "Qwen/Qwen2.5-1.5B"),
        ("v100", 32.0, "v100", "float16", "Qwen/Qwen2.5-3B"),
        ("t4", 15.0, "v100", "float16", "Qwen/Qwen2.5-1.5B"),
        ("a100", 40.0, "a100", "bfloat16", "Qwen/Qwen2.5-3B"),
        ("a100", 10.0, "v100", "bfloat16", "Qwen/Qwen2.5-1.5B"),
        ("ampere", 24.0, "v100", "bfloat16", "Qwen/Qwen2.5-1.5B"),
        ("ada", 45.0, "a100", "bfloat16", "Qwen/Qwen2.5-3B"),
        ("h100", 79.6, "h100", "bfloat16", "Qwen/Qwen2.5-3B"),
        ("h100", 40.0, "a100", "bfloat16", "Qwen/Qwen2.5-3B"),
        ("b200", 179.0, "h100", "bfloat16", "Qwen/Qwen2.5-3B"),
        ("rtx_blackwell", 95.0, "a100", "bfloat16", "Qwen/Qwen2.5-3B"),
        ("gb10", 119.6, "gb10", "bfloat16", "Qwen/Qwen2.5-3B"),
        ("newer", 200.0, "v100", "bfloat16", "Qwen/Qwen2.5-3B"),
    ],
)
def test_each_machine_gets_what_it_can_compute_and_hold(name, memory_gib, profile, dtype, model_id):
    chosen = choose(a_machine(name, memory_gib))
    assert (chosen.profile, chosen.dtype, chosen.model_id) == (profile, dtype, model_id)
    assert chosen.attention == "sdpa"
    assert chosen.gradient_checkpointing == (name not in ("cpu", "cpu_bf16", "older"))


def test_every_row_has_a_profile_for_the_first_pipeline():
    from rlnb.params import load_params

    for row in MACHINES:
        profile = choose(a_machine(row.name, 80.0)).profile
        load_params("grpo_code_execution", profile=profile, environ={})


@pytest.mark.parametrize("name", ["v100", "t4", "a100", "h100", "gb10"])
def test_unsloth_is_chosen_on_gpus_where_it_is_installed(name):
    machine = a_machine(name, 80.0)
    assert choose(machine, installed={"unsloth": "2026.10.7"}).engine == "unsloth"
    assert choose(machine).engine == "transformers"


@pytest.mark.parametrize("name", ["cpu", "cpu_bf16", "older", "newer"])
def test_unsloth_is_not_chosen_where_it_is_not_known_to_work(name):
    assert choose(a_machine(name, 80.0), installed={"unsloth": "2026.10.7"}).engine == "transformers"


def test_four_bits_are_chosen_only_where_the_weights_would_fill_the_gpu():
    bitsandbytes = {"bitsandbytes": "0.50.2"}
    assert choose(a_machine("ampere", 6.0), installed=bitsandbytes).load_in_4bit
    assert not choose(a_machine("ampere", 6.0)).load_in_4bit
    assert not choose(a_machine("v100", 16.0), installed=bitsandbytes).load_in_4bit


def test_gb10_may_use_vllm_only_without_unsloth():
    assert choose(a_machine("gb10", 119.6)).vllm
    assert not choose(a_machine("gb10", 119.6), installed={"unsloth": "2026.10.7"}).vllm


def test_gb10_gets_cudas_ptxas_where_that_file_is():
    ptxas = "/usr/local/cuda/bin/ptxas"
    with_file = choose(a_machine("gb10", 119.6), files=(ptxas,)).environment
    assert with_file == {
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TORCH_CUDA_ARCH_LIST": "12.1a",
        "TRITON_PTXAS_PATH": ptxas,
    }
    assert "TRITON_PTXAS_PATH" not in choose(a_machine("gb10", 119.6)).environment


@pytest.mark.parametrize("row", [row.name for row in MACHINES if row.name != "gb10"])
def test_no_other_machine_is_given_a_ptxas(row):
    environment = choose(a_machine(row, 80.0), files=("/usr/local/cuda/bin/ptxas",)).environment
    assert not {"TRITON_PTXAS_PATH", "TORCH_CUDA_ARCH_LIST"} & set(environment)


def test_what_the_user_has_set_stays():
    environ = {"TRITON_PTXAS_PATH": "/opt/ptxas", "TORCH_CUDA_ARCH_LIST": ""}
    chosen = choose(a_machine("gb10", 119.6), files=("/usr/local/cuda/bin/ptxas",))
    assert apply_environment(chosen, environ) == {"HF_HUB_DISABLE_TELEMETRY": "1"}
    assert environ == {
        "TRITON_PTXAS_PATH": "/opt/ptxas",
        "TORCH_CUDA_ARCH_LIST": "",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }


@pytest.mark.parametrize(
    ("name", "installed", "warnings"),
    [
        ("v100", {"torch": "2.10.0"}, ()),
        (
            "v100",
            {"torch": "2.13.0"},
            ("torch 2.13.0 has no kernels for a v100: ./setup.sh volta installs torch 2.10.",),
        ),
        ("v100", {"torch": "2.14.1+cu126"}, ()),
        ("v100", {"flash-attn": "2.8"}, ("flash-attn does not work on a v100: uninstall it.",)),
        ("gb10", {"flash-attn": "2.8"}, ("flash-attn does not work on a gb10: uninstall it.",)),
        ("a100", {"flash-attn": "2.8", "torch": "2.13.0"}, ()),
        ("older", {}, ("a older is older than Volta and not served by torch any more: the CPU computes.",)),
        (
            "newer",
            {},
            (
                "a newer (capability 13.0) is not in rlnb/machine/table.py: small batches, no unsloth and "
                "no vLLM are chosen; the parameters may say otherwise.",
            ),
        ),
    ],
)
def test_what_is_known_to_break_is_said_with_its_remedy(name, installed, warnings):
    assert choose(a_machine(name, 32.0), installed=installed).warnings == warnings


@pytest.mark.parametrize(
    ("environment", "hub", "environ", "offline"),
    [
        ("workstation", "reachable", {}, False),
        ("workstation", "unasked", {}, False),
        ("workstation", "unreachable", {}, True),
        ("workstation", "offline", {}, True),
        ("slurm", "reachable", {}, False),
        ("supercloud", "reachable", {}, True),
        ("supercloud", "unasked", {}, True),
        ("supercloud", "reachable", {"RLNB_OFFLINE": "0"}, False),
    ],
)
def test_offline_is_asked_for_or_found_or_follows_from_supercloud(environment, hub, environ, offline):
    chosen = choose(a_machine("v100", 32.0, environment=environment, hub=hub), **environ)
    switches = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled"}
    assert chosen.offline == offline
    assert (switches.items() <= chosen.environment.items()) == offline


def test_a_gpu_before_volta_is_hidden_from_torch():
    assert choose(a_machine("older", 16.0)).environment["CUDA_VISIBLE_DEVICES"] == ""


def test_slurm_and_affinity_limit_the_cores_and_one_is_left_at_least():
    assert usable_cores({"SLURM_CPUS_PER_TASK": "1"}) == 1
    assert usable_cores({"SLURM_CPUS_PER_TASK": "0"}) == 1
    assert 1 <= usable_cores({}) <= (os.cpu_count() or 1)
    assert usable_cores({"SLURM_CPUS_PER_TASK": "100000"}) == usable_cores({})


@pytest.mark.parametrize("switch", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "RLNB_OFFLINE"])
def test_the_hub_is_not_asked_when_the_environment_says_offline(switch):
    assert probe(environ={**os.environ, switch: "1"}).hub == "offline"


def test_probing_this_machine_finds_cores_and_memory():
    machine = probe(ask_hub=False, environ={"PATH": os.environ["PATH"]})
    assert machine.hub == "unasked"
    assert machine.cpu_count >= 1
    assert machine.memory_gib > 0


@pytest.fixture
def server() -> Iterator[str]:
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(int(self.path.strip("/") or 200))
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Keep the test's output clean."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


@pytest.mark.parametrize(
    ("status", "reachable"), [(200, True), (404, True), (403, False), (407, False), (502, False)]
)
def test_a_hub_answers_but_a_proxy_that_refuses_does_not(server, monkeypatch, status, reachable):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert answers(f"{server}/{status}", seconds=5) == reachable


def test_a_hub_that_takes_the_connection_and_keeps_silent_is_given_up_in_time(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start = time.monotonic()
        assert not answers(f"http://127.0.0.1:{silent.getsockname()[1]}", seconds=0.5)
        assert time.monotonic() - start < 2


def test_an_address_that_is_none_is_no_hub():
    assert not answers("not an address", seconds=1)


def test_looking_at_the_machine_does_not_import_torch():
    program = "import sys, rlnb.machine; rlnb.machine.probe(ask_hub=False); print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout == "False\n"

"""What the tests of a GPU machine share. Without a GPU those that need none run in float32 on the CPU."""

import math
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest

from rlnb.errors import see
from rlnb.machine import Machine, apply_environment, installed_version, probe, recommend

MACHINE = probe(ask_hub=False)
HAS_GPU = MACHINE.capability is not None and MACHINE.name != "older"
if HAS_GPU:
    apply_environment(recommend(MACHINE))  # before torch is imported


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what this machine cannot run; each `needs` names a package, "gpu" or "bfloat16"."""
    needs = [need for marker in item.iter_markers("needs") for need in marker.args]
    missing = [need for need in needs if need not in ("gpu", "bfloat16") and not installed_version(need)]
    missing += ["a CUDA GPU"] if "gpu" in needs and not HAS_GPU else []
    is_old = HAS_GPU and MACHINE.capability < (8, 0)
    missing += ["a GPU with bfloat16 (Ampere or newer)"] if "bfloat16" in needs and is_old else []
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a line for each test that measured something: seconds, GiB, figures."""
    everything = chain(*terminalreporter.stats.values())  # the tests that were not chosen, too
    reports = [each for each in everything if isinstance(each, pytest.TestReport)]
    seconds = {report.nodeid: report.duration for report in reports if report.when == "call"}
    terminalreporter.section("figures")
    for report in reports:
        figures = dict(report.user_properties)
        gib = figures.pop("peak_gib", 0.0)
        if report.when == "teardown" and figures:  # which has the memory, too
            words = "; ".join(f"{name} {value:.3g}" for name, value in figures.items())
            name = report.nodeid.rpartition("::")[2]
            terminalreporter.write_line(f"{seconds[report.nodeid]:7.1f} s {gib:6.2f} GiB  {name}: {words}")


@pytest.fixture(scope="session")
def machine() -> Machine:
    return MACHINE


@pytest.fixture(scope="session")
def device() -> str:
    """Return "cuda" where the driver shows a GPU, which torch then has to see as well."""
    import torch

    has_torch_gpu = torch.cuda.is_available()
    assert has_torch_gpu or not HAS_GPU, (
        f"the driver shows {MACHINE.accelerator}, torch {torch.__version__} sees no GPU: run ./setup.sh"
    )
    return "cuda" if HAS_GPU else "cpu"


@pytest.fixture(scope="session")
def dtype(device) -> str:
    """Return the number format that this machine's runs compute in, float32 without a GPU."""
    return recommend(MACHINE).dtype if device == "cuda" else "float32"


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> Path:
    """Return the directory of the tiny models."""
    from tiny_families import build_models

    directory = tmp_path_factory.mktemp("families")
    build_models(directory)
    return directory


@pytest.fixture
def measured(record_property) -> Callable[..., None]:
    """Return a function that keeps a number for --junitxml, and fails with it where it is too large."""

    def check(name: str, value: float, *, at_most: float = math.inf, page: str = "a-new-gpu-machine") -> None:
        record_property(name, value)
        assert value <= at_most, f"{name} is {value:.3g}, at most {at_most:g} is right{see(page)}"

    return check


@pytest.fixture(autouse=True)
def weights_stay_trainable(monkeypatch) -> None:
    """Let a gradient through 4-bit weights on a CPU, too, as on a GPU.

    bitsandbytes 0.50 packs them at the first pass in evaluation mode on CPUs with bfloat16; no gradient goes
    through packed weights.
    """
    if installed_version("bitsandbytes"):
        monkeypatch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: False)


@pytest.fixture(autouse=True)
def peak_memory(record_property):
    """Keep the peak of the GPU's memory in each test."""
    yield
    if HAS_GPU:
        import torch

        record_property("peak_gib", torch.cuda.max_memory_reserved() / 2**30)
        torch.cuda.reset_peak_memory_stats()

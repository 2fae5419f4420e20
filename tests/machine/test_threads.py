"""How torch computes on a CPU: its threads, how they wait for each other, the kernels that it keeps."""

import os

import pytest
import torch
from waiting import run_python

from rlnb.machine import Machine, apply_environment, recommend
from rlnb.machine.threads import set_threads

MACHINE = Machine("cpu", "", None, 8.0, 1, "workstation", "not asked")


@pytest.fixture(autouse=True)
def torch_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_torch_takes_a_thread_a_usable_core_unless_a_job_has_a_number():
    """Its threads sleep soon: next to another busy process, spinning ones take seven times as long."""
    environ = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    apply_environment(recommend(MACHINE), environ)
    assert environ["GOMP_SPINCOUNT"] == "5000"
    assert run_python("import torch; print(torch.get_num_threads())", env=environ).stdout == "1\n"
    of_job = {"OMP_NUM_THREADS": "2"}
    apply_environment(recommend(MACHINE), of_job)
    assert of_job["OMP_NUM_THREADS"] == "2"


MANY_SHAPES = """
import torch
def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
weights = torch.zeros(256, 256, dtype=torch.bfloat16)
torch.nn.functional.linear(torch.zeros(600, 256, dtype=torch.bfloat16), weights)
before = resident()
for rows in range(1, 600):
    torch.nn.functional.linear(torch.zeros(rows, 256, dtype=torch.bfloat16), weights)
print(resident() - before)
"""


def test_texts_of_many_lengths_do_not_fill_the_memory_with_kernels():
    """68 MiB in the environment of a run, 390 without it; none on a CPU that has no such kernels."""
    environ = dict(os.environ)
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        environ.pop(name, None)
    apply_environment(recommend(MACHINE), environ)
    assert int(run_python(MANY_SHAPES, env=environ, check=True).stdout) < 150 * 1024


def test_an_empty_number_of_threads_is_none_and_the_first_of_a_list_counts(monkeypatch):
    environ = {"OMP_NUM_THREADS": ""}
    apply_environment(recommend(MACHINE), environ)
    assert environ["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "2,1")
    set_threads(0)
    assert torch.get_num_threads() == 2


def test_a_parameter_s_number_stays_until_there_is_none(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    for count, threads in ((3, 3), (0, 2)):
        set_threads(count)
        assert torch.get_num_threads() == threads

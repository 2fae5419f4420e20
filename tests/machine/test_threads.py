"""The number of threads that torch computes with, and how they wait for each other."""

import os
import subprocess
import sys

import pytest
import torch

from rlnb.machine import Machine, apply_environment, recommend
from rlnb.machine.threads import set_threads

MACHINE = Machine("cpu", "", None, 8.0, 1, "workstation", "not asked")


@pytest.fixture(autouse=True)
def torch_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_torch_takes_a_thread_a_usable_core_unless_a_job_has_a_number():
    """Its threads sleep soon: next to another busy process, spinning ones took ten times as long."""
    environ = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    apply_environment(recommend(MACHINE), environ)
    assert environ["GOMP_SPINCOUNT"] == "1000"
    command = [sys.executable, "-c", "import torch; print(torch.get_num_threads())"]
    assert subprocess.run(command, env=environ, capture_output=True, check=True).stdout == b"1\n"
    of_job = {"OMP_NUM_THREADS": "2"}
    apply_environment(recommend(MACHINE), of_job)
    assert of_job["OMP_NUM_THREADS"] == "2"


def test_a_parameter_s_number_stays_until_there_is_none(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    for count, threads in ((3, 3), (0, 2)):
        set_threads(count)
        assert torch.get_num_threads() == threads

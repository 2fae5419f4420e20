"""Checks of a run on its machine, before anything large is loaded."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from rlnb import cli
from rlnb.errors import ParamsError
from rlnb.machine import Machine
from rlnb.run.prepare import check_gpu

CPU = Machine("cpu", "", None, 16.0, 2, "slurm", "offline")
P100 = Machine("older", "Tesla P100", None, 64.0, 2, "slurm", "offline")
V100 = Machine("v100", "Tesla V100", (7, 0), 32.0, 2, "slurm", "offline")


@pytest.mark.parametrize(
    ("machine", "torch", "environ", "remedy"),
    [
        (CPU, "2.13.0+cu130", {"RLNB_GPU_MEMORY": "16"}, "--gres=gpu:1"),
        (CPU, "2.13.0+cu130", {"SLURM_JOB_GPUS": "0", "CUDA_VISIBLE_DEVICES": "0"}, "nvidia-smi"),
        (CPU, "2.13.0+cpu", {"RLNB_GPU_MEMORY": "16"}, "./setup.sh cuda"),
        (V100, "2.13.0+cpu", {"SLURM_JOB_GPUS": "0"}, "./setup.sh volta"),
        (P100, "2.13.0+cu130", {"SLURM_JOB_GPUS": "0"}, "older than Volta"),
        (P100, "2.13.0+cu130", {}, ""),
        (CPU, "2.13.0+cpu", {}, ""),
        (V100, "2.13.0+cpu", {}, ""),
        (V100, "2.10.0+cu128", {"RLNB_GPU_MEMORY": "16", "SLURM_JOB_GPUS": "0"}, ""),
        (CPU, "2.13.0+cpu", {"SLURM_JOB_GPUS": "0", "CUDA_VISIBLE_DEVICES": ""}, ""),
    ],
)
def test_a_job_for_a_gpu_that_would_compute_on_the_cpu_is_refused(machine, torch, environ, remedy):
    """Other runs, without a remedy here, are not."""
    with pytest.raises(ParamsError, match=remedy) if remedy else nullcontext():
        check_gpu(machine, environ, torch=torch)


def test_such_a_job_ends_before_it_has_written_anything(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(Path(cli.__file__).parents[1])
    for name, value in {"RLNB_GPU_MEMORY": "16", "CUDA_VISIBLE_DEVICES": ""}.items():
        monkeypatch.setenv(name, value)
    command = ["run", "notebooks/ppo_openspiel.ipynb", "--profile", "tiny", "--out", str(tmp_path / "run")]
    assert cli.main(command) == 2
    assert "GPU" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()

"""How tests of parameters ask for a refusal."""

import pytest

from rlnb.code_execution.params import GrpoCodeExecutionParams
from rlnb.errors import ParamsError
from rlnb.machine import Machine
from rlnb.params import load_params, parse_set

NOTEBOOK = "grpo_code_execution"
FILE = f"params/{NOTEBOOK}/v100.yaml"  # which the fixture `project` writes
MACHINES = {
    "cpu": Machine("cpu", "", None, 16.0, 4, "workstation", "reachable"),
    "v100": Machine("v100", "Tesla V100", (7, 0), 32.0, 8, "slurm", "reachable"),
    "a100": Machine("a100", "NVIDIA A100", (8, 0), 80.0, 16, "workstation", "reachable"),
    "gb10": Machine("gb10", "NVIDIA GB10", (12, 1), 95.7, 20, "workstation", "reachable"),
}


def refused(load, *arguments, **given) -> str:
    """The message of the refusal."""
    with pytest.raises(ParamsError) as error:
        load(*arguments, **given)
    return str(error.value)


def with_set(*assignments: str, notebook: str = NOTEBOOK) -> GrpoCodeExecutionParams:
    overrides = parse_set(*assignments)
    return load_params(notebook, profile="default", overrides=overrides, place="--set", environ={})


def with_environment(**environ: str) -> GrpoCodeExecutionParams:
    return load_params(NOTEBOOK, profile="default", environ=environ)


def with_cell(cell: dict, notebook: str = NOTEBOOK) -> GrpoCodeExecutionParams:
    return load_params(notebook, profile="default", overrides=cell, environ={})

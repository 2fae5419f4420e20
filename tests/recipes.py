"""The recipe cell of a GRPO notebook, for tests that train by it with parameters of their own."""

import ast
import json
from pathlib import Path

from rlnb.grpo.config import GRPOConfig
from rlnb.params.sections import NotebookParams, TrackingParams
from rlnb.policy import Policy

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
NO_TRACKING = TrackingParams(wandb="disabled")


def read_cells(notebook: str) -> dict[str, str]:
    """Return the sources of a notebook's code cells by their ids."""
    cells = json.loads((NOTEBOOKS / f"{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
    return {cell["id"]: "".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"}


def make_config(
    params: NotebookParams, policy: Policy, *, notebook: str = "grpo_code_execution", **changes: object
) -> GRPOConfig:
    """Return the configuration that a notebook's recipe makes of parameters, with changed arguments."""
    tree = ast.parse(read_cells(notebook)["recipe"])
    tree.body = [each for each in tree.body if ast.unparse(each).startswith(("training =", "config ="))]

    def make(**settings: object) -> GRPOConfig:
        return GRPOConfig(**settings | changes)

    namespace: dict[str, object] = {"params": params, "policy": policy, "GRPOConfig": make}
    exec("from rlnb.grpo.config import settings_of_machine", namespace)
    exec(compile(tree, notebook, "exec"), namespace)
    return namespace["config"]

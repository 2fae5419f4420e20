"""What a reader edits in a GRPO notebook's cells is what is trained: its reward and its configuration."""

import ast
import os
import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from recipes import read_cells

from rlnb.policy.adapters import WeightSnapshot
from rlnb.run.interactive import HELD

# A function of the reward cell that the profile `tiny` uses, with the names that are paid anew.
REWARDS = {"grpo_code_execution": "execution", "grpo_code_game": "required", "gpt_oss_2048": "graded"}
SHOWN = "display(", "show_", "fold("  # statements that a training does not need


class Notebook:
    """A notebook's cells up to the recipe, run in this process at the profile `tiny`."""

    def __init__(self, name: str, folder: Path, cache_dir: Path) -> None:
        self.name, self.folder, self.cells = name, folder, read_cells(name)
        overrides = {
            "evaluation.enabled": False,
            "training.save_steps": 100,
            "model.cache_dir": str(cache_dir),
        }
        if name == "grpo_code_game":
            overrides["evaluation.control"] = False
        values: dict[str, Any] = {"profile": "tiny", "output_dir": str(folder), "overrides": overrides}
        self.namespace: dict[str, Any] = {**values, "__annotations__": dict.fromkeys(values, object)}
        for cell in ("start", "policy", *({"tasks", "game"} & self.cells.keys()), "reward", "before"):
            self.run(self.cells[cell])
        self.before = WeightSnapshot.take(self.namespace["policy"])

    def run(self, source: str) -> None:
        tree = ast.parse(source)
        tree.body = [
            each
            for each in tree.body
            if not (isinstance(each, ast.Expr) and ast.unparse(each).startswith(SHOWN))
        ]
        exec(compile(tree, self.name, "exec"), self.namespace)

    def train(self, attempt: str, *, reward: str, recipe: str) -> dict[str, torch.Tensor]:
        """Return the adapters after two steps, which start from the first weights."""
        output_dir = str(self.folder / attempt)
        self.namespace["params"] = self.namespace["params"].model_copy(update={"output_dir": output_dir})
        self.run(reward)
        self.run(recipe)
        assert self.namespace["trainer"].state.global_step == 2
        return WeightSnapshot.take(self.namespace["policy"]).values


def edit(source: str, pattern: str, replacement: str) -> str:
    edited, count = re.subn(pattern, replacement, source)
    assert count == 1, pattern
    return edited


def differ(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return any(not torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("name", REWARDS)
def test_editing_the_reward_or_the_configuration_in_its_cell_changes_the_training(
    name: str,
    tmp_path: Path,
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    request.addfinalizer(HELD.close)  # as a kernel does at its end
    monkeypatch.setattr("IPython.display.display", lambda *_, **__: None)
    with patch.dict(os.environ):
        notebook = Notebook(name, tmp_path, cache_dir)
    reward, recipe = notebook.cells["reward"], notebook.cells["recipe"]
    paid_by_length = edit(
        reward, rf"(def {REWARDS[name]}\((\w+)\):\n)", r"\1    return float(len(\2.code or ''))\n"
    )
    another_rate = edit(recipe, r"learning_rate=training\.learning_rate", "learning_rate=2e-3")
    another_loss = edit(recipe, r"epsilon=0\.2,", "epsilon=0.2,\n    importance_sampling_level='sequence',")
    as_written = notebook.train("as_written", reward=reward, recipe=recipe)
    assert differ(as_written, notebook.before.values)
    assert not differ(as_written, notebook.train("again", reward=reward, recipe=recipe))
    assert differ(as_written, notebook.train("reward", reward=paid_by_length, recipe=recipe))
    assert differ(as_written, notebook.train("rate", reward=reward, recipe=another_rate))
    notebook.train("argument", reward=reward, recipe=another_loss)
    assert notebook.namespace["trainer"].importance_sampling_level == "sequence"

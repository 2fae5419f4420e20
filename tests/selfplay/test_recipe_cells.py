"""The cells of both notebooks hold the recipe that the package has, and what is edited in them trains."""

import ast
from pathlib import Path

import nbformat
import ppo_run
import pytest
import self_play_run
import torch

import rlnb
from rlnb.advantages import gae, role
from rlnb.display.tables import show_facts
from rlnb.ppo import training as ppo_training
from rlnb.spiral import training as spiral_training

ROOT = Path(rlnb.__file__).parents[1]
# {cell: {function in it: (module, the function there)}}
FUNCTIONS = {
    "spiral_self_play": {
        "role_advantages": (role, "role_advantages"),
        "estimate_by_role": (role, "advantages"),
        "spiral_loss": (spiral_training, "spiral_loss"),
    },
    "ppo_openspiel": {"gae": (gae, "gae"), "ppo_loss": (ppo_training, "ppo_loss")},
}
TRAINING_MODULES = {"spiral_self_play": spiral_training, "ppo_openspiel": ppo_training}
# What is edited in which cell: a reward of nothing, no advantage, no gradient.
EDITS = {
    "spiral_self_play": {
        "reward": ("return seat_return / params.game.reward_scale", "return -seat_return"),
        "estimator": ("return returns - baselines[roles], moved", "return 0 * returns, moved"),
        "recipe": ("loss = loss / params.loss_tokens", "loss = 0 * loss"),
    },
    "ppo_openspiel": {
        "reward": ("(seat_return > 0) - (seat_return < 0)", "(seat_return < 0) - (seat_return > 0)"),
        "estimator": ("delta = rewards[turn] + gamma * next_value", "delta = gamma * next_value"),
        "recipe": ("return loss + 0.5 * VALUE_COEF * value_loss, figures", "return 0 * loss, figures"),
    },
}


def source_of(notebook: str, tag: str) -> str:
    cells = nbformat.read(ROOT / "notebooks" / f"{notebook}.ipynb", as_version=4).cells
    (source,) = [cell.source for cell in cells if tag in cell.metadata.get("tags", [])]
    return source


def statements(function: ast.FunctionDef) -> str:
    """Return a function's arguments and what it does, without annotations and its docstring."""
    for argument in ast.walk(function.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return "\n".join(ast.dump(node) for node in [function.args, *body])


def functions_in(source: str) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("notebook", FUNCTIONS)
def test_the_cells_and_the_package_have_one_text(notebook):
    cells = functions_in(f"{source_of(notebook, 'estimator')}\n{source_of(notebook, 'recipe')}")
    for name, (module, name_there) in FUNCTIONS[notebook].items():
        there = functions_in(Path(module.__file__).read_text())[name_there]
        assert statements(cells.pop(name)) == statements(there), name
    assert not cells
    loops = [
        [ast.dump(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.For)]
        for text in (
            source_of(notebook, "recipe"),
            ast.unparse(functions_in(Path(TRAINING_MODULES[notebook].__file__).read_text())["train"]),
        )
    ]
    assert loops[0] == loops[1] and len(loops[0]) == 1


def weights_after(notebook: str, cache_dir: Path, output_dir: Path, edited: str = "") -> list[float]:
    """Return the trained weights of two updates by the notebook's cells, of which one is edited."""
    training = {"max_steps": 2, "entropy_coef": 0.0, "final_entropy_coef": 0.0, "save_steps": 100}
    module, options = {
        "spiral_self_play": (self_play_run, {"advantage": {"kind": "rae"}, "training": training}),
        "ppo_openspiel": (ppo_run, {"training": training}),
    }[notebook]
    params = self_play_run.in_directory(module.params_of(cache_dir, **options), output_dir)
    names: dict[str, object] = {"params": params, "show_facts": show_facts}

    def execute(tag: str) -> None:
        source = source_of(notebook, tag)
        if tag == edited:
            before, after = EDITS[notebook][tag]
            assert source.count(before) == 1
            source = source.replace(before, after)
        exec(compile(source, f"{notebook}:{tag}", "exec"), names)

    execute("reward")
    run = module.make_run(params, reward=names["reward"])
    run.measure_step = lambda _: {}
    names["run"] = run
    execute("estimator")
    execute("recipe")
    assert run.state.step == 2
    return torch.cat([weight.flatten() for weight in run.learner.actor.parameters_to_train()]).tolist()


@pytest.mark.parametrize("notebook", EDITS)
def test_an_edited_reward_estimator_or_loss_is_what_trains(cache_dir, tmp_path, notebook):
    places = {name: tmp_path / name for name in ("usual", "again", *EDITS[notebook])}
    weights = {name: weights_after(notebook, cache_dir, place, name) for name, place in places.items()}
    assert weights["usual"] == weights["again"]
    assert all(weights[name] != weights["usual"] for name in EDITS[notebook])

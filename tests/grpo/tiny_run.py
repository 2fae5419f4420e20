"""A GRPO run of the tiny model, which tests stop and start again; as a script, in a process of its own.

The tasks are few, so that the prompts' order crosses epoch boundaries; the reward is the share of lower-case
letters, which random weights can earn and learn.
"""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from recipes import NO_TRACKING, make_config
from tiny_policy import tiny_params
from trl import GRPOTrainer

from rlnb.code_execution.params import GrpoCodeExecutionParams, ProgramEvaluationParams
from rlnb.code_execution.prompts import prompt_dataset
from rlnb.code_execution.sources import load_tasks
from rlnb.grpo import kl
from rlnb.grpo import training as grpo
from rlnb.params.training import TrainingParams
from rlnb.policy import Policy, generate, load_policy, save_adapters
from rlnb.run import stop_signal


def lower_case(*, completions: list[str], **_: object) -> list[float]:
    return [sum(letter.islower() for letter in text) / max(1, len(text)) for text in completions]


def make_trainer(
    output_dir: Path, *, kind: type[GRPOTrainer] | None = None, adapters: str = "", evaluate: bool = False,
    recipe: Mapping[str, object] = {}, **training: Any,
) -> tuple[GRPOTrainer, GrpoCodeExecutionParams, Policy]:  # fmt: skip
    """Return a trainer of three tasks in groups of four completions, with its parameters and its policy.

    kind: by default that of the machine. recipe: changed arguments of the configuration. training: fields of
    that section.
    """
    torch.set_num_threads(1)
    model = tiny_params(output_dir.parent / "cache", adapters=adapters)
    policy = load_policy(model)
    training |= {"num_generations": 4, "max_completion_length": 12, "gradient_checkpointing": False}
    params = GrpoCodeExecutionParams(
        model=model, training=TrainingParams(**training), output_dir=str(output_dir), seed=1,
        evaluation=ProgramEvaluationParams(enabled=evaluate, eval_interval_steps=2), tracking=NO_TRACKING,
    )  # fmt: skip
    config = make_config(params, policy, **recipe)
    tasks = load_tasks("builtin")["train"][:3]
    prompts = prompt_dataset(tasks, policy, config, form="chat", printed_example=False)
    trainer = (kind or grpo.choose_trainer(policy))(
        policy.model, lower_case, args=config, train_dataset=prompts, processing_class=policy.tokenizer
    )
    return trainer, params, policy


def train(
    output_dir: Path, *, adapters: str = "", evaluate: bool = False, announce: bool = False,
    progress: Callable[[int, int], None] | None = None, kl_interval: int = 10,
    save_minutes: float = stop_signal.SAVE_MINUTES, **settings: Any,
) -> None:  # fmt: skip
    """Train to the end, from the last checkpoint if there is one; `settings` are of `training`.

    kl_interval: steps between measurements of the KL. announce: print a line a step. progress: of an
    evaluation.
    """
    usual = {"learning_rate": 1e-2, "max_steps": 6, "per_device_train_batch_size": 4, "save_steps": 2}
    settings = {**usual, "gradient_accumulation_steps": 2, **settings}
    trainer, params, policy = make_trainer(output_dir, adapters=adapters, evaluate=evaluate, **settings)
    texts = [row["prompt"] for row in list(trainer.train_dataset)[:2]]

    def measure(_: int) -> dict[str, float]:
        options = {"seed": 3, "batch_size": 1, "progress": progress}
        written = generate(policy, texts, max_new_tokens=5, temperature=1.0, **options)
        answers = [completion.text for completion in written]
        return {"heldout/known/reward": sum(lower_case(completions=answers)) / len(answers)}

    show = (lambda step, _: print("step", step, flush=True)) if announce else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kl, "INTERVAL_STEPS", kl_interval)
        patch.setattr(stop_signal, "SAVE_MINUTES", save_minutes)
        grpo.train(trainer, params, evaluate=measure, show=show)
    save_adapters(policy, output_dir / "adapters")
    history = [row for row in trainer.state.log_history if "loss" in row]
    (output_dir / "history.json").write_text(json.dumps(history))


if __name__ == "__main__":
    train(Path(sys.argv[1]), announce=True, **json.loads(sys.argv[2]))

"""GRPO runs whose completions do not depend on the number of ranks.

TRL seeds each rank differently. Here every completion is drawn, by TRL's own generation, from a seed of its
prompt and its place in the group. Plain gradient descent, as in self_play_runs.py.
"""

import hashlib
from pathlib import Path

import torch
from tiny_run import make_trainer

from rlnb.grpo import training as grpo
from rlnb.grpo.answer_trainer import AnswerTrainer

LOSS_TYPES = ("dapo", "grpo")
COMPLETIONS, GROUP, STEPS, LEARNING_RATE = 16, 4, 2, 0.1


class SeededTrainer(AnswerTrainer):
    """Draws each completion by itself."""

    def write_completions(self, prompt_ids, *rest, **options):
        rows = []
        for place, ids in enumerate(prompt_ids):
            text = f"{ids} {place % GROUP} {self.state.global_step}"
            torch.manual_seed(int(hashlib.sha256(text.encode()).hexdigest()[:8], 16))
            written, *_ = super().write_completions([ids], *rest, **options)
            rows += written
        return rows, None


def train(output_dir: Path, loss_type: str, *, num_ranks: int) -> dict[str, object]:
    """Return the adapters and metrics of two steps of 16 completions, shared by the ranks."""
    trainer, params, policy = make_trainer(
        output_dir, kind=SeededTrainer, recipe={"optim": "sgd", "lr_scheduler_type": "constant"},
        learning_rate=LEARNING_RATE, max_steps=STEPS, loss_type=loss_type,
        per_device_train_batch_size=GROUP, gradient_accumulation_steps=COMPLETIONS // GROUP // num_ranks,
    )  # fmt: skip
    grpo.train(trainer, params)
    rows = [row for row in trainer.state.log_history if "loss" in row]
    weights = {name: each.detach() for name, each in policy.model.named_parameters() if each.requires_grad}
    return {"weights": weights, "rows": rows}

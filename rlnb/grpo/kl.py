"""KL to the untrained model in runs with `beta` = 0, for which TRL computes none."""

import torch
from transformers import TrainerCallback, TrainerState
from trl import GRPOTrainer

INTERVAL_STEPS = 10


class MeasureKl(TrainerCallback):
    """Logs `kl` every INTERVAL_STEPS steps and at the last; with `beta` > 0 TRL logs it at each.

    The step's completions are read once with the adapters and once without, after the gradients are known and
    before the weights change. Nothing of the training changes: no gradient, no random number is drawn.
    """

    def __init__(self, trainer: GRPOTrainer) -> None:
        self.trainer = trainer

    def on_pre_optimizer_step(self, args: object, state: TrainerState, control: object, **_: object) -> None:
        step, metrics = state.global_step + 1, self.trainer._metrics["train"]
        metrics.pop("kl", None)  # unsloth logs a 0 for each batch
        if step % INTERVAL_STEPS == 0 or step == state.max_steps:
            metrics["kl"] = [measure_kl(self.trainer, batch) for batch in self.trainer._buffered_inputs]


def measure_kl(trainer: GRPOTrainer, batch: dict[str, torch.Tensor]) -> float:
    """Return the mean KL(policy || model without adapters) over the completion tokens of all ranks, in nats.

    batch: as TRL hands it to its loss. The estimator is TRL's, k3 of Schulman 2020 (http://joschu.net/blog/
    kl-approx.html): exp(r) - r - 1 with r = log p_reference - log p_policy.
    """
    model, mask = trainer.accelerator.unwrap_model(trainer.model), batch["completion_mask"]
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    attention_mask = torch.cat([batch["prompt_mask"], mask], dim=1)
    num_padding = (batch["prompt_mask"] == 0).sum(1, keepdim=True)

    def compute_logprobs() -> torch.Tensor:
        logprobs: torch.Tensor = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, attention_mask, mask.size(1)
        )[0]
        # unsloth moves the padding of prompts to the end, and returns so many columns more.
        num_more = logprobs.size(1) - mask.size(1)
        first = num_more - num_padding if num_more else torch.zeros_like(num_padding)
        return logprobs.gather(1, first + torch.arange(mask.size(1), device=mask.device))

    was_training = model.training
    model.eval()  # no dropout, which would draw random numbers
    try:
        with torch.no_grad():
            policy = compute_logprobs()
            with model.disable_adapter():
                reference = compute_logprobs()
    finally:
        model.train(was_training)
    difference = reference - policy
    divergence = (torch.exp(difference) - difference - 1) * mask
    total, count = trainer.accelerator.reduce(torch.stack([divergence.sum(), mask.sum().float()]), "sum")
    return float(total / count.clamp(min=1.0))

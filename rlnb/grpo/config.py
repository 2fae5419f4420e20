"""TRL's configuration: what a machine adds to a notebook's recipe, and the order of a run's prompts."""

import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import trl

from rlnb.errors import ParamsError
from rlnb.params.sections import NotebookParams, value_of
from rlnb.params.training import MAX_PROMPT_TOKENS, TrainingParams, VllmParams
from rlnb.policy.loading import Policy

# Compared once more when the trainer has been made.
SETTINGS_OF_LEARNING = (
    "loss_type", "beta", "epsilon", "epsilon_high", "scale_rewards", "mask_truncated_completions",
    "learning_rate", "temperature", "num_generations", "per_device_train_batch_size",
    "gradient_accumulation_steps", "max_completion_length", "router_aux_loss_coef",
)  # fmt: skip


class GRPOConfig(trl.GRPOConfig):
    """TRL's GRPOConfig, which raises ParamsError where a library changes what it was given."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        if self.world_size > 1 and self.device.type == "cpu":
            # transformers 5.17 loads an optimizer's state to cpu:0, which torch 2.13 does not know there.
            self.__dict__["_setup_devices"] = torch.device("cpu")
        check_as_asked(self, settings)


def check_as_asked(config: trl.GRPOConfig, settings: Mapping[str, object]) -> None:
    """Raise ParamsError where a library has changed a setting: unsloth does, with a printed line."""
    changes = [
        f"{name} = {value!r} was changed to {getattr(config, name)!r}"
        for name, value in settings.items()
        if getattr(config, name) != value
    ]
    if changes:
        raise ParamsError(
            f"GRPOConfig: {'; '.join(changes)} by the library that trains; write the value that it takes, or "
            "model.engine = transformers"
        )


def settings_of_machine(params: NotebookParams, policy: Policy) -> dict[str, object]:
    """Return the arguments of GRPOConfig that do not change what is learned: files, precision, logs, vLLM.

    With vLLM it names the policy's model by its directory, from which vLLM loads it.
    """
    training: TrainingParams = value_of(params, "training")
    use_gpu = policy.device.type == "cuda"
    settings: dict[str, object] = {
        "output_dir": str(Path(params.output_dir) / "checkpoints"),
        "save_steps": training.save_steps,
        "save_total_limit": None,  # `SaveRecipe` deletes older ones, once the new one is complete
        "save_only_model": not training.save_optimizer,
        "gradient_checkpointing": bool(training.gradient_checkpointing),
        "use_cpu": not use_gpu,
        "bf16": use_gpu and policy.dtype == torch.bfloat16,
        "fp16": use_gpu and policy.dtype == torch.float16,
        "logging_steps": 1,
        "logging_first_step": True,
        "log_completions": True,
        "num_completions_to_print": 0,
        "disable_tqdm": True,
        "report_to": [],  # `MetricsReporter` writes what TRL would
        "remove_unused_columns": False,
        "dataloader_pin_memory": use_gpu,
        "ddp_find_unused_parameters": False,  # each adapter is used in each pass
    }
    vllm: VllmParams | None = getattr(params, "vllm", None)
    if vllm and vllm.enabled:
        settings["use_vllm"] = True
        settings["vllm_mode"] = "server" if vllm.server_base_url else "colocate"
        # vLLM would look for a name on the hub in the hub's own cache, not in model.cache_dir.
        policy.model.name_or_path = policy.directory or policy.model.name_or_path
    if vllm and vllm.enabled and vllm.server_base_url:  # its owner has set its memory
        settings["vllm_server_base_url"] = vllm.server_base_url
    elif vllm and vllm.enabled:
        settings["vllm_enable_sleep_mode"] = True
        settings["vllm_gpu_memory_utilization"] = vllm.gpu_memory_utilization
        settings["vllm_max_model_length"] = vllm.max_model_len
    return settings


def order_prompts(rows: Sequence[Mapping[str, object]], config: trl.GRPOConfig) -> list[Mapping[str, object]]:
    """Return the rows in the order in which the whole run uses them: permutations seeded by `config.seed`.

    TRL's own sampler would start again at its first permutation after a resume.
    """
    if not rows:
        raise ParamsError(
            "tasks: no task is left to train on; give training tasks whose prompts have at most "
            f"{MAX_PROMPT_TOKENS} tokens"
        )
    batch_size = config.per_device_train_batch_size * config.gradient_accumulation_steps * config.world_size
    num_prompts = config.max_steps * math.ceil(batch_size / config.num_generations)
    generator = random.Random(config.seed)
    ordered: list[Mapping[str, object]] = []
    while len(ordered) < num_prompts:
        ordered += generator.sample(rows, len(rows))
    return ordered[:num_prompts]

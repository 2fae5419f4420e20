"""GPT-OSS as a policy: the published adapters, and every step of a training on a tiny one built here."""

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from recipes import make_config
from tiny_families import ATTENTION_ONLY
from tiny_policy import save_tiny_gpt_oss
from transformers import GptOssConfig, GptOssForCausalLM
from trl import GRPOTrainer

from rlnb.errors import ParamsError
from rlnb.game_2048.params import GptOss2048Params
from rlnb.game_2048.reward import StrategyReferee, make_strategy_rewards
from rlnb.game_2048.training import make_strategy_dataset
from rlnb.notebook import load_cell
from rlnb.params import load_params
from rlnb.params.sections import ModelParams
from rlnb.policy import load_policy
from rlnb.policy.loading import add_fresh_adapters
from rlnb.sandbox import Sandbox


def test_the_published_adapters_have_as_many_weights_as_was_published():
    model = load_params("gpt_oss_2048", profile="default", environ={}).model
    with torch.device("meta"):
        whole = GptOssForCausalLM(GptOssConfig(num_hidden_layers=24, num_local_experts=32))
        targets = list(model.lora_target_modules)
        adapted = get_peft_model(
            whole, LoraConfig(r=model.lora_rank, lora_alpha=model.lora_alpha, target_modules=targets)
        )
    sizes = [parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad]
    assert sum(sizes) == 1_990_656


@pytest.fixture(scope="module")
def tiny_gpt_oss(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Path:
    directory = tmp_path_factory.mktemp("gpt-oss")
    save_tiny_gpt_oss(directory, cache_dir=cache_dir)
    return directory


@pytest.mark.parametrize("engine", ["transformers", "unsloth"])
def test_all_linear_means_the_attention_or_is_refused(tiny_gpt_oss, engine):
    """transformers' experts are no linear layers; unsloth would put adapters on them too."""
    model, params = GptOssForCausalLM.from_pretrained(tiny_gpt_oss), ModelParams(engine=engine, lora_rank=2)
    if engine == "unsloth":
        with pytest.raises(ParamsError, match="experts"):
            add_fresh_adapters(model, params, checkpointing=False, seed=0)
        return
    adapted = add_fresh_adapters(model, params, checkpointing=False, seed=0)
    assert {name.rpartition(".")[2] for name in adapted.targeted_module_names} == set(ATTENTION_ONLY)


def published(tiny: Path, **training) -> GptOss2048Params:
    """The default profile on a small model: attention, adapters, prompt and rewards as published."""
    model = {"id": str(tiny), "engine": "transformers", "dtype": "float32", "load_in_4bit": False}
    overrides = {
        "model": model | {"offload_embedding": False, "max_seq_length": 2048},
        "training": {"optim": "adamw_torch_fused", "max_completion_length": 12, **training},
    }
    params = load_params("gpt_oss_2048", profile="default", overrides=overrides, environ={})
    assert isinstance(params, GptOss2048Params)
    return params


def test_a_tiny_gpt_oss_is_trained_a_step_on_the_published_rewards(tiny_gpt_oss, tmp_path):
    params = published(tiny_gpt_oss, max_steps=1, gradient_accumulation_steps=1)
    params = params.model_copy(update={"output_dir": str(tmp_path)})
    policy = load_policy(params.model, max_seq_length=params.model.max_seq_length)
    config = make_config(params, policy, notebook="gpt_oss_2048")
    rewards = load_cell("gpt_oss_2048", "reward", {"params": params})["rewards"]
    with Sandbox(num_workers=1) as sandbox:
        trainer = GRPOTrainer(
            policy.model,
            reward_funcs=make_strategy_rewards(rewards, StrategyReferee.from_params(params, sandbox)),
            args=config,
            train_dataset=make_strategy_dataset(params, policy, config),
            processing_class=policy.tokenizer,
        )
        trainer.train()
    logged = next(row for row in trainer.state.log_history if "reward" in row)
    assert logged["reward"] == pytest.approx(-3.0)  # nothing that it writes is a function: -2, -1 and 0
    assert logged["rewards/no_cheating/mean"] == -1.0

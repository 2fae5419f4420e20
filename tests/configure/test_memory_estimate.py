"""Sizes of models against models themselves, the estimate against what torch keeps, and its advice."""

import json
from pathlib import Path

import pytest
import torch
from refusals import refused
from tiny_actor import tiny_policy
from transformers import AutoModelForCausalLM, GptOssConfig, LlamaConfig, Qwen3Config

from rlnb.configure.memory import GIB, _layer_bytes, _with_value, estimate_memory
from rlnb.configure.model_sizes import load_model_sizes
from rlnb.machine import Machine
from rlnb.params import load_params

CACHE = Path(__file__).parents[2] / "model_cache"
CPU = Machine("cpu", "", None, 16.0, 2, "workstation", "unasked")
SMALL = {
    "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip


def gpu(memory_gib: float) -> Machine:
    return Machine("a100", "A100", (8, 0), memory_gib, 8, "workstation", "unasked")


def params_of(notebook="spiral_self_play", profile="default", **sections):
    return load_params(notebook, profile=profile, overrides=sections, environ={})


def estimated(params, machine):
    return estimate_memory(params, machine, environ={"HF_HOME": "/nowhere"})


def parts_of(params, machine):
    return {part.name: part.gib for part in estimated(params, machine).parts}


@pytest.mark.parametrize(
    "config",
    [LlamaConfig(**SMALL), GptOssConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2)],
    ids=["llama", "experts"],
)
def test_parameters_are_counted_as_the_model_has_them(config, tmp_path):
    config.save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_config(config)
    sizes = load_model_sizes(str(tmp_path), "nowhere")
    assert sizes.num_parameters == sum(weights.numel() for weights in model.parameters())
    assert sizes.expert_parameters == sum(
        weights.numel() for name, weights in model.named_parameters() if "experts" in name
    )
    assert (sizes.query_width, sizes.kv_width, sizes.is_guess) == (64, 32, False)


def test_the_tiny_model_and_its_adapters_are_counted_exactly():
    policy = tiny_policy(CACHE, lora_rank=16)  # builds the model that is measured
    sizes = load_model_sizes("tiny", CACHE)
    adapters = sizes.count_adapter_parameters(16, ("all-linear",))
    assert policy.num_parameters() == (adapters, sizes.num_parameters + adapters) == (81_920, 574_848)


def test_the_adapters_of_ppo_are_on_the_attention_of_qwen3_4b(tmp_path):
    """36 layers of width 2560 with 32 query heads and 8 key heads of 128, and MLPs of 9728."""
    shape = {
        "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    }  # fmt: skip
    Qwen3Config(**shape, tie_word_embeddings=True).save_pretrained(tmp_path)
    sizes, model = (
        load_model_sizes(str(tmp_path), "nowhere"),
        load_params("ppo_openspiel", profile="default", environ={}).model,
    )
    assert model.lora_rank == 16
    assert sizes.count_adapter_parameters(16, model.lora_target_modules) == 11_796_480
    assert sizes.count_adapter_parameters(16, ("all-linear",)) == 33_030_144


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Qwen/Qwen2.5-1.5B-Instruct", 1.5e9),
        ("HuggingFaceTB/SmolLM2-135M", 135e6),
        ("mistralai/Mixtral-8x7B-v0.1", 56e9),
        ("Qwen/Qwen3-30B-A3B", 30e9),
    ],
)
def test_a_model_that_is_not_at_hand_is_guessed_by_the_size_in_its_name(name, parameters):
    sizes = load_model_sizes(name, "nowhere", environ={"HF_HOME": "/nowhere"})
    assert (sizes.num_parameters, sizes.is_guess) == (parameters, True)
    assert sizes.source == f"the size in the name {name}"
    layer = 4 * sizes.width**2 + 3 * sizes.width * sizes.mlp_width
    counted = sizes.num_layers * layer + sizes.embedding_parameters
    assert counted == pytest.approx(parameters, rel=0.1)


def test_the_hubs_cache_is_looked_into(tmp_path):
    snapshot = tmp_path / "hub" / "models--me--mine-1B" / "snapshots" / "abc"
    LlamaConfig(**SMALL).save_pretrained(snapshot)
    sizes = load_model_sizes("me/mine-1B", "nowhere", environ={"HF_HOME": str(tmp_path)})
    assert sizes.source == str(snapshot / "config.json")


def test_a_config_that_tells_no_sizes_is_refused_with_its_path(tmp_path):
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    # transformers 4.57 goes on with the types that it knows.
    assert refused(load_model_sizes, str(tmp_path), "nowhere").startswith(
        f"{tmp_path / 'config.json'}: does not give the sizes of a language model: "
        f"Unrecognized model in {tmp_path}. Should have a `model_type` key in its config.json"
    )


@pytest.mark.parametrize("lora_rank", [0, 16])
def test_what_is_kept_for_the_backward_pass_is_what_torch_keeps(lora_rank):
    model = tiny_policy(CACHE, lora_rank=lora_rank).model.train()
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = torch.randint(3, 259, (4, 128), generator=torch.Generator().manual_seed(0))
    decoder = model.get_base_model().model if lora_rank else model.model
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        states = decoder(input_ids=ids, use_cache=False).last_hidden_state
    assert states.requires_grad
    sizes = load_model_sizes("tiny", CACHE)
    said = ids.numel() * sizes.num_layers * _layer_bytes(sizes, 4, adapted=bool(lora_rank), eager_length=0)
    assert 0.8 < said / sum(kept.values()) < 1.25


def test_the_parts_are_arithmetic_that_can_be_done_by_hand(tmp_path):
    LlamaConfig(**SMALL).save_pretrained(tmp_path)
    model = {"id": str(tmp_path), "dtype": "bfloat16", "lora_rank": 2, "load_in_4bit": False}
    parts = parts_of(
        params_of(
            model=model,
            game={"acting": "constrained", "style": "full"},
            training={"tokens_per_pass": 970, "gradient_checkpointing": False, "magnet_coef": 0.1},
            evaluation={"modes": ["constrained"]},
            mbpp={"enabled": False},
        ),
        gpu(40.0),
    )
    assert parts["weights"] == pytest.approx(38_880 * 2 / GIB)
    # Inputs and outputs of q, k, v, o (64 wide, keys and values 32), gate, up, down.
    each = (32 + 64) + 2 * (32 + 32) + (64 + 32) + 3 * (32 + 48)
    # float32: the adapters, gradients, two moments, average and magnet.
    assert parts["adapters"] == pytest.approx(3 * 2 * each * 6 * 4 / GIB)
    assert parts["logits"] == pytest.approx(10 * 100 * 4 * 6 / GIB)  # 970 tokens are 10 prompts of 97
    assert "generation" not in parts  # the pass needs more, and they take turns


def test_recomputed_activations_leave_the_inputs_of_layers_and_one_layer(tmp_path):
    LlamaConfig(**(SMALL | {"num_hidden_layers": 30})).save_pretrained(tmp_path)
    usual = {"model": {"id": str(tmp_path)}, "game": {"acting": "constrained", "style": "compact"}}
    usual |= {"mbpp": {"enabled": False}, "evaluation": {"modes": ["constrained"]}}
    kept, less = (
        parts_of(params_of(**usual, training={"gradient_checkpointing": on}), CPU)["activations"]
        for on in (False, True)
    )
    assert 10 < kept / less < 30


@pytest.mark.parametrize(
    ("memory_gib", "verdict"), [(80.0, "fits"), (19.0, "tight"), (8.0, "does not fit"), (0.0, "unknown")]
)
def test_the_verdict_compares_with_the_machine(memory_gib, verdict):
    params = params_of("ppo_openspiel", model={"load_in_4bit": False, "dtype": "bfloat16"})
    estimate = estimated(params, gpu(memory_gib))
    assert estimate.verdict == verdict
    assert bool(estimate.changes) == (verdict in ("tight", "does not fit"))


def test_a_run_without_a_model_of_known_size_has_no_estimate():
    writer = {"kind": "endpoint", "base_url": "http://localhost:1/v1", "served_model": "mine"}
    assert estimated(params_of("mbpp_eval", writer=writer), CPU) is None
    assert estimated(params_of(model={"id": "openai-community/gpt2"}), CPU) is None


def test_the_lines_say_the_parts_of_a_run_that_trains_all_weights():
    estimate = estimated(params_of(profile="tiny", model={"cache_dir": str(CACHE)}), CPU)
    assert estimate.lines()[0] == "memory: 0.7 of 16.0 GiB: fits (by its config.json)"
    assert estimate.lines()[1] == "    0.60 GiB  process: Python with torch"
    assert {part.name for part in estimate.parts} >= {"weights", "gradients"}


def test_the_changes_that_are_advised_make_it_fit():
    params = params_of("grpo_code_execution", model={"id": "Qwen/Qwen2.5-7B", "dtype": "bfloat16"})
    machine = gpu(24.0)
    estimate = estimated(params, machine)
    assert estimate.verdict == "does not fit"
    totals = [estimate.total_gib, *(change.total_gib for change in estimate.changes)]
    assert totals == sorted(totals, reverse=True)
    assert estimate.changes[0].field == "training.per_device_train_batch_size"
    changed = {change.field: json.loads(change.value) for change in estimate.changes}
    for field, value in changed.items():
        params = _with_value(params, field, value)
    assert params.training.per_device_train_batch_size * params.training.gradient_accumulation_steps == 8
    after = estimated(params, machine)
    assert after.total_gib == pytest.approx(totals[-1])
    assert after.verdict == "fits"

"""The decode loop of CPUs against `generate`, and its randomness against the softmax."""

import inspect
from pathlib import Path

import pytest
import torch
from tiny_policy import load_tiny, save_tiny_gpt_oss, train_by_hand
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models import deepseek_v3, doge, gemma, lfm2, mamba, qwen2, qwen3, qwen3_next

from rlnb.errors import TrainingDiverged
from rlnb.policy import decoding
from rlnb.policy.cpu_attention import NAME, cpu_attention, use_cpu_attention
from rlnb.policy.decoding import RoomyLayer, can_decode, decode, packed_weights, sample_tokens

VOCABULARY, PAD = 200, 0
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8,
}  # fmt: skip
LOW_RANK = {  # attention whose values are narrower than its keys
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 12,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
    "moe_intermediate_size": 32, "num_key_value_heads": 6, "head_dim": None,
}  # fmt: skip
FAMILIES = {
    "deepseek": (
        deepseek_v3.DeepseekV3ForCausalLM,
        lambda **sizes: deepseek_v3.DeepseekV3Config(**sizes | LOW_RANK),
    ),
    "doge": (doge.DogeForCausalLM, doge.DogeConfig),  # a mask for each head
    "qwen2": (qwen2.Qwen2ForCausalLM, qwen2.Qwen2Config),
    "qwen3": (qwen3.Qwen3ForCausalLM, qwen3.Qwen3Config),
    "gemma": (gemma.GemmaForCausalLM, gemma.GemmaConfig),
}


@pytest.fixture(params=["llama", "qwen2", "qwen3", "gemma", "deepseek", "doge", "gpt-oss"])
def model(request: pytest.FixtureRequest, cache_dir: Path, tmp_path: Path) -> PreTrainedModel:
    torch.manual_seed(0)
    if request.param == "llama":
        policy = load_tiny(cache_dir)
        train_by_hand(policy)
        return policy.model.eval()
    if request.param == "gpt-oss":
        save_tiny_gpt_oss(tmp_path, cache_dir=cache_dir)
        return AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    build, config = FAMILIES[request.param]
    return build(config(**SIZES, initializer_range=0.2)).eval()


def ragged_prompts(*lengths: int, copies: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(5, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]
    return [prompt for prompt in prompts for _ in range(copies)]


def generate(
    model: PreTrainedModel, prompts: list[list[int]], count: int, ends: list[int]
) -> list[list[int]]:
    width = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    written = model.generate(
        input_ids=ids, attention_mask=mask, max_new_tokens=count, do_sample=False,
        eos_token_id=ends or [-1], pad_token_id=PAD,
    )[:, width:].tolist()  # fmt: skip
    stops = [next((k for k, token in enumerate(row, 1) if token in ends), count) for row in written]
    return [row[:stop] for row, stop in zip(written, stops, strict=True)]


def test_greedy_tokens_are_those_of_generate(model, monkeypatch):
    prompts = ragged_prompts(3, 17, 9, 40, copies=2)
    free = generate(model, prompts, 24, [])
    ends = sorted({free[0][5], free[2][11], free[4][0]})  # rows end at different tokens, some at their first
    expected = generate(model, prompts, 24, ends)
    assert len(set(map(len, expected))) >= 2
    options = {"temperature": 0.0, "ends": ends, "pad": PAD}
    assert decode(model, prompts, max_new_tokens=24, **options) == expected
    monkeypatch.setattr(decoding, "ROOM_TOKENS", 3)  # the cache is enlarged again and again
    use_cpu_attention(model)
    assert decode(model, prompts, max_new_tokens=24, **options) == expected
    assert decode(model, prompts, max_new_tokens=1, **options) == [row[:1] for row in expected]


def test_grouped_heads_are_used_on_a_cpu_where_sdpa_would_be(cache_dir):
    model = load_tiny(cache_dir).model
    use_cpu_attention(model)
    assert model.config._attn_implementation == NAME
    model.get_base_model().set_attn_implementation("eager")
    use_cpu_attention(model)
    assert model.config._attn_implementation == "eager"


def test_packed_weights_multiply_as_the_layers_do_and_go_again():
    torch.manual_seed(0)
    build, config = FAMILIES["qwen2"]  # with biases and without
    model = build(config(**SIZES, initializer_range=0.2)).eval().bfloat16()
    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    ids = torch.tensor(ragged_prompts(7, 7, copies=2))
    with torch.no_grad():
        expected = model(ids).logits
        with packed_weights(model):
            are_packed = {"forward" in vars(layer) for layer in layers}
            logits = model(ids).logits
    if are_packed == {False}:
        pytest.skip("oneDNN multiplies no bfloat16 on this CPU")
    assert are_packed == {True}
    torch.testing.assert_close(logits, expected, rtol=0.02, atol=0.02)
    assert not any("forward" in vars(layer) for layer in layers)


def test_a_group_reads_its_prompt_once_and_rows_that_ended_leave(cache_dir):
    model = load_tiny(cache_dir).model.eval()
    prompts = ragged_prompts(5, 8, copies=3)
    shapes = []
    hook = model.get_base_model().register_forward_pre_hook(
        lambda _, args, given: shapes.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    free = decode(model, prompts, max_new_tokens=4, temperature=0.0, ends=[], pad=PAD)
    assert shapes == [(2, 8), (6, 1), (6, 1), (6, 1)]
    shapes.clear()
    decode(model, prompts, max_new_tokens=4, temperature=0.0, ends=[free[0][1]], pad=PAD)
    assert shapes == [(2, 8), (6, 1), (3, 1), (3, 1)]
    hook.remove()


def test_a_cache_with_room_takes_a_token_without_copying_the_others():
    states = torch.arange(2 * 3 * 5 * 4).reshape(2, 3, 5, 4).float()
    layer = RoomyLayer()
    places = [layer.update(part, -part)[0].data_ptr() for part in states.split([2, 1, 1, 1], dim=2)]
    assert places[1] == places[2] == places[3]
    torch.testing.assert_close(torch.cat([layer.keys, -layer.values]), states.repeat(2, 1, 1, 1))
    layer.batch_select_indices(torch.tensor([1]))
    torch.testing.assert_close(layer.keys, states[1:])


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_samples_are_distributed_as_the_softmax(temperature):
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(1, 40, generator=generator)
    count = 200_000
    tokens = sample_tokens(logits.expand(count, 40), temperature, torch.rand(count, generator=generator))
    expected = count * (logits[0] / temperature).softmax(0)
    chi_squared = ((torch.bincount(tokens, minlength=40) - expected) ** 2 / expected).sum() / 39
    assert chi_squared < 2.0  # 1 on average, 0.23 its deviation


def test_a_row_is_sampled_as_it_is_alone():
    generator = torch.Generator().manual_seed(4)
    logits, uniforms = torch.randn(37, 50, generator=generator), torch.rand(37, generator=generator)
    alone = [sample_tokens(logits[row, None], 0.7, uniforms[row, None]) for row in range(37)]
    assert torch.equal(sample_tokens(logits, 0.7, uniforms), torch.cat(alone))


def test_no_token_without_probability_is_sampled():
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]])
    almost_one = torch.tensor(1.0).nextafter(torch.tensor(0.0))
    for uniform, token in ((0.0, 1), (0.4999, 1), (0.5001, 3), (float(almost_one), 3)):
        assert sample_tokens(logits, 1.0, torch.tensor([uniform])).tolist() == [token]


@pytest.mark.parametrize("temperature", [0.0, 1e-40, 0.7])
def test_a_policy_that_is_nan_writes_nothing(temperature):
    logits = torch.tensor([[0.0, 1.0, 3.0], [2.0, torch.nan, 1.0]])
    with pytest.raises(TrainingDiverged, match="NaN"):
        sample_tokens(logits, temperature, torch.tensor([0.5, 0.5]))
    assert sample_tokens(logits[:1], min(temperature, 1e-40), torch.tensor([0.9])).tolist() == [2]


SMALL = {key: SIZES[key] for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")}
RECURRENT = {
    "lfm2": lambda: lfm2.Lfm2ForCausalLM(
        lfm2.Lfm2Config(**SIZES, layer_types=["conv", "conv", "full_attention"])
    ),
    "mamba": lambda: mamba.MambaForCausalLM(mamba.MambaConfig(**SMALL)),
    "qwen3_next": lambda: qwen3_next.Qwen3NextForCausalLM(qwen3_next.Qwen3NextConfig(**SIZES, num_experts=4)),
}


def test_a_model_with_recurrent_states_is_left_to_generate():
    assert [name for name, build in RECURRENT.items() if can_decode(build())] == []


def test_a_bias_of_positions_is_added_on_a_cpu_too():
    if "position_bias" not in inspect.signature(sdpa_attention_forward).parameters:
        pytest.skip("this transformers knows no position_bias")
    query, key, value = torch.randn(3, 1, 2, 5, 4)
    given, bias = (nn.Module(), query, key, value, None), torch.randn(1, 2, 5, 5)
    ours, theirs = (form(*given, position_bias=bias)[0] for form in (cpu_attention, sdpa_attention_forward))
    assert torch.allclose(ours, theirs)

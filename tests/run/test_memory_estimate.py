"""Sizes of models against models themselves, the estimate against what torch keeps, and its advice."""

import json
from pathlib import Path

import pytest
import torch
from refusals import refused
from tiny_actor import tiny_policy
from transformers import (
    AutoModelForCausalLM,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    PhiConfig,
    Qwen2Config,
    Qwen3Config,
)

from rlnb.errors import ParamsError
from rlnb.machine import Machine, recommend
from rlnb.machine.table import MACHINES
from rlnb.params import check_machine, load_params, resolve
from rlnb.params.loading import MODELS, choose_profile
from rlnb.run.memory import GIB, _layer_bytes, _with_value, estimate_memory, settle_memory
from rlnb.run.model_sizes import load_model_sizes

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
    [
        LlamaConfig(**SMALL),
        LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
        MistralConfig(**SMALL),
        Qwen2Config(**{**SMALL, "head_dim": 8}, tie_word_embeddings=True),
        Qwen3Config(**SMALL),
        GptOssConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2),
        PhiConfig(**{**SMALL, "head_dim": 8}),
    ],
    ids=["llama", "biases", "mistral", "qwen2", "qwen3", "gpt-oss", "another"],
)
def test_parameters_are_counted_as_the_model_has_them(config, tmp_path):
    config.save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_config(config)
    sizes = load_model_sizes(str(tmp_path), "nowhere")
    assert sizes.num_parameters == sum(weights.numel() for weights in model.parameters())
    assert sizes.expert_parameters == sum(
        weights.numel() for name, weights in model.named_parameters() if "experts" in name
    )
    head = model.config.hidden_size // 4 if config.model_type in ("qwen2", "phi") else 16
    assert (sizes.query_width, sizes.kv_width, sizes.is_guess) == (4 * head, 2 * head, False)


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
    ("name", "parameters"),  # as their pages on the hub say
    [
        ("Qwen/Qwen2.5-1.5B-Instruct", 1.54e9),
        ("Qwen/Qwen2.5-3B", 3.09e9),
        ("Qwen/Qwen3-4B", 4.02e9),
        ("HuggingFaceTB/SmolLM2-135M", 134.5e6),
        ("unsloth/gpt-oss-20b-BF16", 20.9e9),
        ("openai/gpt-oss-120b", 116.8e9),
    ],
)
def test_models_that_profiles_take_are_known_before_they_are_downloaded(name, parameters):
    sizes = load_model_sizes(name, "nowhere", environ={"HF_HOME": "/nowhere"})
    assert sizes.num_parameters == pytest.approx(parameters, rel=0.005)
    assert (sizes.is_guess, sizes.source) == (False, "as published")


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("microsoft/phi-1.5b", 1.5e9),
        ("HuggingFaceTB/SmolLM2-360M", 360e6),
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
            evaluation={"enabled": False},
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
    usual |= {"mbpp": {"enabled": False}, "evaluation": {"enabled": False}}
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
    assert estimate.lines()[0] == "memory: 1.1 of 16.0 GiB: fits (by its config.json)"
    assert estimate.lines()[1] == "    1.00 GiB  process: Python with torch"
    assert {part.name for part in estimate.parts} >= {"weights", "gradients"}


def test_the_changes_that_are_advised_make_it_fit():
    training = {"per_device_train_batch_size": 32, "max_completion_length": 1024}
    model = {"id": "Qwen/Qwen2.5-7B", "dtype": "bfloat16"}
    params = params_of("grpo_code_execution", model=model, training=training, mbpp={"enabled": False})
    machine = gpu(24.0)
    estimate = estimated(params, machine)
    assert estimate.verdict == "does not fit"
    totals = [estimate.total_gib, *(change.total_gib for change in estimate.changes)]
    assert totals == sorted(totals, reverse=True)
    assert estimate.changes[0].field == "training.per_device_train_batch_size"
    changed = {change.field: json.loads(change.value) for change in estimate.changes}
    for field, value in changed.items():
        params = _with_value(params, field, value)
    assert params.training.per_device_train_batch_size * params.training.gradient_accumulation_steps == 32
    after = estimated(params, machine)
    assert after.total_gib == pytest.approx(totals[-1])
    assert after.verdict == "fits"


# GiB that the driver shows of cards with 8, 12, 16, 24, 32, ... GB; of a machine without a GPU its memory.
CARDS = {
    "cpu": (8.0, 16.0), "cpu_bf16": (8.0, 16.0), "older": (16.0,), "v100": (15.8, 31.7), "t4": (15.0,),
    "a100": (40.0, 80.0), "ampere": (7.75, 11.75, 22.5, 24.0, 45.0), "ada": (7.75, 11.75, 22.5, 24.0, 45.0),
    "h100": (79.6, 140.4),
    "b200": (178.4,), "rtx_blackwell": (31.8, 95.0), "gb10": (119.7,), "newer": (31.8,),
}  # fmt: skip
TIGHT_ALL_THE_SAME = {("gpt_oss_2048", "t4")}  # 10.6 GiB of weights in 4 bits
LEAST_FOR_GPT_OSS = 14.0


def machine_of(row, memory_gib):
    capability = row.capabilities[0] if row.capabilities else {"newer": (13, 0)}.get(row.name)
    gpu = row.name if capability else ""
    return Machine(row.name, gpu, capability, memory_gib, 8, "workstation", "unasked")


WITHOUT_MODEL = {"compare_runs"}


@pytest.mark.parametrize("notebook", sorted(set(MODELS) - WITHOUT_MODEL))
@pytest.mark.parametrize("row", MACHINES, ids=lambda row: row.name)
def test_the_profile_that_auto_takes_fits_every_machine_of_the_table(notebook, row, monkeypatch):
    """With unsloth where setup.sh installs it and without; every package else is there."""
    monkeypatch.setattr("rlnb.params.resolving.installed_version", lambda package: "1")
    for memory_gib in CARDS[row.name]:
        for packages in ({"bitsandbytes": "1"}, {"bitsandbytes": "1", "unsloth": "1"}):
            machine = machine_of(row, memory_gib)
            recommendation = recommend(machine, environ={}, version=packages.get)
            profile = choose_profile(notebook, recommendation.profile)
            nowhere = {"model": {"cache_dir": "nowhere"}}
            params = load_params(notebook, profile=profile, overrides=nowhere, environ={})
            resolved = resolve(params, recommendation, environ={})
            if notebook == "gpt_oss_2048" and "unsloth alone" in machine_refusal(resolved, machine):
                assert resolved.model.engine == "transformers" and resolved.model.load_in_4bit is True
                continue
            check_machine(resolved, machine, environ={})
            if notebook == "gpt_oss_2048" and row.capabilities and memory_gib < LEAST_FOR_GPT_OSS:
                assert "That is not enough: take a smaller model.id" in refused(settled, resolved, machine)
                continue
            _, line = settled(resolved, machine)
            verdict = "tight" if (notebook, row.name) in TIGHT_ALL_THE_SAME else "fits"
            assert f" of {memory_gib:.1f} GiB: {verdict} (as published)" in line, profile


def test_ppo_s_profile_for_little_memory_fits_8_gib():
    machine = machine_of(next(row for row in MACHINES if row.name == "ampere"), 7.75)
    params = params_of("ppo_openspiel", "low_vram", model={"load_in_4bit": True, "cache_dir": "nowhere"})
    resolved = resolve(params, recommend(machine, environ={}, version={"bitsandbytes": "1"}.get), environ={})
    assert ": fits (as published)" in settled(resolved, machine)[1]


def machine_refusal(params, machine) -> str:
    try:
        check_machine(params, machine, environ={})
    except ParamsError as error:
        return str(error)
    return ""


def test_gpt_oss_without_unsloth_fits_80_gib_in_16_bits_as_its_refusal_advises(monkeypatch):
    monkeypatch.setattr("rlnb.params.resolving.installed_version", lambda package: "1")
    for name in ("a100", "gb10"):
        row = next(row for row in MACHINES if row.name == name)
        machine = machine_of(row, CARDS[name][-1])
        recommendation = recommend(machine, environ={}, version={}.get)
        params = params_of("gpt_oss_2048", recommendation.profile, model={"load_in_4bit": False})
        resolved = resolve(params, recommendation, environ={})
        check_machine(resolved, machine, environ={})
        assert ": fits (as published)" in settled(resolved, machine)[1]


def settled(params, machine):
    return settle_memory(params, machine, environ={"HF_HOME": "/nowhere"})


def on(machine, notebook="grpo_code_execution", **sections):
    """Parameters without "auto" on this machine, by transformers."""
    params = params_of(notebook, **sections)
    return resolve(params, recommend(machine, environ={}, version={}.get), environ={})


def test_what_cannot_fit_is_refused_with_what_to_lower_unless_told_otherwise():
    machine = gpu(8.0)
    model = {"id": "Qwen/Qwen2.5-3B", "load_in_4bit": False}
    training = {"per_device_train_batch_size": 32, "max_completion_length": 1024}
    params = on(machine, model=model, training=training, mbpp={"enabled": False})
    message = refused(settled, params, machine)
    assert message.startswith(
        "parameters cell: model.id = 'Qwen/Qwen2.5-3B' with these parameters needs 24.9 GiB by estimate, "
        "and A100 has 8.0. Change, in this order: 1. training.per_device_train_batch_size = 32: "
        "write 2, and training.gradient_accumulation_steps = 16: 8.7 GiB; 2. "
    )
    assert message.endswith(
        " To run it all the same write model.check_memory = false (docs/troubleshooting.md#out-of-memory)"
    )
    unchecked = on(machine, model=model | {"check_memory": False}, training=training)
    assert "does not fit (as published)" in settled(unchecked, machine)[1]


def test_a_size_guessed_from_a_name_is_not_refused():
    machine = gpu(8.0)
    line = settled(on(machine, model={"id": "me/mine-30B"}), machine)[1]
    assert "does not fit (about, by the size in its name alone)" in line
    assert line.endswith("Take a smaller model.id, or a machine with more memory")


def test_a_machine_without_a_gpu_is_checked_too_and_no_model_asks_for_nothing():
    machine = Machine("cpu", "", None, 2.0, 2, "workstation", "unasked")
    said = refused(settled, on(machine, model={"id": "Qwen/Qwen2.5-3B", "dtype": "float32"}), machine)
    assert "and this machine has 2.0." in said
    writer = {"kind": "endpoint", "base_url": "http://localhost:1/v1", "served_model": "mine"}
    assert settled(on(machine, "mbpp_eval", writer=writer), machine)[1] == ""


def vllm_of(memory_gib, model_id="Qwen/Qwen2.5-1.5B", training=(), **vllm):
    machine = gpu(memory_gib)
    model = {"id": model_id, "load_in_4bit": False}
    sections = {"model": model, "training": dict(training), "vllm": {"enabled": True, **vllm}}
    return settled(on(machine, **sections), machine)[0].vllm


@pytest.fixture
def vllm_installed(monkeypatch):
    monkeypatch.setattr("rlnb.params.training.installed_version", lambda package: "1")


@pytest.mark.usefixtures("vllm_installed")
def test_vllm_gets_what_it_needs_and_sleeps_where_that_does_not_fit_beside_the_training():
    # 2.88 GiB of weights, 8 x 2,048 tokens of 28 KiB, and 1.5: 4.82 GiB, rounded up to a hundredth.
    for memory_gib, share, sleeps in ((80.0, 0.07, False), (40.0, 0.13, False), (24.0, 0.21, False)):
        vllm = vllm_of(memory_gib)
        assert (vllm.gpu_memory_utilization, vllm.sleeps) == (share, sleeps)
    # Of 12 GiB 10.2 are used; the rest needs about 6, and of it activations, logits give way in turns.
    vllm = vllm_of(12.0, training={"per_device_train_batch_size": 32})
    assert vllm.sleeps and vllm.gpu_memory_utilization < 0.6
    mine = vllm_of(80.0, gpu_memory_utilization=0.8)  # beside 68 - 64 GiB, which are not enough
    assert (mine.gpu_memory_utilization, mine.sleeps) == (0.8, True)
    unknown = vllm_of(0.0)
    assert (unknown.gpu_memory_utilization, unknown.sleeps) == (0.3, True)


@pytest.mark.usefixtures("vllm_installed")
def test_vllm_s_share_counts_and_too_large_a_one_is_refused_with_auto_as_the_remedy():
    machine = gpu(24.0)
    vllm = {"enabled": True, "gpu_memory_utilization": 0.9}
    params = on(machine, model={"id": "Qwen/Qwen2.5-1.5B", "load_in_4bit": False}, vllm=vllm)
    assert "1. vllm.gpu_memory_utilization = 0.9: write auto: " in refused(settled, params, machine)
    asleep = on(gpu(26.0), vllm=vllm | {"gpu_memory_utilization": 0.75})
    awake = asleep.model_copy(update={"vllm": asleep.vllm.model_copy()})
    awake.vllm._sleeps = False
    totals = [estimated(params, gpu(26.0)).total_gib for params in (awake, asleep)]
    parts = parts_of(awake, gpu(26.0))
    in_turns = parts["activations"] + parts["logits"]  # with vLLM's 19.5 GiB, which are more
    assert totals[0] - totals[1] == pytest.approx(in_turns)


def test_in_4_bits_linear_layers_shrink_and_experts_only_by_unsloth(tmp_path, monkeypatch):
    monkeypatch.setattr("rlnb.params.sections.installed_version", lambda package: "1")
    GptOssConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2).save_pretrained(tmp_path)
    sizes = load_model_sizes(str(tmp_path), "nowhere")
    inner = sizes.num_parameters - sizes.embedding_parameters
    for engine, wide in (("transformers", sizes.expert_parameters), ("unsloth", 0)):
        model = {"id": str(tmp_path), "load_in_4bit": True, "dtype": "bfloat16", "engine": engine}
        parts = parts_of(params_of("gpt_oss_2048", model=model | {"offload_embedding": False}), gpu(40.0))
        expected = (inner - wide) * 0.52 + (sizes.embedding_parameters + wide) * 2
        assert parts["weights"] == pytest.approx(expected / GIB)
    offloaded = parts_of(params_of("gpt_oss_2048", model=model | {"offload_embedding": True}), gpu(40.0))
    assert parts["weights"] - offloaded["weights"] == pytest.approx(100 * 32 * 2 / GIB)  # the head stays


def test_saved_adapters_count_by_their_own_rank_and_layers(tmp_path):
    LlamaConfig(**SMALL).save_pretrained(tmp_path)
    config = {"r": 8, "target_modules": ["q_proj"], "base_model_name_or_path": str(tmp_path)}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    model = {"id": str(tmp_path), "adapters": str(tmp_path), "load_in_4bit": False}
    parts = parts_of(params_of("mbpp_eval", model=model), gpu(40.0))
    assert parts["adapters"] == pytest.approx(8 * 3 * (32 + 64) * 4 / GIB)

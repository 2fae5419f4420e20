"""Sizes of models against models themselves, and the estimate against what torch keeps."""

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from refusals import refused
from scaling import render_table, write_published
from tiny_actor import tiny_policy
from transformers import AutoModelForCausalLM, GemmaConfig, GptOssConfig, LlamaConfig, Qwen3Config

from rlnb.errors import ParamsError
from rlnb.grpo import cpu_trainer
from rlnb.machine import Machine, recommend
from rlnb.machine.table import MACHINES
from rlnb.params import check_machine, load_params, resolve
from rlnb.params.loading import MODELS, choose_profile
from rlnb.run import memory
from rlnb.run.memory import GIB

A100 = Machine("a100", "A100", (8, 0), 40.0, 8, "workstation", "not asked")
CPU = Machine("cpu_bf16", "", None, 8.0, 2, "workstation", "not asked")
SMALL = {
    "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
WITH_MODEL = sorted(set(MODELS) - {"compare_runs"})
SMALL_WEIGHTS = 2 * 3200 + 3 * (2 * 32 * (64 + 32) + 3 * 32 * 48)  # embeddings twice; q, o, k, v; the MLP


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Return a model cache with the config.json of every model of the profiles."""
    folder = tmp_path_factory.mktemp("published")
    write_published(folder)
    return folder


def params_of(notebook, profile="default", **sections):
    return load_params(notebook, profile=profile, overrides=sections, environ={})


@pytest.mark.parametrize("kind", [LlamaConfig, Qwen3Config, GptOssConfig, GemmaConfig])
def test_parameters_are_counted_to_a_hundredth(kind, tmp_path):
    shape = SMALL | {"vocab_size": 500, "hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
    config = kind(**shape, **(EXPERTS if kind is GptOssConfig else {}))
    config.save_pretrained(tmp_path)
    num_weights = sum(weight.numel() for weight in AutoModelForCausalLM.from_config(config).parameters())
    sizes = memory.load_model_sizes(str(tmp_path), "nowhere")
    assert sizes.parameters == pytest.approx(num_weights, rel=0.01)


def test_a_model_that_is_not_here_is_unknown_whatever_its_name_says(tmp_path):
    params = params_of("spiral_self_play", model={"id": "me/mine-7B", "cache_dir": str(tmp_path)})
    assert memory.check_memory(params, A100) == memory.UNKNOWN_SIZE
    (tmp_path / "config.json").write_text('{"hidden_size"')
    assert str(tmp_path / "config.json") in refused(memory.load_model_sizes, str(tmp_path), tmp_path)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lora_rank", [0, 16])
def test_what_is_kept_for_the_backward_pass_is_what_torch_keeps(lora_rank, dtype, cache_dir):
    model = tiny_policy(cache_dir, lora_rank=lora_rank, dtype=dtype).model.train()
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}
    alive = []  # else another tensor may take its place

    def keep(tensor):
        alive.append(tensor)
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    ids = torch.randint(3, 259, (4, 128), generator=torch.Generator().manual_seed(0))
    decoder = model.get_base_model().model if lora_rank else model.model
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _ = decoder(input_ids=ids, use_cache=False).last_hidden_state
    num_bytes = sum(size for place, size in kept.items() if place not in weights)
    sizes = memory.load_model_sizes("tiny", cache_dir)
    number_bytes, is_cast = memory.BYTES[dtype], bool(lora_rank)
    layer = memory.layer_bytes(sizes, number_bytes, is_cast=is_cast, on_gpu=False)
    said = ids.numel() * sizes.layers * layer
    assert 0.8 < said / num_bytes < 1.25


def test_the_parts_are_arithmetic_that_can_be_done_by_hand(tmp_path):
    LlamaConfig(**SMALL).save_pretrained(tmp_path)
    params = params_of(
        "spiral_self_play",
        model={"id": str(tmp_path), "dtype": "bfloat16", "lora_rank": 2, "load_in_4bit": False},
        training={"tokens_per_pass": 970, "gradient_checkpointing": False, "magnet_coef": 0.1},
        game={"acting": "constrained", "style": "full"},
        evaluation={"enabled": False},
        mbpp={"enabled": False},
    )
    parts = memory.estimate_memory(params, A100)
    assert parts["weights of model.id"] == pytest.approx(SMALL_WEIGHTS * 2 / GIB)
    # Inputs and outputs of q, k, v, o (64 wide, keys and values 32), gate, up, down.
    each = (32 + 64) + 2 * (32 + 32) + (64 + 32) + 3 * (32 + 48)
    # float32: the adapters, gradients, two moments, average and magnet.
    assert parts["gradients, optimizer, adapters"] == pytest.approx(3 * 2 * each * 6 * 4 / GIB)
    assert parts["logits"] == pytest.approx(10 * 100 * 4 * 6 / GIB)  # 970 tokens are 10 prompts of 97
    assert not any("generation" in name for name in parts)  # the pass needs more, and they take turns


def test_adapters_on_layers_of_other_names_are_not_taken_for_all_weights(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMALL))

    def trained(*names):
        model = {"id": str(tmp_path), "engine": "transformers", "lora_target_modules": list(names)}
        parts = memory.estimate_memory(params_of("grpo_code_execution", model=model), A100)
        return parts["gradients, optimizer, adapters"]

    assert trained("self_attn.q_proj") == trained("q_proj")
    assert trained("query_key_value") < trained("q_proj") < trained("all-linear")


def test_the_short_step_is_estimated_with_the_rows_that_it_computes_at_a_time():
    assert memory.HEAD_ROWS == cpu_trainer.HEAD_ROWS


@pytest.mark.parametrize("size", [[48, 48, 48], None])
def test_a_model_whose_layers_are_of_several_sizes_has_no_estimate(size, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMALL | {"intermediate_size": size}))
    assert memory.load_model_sizes(str(tmp_path), "nowhere") is None


def test_a_run_without_a_model_has_no_estimate():
    params = load_params("compare_runs")
    assert memory.describe_memory(params, A100) == []
    assert memory.estimate_host_memory(params, A100, num_workers=2) == 0.0


def test_writing_on_a_cpu_takes_a_second_copy_of_weights_in_16_bits(tmp_path):
    LlamaConfig(**SMALL).save_pretrained(tmp_path)
    for machine, dtype, is_copied in (
        (CPU, "bfloat16", True),
        (CPU, "float32", False),
        (A100, "bfloat16", False),
    ):
        params = params_of("mbpp_eval", model={"id": str(tmp_path), "dtype": dtype})
        parts = memory.estimate_memory(params, machine)
        assert ("weights packed for generation" in parts) is is_copied
    assert parts["weights of model.id"] == pytest.approx(SMALL_WEIGHTS * 2 / GIB)


# GiB that the driver shows of cards of each kind; of a machine without a GPU its memory.
CARDS = {
    "cpu": (8,), "cpu_bf16": (8,), "older": (16,), "v100": (15.8, 31.7), "t4": (15,), "a100": (40, 80),
    "ampere": (7.75, 24, 45), "ada": (7.75, 24, 45), "h100": (79.6,), "b200": (178.4,),
    "rtx_blackwell": (31.8, 95), "gb10": (95.8,), "newer": (31.8,),
}  # fmt: skip


@pytest.mark.parametrize("row", MACHINES, ids=lambda row: row.name)
def test_the_profile_that_auto_takes_fits_every_machine_of_the_table(row, published):
    """As setup.sh installs it, with unsloth where it serves; gpt-oss needs 14 GiB and is tight there."""
    versions = {"bitsandbytes": "1"} | ({"unsloth": "1"} if row.unsloth else {})
    capability = row.capabilities[0] if row.capabilities else {"newer": (13, 0)}.get(row.name)
    for memory_gib, notebook in itertools.product(CARDS[row.name], WITH_MODEL):
        machine = Machine(row.name, "", capability, memory_gib, 8, "workstation", "not asked")
        advice = recommend(machine, environ={}, version=versions.get)
        profile = choose_profile(notebook, advice.profile)
        params = params_of(notebook, profile, model={"cache_dir": str(published)})
        params = resolve(params, advice, environ={})
        is_gpt_oss = "gpt-oss" in params.model.id
        if is_gpt_oss and (not row.unsloth or memory_gib < 14):
            with pytest.raises(ParamsError):
                check_machine(params, machine, environ={})
                memory.check_memory(params, machine)
            continue
        verdict = "tight" if is_gpt_oss and row.name == "t4" else "fits"
        assert memory.check_memory(params, machine).endswith(f": {verdict}"), (notebook, profile, memory_gib)


def test_what_cannot_fit_is_refused_unless_told_otherwise(published):
    small, unknown = replace(A100, memory_gib=8.0), replace(A100, memory_gib=0.0)
    model = {"id": "Qwen/Qwen2.5-3B", "load_in_4bit": False, "cache_dir": str(published)}
    training = {"per_device_train_batch_size": 32, "max_completion_length": 1024}
    params = params_of("grpo_code_execution", model=model, training=training)
    assert "model.id = 'Qwen/Qwen2.5-3B' " in refused(memory.check_memory, params, small)
    unchecked = params_of("grpo_code_execution", model=model | {"check_memory": False}, training=training)
    assert memory.check_memory(unchecked, small).endswith("of 8.0 GiB: does not fit")
    assert memory.check_memory(unchecked, unknown).endswith(" GiB")
    writer = {"base_url": "http://localhost:1/v1", "served_model": "mine"}
    assert memory.check_memory(params_of("mbpp_eval", writer=writer), small) == ""


def test_the_page_of_many_ranks_shows_the_steps_that_the_benchmark_estimates(published):
    steps: dict[str, list[str]] = {}
    for line in render_table(published)[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        words = "does not run" if cells[2] == "-" else f"{cells[11]}, {cells[12]}"
        steps.setdefault(cells[0], []).append(words)
    page = Path(__file__).parents[2] / "docs" / "many_ranks.md"
    rows = [line.strip("| ").split(" | ") for line in page.read_text().splitlines() if line.startswith("| ")]
    shown = {name.split(",")[0]: cells for name, *cells in rows if name.split(",")[0] in steps}
    assert len(shown) == 4
    assert shown == {name: steps[name] for name in shown}


COLUMNS = {  # of the page's table: GiB of each machine
    "t4": (15,), "v100": (16, 32), "a100": (40, 80), "h100": (80,), "gb10": (96,), "cpu_bf16": (24,),
}  # fmt: skip


@pytest.mark.parametrize("notebook", WITH_MODEL)
def test_the_page_of_troubleshooting_shows_the_estimates(notebook, published):
    page = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text()
    (row,) = re.findall(rf"^\| {notebook} \| (.*) \|$", page, re.MULTILINE)
    versions, cells = {"bitsandbytes": "1"} | ({"unsloth": "1"} if notebook == "gpt_oss_2048" else {}), []
    for kind, memory_gib in ((kind, each) for kind, gibs in COLUMNS.items() for each in gibs):
        capability = next(iter(next(row for row in MACHINES if row.name == kind).capabilities), None)
        machine = Machine(kind, "", capability, memory_gib, 8, "workstation", "not asked")
        advice = recommend(machine, environ={}, version=versions.get)
        profile = choose_profile(notebook, advice.profile)
        params = resolve(
            params_of(notebook, profile, model={"cache_dir": str(published)}), advice, environ={}
        )
        gib = sum(memory.estimate_memory(params, machine).values())
        text = f"*{gib:.1f}*" if gib > memory.TIGHT * memory_gib else f"{gib:.1f}"
        cells.append("-" if (notebook, kind) == ("gpt_oss_2048", "v100") else text)
    assert row.split(" | ") == cells

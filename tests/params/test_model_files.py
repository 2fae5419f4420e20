"""What is refused, or said, of a model by its id and by its files, before anything loads it."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import MACHINES, refused, with_cell, with_set
from transformers import GemmaConfig, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from rlnb.params import check_machine, load_params
from rlnb.params.model_cache import find_id_fault, find_missing, read_facts
from rlnb.policy import model_directory
from rlnb.run.memory import check_positions

ROTARY = (LlamaConfig, Qwen2Config, Qwen3Config, GemmaConfig, MistralConfig)
FAMILIES = (*ROTARY, GPT2Config)
TIED = {kind: {"tie_word_embeddings": True} for kind in ROTARY} | {GPT2Config: {}}  # which does not say so
CPU = MACHINES["cpu"]


@pytest.fixture
def folder(cache_dir: Path, tmp_path: Path) -> Path:
    """Return a folder, with a space in its name, that holds a whole model: the tiny one."""
    return Path(shutil.copytree(model_directory("tiny", cache_dir), tmp_path / "my model"))


def edit(path: Path, **values: object) -> None:
    """Set values of a JSON file; those that are ... are removed."""
    old = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({key: value for key, value in (old | values).items() if value is not ...}))


def told(folder: Path, **sections: dict) -> str:
    """Return what `--check` would refuse."""
    model = {"id": str(folder)} | sections.pop("model", {})
    return refused(check_machine, with_cell({"model": model, **sections}), CPU)


@pytest.mark.parametrize(
    ("model_id", "reason"),
    [
        ("qwen2.5-coder:0.5b", "neither a path"),  # ollama's
        ("https://huggingface.co/Qwen/Qwen2.5-0.5B", "neither a path"),
        ("outputs/run/model", "neither a path"),
        ("my model", "neither a path"),
    ],
)
def test_an_id_that_names_no_model_is_refused_with_what_it_is(model_id, reason):
    assert reason in refused(with_cell, {"model": {"id": model_id}})


@given(st.sampled_from(["/", "./", "../", "~/"]), st.text("ab/. -", max_size=12))
def test_what_is_written_as_a_path_is_never_looked_for_on_the_hub(start, rest):
    fault = find_id_fault(f"{start}nowhere{rest}")
    assert fault.startswith("is not there")


def test_a_home_is_expanded_in_every_field_with_a_path(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").touch()
    fields = ("model.id", "model.adapters", "model.cache_dir", "tasks.source", "mbpp.path", "output_dir",
              "training.resume")  # fmt: skip
    (folder.parent / "tasks.jsonl").touch()
    for field in fields:
        name = "tasks.jsonl" if field == "tasks.source" else "my model"
        params = with_set(f"{field}=~/{name}")
        section, _, inner = field.rpartition(".")
        value = getattr(getattr(params, section) if section else params, inner)
        assert value == str(folder.parent / name), field
    runs = load_params("compare_runs", profile="default", overrides={"compare": {"directories": ["~/a b"]}})
    assert runs.compare.directories == (str(folder.parent / "a b"),)


@pytest.mark.parametrize(
    ("removed", "missing"),
    [("config.json", "config.json"), ("model.safetensors", "weights"), ("tokenizer.json", "a tokenizer")],
)
def test_a_folder_that_lacks_what_a_model_needs_is_refused_by_name(folder, removed, missing):
    check_machine(with_cell({"model": {"id": str(folder)}}), CPU)
    (folder / removed).unlink()
    assert f"lacks {missing};" in told(folder)
    (folder / removed).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n")
    assert f"lacks the content of {removed} (run `git lfs pull` there);" in told(folder)
    edit(folder / "adapter_config.json", base_model_name_or_path="me/base")
    assert "holds adapters; write model.adapters, and model.id = me/base" in told(folder)


def test_gguf_files_are_refused_with_the_remedy(folder):
    file = folder / "model.Q8_0.gguf"
    (folder / "model.safetensors").rename(file)
    assert "not a model's folder" in refused(with_cell, {"model": {"id": str(folder / "config.json")}})
    assert "GGUF files are not read" in told(folder)
    for model_id in (str(file), "model.Q8_0.GGUF", "owner/model-GGUF"):
        assert "safetensors" in refused(with_cell, {"model": {"id": model_id}})
    assert "without -GGUF" in refused(with_cell, {"model": {"id": "owner/model-GGUF"}})


@pytest.mark.parametrize("named_by", ["generation_config.json", "config.json", "tokenizer_config.json"])
def test_a_tokenizer_without_an_end_is_refused_unless_another_file_names_one(folder, named_by):
    for name in ("generation_config.json", "config.json"):
        edit(folder / name, eos_token_id=...)
    for nothing in (None, ...):
        edit(folder / "tokenizer_config.json", eos_token=nothing)
        assert "without an end token" in told(folder)
    is_tokenizer = named_by == "tokenizer_config.json"
    edit(folder / named_by, **({"eos_token": "<|im_end|>"} if is_tokenizer else {"eos_token_id": 2}))
    check_machine(with_cell({"model": {"id": str(folder)}}), CPU)


def test_a_form_of_prompts_that_needs_a_chat_template_is_refused_with_that_notebooks_fields(folder):
    (folder / "chat_template.jinja").unlink()
    refusal = told(folder)
    assert "tasks.prompt = 'chat' needs a chat template" in refusal and "write completion" in refusal
    assert "mbpp.template = 'chat' needs" in refusal and "write paper or docstring" in refusal
    forms = {"tasks": {"prompt": "completion"}, "mbpp": {"template": "paper"}}
    check_machine(with_cell({"model": {"id": str(folder)}, **forms}), CPU)
    check_machine(with_cell({"model": {"id": str(folder)}, **forms, "mbpp": {"enabled": False}}), CPU)
    for notebook, field in (("spiral_self_play", "game.style"), ("grpo_code_game", "game.form")):
        params = with_cell({"model": {"id": str(folder)}, "mbpp": {"enabled": False}}, notebook)
        assert f"{field} = " in refused(check_machine, params, CPU)


@pytest.mark.parametrize("kind", FAMILIES)
def test_adapters_on_the_embeddings_are_refused_where_they_are_the_head_as_well(folder, kind):
    kind(**TIED[kind]).save_pretrained(folder)
    facts = read_facts(folder)
    assert facts.is_tied
    for name in ("embed_tokens", "lm_head", "transformer.wte"):
        refusal = told(folder, model={"lora_target_modules": ["q_proj", name]})
        assert f"names {name}, which is the embeddings and the head at once" in refusal
    kind(tie_word_embeddings=False).save_pretrained(folder)
    targets = {"lora_target_modules": ["q_proj", "embed_tokens"]}
    check_machine(with_cell({"model": {"id": str(folder), **targets}}), CPU)
    assert "is read by TRL" in told(folder, model={"lora_target_modules": ["lm_head"]})


@pytest.mark.parametrize("kind", FAMILIES)
def test_texts_longer_than_the_positions_are_refused_where_there_are_none_beyond_else_said(folder, kind):
    kind(max_position_embeddings=1024).save_pretrained(folder)
    params = with_cell({"model": {"id": str(folder)}, "training": {"max_completion_length": 513}})
    said = refused(check_positions, params) if kind is GPT2Config else check_positions(params)
    assert said.startswith("parameters cell: training.max_completion_length = 513 makes texts of up to 1025 ")
    assert said.count("\n") == 0 and "write at most 512" in said  # MBPP's answers have 512 tokens
    assert check_positions(with_cell({"model": {"id": str(folder)}})) == ""
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    edit(folder / "config.json", rope_scaling=rope)
    assert read_facts(folder).num_positions == 4096


def test_a_games_prompts_and_answers_are_compared_with_the_positions_too(folder):
    GPT2Config(n_positions=256).save_pretrained(folder)
    model, off = {"id": str(folder)}, {"enabled": False}
    play = {"style": "full", "acting": "constrained", "max_prompt_tokens": 257}
    cell = {"model": model, "game": play, "mbpp": off, "evaluation": off}
    assert "game.max_prompt_tokens = 257" in refused(check_positions, with_cell(cell, "spiral_self_play"))
    play["max_prompt_tokens"] = 256
    assert check_positions(with_cell(cell, "spiral_self_play")) == ""
    play |= {"acting": "free", "max_new_tokens": 1}
    assert "game.max_new_tokens = 1" in refused(check_positions, with_cell(cell, "spiral_self_play"))


def test_an_index_of_weights_in_the_other_form_asks_for_nothing(tmp_path):
    """One of bins, next to a file or an index of safetensors, which transformers takes first."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (folder / name).write_text("{}")
    bins = {"weight_map": {"one": "pytorch_model-00001-of-00002.bin"}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(bins))
    assert find_missing(tmp_path, str(folder)) == []
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    index = {"weight_map": {"one": "a.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert find_missing(tmp_path, str(folder)) == []
    (folder / "model.safetensors.index.json").unlink()
    assert find_missing(tmp_path, str(folder)) == ["pytorch_model-00001-of-00002.bin"]


def test_adapters_with_a_name_that_is_too_long_are_refused_in_words():
    assert "holds no adapter_config.json" in refused(with_cell, {"model": {"adapters": "x" * 5000}})

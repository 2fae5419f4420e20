"""Snapshots of trained weights: applied, restored, saved and loaded."""

from pathlib import Path

import pytest
import torch
from tiny_policy import load_tiny, train_by_hand
from torch import Tensor

from rlnb.policy import Policy, generate
from rlnb.policy.adapters import WeightSnapshot, trained_parameters


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
    weights, earlier_answer = copy_weights(tiny), answer(tiny)
    assert same(snapshot.values, earlier) and not same(weights, earlier)
    snapshot.move_towards(tiny, 1.0)
    snapshot.save(tmp_path / "values.safetensors")
    train_by_hand(tiny, seed=2)
    assert answer(tiny) != earlier_answer
    with applied_to(tiny):
        assert answer(tiny) == earlier_answer
    snapshot.restore(tiny)
    assert same(copy_weights(tiny), weights)
    train_by_hand(tiny, seed=3)
    assert same(snapshot.values, weights)  # it shares no memory
    other = WeightSnapshot.take(tiny)
    other.load(tmp_path / "values.safetensors")
    assert same(other.values, weights)

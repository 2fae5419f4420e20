"""One update does what its equation says, and leaves the weights alone where it cannot."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from pytest import approx
from tiny_actor import assert_same_gradients, played, tiny_actor, training
from tiny_policy import add_dropout

from rlnb.errors import TrainingDiverged
from rlnb.policy.adapters import WeightSnapshot
from rlnb.ppo.params import PpoTrainingParams
from rlnb.ppo.training import update as ppo_update
from rlnb.selfplay.acting import ActorCritic
from rlnb.selfplay.batch import Batch, Learner, Logprobs, check_first_ratio, compute_logprobs, make_batch
from rlnb.selfplay.rollouts import Turn, collect_trajectories, collect_turns
from rlnb.spiral.params import SpiralSelfPlayParams
from rlnb.spiral.training import spiral_loss

# Games whose ids have one token, two (one beginning another), and answers of three free tokens.
KINDS = {"kuhn_poker": False, "nim": False, "tic_tac_toe": True}


@pytest.fixture(scope="module")
def turns(cache_dir) -> dict[str, list[Turn]]:
    actor = tiny_actor(cache_dir)
    games = {name: played(actor, name, 4, free=is_free) for name, is_free in KINDS.items()}
    return {name: collect_turns(collect_trajectories(some)) for name, some in games.items()}


def toy(turns: list[Turn], *, has_value: bool = False, **changes: np.ndarray) -> Batch:
    """Return a batch with random advantages, and targets of the value if there is one, unless given."""
    advantages, targets = np.random.default_rng(0).normal(size=(2, len(turns)))
    given = {"advantages": advantages, "targets": targets if has_value else None}
    return make_batch(turns, **{**given, **changes})


def params_with(**options) -> SpiralSelfPlayParams:
    """Options: fields of the section `training`."""
    return SpiralSelfPlayParams(game={"acting": "constrained"}, training=training(**options))


def learner_with(actor: ActorCritic, **options) -> Learner:
    return Learner(actor, training(**options), temperature=0.8)


def update(learner: Learner, batch: Batch, params: SpiralSelfPlayParams, *, step: int) -> dict[str, float]:
    _, metrics = learner.update(batch, partial(spiral_loss, params=params, step=step), seed=0, step=step)
    return metrics


def move(actor: ActorCritic, *, seed: int, scale: float = 0.02) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in actor.parameters_to_train():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))


def held(actor: ActorCritic) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in actor.parameters_to_train()]


def is_unmoved(actor: ActorCritic, weights: list[torch.Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(held(actor), weights, strict=True))


def gradients(
    learner: Learner, batch: Batch, old: Logprobs, magnet: Logprobs | None = None
) -> tuple[float, list[np.ndarray]]:
    """Return the loss of the whole batch, in passes of `tokens_per_pass`, and its gradient."""
    params = SpiralSelfPlayParams(game={"acting": "free", "max_new_tokens": 3}, training=learner.training)
    learner.optimizer.zero_grad()
    total = 0.0
    for part in batch.micro_batches(max_tokens=learner.training.tokens_per_pass):
        now = compute_logprobs(learner.actor, part, temperature=learner.temperature)
        part_magnet = magnet and magnet.select(part)
        loss, _ = spiral_loss(now, old.select(part), part_magnet, part, params=params, step=0)
        loss.backward()
        total += float(loss.detach())
    return total, [parameter.grad.numpy().copy() for parameter in learner.actor.parameters_to_train()]


def same(actual, expected) -> None:
    assert actual[0] == approx(expected[0], abs=1e-6, rel=1e-5)
    assert_same_gradients(actual[1], expected[1])


@pytest.mark.parametrize("name", KINDS)
def test_gradients_are_the_same_by_any_passes_and_a_magnet_pulls(cache_dir, turns, name):
    """tests/ppo/test_ppo_update.py compares all other terms with a plain implementation."""
    batch = toy([turn for turn in turns[name] if turn.choices], has_value=True)
    actor = tiny_actor(cache_dir, has_value=True)
    learner = learner_with(actor, magnet_coef=0.3, clip=0.02, entropy_coef=0.1)
    old = learner.compute_logprobs(batch)
    move(actor, seed=1)
    magnet = learner.compute_logprobs(batch)
    move(actor, seed=2, scale=0.005)
    expected = gradients(learner, batch, old, magnet)
    learner.training = learner.training.model_copy(update={"tokens_per_pass": 1})
    same(gradients(learner, batch, old, magnet), expected)
    assert gradients(learner, batch, old)[0] != approx(expected[0], abs=1e-3)


@pytest.mark.parametrize("which", ["advantages", "targets"])
def test_a_loss_that_is_no_number_stops_the_run_with_the_weights_as_they_were(cache_dir, turns, which):
    numbers = {which: np.full(len(turns["kuhn_poker"]), np.nan)}
    actor = tiny_actor(cache_dir, has_value=True)
    learner, weights = learner_with(actor), held(actor)
    batch = toy(turns["kuhn_poker"], has_value=True, **numbers)
    with pytest.raises(TrainingDiverged, match="the loss is nan"):
        update(learner, batch, params_with(), step=0)
    assert is_unmoved(actor, weights)
    assert not learner.optimizer.state


def test_a_model_that_reads_otherwise_in_training_is_found_before_the_first_step(cache_dir, turns):
    actor = tiny_actor(cache_dir, lora_rank=4)
    add_dropout(actor.policy, 0.5)
    move(actor, seed=4, scale=0.3)
    actor.policy.model.train()
    learner, weights = learner_with(actor), held(actor)
    with pytest.raises(TrainingDiverged, match=r"before the first step .* model\.dtype"):
        update(learner, toy(turns["kuhn_poker"]), params_with(), step=0)
    assert is_unmoved(actor, weights)


def test_the_first_ratios_of_bfloat16_may_be_those_that_were_measured():
    """SmolLM2, 600 tokens in batches of 6 and of 1: mean 0.043."""
    measured = {"tokens": 600.0, "ratio_gap": 600 * 0.043}
    check_first_ratio(measured, torch.bfloat16)
    for sums, dtype in (({**measured, "ratio_gap": 120.0}, torch.bfloat16), (measured, torch.float32)):
        with pytest.raises(TrainingDiverged, match=r"model\.dtype = float32"):
            check_first_ratio(sums, dtype)


def test_losses_of_float16_are_scaled_whatever_the_first_parameter_is(cache_dir):
    """Weights in 4 bits compute in float16 beside embeddings and adapters in float32."""
    actor = tiny_actor(cache_dir, lora_rank=4)
    assert next(actor.policy.model.parameters()).dtype == torch.float32
    assert not learner_with(actor).scaler.is_enabled()
    actor.policy = replace(actor.policy, dtype=torch.float16)
    assert learner_with(actor).scaler.is_enabled()


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_gradient_checkpointing_passes_each_layer_again_and_changes_no_gradient(cache_dir, turns, lora_rank):
    batch, passes, results = toy(turns["kuhn_poker"]), {}, {}
    for switch in (False, True):
        actor = tiny_actor(cache_dir, lora_rank=lora_rank)
        actor.policy.model.eval()  # as from_pretrained returns it; the tiny model is made anew
        layer = next(m for name, m in actor.policy.model.named_modules() if name.endswith("layers.0.mlp"))
        learner = learner_with(actor, gradient_checkpointing=switch)
        old = learner.compute_logprobs(batch)
        counted = []
        layer.register_forward_pre_hook(lambda *_, counted=counted: counted.append(1))
        results[switch], passes[switch] = gradients(learner, batch, old), len(counted)
    assert passes[True] == 2 * passes[False] > 0
    same(results[True], results[False])


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_the_divergence_from_the_reference_is_0_at_the_start_and_grows(cache_dir, turns, lora_rank):
    options = {"learning_rate": 1e-2, "final_learning_rate": 1e-2, "init_kl_coef": 0.1, "target_kl": 0.0}
    section = PpoTrainingParams(warmup_steps=0, num_epochs=1, num_mini_batches=1, **options)
    learner = Learner(
        tiny_actor(cache_dir, lora_rank=lora_rank), section, temperature=0.8, has_reference=True
    )
    batch = toy(turns["kuhn_poker"], has_value=True)
    reference = learner.compute_anchor_logprobs(batch).logprobs_utw
    steps = [ppo_update(learner, batch, seed=0, step=step, kl_coef=0.1)[0]["kl"] for step in range(3)]
    assert steps[0] == approx(0, abs=1e-7)
    assert steps[2] > 1e-4
    assert torch.equal(learner.compute_anchor_logprobs(batch).logprobs_utw, reference)
    assert not torch.allclose(learner.compute_logprobs(batch).logprobs_utw, reference, atol=1e-3)


def test_average_and_magnet_go_a_share_of_the_way_to_the_new_weights(cache_dir, turns):
    actor = tiny_actor(cache_dir)
    params = params_with(magnet_coef=0.1, magnet_rate=0.25, average_decay=0.9)
    learner = Learner(actor, params.training, temperature=0.8)
    start = WeightSnapshot.take(actor.policy).values
    batch = toy(turns["kuhn_poker"])
    assert update(learner, batch, params, step=0)["update/magnet_kl"] == approx(0, abs=1e-7)
    first = WeightSnapshot.take(actor.policy).values
    for name, value in learner.magnet.values.items():
        torch.testing.assert_close(value, start[name] + 0.25 * (first[name] - start[name]))
    assert learner.average.equals_weights_of(actor.policy)  # no untrained weight is in it
    assert update(learner, batch, params, step=1)["update/magnet_kl"] > 1e-6
    second = WeightSnapshot.take(actor.policy).values
    for name, value in learner.magnet.values.items():
        between = start[name] + 0.25 * (first[name] - start[name])
        torch.testing.assert_close(value, between + 0.25 * (second[name] - between))
    for name, value in learner.average.values.items():
        torch.testing.assert_close(value, (0.9 * first[name] + second[name]) / 1.9)


def test_schedules_run_from_their_first_to_their_last_value():
    section = training(
        max_steps=5, learning_rate=1.0, final_learning_rate=0.2, warmup_steps=1,
        entropy_coef=1.0, final_entropy_coef=0.0001,
    )  # fmt: skip
    steps = range(5)
    assert list(map(section.learning_rate_at, steps)) == approx([0.5, 0.8, 0.6, 0.4, 0.2])
    assert list(map(section.entropy_coef_at, steps)) == approx([1.0, 0.1, 0.01, 0.001, 0.0001])
    section = section.model_copy(update={"final_entropy_coef": 0.0})
    assert list(map(section.entropy_coef_at, steps)) == approx([1, 0.75, 0.5, 0.25, 0])


def test_a_mini_batch_without_turns_makes_no_step(cache_dir, turns):
    """The optimizer would follow former gradients."""
    batch = toy([turn for turn in turns["tic_tac_toe"] if turn.choices][:2])
    learner = learner_with(tiny_actor(cache_dir), num_mini_batches=5, num_epochs=3)
    loss = partial(spiral_loss, params=params_with(), step=0)
    sums, _ = learner.update(batch, loss, seed=0, step=0)
    assert sums["steps"] == 2 * 3
    before = WeightSnapshot.take(learner.actor.policy).values
    sums, metrics = learner.update(toy([]), loss, seed=0, step=1)  # only forced moves in all games
    assert not sums["steps"] and all(map(math.isfinite, metrics.values()))
    after = WeightSnapshot.take(learner.actor.policy).values
    assert all(torch.equal(before[name], after[name]) for name in before)

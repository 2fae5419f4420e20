"""One update does what its equation says, and leaves the weights alone where it cannot."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pytest import approx
from tiny_actor import assert_same_gradients, played, tiny_actor, training
from tiny_policy import add_dropout

from rlnb.errors import TrainingDiverged
from rlnb.policy.adapters import WeightSnapshot, trained_parameters
from rlnb.selfplay.acting import ActorCritic
from rlnb.selfplay.rollouts import Turn, collect_trajectories, collect_turns
from rlnb.selfplay.update import (
    Batch,
    Coefficients,
    Learner,
    LogprobsBefore,
    PpoOptions,
    check_first_ratio,
    compute_logprobs_before,
    make_batch,
    optimizer_step,
    schedule,
    update,
)

# Games whose ids have one token, two (one beginning another), and answers of three free tokens.
KINDS = {"kuhn_poker": False, "nim": False, "tic_tac_toe": True}
# Short enough for each step to do what its gradient says, whatever the weights.
SMALL_STEPS = {"learning_rate": 2e-6, "final_learning_rate": 2e-6}


@pytest.fixture(scope="module")
def turns(cache_dir) -> dict[str, list[Turn]]:
    actor = tiny_actor(cache_dir)
    games = {name: played(actor, name, 4, free=is_free) for name, is_free in KINDS.items()}
    return {name: collect_turns(collect_trajectories(some)) for name, some in games.items()}


def toy(turns: list[Turn], **changes: np.ndarray) -> Batch:
    """Return a batch with random advantages, targets and weights, unless they are given."""
    source = np.random.default_rng(0)
    advantages, targets = source.normal(size=(2, len(turns)))
    weights = source.choice([0.0, 0.5, 1.0], size=len(turns))
    return make_batch(turns, **{"advantages": advantages, "targets": targets, "weights": weights, **changes})


def learner_with(
    actor: ActorCritic, *, loss_tokens: int = 1, init_kl_coef: float = 0.0, **options
) -> Learner:
    """Options: fields of the section `training`."""
    ppo = PpoOptions(init_kl_coef=init_kl_coef)
    return Learner(actor, training(**options), temperature=0.8, loss_tokens=loss_tokens, ppo=ppo)


def move(actor: ActorCritic, *, seed: int, scale: float = 0.02) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in actor.parameters_to_train():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))


def held(actor: ActorCritic) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in actor.parameters_to_train()]


def is_unmoved(actor: ActorCritic, weights: list[torch.Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(held(actor), weights, strict=True))


def gradients(learner: Learner, batch, before: LogprobsBefore, *, entropy: float = 0.0):
    """Loss and gradient of a step on the whole batch; the step itself is of length 0."""
    for group in learner.optimizer.param_groups:
        group["lr"] = 0.0
    rows = list(range(len(batch.sequences)))
    metrics = optimizer_step(learner, batch, before, rows, Coefficients(0.0, entropy), is_first=False)
    return metrics["loss"], [
        parameter.grad.numpy().copy() for parameter in learner.actor.parameters_to_train()
    ]


def same(actual, expected) -> None:
    assert actual[0] == approx(expected[0], abs=1e-6, rel=1e-5)
    assert_same_gradients(actual[1], expected[1])


@pytest.mark.parametrize("name", KINDS)
def test_gradients_are_the_same_by_any_passes_and_a_magnet_pulls_as_a_reference(cache_dir, turns, name):
    """tests/ppo/test_ppo_update.py compares all other terms with a plain implementation."""
    batch = toy([turn for turn in turns[name] if turn.choices])
    actor = tiny_actor(cache_dir, has_value=True)
    learner = learner_with(actor, loss_tokens=3, magnet_coef=0.3, clip=0.02)
    read = learner.compute_logprobs(batch)
    move(actor, seed=1)
    before = LogprobsBefore(read, learner.compute_logprobs(batch), None)
    move(actor, seed=2, scale=0.005)
    expected = gradients(learner, batch, before, entropy=0.1)
    learner.training = learner.training.model_copy(update={"tokens_per_pass": 1, "magnet_coef": 0.0})
    learner.kl_coef = 0.3
    as_reference = LogprobsBefore(before.policy, None, before.magnet)
    same(gradients(learner, batch, as_reference, entropy=0.1), expected)
    learner.kl_coef = 0.0
    assert gradients(learner, batch, as_reference)[0] != approx(expected[0], abs=1e-3)


@pytest.mark.parametrize("which", ["advantages", "targets"])
def test_a_loss_that_is_no_number_stops_the_run_with_the_weights_as_they_were(cache_dir, turns, which):
    numbers = {"weights": np.ones(len(turns["kuhn_poker"])), which: np.full(len(turns["kuhn_poker"]), np.nan)}
    actor = tiny_actor(cache_dir, has_value=True)
    learner, weights = learner_with(actor), held(actor)
    with pytest.raises(TrainingDiverged, match="the loss is nan"):
        update(learner, toy(turns["kuhn_poker"], **numbers), step=0, seed=0)
    assert is_unmoved(actor, weights)
    assert not learner.optimizer.state


def test_a_model_that_reads_otherwise_in_training_is_found_before_the_first_step(cache_dir, turns):
    actor = tiny_actor(cache_dir, lora_rank=4)
    add_dropout(actor.policy, 0.5)
    move(actor, seed=4, scale=0.3)
    actor.policy.model.train()
    learner, weights = learner_with(actor), held(actor)
    with pytest.raises(TrainingDiverged, match=r"before the first step .* model\.attention"):
        update(learner, toy(turns["kuhn_poker"]), step=0, seed=0)
    assert is_unmoved(actor, weights)


def test_the_first_ratios_of_bfloat16_may_be_those_that_were_measured():
    """SmolLM2, 600 tokens in batches of 6 and of 1: mean 0.043, largest 0.31, 7 beyond 0.2"""
    check_first_ratio({"tokens": 600.0, "ratio_gap": 600 * 0.043, "beyond_clip": 7.0}, torch.bfloat16)
    for sums in ({"ratio_gap": 600 * 0.2, "beyond_clip": 0.0}, {"ratio_gap": 12.0, "beyond_clip": 90.0}):
        with pytest.raises(TrainingDiverged, match=r"in bfloat16 .* model\.dtype = float32"):
            check_first_ratio({"tokens": 600.0, **sums}, torch.bfloat16)
    with pytest.raises(TrainingDiverged, match="in float32"):
        check_first_ratio({"tokens": 600.0, "ratio_gap": 600 * 0.043, "beyond_clip": 7.0}, torch.float32)


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
        before = compute_logprobs_before(learner, batch)
        counted = []
        layer.register_forward_pre_hook(lambda *_, counted=counted: counted.append(1))
        results[switch], passes[switch] = gradients(learner, batch, before), len(counted)
    assert passes[True] == 2 * passes[False] > 0
    same(results[True], results[False])


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_the_divergence_from_the_reference_is_0_at_the_start_and_grows(cache_dir, turns, lora_rank):
    actor = tiny_actor(cache_dir, lora_rank=lora_rank)
    learner = learner_with(actor, init_kl_coef=0.1, learning_rate=1e-2, final_learning_rate=1e-2)
    batch = toy(turns["kuhn_poker"])
    with learner.reference_applied():
        reference = learner.compute_logprobs(batch).logprobs.clone()
    steps = [update(learner, batch, step=step, seed=0)["kl"] for step in range(3)]
    assert steps[0] == approx(0, abs=1e-7)
    assert steps[2] > 1e-4
    with learner.reference_applied():
        assert torch.equal(learner.compute_logprobs(batch).logprobs, reference)
    assert not torch.allclose(learner.compute_logprobs(batch).logprobs, reference, atol=1e-3)


def test_average_and_magnet_go_a_share_of_the_way_to_the_new_weights(cache_dir, turns):
    actor = tiny_actor(cache_dir)
    learner = learner_with(actor, magnet_coef=0.1, magnet_rate=0.25, average_decay=0.9)
    start = WeightSnapshot.take(actor.policy).values
    batch = toy(turns["kuhn_poker"])
    assert update(learner, batch, step=0, seed=0)["update/magnet_kl"] == approx(0, abs=1e-7)
    first = WeightSnapshot.take(actor.policy).values
    for moved, rate in ((learner.average, 0.1), (learner.magnet, 0.25)):
        for name, value in moved.values.items():
            torch.testing.assert_close(value, start[name] + rate * (first[name] - start[name]))
    assert update(learner, batch, step=1, seed=0)["update/magnet_kl"] > 1e-6
    for name, value in learner.magnet.values.items():
        now = dict(trained_parameters(actor.policy))[name].detach()
        between = start[name] + 0.25 * (first[name] - start[name])
        torch.testing.assert_close(value, between + 0.25 * (now - between))


def test_schedules_run_from_their_first_to_their_last_value():
    section = training(
        max_steps=5, learning_rate=1.0, final_learning_rate=0.2, warmup_steps=1,
        entropy_coef=1.0, final_entropy_coef=0.0001,
    )  # fmt: skip
    coefficients = [schedule(section, step) for step in range(5)]
    assert [now.learning_rate for now in coefficients] == approx([0.5, 0.8, 0.6, 0.4, 0.2])
    assert [now.entropy for now in coefficients] == approx([1.0, 0.1, 0.01, 0.001, 0.0001])
    section = section.model_copy(update={"final_entropy_coef": 0.0})
    assert [schedule(section, step).entropy for step in range(5)] == approx([1, 0.75, 0.5, 0.25, 0])


def test_a_mini_batch_without_turns_makes_no_step(cache_dir, turns):
    """The optimizer would follow former gradients."""
    actor = tiny_actor(cache_dir, has_value=True)
    learner = learner_with(actor)
    batch = toy([turn for turn in turns["tic_tac_toe"] if turn.choices])
    before = LogprobsBefore(learner.compute_logprobs(batch), None, None)
    rows = list(range(len(batch.sequences)))
    optimizer_step(learner, batch, before, rows, Coefficients(0.0, 0.1), is_first=False)
    weights = held(actor)
    metrics = optimizer_step(learner, batch, before, [], Coefficients(0.0, 0.1), is_first=False)
    assert metrics == {}
    assert is_unmoved(actor, weights)

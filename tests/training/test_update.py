"""One update does what its equation says, and leaves the weights alone where it cannot."""

import copy
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from pytest import approx
from tiny_actor import assert_same_gradients, played, tiny_actor, training
from torch.distributions import Categorical, kl_divergence

from rlnb.errors import TrainingDiverged
from rlnb.policy.actor_critic import ActorCritic
from rlnb.policy.adapters import AdapterValues, adapters_of, adapters_off
from rlnb.training.batches import make_batch
from rlnb.training.update import (
    Before,
    Coefficients,
    Learner,
    optimizer_step,
    scheduled,
    trained_parameters,
    update,
)
from rlnb.trajectories import Choice, Turn, turns_of

# Games whose ids have one token, two (one beginning another), and answers of three free tokens.
KINDS = {"kuhn_poker": False, "nim": False, "tic_tac_toe": True}
# Short enough for each step to do what its gradient says, whatever the weights.
SMALL_STEPS = {"learning_rate": 2e-6, "final_learning_rate": 2e-6}


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def turns(cache_dir) -> dict[str, list[Turn]]:
    actor = tiny_actor(cache_dir)
    games = {name: played(actor, name, 4, free=is_free) for name, is_free in KINDS.items()}
    return {
        name: turns_of([one for game in some for one in game.trajectories]) for name, some in games.items()
    }


@dataclass(frozen=True)
class Toy:
    """Turns with numbers of no meaning: advantages, targets of values, weights."""

    turns: list[Turn]
    advantages: np.ndarray
    targets: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, turns: list[Turn]) -> "Toy":
        source = np.random.default_rng(0)
        advantages, targets = source.normal(size=(2, len(turns)))
        return cls(turns, advantages, targets, source.choice([0.0, 0.5, 1.0], size=len(turns)))

    def batch(self, **options):
        return make_batch(self.turns, self.advantages, self.targets, weights=self.weights, **options)


def learner_of(actor: ActorCritic, **options) -> Learner:
    """Of what `Learner.of` takes and of fields of the section `training`."""
    own = {name: options.pop(name) for name in ("value_coef", "loss_tokens", "kl_coef") if name in options}
    return Learner.of(actor, training(**options), temperature=0.8, **own)


def move(actor: ActorCritic, *, seed: int, scale: float = 0.02) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in trained_parameters(actor):
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))


def held(actor: ActorCritic) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in trained_parameters(actor)]


def gradients(learner: Learner, batch, before: Before, *, entropy: float = 0.0):
    """Loss and gradient of a step on the whole batch; the step itself is of length 0."""
    for group in learner.optimizer.param_groups:
        group["lr"] = 0.0
    rows = list(range(len(batch.rows)))
    found = optimizer_step(learner, batch, before, rows, Coefficients(0.0, entropy), is_first=False)
    return found["loss"], [one.grad.numpy().copy() for one in trained_parameters(learner.actor)]


def same(found, expected) -> None:
    assert found[0] == approx(expected[0], abs=1e-6, rel=1e-5)
    assert_same_gradients(found[1], expected[1])


def plain_reading(actor: ActorCritic, turn: Turn):
    """A distribution for each choice, the chosen one's log-probability, and the value of the prompt."""
    ids = torch.tensor([turn.prompt_ids + turn.completion_ids])
    output = actor.policy.model(input_ids=ids, output_hidden_states=True)
    found = []
    for choice in turn.choices:
        among = list(choice.allowed) or list(range(output.logits.shape[-1]))
        one = Categorical(logits=output.logits[0, choice.position - 1, among] / 0.8)
        found.append((one, one.logits[among.index(choice.token)]))
    state = output.hidden_states[-1][0, len(turn.prompt_ids) - 1]
    return found, actor.value_head(state)[0]


def plain_loss(learner: Learner, toy: Toy, old, magnet, *, entropy: float):
    """The loss of the whole batch, turn by turn and token by token, with its gradient."""
    section, total = learner.training, torch.zeros(())
    for k, turn in enumerate(toy.turns):
        now, value = plain_reading(learner.actor, turn)
        advantage, weight = float(toy.advantages[k]), float(toy.weights[k])
        ratios = [(own - was).exp() for (_, own), (_, was) in zip(now, old[k], strict=True)]
        if section.ratio == "turn":
            ratios = [torch.stack(ratios).prod()]
        for ratio in ratios:
            cut = torch.clip(ratio, 1 - section.clip, 1 + section.clip)
            total = total - weight * torch.min(ratio * advantage, cut * advantage)
        for (one, own), (other, others) in zip(now, magnet[k], strict=True):
            kl = kl_divergence(one, other) if turn.choices[0].allowed else 0.5 * (others - own) ** 2
            total = total + weight * (section.magnet_coef * kl - entropy * one.entropy())
        squared = (value - float(toy.targets[k])) ** 2
        total = total + weight * learner.loss_tokens * 0.5 * learner.value_coef * squared
    loss = total / (toy.weights.sum() * learner.loss_tokens)
    parameters = trained_parameters(learner.actor)
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return float(loss.detach()), [
        np.zeros(parameter.shape) if one is None else one.numpy()
        for one, parameter in zip(found, parameters, strict=True)
    ]


@pytest.mark.parametrize("ratio", ["token", "turn"])
@pytest.mark.parametrize("name", KINDS)
def test_loss_and_gradient_are_those_of_a_plain_implementation(cache_dir, turns, name, ratio):
    toy = Toy.of([one for one in turns[name] if one.choices])
    actor = tiny_actor(cache_dir, has_value=True)
    learner = learner_of(actor, value_coef=0.5, loss_tokens=3, magnet_coef=0.3, ratio=ratio, clip=0.02)
    with torch.no_grad():
        old = [plain_reading(actor, one)[0] for one in toy.turns]
    read = learner.read_all(toy.batch())
    move(actor, seed=1)
    with torch.no_grad():
        magnet = [plain_reading(actor, one)[0] for one in toy.turns]
    before = Before(read, learner.read_all(toy.batch()), None)
    move(actor, seed=2, scale=0.005)
    expected = plain_loss(learner, toy, old, magnet, entropy=0.1)
    same(gradients(learner, toy.batch(), before, entropy=0.1), expected)
    learner.training.tokens_per_pass = 1
    same(gradients(learner, toy.batch(), before, entropy=0.1), expected)
    same(gradients(learner, toy.batch(memo=False), before_without_memo(before, toy), entropy=0.1), expected)


def before_without_memo(before: Before, toy: Toy) -> Before:
    """The same readings where every turn has its own points."""
    points = torch.as_tensor(toy.batch().token_point)

    def spread(one):
        return one._replace(
            entropies=one.entropies[points], logprobs=None if one.logprobs is None else one.logprobs[points]
        )

    return Before(spread(before.policy), spread(before.magnet), None)


@pytest.mark.parametrize("name", KINDS)
def test_the_first_ratio_is_1_and_the_update_goes_the_way_of_the_advantages(cache_dir, turns, name):
    actor = tiny_actor(cache_dir, has_value=True)
    learner = learner_of(actor, num_epochs=2, num_mini_batches=2, **SMALL_STEPS)
    toy = Toy.of([one for one in turns[name] if one.choices])
    batch = replace(toy, weights=np.ones(len(toy.turns))).batch()
    before = learner.read_all(batch).token_logprobs
    metrics = update(learner, batch, step=0, seed=0)
    assert metrics["update/first_ratio_deviation"] < 1e-4
    gained = learner.read_all(batch).token_logprobs - before
    assert float((gained * torch.as_tensor(batch.advantages[batch.token_turn])).sum()) > 0


def test_on_answers_of_one_token_the_ratio_of_a_turn_is_that_of_its_token(cache_dir, turns):
    toy = Toy.of(turns["kuhn_poker"])
    actor = tiny_actor(cache_dir)
    found = []
    for ratio in ("token", "turn"):
        learner = learner_of(actor, ratio=ratio, clip=0.02)
        before = Before(learner.read_all(toy.batch()), None, None)
        snapshot = AdapterValues.of(actor.policy)
        move(actor, seed=3, scale=0.005)
        found.append(gradients(learner, toy.batch(), before))
        snapshot.put_into(actor.policy)
    same(*found)


def test_every_token_of_a_long_answer_weighs_what_one_of_a_short_answer_does(cache_dir):
    prompt, answer = tuple(range(40, 50)), tuple(range(20, 28))
    choices = tuple(Choice(len(prompt) + k, token) for k, token in enumerate(answer))
    actor = tiny_actor(cache_dir)
    learner = learner_of(actor, loss_tokens=8)

    def gradient(some: tuple[Choice, ...]):
        turn = Turn(prompt, answer, some, (), 0, (0,), 0)
        batch = make_batch([turn], np.ones(1), np.zeros(1))
        return gradients(learner, batch, Before(learner.read_all(batch), None, None), entropy=0.1)[1]

    whole, parts = gradient(choices), (gradient(choices[:2]), gradient(choices[2:]))
    assert_same_gradients(whole, [first + second for first, second in zip(*parts, strict=True)])
    assert max(np.abs(one).max() for one in parts[0]) > 1e-2


def test_turns_of_weight_0_add_nothing_and_count_nothing(cache_dir, turns):
    some = turns["nim"]
    toy = Toy.of(some)
    toy = replace(toy, weights=np.arange(len(some)) % 2.0)
    kept = Toy(*(one[1::2] for one in (some, toy.advantages, toy.targets, toy.weights)))
    learner = learner_of(tiny_actor(cache_dir, has_value=True), value_coef=0.5, magnet_coef=0.1)
    found = []
    for one in (toy, kept):
        read = learner.read_all(one.batch())
        found.append(gradients(learner, one.batch(), Before(read, read, None), entropy=0.1))
    same(*found)


@pytest.mark.parametrize("which", ["advantages", "targets"])
def test_a_loss_that_is_no_number_stops_the_run_with_the_weights_as_they_were(cache_dir, turns, which):
    toy = Toy.of(turns["kuhn_poker"])
    toy = replace(toy, weights=np.ones(len(toy.turns)), **{which: np.full(len(toy.turns), np.nan)})
    actor = tiny_actor(cache_dir, has_value=True)
    learner, weights = learner_of(actor, value_coef=0.5), held(actor)
    with pytest.raises(TrainingDiverged) as error:
        update(learner, toy.batch(), step=0, seed=0)
    assert str(error.value) == (
        "the loss is nan and its gradient's norm nan; "
        "lower training.learning_rate, or the coefficient that grew"
    )
    assert all(torch.equal(one, other) for one, other in zip(held(actor), weights, strict=True))
    assert not learner.optimizer.state


def test_a_model_that_reads_otherwise_in_training_is_found_before_the_first_step(cache_dir, turns):
    actor = tiny_actor(cache_dir, lora_rank=4, lora_dropout=0.5)
    move(actor, seed=4, scale=0.3)
    actor.policy.model.train()
    learner, weights = learner_of(actor), held(actor)
    with pytest.raises(TrainingDiverged) as error:
        update(learner, Toy.of(turns["kuhn_poker"]).batch(), step=0, seed=0)
    front, _, behind = str(error.value).partition(" away from 1: ")
    assert front.rpartition(" ")[0] == "before the first step of an update a ratio is"
    assert float(front.rpartition(" ")[2]) > 1e-3
    assert behind == (
        "the model reads the same turns otherwise than a moment ago; "
        "set model.lora_dropout = 0, or another model.attention"
    )
    assert all(torch.equal(one, other) for one, other in zip(held(actor), weights, strict=True))


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_the_divergence_from_the_reference_is_0_at_the_start_and_grows(cache_dir, turns, lora_rank):
    actor = tiny_actor(cache_dir, lora_rank=lora_rank)
    learner = learner_of(actor, kl_coef=0.1, learning_rate=1e-2, final_learning_rate=1e-2)
    batch = Toy.of(turns["kuhn_poker"]).batch()
    with learner.reference_at_work():
        reference = learner.read_all(batch).logprobs.clone()
    steps = [update(learner, batch, step=step, seed=0)["kl"] for step in range(3)]
    assert steps[0] == approx(0, abs=1e-7)
    assert steps[2] > 1e-4
    with learner.reference_at_work():
        assert torch.equal(learner.read_all(batch).logprobs, reference)
    assert not torch.allclose(learner.read_all(batch).logprobs, reference, atol=1e-3)


def test_the_base_of_adapters_is_untouched(cache_dir, turns):
    actor = tiny_actor(cache_dir, lora_rank=4)
    trained = {name for name, _ in adapters_of(actor.policy)}
    base = copy.deepcopy({n: p for n, p in actor.policy.model.named_parameters() if n not in trained})
    update(learner_of(actor, magnet_coef=0.1), Toy.of(turns["kuhn_poker"]).batch(), step=0, seed=0)
    after = dict(actor.policy.model.named_parameters())
    assert base and all(torch.equal(after[name], one) for name, one in base.items())
    with adapters_off(actor.policy):
        assert all("lora" in name for name in trained)


def test_average_and_magnet_go_a_share_of_the_way_to_the_new_weights(cache_dir, turns):
    actor = tiny_actor(cache_dir)
    learner = learner_of(actor, magnet_coef=0.1, magnet_rate=0.25, average_decay=0.9)
    start = AdapterValues.of(actor.policy).values
    batch = Toy.of(turns["kuhn_poker"]).batch()
    assert update(learner, batch, step=0, seed=0)["update/magnet_kl"] == approx(0, abs=1e-7)
    first = AdapterValues.of(actor.policy).values
    for moved, rate in ((learner.average, 0.1), (learner.magnet, 0.25)):
        for name, value in moved.values.items():
            torch.testing.assert_close(value, start[name] + rate * (first[name] - start[name]))
    assert update(learner, batch, step=1, seed=0)["update/magnet_kl"] > 1e-6
    for name, value in learner.magnet.values.items():
        now = dict(adapters_of(actor.policy))[name].detach()
        between = start[name] + 0.25 * (first[name] - start[name])
        torch.testing.assert_close(value, between + 0.25 * (now - between))


def test_without_advantages_and_terms_nothing_moves(cache_dir, turns):
    toy = Toy.of(turns["kuhn_poker"])
    actor = tiny_actor(cache_dir)
    weights = held(actor)
    metrics = update(learner_of(actor), replace(toy, advantages=0 * toy.advantages).batch(), step=0, seed=0)
    assert (metrics["loss"], metrics["grad_norm"]) == (0.0, 0.0)
    assert all(torch.equal(one, other) for one, other in zip(held(actor), weights, strict=True))


def test_an_entropy_bonus_alone_evens_the_probabilities_out(cache_dir, turns):
    toy = Toy.of(turns["kuhn_poker"])
    learner = learner_of(tiny_actor(cache_dir), entropy_coef=1.0, final_entropy_coef=1.0, **SMALL_STEPS)
    batch = replace(toy, advantages=0 * toy.advantages, weights=np.ones(len(toy.turns))).batch()
    entropies = [update(learner, batch, step=step, seed=0)["entropy"] for step in range(6)]
    assert entropies == sorted(entropies)
    assert entropies[0] + 1e-4 < entropies[-1] < np.log(2)


def test_the_share_of_clipped_tokens_counts_every_token_of_a_clipped_turn(cache_dir, turns):
    toy = Toy.of(turns["tic_tac_toe"])
    toy = replace(toy, weights=np.ones(len(toy.turns)))
    learner = learner_of(tiny_actor(cache_dir), ratio="turn", clip=0.0, num_epochs=2, **SMALL_STEPS)
    metrics = update(learner, toy.batch(), step=0, seed=0)
    assert metrics["update/clip_share"] > 0.3  # half of it: every turn of the second epoch


def test_schedules_run_from_their_first_to_their_last_value():
    section = training(
        max_steps=5, learning_rate=1.0, final_learning_rate=0.2, warmup_steps=1,
        entropy_coef=1.0, final_entropy_coef=0.0001,
    )  # fmt: skip
    found = [scheduled(section, step) for step in range(5)]
    assert [one.learning_rate for one in found] == approx([0.5, 0.8, 0.6, 0.4, 0.2])
    assert [one.entropy for one in found] == approx([1.0, 0.1, 0.01, 0.001, 0.0001])
    section.final_entropy_coef = 0.0
    assert [scheduled(section, step).entropy for step in range(5)] == approx([1, 0.75, 0.5, 0.25, 0])


def test_mini_batches_weigh_every_turn_alike(cache_dir, turns):
    """Whatever mini-batch a turn falls into, its term is divided by the same."""
    toy = Toy.of([one for one in turns["tic_tac_toe"] if one.choices])
    learner = learner_of(tiny_actor(cache_dir, has_value=True), value_coef=0.5)
    batch = toy.batch()
    before = Before(learner.read_all(batch), None, None)
    learner.optimizer.param_groups[0]["lr"] = 0.0
    rows = list(range(len(batch.rows)))

    def loss(chosen: list[int], *, num_mini_batches: int) -> float:
        learner.training.num_mini_batches = num_mini_batches
        found = optimizer_step(learner, batch, before, chosen, Coefficients(0.0, 0.1), is_first=False)
        return found["loss"]

    halves = loss(rows[:1], num_mini_batches=2) + loss(rows[1:], num_mini_batches=2)
    assert halves / 2 == approx(loss(rows, num_mini_batches=1), abs=1e-6)


def test_a_mini_batch_without_turns_makes_no_step(cache_dir, turns):
    """The optimizer would follow former gradients."""
    toy = Toy.of([one for one in turns["tic_tac_toe"] if one.choices])
    learner = learner_of(tiny_actor(cache_dir, has_value=True), value_coef=0.5)
    batch = toy.batch()
    before = Before(learner.read_all(batch), None, None)
    rows = list(range(len(batch.rows)))
    optimizer_step(learner, batch, before, rows, Coefficients(0.0, 0.1), is_first=False)
    weights = AdapterValues.of(learner.actor.policy).values
    found = optimizer_step(learner, batch, before, [], Coefficients(0.0, 0.1), is_first=False)
    assert found == {"ratio_deviation": 0.0}
    now = AdapterValues.of(learner.actor.policy).values
    assert all(torch.equal(now[name], one) for name, one in weights.items())

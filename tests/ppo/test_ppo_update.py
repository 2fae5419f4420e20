"""With PPO's own terms an update equals a plain PPO, loss, gradients and weights; then each term by itself.

The reference stands in tests/ppo_reference.py. A small recurrent network takes the place of the language
model; in float64 what is left is an error of the equations, not of rounding.
"""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ppo_reference import PlainPpo, Sample, Seen, terms_of
from pytest import approx
from tiny_actor import played, small_actor

from rlnb.ppo import training as ppo_training
from rlnb.ppo.params import PpoTrainingParams
from rlnb.ppo.training import KL_TARGET, VALUE_COEF, adapt_kl_coef, ppo_loss, squared_value_errors, update
from rlnb.selfplay.batch import ADAM_BETAS, MAX_FIRST_DEVIATION, Batch, Learner, compute_logprobs, make_batch
from rlnb.selfplay.rollouts import Choice, Turn, collect_trajectories, collect_turns

# A toy; real positions, answered by one token, by up to three of which some begin others, by three free ones.
KINDS = ("two states", "tic_tac_toe", "nim", "free tic_tac_toe")
EVERYTHING = {
    "learning_rate": 0.02, "final_learning_rate": 0.005, "value_learning_rate": 0.1, "warmup_steps": 1,
    "max_steps": 4, "num_epochs": 3, "num_mini_batches": 2, "max_grad_norm": 0.5, "weight_decay": 0.1,
    "entropy_coef": 0.1, "final_entropy_coef": 0.1, "clip": 0.05, "detach_steps": 1,
    "init_kl_coef": 0.3, "target_kl": 0.0, "tokens_per_pass": 64,
}  # fmt: skip
# What the plain PPO reads besides: constants of rlnb, and a value clip that decides something here.
CONSTANTS = {
    "temperature": 0.8, "loss_tokens": 1, "value_coef": VALUE_COEF, "value_clip": 0.05,
    "adam_beta2": ADAM_BETAS[1], "kl_target": KL_TARGET,
}  # fmt: skip


@pytest.fixture
def float64(monkeypatch):
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    monkeypatch.setitem(MAX_FIRST_DEVIATION, torch.float64, 1e-9)  # no policy is float64
    monkeypatch.setattr(ppo_training, "VALUE_CLIP", CONSTANTS["value_clip"])
    yield
    torch.set_default_dtype(usual)


def turns_of_kind(kind: str) -> list[Turn]:
    if kind == "two states":
        taken = [(10, 20), (10, 21), (11, 20), (11, 20), (11, 21), (10, 20)]
        return [
            Turn((state,), (token,), (Choice(1, token, (20, 21)),), (), 0, (0, 1), 0)
            for state, token in taken
        ]
    games = played(small_actor(), kind.removeprefix("free "), 2)
    turns = collect_turns(collect_trajectories(games))
    if not kind.startswith("free"):
        return turns
    letters = np.random.default_rng(0).integers(32, 128, size=(len(turns), 3)).tolist()
    return [
        turn._replace(
            completion_ids=tuple(ids),
            choices=tuple(Choice(len(turn.prompt_ids) + k, token) for k, token in enumerate(ids)),
        )
        for turn, ids in zip(turns, letters, strict=True)
    ]


def samples_of(turns: list[Turn]) -> list[Sample]:
    """Return samples with random advantages, targets and weights."""
    source = np.random.default_rng(0)
    advantages, targets = source.normal(size=(2, len(turns)))
    weights = source.choice([0.0, 0.5, 1.0], size=len(turns), p=[0.1, 0.3, 0.6])
    columns = (advantages.tolist(), targets.tolist(), weights.tolist())
    return [Sample(*row) for row in zip(turns, *columns, strict=True)]


def batch_of(samples: list[Sample]) -> Batch:
    turns, *columns = zip(*samples, strict=True)
    advantages, targets, weights = map(np.array, columns)
    return make_batch(turns, advantages, targets, weights=weights)


@dataclass
class Pair:
    """rlnb's learner and the plain one, with equal networks."""

    learner: Learner
    plain: PlainPpo

    @classmethod
    def of(cls, **changes) -> "Pair":
        section, actor = PpoTrainingParams(**EVERYTHING | changes), small_actor()
        rate = section.value_learning_rate
        learner = Learner(actor, section, temperature=0.8, value_learning_rate=rate, has_reference=True)
        settings = SimpleNamespace(**section.model_dump() | CONSTANTS)
        return cls(learner, PlainPpo(actor.policy.model, actor.value_head, settings))

    @property
    def weights(self) -> list[torch.Tensor]:
        return [parameter.detach() for parameter in self.learner.actor.parameters_to_train()]

    def move(self, *, seed: int, scale: float) -> None:
        generator = torch.Generator().manual_seed(seed)
        for weight, other in zip(self.weights, self.plain.parameters, strict=True):
            weight.add_(scale * torch.randn(weight.shape, generator=generator, dtype=torch.float32))
            other.data.copy_(weight)


def largest_gap(some, others) -> float:
    return max(float((first - second).abs().max()) for first, second in zip(some, others, strict=True))


def clip_where_it_decides(pair: Pair, samples: list[Sample], old: list[Seen], monkeypatch) -> None:
    """Set both clips so that some ratios and values have gone further, and none just as far."""
    seen = [(pair.plain.see(sample.turn), was) for sample, was in zip(samples, old, strict=True)]
    moved = [float(abs(now.value - was.value)) for now, was in seen]
    ratios = [float((sum(now.taken) - sum(was.taken)).expm1().abs()) for now, was in seen if now.taken]
    clip, value_clip = between(ratios), between(moved)
    pair.plain.settings.clip, pair.plain.settings.value_clip = clip, value_clip
    monkeypatch.setattr(ppo_training, "VALUE_CLIP", value_clip)
    pair.learner.training = pair.learner.training.model_copy(update={"clip": clip, "num_mini_batches": 1})
    assert min(moved) < value_clip < max(moved)


def between(numbers: list[float]) -> float:
    """The middle of the widest gap in their middle half."""
    middle = np.sort(numbers)[len(numbers) // 4 : 3 * len(numbers) // 4 + 1]
    place = np.diff(middle).argmax()
    return float(middle[place : place + 2].mean())


@pytest.mark.parametrize("detached", [False, True], ids=["whole", "detached"])
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradient_are_those_of_a_plain_ppo(float64, monkeypatch, kind, detached):
    pair = Pair.of()
    learner, plain, samples = pair.learner, pair.plain, samples_of(turns_of_kind(kind))
    batch = batch_of(samples)
    pair.move(seed=1, scale=0.05)
    before, anchor = learner.compute_logprobs(batch), learner.compute_anchor_logprobs(batch)
    with torch.no_grad():
        old = [plain.see(sample.turn) for sample in samples]
        reference = [plain.see(sample.turn, network=plain.reference) for sample in samples]
        pair.move(seed=2, scale=0.03)
        clip_where_it_decides(pair, samples, old, monkeypatch)
    now = compute_logprobs(learner.actor, batch, temperature=learner.temperature, detach_trunk=detached)
    coefficients = {"training": learner.training, "step": 0, "kl_coef": plain.kl_coef}
    ours, figures = ppo_loss(now, before, anchor, batch, **coefficients)
    ours = ours / batch.weights_b.sum()
    ours.backward()

    loss = torch.tensor(0.0)
    for k, sample in enumerate(samples):
        now = plain.see(sample.turn, detached=detached)
        terms = terms_of(sample, now, old[k], reference[k], plain.kl_coef, plain.settings)
        loss = loss + sample.weight * terms.loss / sum(sample.weight for sample in samples)
    loss.backward()
    gradients = [parameter.grad for parameter in learner.actor.parameters_to_train()]
    assert float(ours.detach()) == approx(float(loss.detach()), abs=1e-6)
    assert largest_gap(gradients, [parameter.grad for parameter in plain.parameters]) < 1e-6
    taught = plain.network.unembed.weight, plain.network.base_model.embed.weight, plain.head.weight
    assert min(float(weight.grad.abs().max()) for weight in taught) > 1e-3
    assert 0 < figures["clipped"] < figures["tokens"]


@pytest.mark.parametrize("target_kl", [0.0, 0.004], ids=["all steps", "ended early"])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_after_whole_updates_are_those_of_a_plain_ppo(float64, kind, target_kl):
    pair = Pair.of(target_kl=target_kl)
    learner, plain, samples = pair.learner, pair.plain, samples_of(turns_of_kind(kind))
    batch, section = batch_of(samples), pair.learner.training
    start = [weight.clone() for weight in pair.weights]
    coefs, counts = [section.init_kl_coef], []
    for step in range(3):
        generator = np.random.default_rng((7, step, 0))
        order = [
            part.indices_b.tolist()
            for _ in range(section.num_epochs)
            for part in batch.mini_batches(section.num_mini_batches, generator=generator)
        ]
        rate = section.learning_rate_at(step)
        counts.append(plain.update(samples, order, step=step, learning_rate=rate))
        metrics, kl_coef = update(learner, batch, seed=7, step=step, kl_coef=coefs[-1])
        assert metrics["update/kl_coef"] == coefs[-1]
        assert metrics.get("update/num_steps", 6) == counts[-1]
        assert kl_coef == approx(plain.kl_coef, abs=1e-9)
        coefs.append(kl_coef)
        assert largest_gap(pair.weights, plain.parameters) < 1e-6
    assert largest_gap(pair.weights, start) > 0.01
    assert len(set(coefs)) == 4
    assert (min(counts) < 6) == bool(target_kl)


def test_a_value_that_has_gone_far_enough_learns_no_more():
    values = torch.tensor([0.5, 0.5, 0.1, -0.5], requires_grad=True)
    targets = torch.tensor([1.0, 0.0, 1.0, 1.0])
    # From 0 up to 0.2: (0.2-1)^2 > (0.5-1)^2; back at 0 the plain one is larger; not clipped; away from 1.
    each = squared_value_errors(values, torch.zeros(4), targets)
    assert each.tolist() == approx([0.64, 0.25, 0.81, 2.25])
    each.sum().backward()
    assert values.grad.tolist() == approx([0.0, 1.0, -1.8, -3.0])


def test_the_weight_of_the_divergence_follows_it_by_two_percent_at_most():
    # 0.05 * (1 + 0.1 * error), the error within 0.2: 0.0525/0.05 - 1 = 0.05, then 0.2 and -0.2.
    coefs = [adapt_kl_coef(0.05, kl, first=0.05) for kl in (0.05, 0.0525, 0.06, 5.0, 0.0)]
    assert coefs == approx([0.05, 0.05025, 0.051, 0.051, 0.049])
    assert adapt_kl_coef(0.0005, 0.0, first=0.05) == 0.0005  # a hundredth of the first

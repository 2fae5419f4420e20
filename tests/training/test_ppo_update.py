"""With PPO's own terms an update equals a plain PPO, loss, gradients and weights; then each term by itself.

The reference stands in tests/ppo_reference.py. A small recurrent network takes the place of the language
model; in float64 what is left is an error of the equations, not of rounding.
"""

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ppo_ranks_run import trained_on_own_games
from ppo_reference import PlainPpo, Sample, Seen, terms_of
from pytest import approx
from small_actor import small_actor
from tiny_actor import played, training

from rlnb.metrics import describe
from rlnb.params.ppo_openspiel import PpoOpenspielParams, PpoTrainingParams
from rlnb.training.adaptive_kl import next_kl_coef
from rlnb.training.batches import Batch, make_batch
from rlnb.training.losses import squared_errors
from rlnb.training.self_play_checkpoints import load_checkpoint, save_checkpoint
from rlnb.training.spiral import SelfPlayState
from rlnb.training.update import (
    Coefficients,
    Learner,
    PpoTerms,
    optimizer_step,
    read_before,
    scheduled,
    trained_parameters,
    update,
)
from rlnb.trajectories import Choice, Turn, turns_of

TESTS = Path(__file__).parents[1]
# A toy; real positions, answered by one token, by up to three of which some begin others, by three free ones.
KINDS = ("two states", "tic_tac_toe", "nim", "free tic_tac_toe")
EVERYTHING = {
    "learning_rate": 0.02, "final_learning_rate": 0.005, "value_learning_rate": 0.1, "warmup_steps": 1,
    "max_steps": 4, "num_epochs": 3, "num_mini_batches": 2, "max_grad_norm": 0.5, "weight_decay": 0.1,
    "entropy_coef": 0.1, "final_entropy_coef": 0.1, "value_clip": 0.05, "clip": 0.05, "detach_steps": 1,
    "init_kl_coef": 0.3, "kl_target": 0.004, "target_kl": 0.0, "tokens_per_pass": 64,
}  # fmt: skip


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def either_precision(request, monkeypatch):
    yield from in_precision(request.param, monkeypatch)


@pytest.fixture
def float64(monkeypatch):
    yield from in_precision(torch.float64, monkeypatch)


def in_precision(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    monkeypatch.setitem(update.__globals__["FIRST_RATIO"], torch.float64, 1e-9)  # no policy is float64
    yield dtype
    torch.set_default_dtype(usual)


def turns_of_kind(kind: str) -> list[Turn]:
    if kind == "two states":
        taken = [(10, 20), (10, 21), (11, 20), (11, 20), (11, 21), (10, 20)]
        return [
            Turn((state,), (token,), (Choice(1, token, (20, 21)),), (), 0, (0, 1), 0)
            for state, token in taken
        ]
    games = played(small_actor(), kind.removeprefix("free "), 2)
    turns = turns_of([one for game in games for one in game.trajectories])
    if not kind.startswith("free"):
        return turns
    letters = np.random.default_rng(0).integers(32, 128, size=(len(turns), 3)).tolist()
    return [
        replace(
            turn,
            completion_ids=tuple(ids),
            choices=tuple(Choice(len(turn.prompt_ids) + k, token) for k, token in enumerate(ids)),
        )
        for turn, ids in zip(turns, letters, strict=True)
    ]


def samples_of(turns: list[Turn]) -> list[Sample]:
    """With numbers of no meaning."""
    source = np.random.default_rng(0)
    advantages, targets = source.normal(size=(2, len(turns)))
    weights = source.choice([0.0, 0.5, 1.0], size=len(turns), p=[0.1, 0.3, 0.6])
    columns = (advantages.tolist(), targets.tolist(), weights.tolist())
    return [Sample(*one) for one in zip(turns, *columns, strict=True)]


def batch_of(samples: list[Sample]) -> Batch:
    turns, *columns = zip(*samples, strict=True)
    advantages, targets, weights = (np.array(one, dtype=torch.zeros(0).numpy().dtype) for one in columns)
    batch = make_batch(turns, advantages, targets, weights=weights)
    return replace(batch, advantages=advantages, targets=targets, weights=weights)


@dataclass
class Pair:
    """rlnb's learner and the plain one, with equal networks."""

    learner: Learner
    plain: PlainPpo

    @classmethod
    def of(cls, *, value_coef: float = 0.5, loss_tokens: int = 3, **changes) -> "Pair":
        section = PpoTrainingParams(**EVERYTHING | changes)
        actor = small_actor()
        own = {"temperature": 0.8, "value_coef": value_coef, "loss_tokens": loss_tokens}
        asked = SimpleNamespace(**section.model_dump() | own)
        return cls(
            ppo_learner(section, actor, value_coef=value_coef, loss_tokens=loss_tokens),
            PlainPpo(actor.policy.model, actor.value_head, asked),
        )

    @property
    def own(self) -> list[torch.Tensor]:
        return [one.detach() for one in trained_parameters(self.learner.actor)]

    def move(self, *, seed: int, scale: float) -> None:
        generator = torch.Generator().manual_seed(seed)
        for one, other in zip(self.own, self.plain.parameters, strict=True):
            one.add_(scale * torch.randn(one.shape, generator=generator, dtype=torch.float32))
            other.data.copy_(one)


def ppo_learner(section: PpoTrainingParams, actor, *, value_coef: float = 0.5, loss_tokens: int = 1):
    terms = PpoTerms(
        value_learning_rate=section.value_learning_rate, value_clip=section.value_clip,
        detach_steps=section.detach_steps, target_kl=section.target_kl, kl_target=section.kl_target,
    )  # fmt: skip
    return Learner.of(
        actor, section, temperature=0.8, value_coef=value_coef, loss_tokens=loss_tokens,
        kl_coef=section.init_kl_coef, terms=terms,
    )  # fmt: skip


def largest_gap(some, others) -> float:
    return max(float((one - other).abs().max()) for one, other in zip(some, others, strict=True))


def clip_where_it_decides(pair: Pair, samples: list[Sample], old: list[Seen]) -> None:
    """Set both clips so that some ratios and values have gone further, and none just as far."""
    now = [pair.plain.see(one.turn) for one in samples]
    moved = [float(abs(one.value - was.value)) for one, was in zip(now, old, strict=True)]
    ratios = [
        float((sum(one.taken) - sum(was.taken)).expm1().abs())
        for one, was in zip(now, old, strict=True)
        if one.taken
    ]
    clip, value_clip = between(ratios), between(moved)
    pair.plain.asked.clip, pair.plain.asked.value_clip = clip, value_clip
    pair.learner.terms = replace(pair.learner.terms, value_clip=value_clip)
    pair.learner.training = pair.learner.training.model_copy(update={"clip": clip, "num_mini_batches": 1})
    assert min(moved) < value_clip < max(moved)


def between(numbers: list[float]) -> float:
    """The middle of the widest gap in their middle half."""
    middle = np.sort(numbers)[len(numbers) // 4 : 3 * len(numbers) // 4 + 1]
    place = np.diff(middle).argmax()
    return float(middle[place : place + 2].mean())


@pytest.mark.parametrize("detached", [False, True], ids=["whole", "detached"])
@pytest.mark.parametrize("ratio", ["turn", "token"])
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradient_are_those_of_a_plain_ppo(either_precision, kind, ratio, detached):
    pair = Pair.of(ratio=ratio, max_grad_norm=1e9)
    learner, plain, samples = pair.learner, pair.plain, samples_of(turns_of_kind(kind))
    batch = batch_of(samples)
    pair.move(seed=1, scale=0.05)
    before = read_before(learner, batch)
    with torch.no_grad():
        old = [plain.see(one.turn) for one in samples]
        reference = [plain.see(one.turn, network=plain.reference) for one in samples]
        pair.move(seed=2, scale=0.03)
        clip_where_it_decides(pair, samples, old)
    learner.set_learning_rates(0.0)
    coefficients = Coefficients(0.0, 0.1, detach_trunk=detached)
    found = optimizer_step(learner, batch, before, list(range(len(batch.rows))), coefficients, is_first=False)

    loss = torch.tensor(0.0)
    for k, sample in enumerate(samples):
        now = plain.see(sample.turn, detached=detached)
        one = terms_of(sample, now, old[k], reference[k], plain.kl_coef, plain.asked)
        loss = loss + sample.weight * one.loss / sum(one.weight for one in samples)
    loss.backward()
    gradients = [one.grad for one in trained_parameters(learner.actor)]
    assert found["loss"] == approx(float(loss.detach()), abs=1e-6)
    assert largest_gap(gradients, [one.grad for one in plain.parameters]) < 1e-6
    taught = plain.network.unembed.weight, plain.network.base_model.embed.weight, plain.head.weight
    assert min(float(one.grad.abs().max()) for one in taught) > 1e-3
    assert 0 < found["clipped"] < found["tokens"]


@pytest.mark.parametrize("target_kl", [0.0, 0.004], ids=["all steps", "ended early"])
@pytest.mark.parametrize("ratio", ["turn", "token"])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_after_whole_updates_are_those_of_a_plain_ppo(float64, kind, ratio, target_kl):
    pair = Pair.of(ratio=ratio, target_kl=target_kl)
    learner, plain, samples = pair.learner, pair.plain, samples_of(turns_of_kind(kind))
    batch, section, start = batch_of(samples), pair.learner.training, [one.clone() for one in pair.own]
    coefs, counts = [learner.kl_coef], []
    for step in range(3):
        generator = np.random.default_rng((7, step, 0))
        order = [
            np.flatnonzero(np.isin(batch.turn_row, rows)).tolist()
            for _ in range(section.num_epochs)
            for rows in batch.mini_batches(section.num_mini_batches, generator=generator)
        ]
        rate = scheduled(section, step).learning_rate
        counts.append(plain.update(samples, order, step=step, learning_rate=rate))
        metrics = update(learner, batch, step=step, seed=7)
        assert metrics["update/kl_coef"] == coefs[-1]
        assert metrics.get("update/num_steps", 6) == counts[-1]
        assert learner.kl_coef == approx(plain.kl_coef, abs=1e-9)
        coefs.append(learner.kl_coef)
        assert largest_gap(pair.own, plain.parameters) < 1e-6
    assert largest_gap(pair.own, start) > 0.01
    assert len(set(coefs)) == 4
    assert (min(counts) < 6) == bool(target_kl)


def test_a_value_that_has_gone_far_enough_learns_no_more():
    values = torch.tensor([0.5, 0.5, 0.1, -0.5], requires_grad=True)
    targets = torch.tensor([1.0, 0.0, 1.0, 1.0])
    # From 0 up to 0.2: (0.2-1)^2 > (0.5-1)^2; back at 0 the plain one is larger; not clipped; away from 1.
    each = squared_errors(values, torch.zeros(4), targets, clip=0.2)
    assert each.tolist() == approx([0.64, 0.25, 0.81, 2.25])
    each.sum().backward()
    assert values.grad.tolist() == approx([0.0, 1.0, -1.8, -3.0])
    assert squared_errors(values, torch.zeros(4), targets, clip=0).tolist() == approx(
        [0.25, 0.25, 0.81, 2.25]
    )


def test_the_weight_of_the_divergence_follows_it_by_two_percent_at_most():
    # 0.05 * (1 + 0.1 * error), the error within 0.2: 0.0525/0.05 - 1 = 0.05, then 0.2 and -0.2.
    found = [next_kl_coef(0.05, kl, target=0.05, first=0.05) for kl in (0.05, 0.0525, 0.06, 5.0, 0.0)]
    assert found == approx([0.05, 0.05025, 0.051, 0.051, 0.049])
    assert next_kl_coef(0.0, 5.0, target=0.05, first=0.0) == 0


def test_the_weight_of_the_divergence_stays_above_a_hundredth_of_its_first():
    weight = 0.05
    for _ in range(5000):  # of updates that the policy hardly moves in
        weight = next_kl_coef(weight, 0.0, target=0.05, first=0.05)
    assert weight == approx(0.0005)
    assert next_kl_coef(weight, 5.0, target=0.05, first=0.05) == approx(0.00051)


def toy() -> Batch:
    return batch_of(samples_of(turns_of_kind("two states")))


def test_the_weight_of_the_divergence_stays_where_no_target_is_set():
    learner = Pair.of(kl_target=0.0).learner
    found = [update(learner, toy(), step=step, seed=0) for step in range(2)]
    assert [one["update/kl_coef"] for one in found] == [0.3, 0.3]
    assert found[1]["kl"] > 1e-4 and learner.kl_coef == 0.3


def test_an_update_ends_after_the_mini_batch_that_shows_that_it_has_gone_too_far():
    """The first sees no distance; the second sees that of the first step, makes its own, and is the last."""
    ended = Pair.of(target_kl=1e-9, num_epochs=5, num_mini_batches=1)
    short = Pair.of(num_epochs=2, num_mini_batches=1)
    assert update(ended.learner, toy(), step=0, seed=0)["update/num_steps"] == 2
    assert "update/num_steps" not in update(short.learner, toy(), step=0, seed=0)
    assert all(torch.equal(*pair) for pair in zip(ended.own, short.own, strict=True))
    far = Pair.of(target_kl=1e9, num_epochs=5, num_mini_batches=1)
    assert update(far.learner, toy(), step=0, seed=0)["update/num_steps"] == 5
    assert largest_gap(far.own, short.own) > 1e-3


def test_in_the_first_updates_a_value_teaches_its_head_alone():
    samples = [one._replace(advantage=0.0) for one in samples_of(turns_of_kind("two states"))]
    silent = {"entropy_coef": 0.0, "final_entropy_coef": 0.0, "init_kl_coef": 0.0, "weight_decay": 0.0}
    pair = Pair.of(**silent, detach_steps=2)
    *network, weight, bias = [one.clone() for one in pair.own]
    for step in (0, 1):
        update(pair.learner, batch_of(samples), step=step, seed=0)
        *now, now_weight, now_bias = pair.own
        assert all(torch.equal(*one) for one in zip(network, now, strict=True))
        assert not torch.equal(weight, now_weight) and not torch.equal(bias, now_bias)
    update(pair.learner, batch_of(samples), step=2, seed=0)
    assert largest_gap(network, pair.own[:-2]) > 1e-3


def test_the_head_has_its_own_learning_rate_on_the_same_course():
    learner = Pair.of().learner
    for step, rate in ((0, 0.01), (1, 0.015), (3, 0.005)):  # half of it in the warm-up, then down to 0.005
        assert update(learner, toy(), step=step, seed=0)["learning_rate"] == approx(rate)
        assert [group["lr"] for group in learner.optimizer.param_groups] == approx([rate, 5 * rate])
    head = [id(one) for one in learner.actor.value_head.parameters()]
    assert [id(one) for one in learner.optimizer.param_groups[1]["params"]] == head


def test_without_its_terms_an_update_is_the_one_of_self_play():
    """One group, no further figures, nothing that moves."""
    learner = Learner.of(small_actor(), training(), temperature=1.0, value_coef=0.5)
    metrics = update(learner, toy(), step=0, seed=0)
    assert len(learner.optimizer.param_groups) == 1
    assert not {"kl", "update/kl_coef", "update/num_steps"} & set(metrics)
    assert all(describe(name) for name in (*metrics, "update/kl_coef", "update/num_steps"))


def test_shares_of_weighted_turns_are_means_over_their_weight():
    """Half the weight for all is the same divergence, and the same error of values."""
    samples = [one._replace(weight=1.0) for one in samples_of(turns_of_kind("tic_tac_toe"))]
    found = []
    for weight in (1.0, 0.5):
        learner = Pair.of(weight_decay=0.0).learner
        batch = batch_of([one._replace(weight=weight) for one in samples])
        found.append(update(learner, batch, step=0, seed=0))
    for name in ("kl", "update/value_loss", "update/approx_kl", "loss"):
        assert found[0][name] == approx(found[1][name], rel=1e-4), name
        assert found[0][name] != 0


def test_a_checkpoint_holds_the_weight_of_the_divergence_where_it_moves(tmp_path):
    params = PpoOpenspielParams()
    for kl_target, expected in ((1.0, 0.294), (0.0, 0.3)):
        learner = Pair.of(kl_target=kl_target).learner
        update(learner, toy(), step=0, seed=0)
        save_checkpoint(tmp_path, learner, SelfPlayState(step=1), params, keep=1)
        again = Pair.of(kl_target=kl_target).learner
        load_checkpoint(str(tmp_path / "checkpoints" / "checkpoint-1"), again, output_dir=tmp_path)
        assert again.kl_coef == learner.kl_coef == approx(expected)
        one, other = (update(each, toy(), step=1, seed=0) for each in (learner, again))
        assert one == other
    other_run = Pair.of().learner  # of another run only the weights are taken
    load_checkpoint(str(tmp_path / "checkpoints" / "checkpoint-1"), other_run, output_dir=tmp_path / "other")
    assert other_run.kl_coef == 0.3


def test_two_ranks_stop_together_and_learn_what_one_learns_alone(tmp_path):
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
        str(TESTS / "training" / "ppo_ranks_run.py"), str(tmp_path),
    ]  # fmt: skip
    path = os.pathsep.join(map(str, (TESTS.parent, TESTS)))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    alone = trained_on_own_games(rank=0, num_ranks=1)
    assert all(torch.equal(*pair) for pair in zip(first["weights"], second["weights"], strict=True))
    assert largest_gap(first["weights"], alone["weights"]) < 1e-6
    assert first["kl_coefs"] == second["kl_coefs"] == approx(alone["kl_coefs"], rel=1e-6)
    assert first["num_steps"] == second["num_steps"] == alone["num_steps"]
    assert min(alone["num_steps"]) < 6
    assert first["num_turns"] + second["num_turns"] == alone["num_turns"]
    # By its own turns alone the second would have gone on for longer.
    assert trained_on_own_games(rank=1, num_ranks=2)["num_steps"][0] > second["num_steps"][0]

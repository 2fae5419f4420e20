"""PPO: games of a curriculum, lost games played again, GAE over a player's turns, clipped updates.

Schulman et al. 2017 (arXiv:1707.06347). What differs from the paper:

- The unit is a player's turn: one value at the end of the prompt, one advantage, one ratio.
- Advantages are normalized over the whole update; CleanRL normalizes each mini-batch.
- KL(policy || untrained model) is part of the loss, its weight adapted to hold KL_TARGET, and an update ends
  early at `target_kl`; or a magnet, a moving average of the policy, takes the untrained model's place.
- The value head's gradient stops at the head for the first `detach_steps` updates.
"""

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from numpy.typing import ArrayLike

from rlnb.advantages.gae import gae, turn_columns
from rlnb.games.opponents import Opponent, playable_opponents
from rlnb.games.text_games import states_in_play
from rlnb.policy import Policy
from rlnb.policy.generation import evaluating
from rlnb.policy.loading import load_tokenizer
from rlnb.policy.prompts import Chat
from rlnb.ppo.curriculum import (
    SUCCESS_SCORE,
    Assignment,
    Curriculum,
    CurriculumState,
    GameResult,
    ReplayBuffer,
    advance_curriculum,
    collect_results,
    draw_fresh_games,
    draw_replays,
    load_curriculum,
    load_opponents,
    num_replays,
    score_of_random_play,
)
from rlnb.ppo.params import PpoOpenspielParams, PpoTrainingParams
from rlnb.selfplay.acting import make_encoder
from rlnb.selfplay.arena import Arena
from rlnb.selfplay.batch import Batch, Learner, Logprobs, LossAndSums, kl_terms, make_batch, ratio_figures
from rlnb.selfplay.checkpoints import RunState
from rlnb.selfplay.rollouts import (
    LEARNER,
    FinishedGame,
    GameRules,
    Player,
    RewardFunction,
    Trajectory,
    collect_trajectories,
    collect_turns,
    play_games,
)
from rlnb.selfplay.run import GameRun

GAE_LAMBDA = 0.95  # 0 = one step, 1 = whole games
VALUE_COEF = 0.5  # weight of the value head's squared error
VALUE_CLIP = 0.2  # how far a value moves in an update before it is clipped
# Adaptive KL: what is held (nats a token), the share by which the coefficient moves, and its least value as
# a share of the first.
KL_TARGET, KL_GAIN, KL_MAX_ERROR, KL_LEAST_SHARE = 0.05, 0.1, 0.2, 0.01
SAMPLED_GAMES = 50  # of each game, whose prompts have to fit
Estimator = Callable[..., np.ndarray]  # as `gae`


def ppo_loss(
    now: Logprobs, old: Logprobs, anchor: Logprobs | None, batch: Batch, *, training: PpoTrainingParams,
    step: int, kl_coef: float,
) -> LossAndSums:  # fmt: skip
    """Return the loss of a part of a mini-batch, summed over its turns, and sums to report.

    With r = pi / pi_old of a turn, all its tokens together, advantages A, clip c, weights w of the turns:
        L = w [-min(r A, clip(r, 1 - c, 1 + c) A) - entropy_coef H(pi) + kl_coef KL(pi || anchor)
               + VALUE_COEF / 2 max((V - R)^2, (V_old + clip(V - V_old, -d, d) - R)^2)],   d = VALUE_CLIP,
    the first of equation 7, the last of PPO2 in OpenAI's baselines: a value that has moved far enough towards
    its target learns nothing more.
    """
    weights_b1, advantages_b1 = batch.weights_b[:, None], batch.advantages_b[:, None]
    ratios_b1 = (now.logprobs_bt - old.logprobs_bt).sum(1, keepdim=True).exp()
    clipped_b1 = ratios_b1.clamp(1 - training.clip, 1 + training.clip)
    surrogate_b1 = torch.minimum(ratios_b1 * advantages_b1, clipped_b1 * advantages_b1)
    is_clipped_b1 = clipped_b1 * advantages_b1 < ratios_b1 * advantages_b1
    entropy = (weights_b1 * now.entropies_bt).sum()
    loss = -(weights_b1 * surrogate_b1).sum() - training.entropy_coef_at(step) * entropy
    figures = ratio_figures(now, old, is_clipped_b1, batch)
    if anchor is not None:
        kl_bt, figure_bt = kl_terms(now, anchor, batch)
        loss = loss + kl_coef * (weights_b1 * kl_bt).sum()
        figures["anchor_kl"] = float((weights_b1 * figure_bt).sum())
    errors_b = squared_value_errors(now.values_b, old.values_b, batch.targets_b)
    value_loss = (batch.weights_b * errors_b).sum()
    figures["value_loss"] = float(value_loss.detach())
    return loss + 0.5 * VALUE_COEF * value_loss, figures


def squared_value_errors(
    values: torch.Tensor, old_values: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """Return the last term of `ppo_loss`; all of one shape, in units of the reward."""
    clipped = old_values + (values - old_values).clamp(-VALUE_CLIP, VALUE_CLIP)
    return torch.maximum((values - targets) ** 2, (clipped - targets) ** 2)


def update(
    learner: Learner, batch: Batch, *, seed: int, step: int, kl_coef: float,
    loss: Callable[..., LossAndSums] = ppo_loss,
) -> tuple[dict[str, float], float]:  # fmt: skip
    """Update the policy by `Learner.update`, and return metrics and the next kl_coef.

    With `target_kl` no step is made after one before which the policy had moved further than that from the
    start of the update (k3, mean over the tokens of all ranks).
    """
    training = cast(PpoTrainingParams, learner.training)
    anchor_coef = training.magnet_coef if learner.magnet else kl_coef

    def has_moved(sums: Mapping[str, float]) -> bool:
        return mean_over_all(sums["approx_kl"], sums["tokens"], default=0.0) > training.target_kl

    sums, metrics = learner.update(
        batch, partial(loss, training=training, step=step, kl_coef=anchor_coef), seed=seed, step=step,
        detach_trunk=step < training.detach_steps, is_enough=has_moved if training.target_kl else None,
    )  # fmt: skip
    if training.target_kl:
        metrics["update/num_steps"] = sums["steps"]
    if learner.has_reference:
        metrics["update/kl_coef"] = kl_coef
        kl = mean_over_all(sums["anchor_kl"], sums["token_weight"], default=KL_TARGET)
        kl_coef = adapt_kl_coef(kl_coef, kl, first=training.init_kl_coef)
    return metrics, kl_coef


def adapt_kl_coef(kl_coef: float, kl: float, *, first: float) -> float:
    """Return the coefficient for the next update: beta * (1 + 0.1 * clip(KL / KL_TARGET - 1, -0.2, 0.2)).

    kl: of this update, nats a token. Ziegler et al. 2019 (arXiv:1909.08593), section
    2.2, with their constants: at most 2% an update, so a factor of 10 takes some 115 updates. Their code
    writes the gain as batch_size / horizon. Unlike theirs it stays above a hundredth of `first`, its value at
    the start: thousands of updates below the target would otherwise take as many to undo.
    """
    error = kl / KL_TARGET - 1
    moved = kl_coef * (1 + KL_GAIN * max(-KL_MAX_ERROR, min(KL_MAX_ERROR, error)))
    return max(moved, KL_LEAST_SHARE * first)


def mean_over_all(total: float, count: float, *, default: float) -> float:
    """Return a sum over its count, both of all ranks; `default` where the count is 0."""
    everywhere, counted = np.sum(gather_object([(total, count)]), axis=0)
    return float(everywhere / counted) if counted else default


@dataclass
class PpoState(RunState):
    """The progress of a run. kl_coef: of KL(policy || untrained model), 0 = not computed."""

    curriculum: CurriculumState = CurriculumState()
    replay: ReplayBuffer = ReplayBuffer()
    kl_coef: float = 0.0


@dataclass
class PpoRun(GameRun[PpoOpenspielParams, PpoState]):
    """A run of PPO: the games of every update, its loss and its metrics.

    results: of the step's games on all ranks.
    """

    curriculum: Curriculum = field(kw_only=True)
    results: list[GameResult] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.opponents = load_opponents(self.curriculum)

    def assign_games(self, state: PpoState) -> list[Assignment]:
        """Return this rank's games of an update: fresh games, each from both seats, and replayed failures.

        They follow from the run's seed and the state, so that all ranks know the games of all ranks.
        """
        num_games, share = self.params.training.games_per_step, self.params.replay.share
        seed = int(np.random.SeedSequence([self.params.seed, state.step]).generate_state(1)[0])
        rng = random.Random(seed)
        tasks = state.replay.draw(num_replays(num_games, share, len(state.replay.failures), rng), rng)
        num_fresh = num_games - len(tasks)
        fresh = draw_fresh_games(state.curriculum, self.curriculum, num_fresh, seed=rng.getrandbits(40))
        assignments = [*fresh, *draw_replays(tasks, self.curriculum, seed=rng.getrandbits(40))]
        ranks = PartialState()
        return [
            assignment
            for index, assignment in enumerate(assignments)
            if index // 2 % ranks.num_processes == ranks.process_index
        ]

    def play(self, step: int) -> list[FinishedGame]:
        """Return this rank's games of an update, played by the policy's current weights."""
        arena, assignments = self.arena, self.assign_games(self.state)
        players: dict[str, Player | Opponent] = {LEARNER: arena.player(), **self.opponents}
        with self.timed("rollout"), evaluating(self.policy):
            games = play_games([each.episode for each in assignments], players, rules=arena.rules)
        self.results = in_order_of_assignment(gather_object([collect_results(assignments, games)]))
        return games

    def update(self, batch: Batch, loss: Callable[..., LossAndSums]) -> dict[str, float]:
        """Update the policy by a loss such as `ppo_loss`, and return metrics."""
        state, seed = self.state, self.params.seed
        with self.timed("update"):
            metrics, state.kl_coef = update(
                self.learner, batch, seed=seed, step=state.step, kl_coef=state.kl_coef, loss=loss
            )
        return metrics

    def log(self, step: int, games: Sequence[FinishedGame], metrics: Mapping[str, float]) -> None:
        """Complete an update: measure its games on all ranks, move the curriculum on, evaluate, save.

        Raises TrainingDiverged where an alarm lasts for ALARM_PATIENCE updates.
        """
        metrics = self.mean_metrics(games, metrics)
        self.state, notes = next_state(self.state, self.results, metrics, self.params)
        successes = [result.score >= SUCCESS_SCORE for result in self.results if result.is_fresh]
        metrics["play/success_share"] = float(np.mean(successes)) if successes else math.nan
        pairings = self.curriculum.pairings[self.state.curriculum.stage]
        metrics["curriculum/random_score"] = score_of_random_play(pairings)
        metrics |= self.state.curriculum.metrics()
        metrics |= self.state.replay.metrics(self.results, step=self.state.step)
        metrics = {name: value for name, value in metrics.items() if not math.isnan(value)}
        self.record(games, metrics, notes=notes)

    def describe(self, metrics: Mapping[str, float]) -> str:
        return (
            f"Step {self.state.step} | Reward: {metrics['reward']:.4f} | "
            f"Score: {metrics['play/score']:.4f} | Success: {metrics.get('play/success_share', 0.0):.2%}"
        )


def load_playable_curriculum(params: PpoOpenspielParams) -> Curriculum:
    """Return the curriculum, without any model.

    Raises ParamsError if a game cannot be played, or if a prompt of sampled games does not fit.
    """
    curriculum = load_curriculum(params)
    chat = Chat(load_tokenizer(params.model), params.model.thinking, params.model.system)
    encoder = make_encoder(params.game, chat)
    for game in curriculum.games.values():
        states = states_in_play(game, SAMPLED_GAMES, rng=random.Random(0))
        encoder.prompt_ids([game.prompt(state) for state in states])
    return curriculum


def make_ppo_run(
    params: PpoOpenspielParams, policy: Policy, curriculum: Curriculum, *, reward: RewardFunction
) -> PpoRun:
    """Return a run that starts from the policy's weights, with a fresh value head. reward: see `GameRules`.

    The arena has all games of the curriculum, against those of `evaluation.opponents` that can play each
    game, and against its opponents in the stages.
    """
    training = params.training
    pairings = [pairing for stage_pairings in curriculum.pairings for pairing in stage_pairings]
    opponents = []
    for game in curriculum.games.values():
        stage_opponents = [opponent for other, opponent in pairings if other.name == game.name]
        playable = playable_opponents(game, params.evaluation.opponents)
        opponents.append((game, tuple(dict.fromkeys([*playable, *stage_opponents]))))
    arena = Arena(
        policy, params, GameRules(reward, params.game.invalid), opponents, has_value=True, names_games=True
    )
    learner = Learner(
        arena.actor, training, temperature=params.game.temperature,
        value_learning_rate=training.value_learning_rate, has_reference=training.init_kl_coef > 0,
    )  # fmt: skip
    return PpoRun(params, arena, learner, PpoState(kl_coef=training.init_kl_coef), curriculum=curriculum)


def train(run: PpoRun, estimate: Estimator = gae, loss: Callable[..., LossAndSums] = ppo_loss) -> PpoState:
    """Train to `training.max_steps` updates and return the state; the notebook has the same loop.

    estimate: of the turns' advantages, as `gae`. Raises TrainingDiverged, OutOfMemory, and Preempted after a
    signal.
    """
    for step in run.steps():
        games = run.play(step)
        trajectories = collect_trajectories(games)
        advantages = estimate(*turn_columns(trajectories), lam=GAE_LAMBDA)
        batch = make_ppo_batch(trajectories, advantages, run.learner)
        metrics = run.update(batch, loss)
        metrics["advantage/std"] = float(advantages.std())
        run.log(step, games, metrics)
    return run.state


def in_order_of_assignment(by_rank: Sequence[Sequence[GameResult]]) -> list[GameResult]:
    """Return the results of all ranks as one rank would have them; see `PpoRun.assign_games`."""
    pairs = [[results[start : start + 2] for start in range(0, len(results), 2)] for results in by_rank]
    rounds = itertools.zip_longest(*pairs, fillvalue=())
    return [result for pair in itertools.chain.from_iterable(rounds) for result in pair]


def make_ppo_batch(trajectories: Sequence[Trajectory], advantages: np.ndarray, learner: Learner) -> Batch:
    """Return the learner's turns as a batch, with advantages normalized over the turns of all ranks."""
    turns, training = collect_turns(trajectories), cast(PpoTrainingParams, learner.training)
    targets = advantages + [turn.value for turn in turns]
    lengths = [len(trajectory.turns) for trajectory in trajectories]
    mean_length = float(np.mean(gather_object(lengths)))
    weights = weigh_turns(trajectories, weigh=training.weigh, mean_length=mean_length)
    ranks = gather_object([(advantages, weights)])
    first = sum(len(values) for values, _ in ranks[: PartialState().process_index])
    everywhere = normalize_advantages(*map(np.concatenate, zip(*ranks, strict=True)))
    normalized, device = everywhere[first : first + len(turns)], learner.actor.policy.device
    return make_batch(turns, normalized, targets, weights=weights, device=device)


def normalize_advantages(advantages: ArrayLike, weights: ArrayLike) -> np.ndarray:
    """Return advantages minus their weighted mean, over their weighted (population) standard deviation.

    advantages, weights: float (num_turns,), weights >= 0. Equal advantages become 0; without any weight they
    are returned unchanged.
        m = sum(w A) / sum(w),   A -> (A - m) / sqrt(sum(w (A - m)^2) / sum(w)).
    """
    advantages, weights = np.asarray(advantages, dtype=float), np.asarray(weights, dtype=float)
    total = weights.sum()
    if not total:
        return advantages.copy()
    mean = (weights * advantages).sum() / total
    deviation = np.sqrt((weights * (advantages - mean) ** 2).sum() / total)
    return np.asarray((advantages - mean) / (deviation if deviation > 1e-8 else 1.0))


def weigh_turns(trajectories: Sequence[Trajectory], *, weigh: str, mean_length: float) -> np.ndarray:
    """Return float (num_turns,) with mean 1: equal weights for all turns, or ("games") for all trajectories.

    mean_length: turns of a trajectory, on all ranks.
    """
    lengths = np.array([len(trajectory.turns) for trajectory in trajectories])
    weights = np.ones(len(lengths)) if weigh == "turns" else mean_length / np.maximum(lengths, 1)
    return np.repeat(weights, lengths)


def next_state(
    state: PpoState, results: Sequence[GameResult], metrics: Mapping[str, float], params: PpoOpenspielParams
) -> tuple[PpoState, list[str]]:
    """Return the state after an update, and a line if the stage changed."""
    curriculum, progression = advance_curriculum(state.curriculum, results, params.curriculum)
    state = state.advance(metrics, params.training)
    replay = state.replay.update(results, curriculum.mean_scores, step=state.step)
    return replace(state, curriculum=curriculum, replay=replay), [progression] if progression else []

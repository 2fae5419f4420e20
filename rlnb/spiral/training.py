"""SPIRAL: a policy plays both seats of a zero-sum game and learns from the outcomes.

Liu et al. 2025 (arXiv:2506.24119). What differs from the paper's code:

- Baselines are read before a batch moves them, and are the same on all ranks; see rlnb/advantages/role.py.
- Old log-probabilities come from a pass of training, not from play, so the first ratios are 1.
- Several epochs of mini-batches, with PPO's clipped surrogate and an entropy bonus.
- A magnet, which the policy is pulled to, and an average of the weights, which is judged, are optional.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from accelerate import PartialState

from rlnb.advantages import group, leave_one_out, role
from rlnb.advantages.gae import gae, turn_columns
from rlnb.advantages.groups import repeat_by_turn
from rlnb.games.text_games import TextGame
from rlnb.policy import Policy
from rlnb.policy.generation import evaluating
from rlnb.selfplay.arena import Arena
from rlnb.selfplay.batch import Batch, Learner, Logprobs, LossAndSums, kl_terms, make_batch, ratio_figures
from rlnb.selfplay.checkpoints import RunState
from rlnb.selfplay.rollouts import (
    LEARNER,
    Episode,
    FinishedGame,
    GameRules,
    RewardFunction,
    Trajectory,
    collect_trajectories,
    collect_turns,
    play_games,
    self_play_episodes,
)
from rlnb.selfplay.run import GameRun
from rlnb.spiral.params import SpiralSelfPlayParams

GAE_LAMBDA = 0.9  # 0 = one step, 1 = whole games
VALUE_COEF = 0.5  # weight of the value head's squared error
Baselines = Mapping[str, float]
Estimator = Callable[[Sequence[Trajectory], Baselines], tuple[np.ndarray, dict[str, float]]]


def returns_alone(
    trajectories: Sequence[Trajectory], baselines: Baselines
) -> tuple[np.ndarray, dict[str, float]]:
    rewards = np.array([trajectory.reward for trajectory in trajectories])
    return repeat_by_turn(rewards, trajectories), dict(baselines)


def by_value_head(
    trajectories: Sequence[Trajectory], baselines: Baselines
) -> tuple[np.ndarray, dict[str, float]]:
    return gae(*turn_columns(trajectories), lam=GAE_LAMBDA), dict(baselines)


# By `advantage.kind`; see rlnb/advantages.
ESTIMATORS: dict[str, Estimator] = {
    "none": returns_alone, "rae": role.advantages, "leave_one_out": leave_one_out.advantages,
    "group": group.advantages, "gae": by_value_head,
}  # fmt: skip


def spiral_loss(
    now: Logprobs, old: Logprobs, magnet: Logprobs | None, batch: Batch, *, params: SpiralSelfPlayParams,
    step: int,
) -> LossAndSums:  # fmt: skip
    """Return the loss of a part of a mini-batch, summed over its turns, and sums to report.

    With r = pi / pi_old, advantages A and clip c, over the tokens t of a turn:
        L = 1/T sum_t [-min(r A, clip(r, 1 - c, 1 + c) A) - entropy_coef H(pi) + magnet_coef KL(pi || magnet)]
    T is a constant, so a token of a long answer counts as much as one of a short answer (Dr. GRPO,
    arXiv:2503.20783). A value head adds VALUE_COEF / 2 (V - R)^2 once a turn.
    """
    training, advantages_b1 = params.training, batch.advantages_b[:, None]
    ratios_bt = (now.logprobs_bt - old.logprobs_bt).exp()
    clipped_bt = ratios_bt.clamp(1 - training.clip, 1 + training.clip)
    surrogate_bt = torch.minimum(ratios_bt * advantages_b1, clipped_bt * advantages_b1)
    is_clipped_bt = clipped_bt * advantages_b1 < ratios_bt * advantages_b1
    loss = -(surrogate_bt * batch.mask_bt).sum() - training.entropy_coef_at(step) * now.entropies_bt.sum()
    figures = ratio_figures(now, old, is_clipped_bt, batch)
    if magnet is not None:
        kl_bt, figure_bt = kl_terms(now, magnet, batch)
        loss = loss + training.magnet_coef * kl_bt.sum()
        figures["anchor_kl"] = float(figure_bt.sum())
    loss = loss / params.loss_tokens
    if batch.targets_b is not None:
        value_loss = ((now.values_b - batch.targets_b) ** 2).sum()
        loss = loss + 0.5 * VALUE_COEF * value_loss
        figures["value_loss"] = float(value_loss.detach())
    return loss, figures


@dataclass
class SelfPlayState(RunState):
    """The progress of a run. baselines: by "game/role"."""

    baselines: dict[str, float] = field(default_factory=dict)


@dataclass
class SelfPlayRun(GameRun[SpiralSelfPlayParams, SelfPlayState]):
    """A run of SPIRAL: the games of every update, its loss and its metrics."""

    def episodes(self, step: int) -> list[Episode]:
        """Return this rank's games of an update; those of all ranks follow from the run's seed and the step.

        Games of the same opening stay on one rank.
        """
        params, ranks = self.params, PartialState()
        seed = int(np.random.SeedSequence([params.seed, step, 0]).generate_state(1)[0])
        episodes = self_play_episodes(
            self.arena.opponents[0][0], params.training.games_per_step, seed=seed,
            max_opening_plies=params.game.max_opening_plies, games_per_opening=params.games_per_opening,
            random_move_share=params.game.random_move_share,
        )  # fmt: skip
        return [each for each in episodes if each.group % ranks.num_processes == ranks.process_index]

    def play(self, step: int) -> list[FinishedGame]:
        """Return this rank's games of an update, in which the policy's current weights play both seats."""
        with self.timed("rollout"), evaluating(self.policy):
            return play_games(self.episodes(step), {LEARNER: self.arena.player()}, rules=self.arena.rules)

    def update(self, batch: Batch, loss: Callable[..., LossAndSums]) -> dict[str, float]:
        """Update the policy by a loss such as `spiral_loss`, and return metrics."""
        step = self.state.step
        with self.timed("update"):
            descended = partial(loss, params=self.params, step=step)
            return self.learner.update(batch, descended, seed=self.params.seed, step=step)[1]

    def log(self, step: int, games: Sequence[FinishedGame], metrics: Mapping[str, float]) -> None:
        """Complete an update: measure its games on all ranks, evaluate and save where that is due.

        Raises TrainingDiverged where an alarm lasts for ALARM_PATIENCE updates.
        """
        metrics = self.mean_metrics(games, metrics)
        self.state = self.state.advance(metrics, self.params.training)
        self.record(games, metrics)

    def describe(self, metrics: Mapping[str, float]) -> str:
        line = (
            f"step {self.state.step}/{self.params.training.max_steps}  score {metrics['play/score']:.2f}  "
            f"first seat {metrics['play/first_score']:.2f}  draws {metrics['play/draw_share']:.0%}  "
            f"invalid {metrics['play/invalid_share']:.0%}  entropy {metrics['entropy']:.3f}"
        )
        if "exact/nash_conv" in metrics:
            line += f"  NashConv {metrics['exact/nash_conv']:.3f}"
        seconds = metrics["time/rollout_seconds"] + metrics["time/update_seconds"]
        return f"{line}  {seconds:.1f} s"


def make_self_play_run(
    params: SpiralSelfPlayParams, policy: Policy, game: TextGame, *, reward: RewardFunction
) -> SelfPlayRun:
    """Return a run that starts from the policy's weights. reward: as in `GameRules`."""
    arena = Arena(
        policy, params, GameRules(reward, params.game.invalid), [(game, params.evaluation.opponents)],
        has_value=params.advantage.has_value,
    )  # fmt: skip
    learner = Learner(arena.actor, params.training, temperature=params.game.temperature)
    return SelfPlayRun(params, arena, learner, SelfPlayState())


def train(
    run: SelfPlayRun,
    estimate: Estimator | None = None,
    loss: Callable[..., LossAndSums] = spiral_loss,
) -> SelfPlayState:
    """Train to `training.max_steps` updates and return the state; the notebook has the same loop.

    estimate: of the advantages, by default that of `advantage.kind`. Raises TrainingDiverged, OutOfMemory,
    and Preempted after a signal.
    """
    estimate = estimate or ESTIMATORS[run.params.advantage.kind]
    for step in run.steps():
        games = run.play(step)
        trajectories = collect_trajectories(games)
        advantages, run.state.baselines = estimate(trajectories, run.state.baselines)
        batch = select_turns(trajectories, advantages, run.learner)
        metrics = run.update(batch, loss)
        metrics["advantage/std"] = float(advantages.std())
        run.log(step, games, metrics)
    return run.state


def select_turns(trajectories: Sequence[Trajectory], advantages: np.ndarray, learner: Learner) -> Batch:
    """Return a batch of the turns that teach something: those with a choice or, for a value head, all."""
    turns = collect_turns(trajectories)
    kept = [index for index, turn in enumerate(turns) if learner.has_value or turn.choices]
    values = np.array([turns[index].value for index in kept])
    targets = advantages[kept] + values if learner.has_value else None
    some = [turns[index] for index in kept]
    return make_batch(some, advantages[kept], targets, device=learner.actor.policy.device)

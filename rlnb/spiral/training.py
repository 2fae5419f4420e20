"""SPIRAL: a policy plays both seats of a zero-sum game and learns from the outcomes.

Liu et al. 2025 (arXiv:2506.24119). What differs from the paper's code:

- Baselines are read before a batch moves them, and are the same on all ranks; see rlnb/advantages/role.py.
- Old log-probabilities come from a pass of training, not from play, so the first ratios are 1.
- Several epochs of mini-batches, with PPO's clipped surrogate and an entropy bonus.
- A magnet, which the policy is pulled to, and an average of the weights, which is judged, are optional.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from accelerate import PartialState

from rlnb.advantages import group, leave_one_out, role
from rlnb.advantages.gae import gae_of_turns
from rlnb.advantages.groups import repeat_by_turn
from rlnb.games.text_games import TextGame
from rlnb.policy.generation import evaluating
from rlnb.run.health import check_alarms
from rlnb.run.tracking import Tracker
from rlnb.selfplay.acting import ActorCritic, Encoder, make_player
from rlnb.selfplay.batch import Batch, Learner, Logprobs, kl_terms, make_batch, ratio_figures
from rlnb.selfplay.checkpoints import RunState, StepRecorder, mean_over_ranks, play_metrics
from rlnb.selfplay.rollouts import (
    LEARNER,
    Episode,
    FinishedGame,
    GameRules,
    Trajectory,
    collect_trajectories,
    collect_turns,
    play_games,
    self_play_episodes,
)
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


def gae(trajectories: Sequence[Trajectory], baselines: Baselines) -> tuple[np.ndarray, dict[str, float]]:
    return gae_of_turns(trajectories, lam=GAE_LAMBDA), dict(baselines)


# By `advantage.kind`; see rlnb/advantages.
ESTIMATORS: dict[str, Estimator] = {
    "none": returns_alone, "rae": role.advantages, "leave_one_out": leave_one_out.advantages,
    "group": group.advantages, "gae": gae,
}  # fmt: skip


def spiral_loss(
    now: Logprobs, old: Logprobs, magnet: Logprobs | None, batch: Batch, *, params: SpiralSelfPlayParams,
    step: int,
) -> tuple[torch.Tensor, dict[str, float]]:  # fmt: skip
    """Return the loss of a part of a mini-batch, summed over its turns, and sums to report.

    With r = pi / pi_old, advantages A and clip c, over the tokens t of a turn:
        L = 1/T sum_t [-min(r A, clip(r, 1 - c, 1 + c) A) - entropy_coef H(pi) + magnet_coef KL(pi || magnet)]
    T is a constant, so a token of a long answer counts as much as one of a short answer (Dr. GRPO,
    arXiv:2503.20783). A value head adds VALUE_COEF / 2 (V - R)^2 once a turn.
    """
    training, mask_bt = params.training, batch.mask_bt
    advantages_b1 = batch.advantages_b[:, None]
    log_ratios_bt = now.logprobs_bt - old.logprobs_bt
    if training.ratio == "turn":  # one ratio for all tokens of an answer
        log_ratios_bt, mask_bt = log_ratios_bt.sum(1, keepdim=True), torch.ones_like(mask_bt[:, :1])
    ratios_bt = log_ratios_bt.exp()
    clipped_bt = ratios_bt.clamp(1 - training.clip, 1 + training.clip)
    surrogate_bt = torch.minimum(ratios_bt * advantages_b1, clipped_bt * advantages_b1)
    is_clipped_bt = clipped_bt * advantages_b1 < ratios_bt * advantages_b1
    loss = -(surrogate_bt * mask_bt).sum() - training.entropy_coef_at(step) * now.entropies_bt.sum()
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


@dataclass(frozen=True)
class SelfPlayState(RunState):
    """The progress of a run. baselines: by "game/role"."""

    baselines: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SelfPlayGames:
    """The source of each update's games, played by the actor's current weights."""

    params: SpiralSelfPlayParams
    game: TextGame
    actor: ActorCritic
    encoder: Encoder
    rules: GameRules

    def episodes(self, step: int) -> list[Episode]:
        """Return this rank's games of an update; those of all ranks follow from the run's seed and the step.

        Games of the same opening stay on one rank.
        """
        params, ranks = self.params, PartialState()
        seed = int(np.random.SeedSequence([params.seed, step, 0]).generate_state(1)[0])
        episodes = self_play_episodes(
            self.game, params.training.games_per_step, seed=seed,
            max_opening_plies=params.game.max_opening_plies, games_per_opening=params.games_per_opening,
        )  # fmt: skip
        return [each for each in episodes if each.group % ranks.num_processes == ranks.process_index]

    def play(self, step: int) -> list[FinishedGame]:
        player = make_player(self.actor, self.encoder, self.params.game, self.params.training)
        return play_games(self.episodes(step), {LEARNER: player}, rules=self.rules)


def train(
    learner: Learner,
    self_play: SelfPlayGames,
    state: SelfPlayState,
    *,
    tracker: Tracker,
    output_dir: str | Path,
    evaluate: Callable[[int], Mapping[str, float]],
    show: Callable[[int, int], None] | None = None,
    estimator: Estimator | None = None,
    loss: Callable[..., tuple[torch.Tensor, dict[str, float]]] = spiral_loss,
) -> SelfPlayState:
    """Train from `state` to `training.max_steps` updates and return the final state.

    evaluate, show: as in `StepRecorder`. estimator: of the advantages, by default that of `advantage.kind`.
    loss: see `spiral_loss`. Raises TrainingDiverged, OutOfMemory, and Preempted after a signal.
    """
    params, training = self_play.params, self_play.params.training
    estimator = estimator or ESTIMATORS[params.advantage.kind]
    device = learner.actor.policy.device
    describe = partial(describe_step, max_steps=training.max_steps)
    recorder = StepRecorder(output_dir, params, learner, tracker, evaluate, describe, show)
    with recorder.going_on(after=state.step):
        while state.step < training.max_steps and not recorder.is_stopping:
            # 1. Play. Games advance in lockstep; the learner plays both seats.
            started = time.perf_counter()
            with evaluating(learner.actor.policy):
                games = self_play.play(state.step)
            played = time.perf_counter()
            # 2. Advantages. Returns are compared with the baselines from before this batch.
            advantages, baselines = estimator(collect_trajectories(games), state.baselines)
            # 3. Update. The only place where trajectories become tensors.
            batch = select_turns(games, advantages, has_value=learner.has_value, device=device)
            descended = partial(loss, params=params, step=state.step)
            _, metrics = learner.update(batch, descended, seed=params.seed, step=state.step)
            updated = time.perf_counter()
            # 4. Measure. An alarm that lasts for ALARM_PATIENCE updates ends the run here.
            metrics |= play_metrics(games) | {"advantage/std": float(advantages.std())}
            metrics |= {"time/rollout_seconds": played - started, "time/update_seconds": updated - played}
            metrics = mean_over_ranks(metrics)
            state = replace(state.advance(metrics, training), baselines=baselines)
            check_alarms(state.alarms, metrics, first_length=state.first_length)
            # 5. Evaluate, report and save.
            recorder.end_step(state, games, metrics)
    return state


def select_turns(
    games: Sequence[FinishedGame],
    advantages: np.ndarray,
    *,
    has_value: bool,
    device: torch.device | str = "cpu",
) -> Batch:
    """Return a batch of the turns that teach something: those with a choice or, for a value head, all."""
    turns = collect_turns(collect_trajectories(games))
    kept = [index for index, turn in enumerate(turns) if has_value or turn.choices]
    values = np.array([turns[index].value for index in kept])
    targets = advantages[kept] + values if has_value else None
    some = [turns[index] for index in kept]
    return make_batch(some, advantages[kept], targets, device=device)


def describe_step(step: int, metrics: Mapping[str, float], *, max_steps: int) -> str:
    """Return an update's line of train.log."""
    line = (
        f"step {step}/{max_steps}  score {metrics['play/score']:.2f}  "
        f"first seat {metrics['play/first_score']:.2f}  draws {metrics['play/draw_share']:.0%}  "
        f"invalid {metrics['play/invalid_share']:.0%}  entropy {metrics['entropy']:.3f}"
    )
    if "exact/nash_conv" in metrics:
        line += f"  NashConv {metrics['exact/nash_conv']:.3f}"
    seconds = metrics["time/rollout_seconds"] + metrics["time/update_seconds"]
    return f"{line}  {seconds:.1f} s"

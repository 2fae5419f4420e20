"""Updates of small models on this rank's share of some games: what the test of ranks starts.

Plain gradient descent instead of Adam, whose first step is the gradient's sign: where that is only
rounding, two correct programs move in opposite directions.
"""

import sys
from pathlib import Path

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from tiny_actor import played, small_actor, tiny_actor, training

from rlnb.selfplay.advantages import compute_advantages, normalize_advantages
from rlnb.selfplay.losses import make_batch
from rlnb.selfplay.params import AdvantageParams
from rlnb.selfplay.rollouts import collect_trajectories, collect_turns
from rlnb.selfplay.update import PpoOptions, make_learner, parameter_groups, update


def train_spiral(cache_dir: Path, *, rank: int, num_ranks: int) -> dict[str, object]:
    """Return weights, baselines and loss after two updates, each on every `num_ranks`-th game."""
    actor = tiny_actor(cache_dir, has_value=True)
    section = training(
        learning_rate=0.02, final_learning_rate=0.02, entropy_coef=0.1, final_entropy_coef=0.1,
        magnet_coef=0.5, max_grad_norm=1.0,
    )  # fmt: skip
    learner = make_learner(actor, section, temperature=1.0, value_coef=0.5)
    learner.optimizer = torch.optim.SGD(actor.parameters_to_train())
    params = AdvantageParams(kind="rae", decay=0.9)
    baselines: dict[str, float] = {}
    for step in range(2):
        # Played with the first weights: two processes would not draw alike from weights that round otherwise.
        games = played(tiny_actor(cache_dir), "kuhn_poker", 12, seed=step)[rank::num_ranks]
        computed = compute_advantages(games, baselines, params)
        baselines = computed.baselines
        turns = collect_turns(collect_trajectories(games))
        metrics = update(learner, make_batch(turns, computed.advantages, computed.targets), step=step, seed=0)
    return {
        "weights": [parameter.detach() for parameter in actor.parameters_to_train()],
        "average": learner.average.values,
        "baselines": baselines,
        "grad_norm": metrics["grad_norm"],
        "num_turns": len(turns),
    }


def train_ppo(*, rank: int, num_ranks: int) -> dict[str, object]:
    """Return what two updates of up to six steps with PPO's terms leave, on every `num_ranks`-th game."""
    actor = small_actor()
    section = training(
        learning_rate=0.05, final_learning_rate=0.05, entropy_coef=0.1, final_entropy_coef=0.1, num_epochs=6,
        max_grad_norm=1.0, ratio="turn",
    )  # fmt: skip
    options = PpoOptions(
        value_learning_rate=0.2, value_clip=0.1, detach_steps=1, target_kl=0.004, kl_target=0.002
    )
    learner = make_learner(actor, section, temperature=1.0, value_coef=0.5, kl_coef=0.3, ppo=options)
    learner.optimizer = torch.optim.SGD(parameter_groups(actor, options.value_learning_rate))
    games = played(small_actor(), "tic_tac_toe", 6)[rank::num_ranks]
    turns = collect_turns(collect_trajectories(games))
    weights = torch.tensor([1 / (1 + turn.ply) for turn in turns]).numpy()
    pairs = [(turn.reward - turn.value, float(weight)) for turn, weight in zip(turns, weights, strict=True)]
    everyone = tuple(zip(*gather_object(pairs), strict=True))
    advantages = normalize_advantages(*zip(*pairs, strict=True), among=everyone)
    targets = torch.tensor([turn.reward for turn in turns]).numpy()
    kl_coefs, num_steps = [], []
    for step in range(2):
        metrics = update(learner, make_batch(turns, advantages, targets, weights=weights), step=step, seed=0)
        kl_coefs.append(learner.kl_coef)
        num_steps.append(metrics["update/num_steps"])
    return {
        "weights": [parameter.detach() for parameter in actor.parameters_to_train()],
        "kl_coefs": kl_coefs,
        "num_steps": num_steps,
        "num_turns": len(turns),
    }


if __name__ == "__main__":
    state = PartialState(cpu=True)
    share = {"rank": state.process_index, "num_ranks": state.num_processes}
    result = {"spiral": train_spiral(Path(sys.argv[1]), **share), "ppo": train_ppo(**share)}
    torch.save(result, f"{sys.argv[2]}/rank{state.process_index}.pt")
    state.destroy_process_group()

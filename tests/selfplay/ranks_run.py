"""Updates of small models on this rank's share of some games: what the test of ranks starts.

Plain gradient descent instead of Adam, whose first step is the gradient's sign: where that is only
rounding, two correct programs move in opposite directions.
"""

import sys

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from tiny_actor import played, small_actor, training

from rlnb.selfplay.advantages import compute_advantages, normalize_advantages
from rlnb.selfplay.params import AdvantageParams
from rlnb.selfplay.rollouts import collect_trajectories, collect_turns
from rlnb.selfplay.update import Learner, PpoOptions, make_batch, parameter_groups, update


def train_updates(*, rank: int, num_ranks: int) -> dict[str, object]:
    """Return what two updates of up to six steps leave, on every `num_ranks`-th game; baselines: SPIRAL's."""
    actor = small_actor()
    section = training(
        learning_rate=0.05, final_learning_rate=0.05, entropy_coef=0.1, final_entropy_coef=0.1, num_epochs=6,
        max_grad_norm=1.0, ratio="turn",
    )  # fmt: skip
    options = PpoOptions(
        value_learning_rate=0.2, value_clip=0.1, detach_steps=1, target_kl=0.004, kl_target=0.002
    )
    learner = Learner(actor, section, temperature=1.0, value_coef=0.5, kl_coef=0.3, ppo=options)
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
        "baselines": compute_advantages(games, {}, AdvantageParams(kind="rae", decay=0.9)).baselines,
        "kl_coefs": kl_coefs,
        "num_steps": num_steps,
        "num_turns": len(turns),
    }


if __name__ == "__main__":
    state = PartialState(cpu=True)
    share = {"rank": state.process_index, "num_ranks": state.num_processes}
    result = train_updates(**share)
    torch.save(result, f"{sys.argv[1]}/rank{state.process_index}.pt")
    state.destroy_process_group()

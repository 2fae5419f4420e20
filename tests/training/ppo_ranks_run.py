"""Updates with PPO's terms of a small network on this rank's share of some games, for the test of ranks.

Plain gradient descent in the place of Adam, as in ranks_run.py.
"""

import sys

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from small_actor import small_actor
from tiny_actor import played, training

from rlnb.advantages import normalized
from rlnb.training.batches import make_batch
from rlnb.training.update import Learner, PpoTerms, parameter_groups, trained_parameters, update
from rlnb.trajectories import turns_of


def trained_on_own_games(*, rank: int, num_ranks: int) -> dict[str, object]:
    """What two updates of up to six steps leave, on every `num_ranks`-th game."""
    actor = small_actor()
    section = training(
        learning_rate=0.05, final_learning_rate=0.05, entropy_coef=0.1, final_entropy_coef=0.1, num_epochs=6,
        max_grad_norm=1.0, ratio="turn",
    )  # fmt: skip
    terms = PpoTerms(
        value_learning_rate=0.2, value_clip=0.1, detach_steps=1, target_kl=0.004, kl_target=0.002
    )
    learner = Learner.of(actor, section, temperature=1.0, value_coef=0.5, kl_coef=0.3, terms=terms)
    learner.optimizer = torch.optim.SGD(parameter_groups(actor, terms.value_learning_rate))
    games = played(small_actor(), "tic_tac_toe", 6)[rank::num_ranks]
    turns = turns_of([one for game in games for one in game.trajectories])
    weights = torch.tensor([1 / (1 + turn.ply) for turn in turns]).numpy()
    pairs = [(turn.reward - turn.value, float(weight)) for turn, weight in zip(turns, weights, strict=True)]
    everyone = tuple(zip(*gather_object(pairs), strict=True))
    advantages = normalized(*zip(*pairs, strict=True), among=everyone)
    targets = torch.tensor([turn.reward for turn in turns]).numpy()
    found = []
    for step in range(2):
        found.append(
            update(learner, make_batch(turns, advantages, targets, weights=weights), step=step, seed=0)
        )
        found[-1]["kl_coef"] = learner.kl_coef
    return {
        "weights": [parameter.detach() for parameter in trained_parameters(actor)],
        "kl_coefs": [one["kl_coef"] for one in found],
        "num_steps": [one["update/num_steps"] for one in found],
        "num_turns": len(turns),
    }


if __name__ == "__main__":
    state = PartialState(cpu=True)
    result = trained_on_own_games(rank=state.process_index, num_ranks=state.num_processes)
    torch.save(result, f"{sys.argv[1]}/rank{state.process_index}.pt")
    state.destroy_process_group()

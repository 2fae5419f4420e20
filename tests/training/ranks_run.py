"""One update of the tiny model on this rank's share of some games: what the test of ranks starts.

Plain gradient descent in the place of Adam, whose first step is the gradient's sign: where that is but
rounding, two right programs go opposite ways.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from accelerate import PartialState
from tiny_actor import played, tiny_actor, training

from rlnb.training.batches import make_batch
from rlnb.training.credit import credit
from rlnb.training.update import Learner, trained_parameters, update
from rlnb.trajectories import turns_of

NUM_GAMES = 12


def trained_on_own_games(cache_dir: Path, *, rank: int, num_ranks: int) -> dict[str, object]:
    """Weights, baselines and loss after two updates, each on every `num_ranks`-th game."""
    actor = tiny_actor(cache_dir, has_value=True)
    section = training(
        learning_rate=0.02, final_learning_rate=0.02, entropy_coef=0.1, final_entropy_coef=0.1,
        magnet_coef=0.5, max_grad_norm=1.0,
    )  # fmt: skip
    learner = Learner.of(actor, section, temperature=1.0, value_coef=0.5)
    learner.optimizer = torch.optim.SGD(trained_parameters(actor))
    settings = SimpleNamespace(kind="rae", decay=0.9, gamma=1.0)
    baselines: dict[str, float] = {}
    for step in range(2):
        # Played with the first weights: two processes would not draw alike from weights that round otherwise.
        games = played(tiny_actor(cache_dir), "kuhn_poker", NUM_GAMES, seed=step)[rank::num_ranks]
        found = credit(games, baselines, settings)
        baselines = found.baselines
        turns = turns_of([one for game in games for one in game.trajectories])
        metrics = update(learner, make_batch(turns, found.advantages, found.targets), step=step, seed=0)
    return {
        "weights": [parameter.detach() for parameter in trained_parameters(actor)],
        "average": learner.average.values,
        "baselines": baselines,
        "grad_norm": metrics["grad_norm"],
        "num_turns": len(turns),
    }


if __name__ == "__main__":
    state = PartialState(cpu=True)
    result = trained_on_own_games(Path(sys.argv[1]), rank=state.process_index, num_ranks=state.num_processes)
    torch.save(result, f"{sys.argv[2]}/rank{state.process_index}.pt")
    state.destroy_process_group()

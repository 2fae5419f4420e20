"""Updates and whole runs of small models on this rank's share of games: what the test of ranks starts.

Plain gradient descent instead of Adam, whose first step is the gradient's sign: where that is only
rounding, two correct programs move in opposite directions.
"""

import sys
from pathlib import Path

import ppo_run
import self_play_run
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from tiny_actor import played, small_actor, training

from rlnb.run.tracking import open_tracker
from rlnb.selfplay.advantages import compute_advantages, normalize_advantages
from rlnb.selfplay.params import AdvantageParams
from rlnb.selfplay.rollouts import collect_trajectories, collect_turns
from rlnb.selfplay.update import Learner, PpoOptions, make_batch, parameter_groups, update
from rlnb.spiral.setup import resume_run
from rlnb.spiral.training import train as train_spiral


def train_updates(*, rank: int, num_ranks: int) -> dict[str, object]:
    """Return what two updates of up to six steps leave, on every `num_ranks`-th game; baselines: SPIRAL's."""
    actor = small_actor()
    section = training(
        learning_rate=0.05, final_learning_rate=0.05, entropy_coef=0.1, final_entropy_coef=0.1, num_epochs=6,
        max_grad_norm=1.0, ratio="turn",
    )  # fmt: skip
    options = PpoOptions(
        value_learning_rate=0.2, value_clip=0.1, detach_steps=1, target_kl=0.004, init_kl_coef=0.3
    )
    learner = Learner(actor, section, temperature=1.0, ppo=options)
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
        "baselines": compute_advantages(games, {}, AdvantageParams(kind="rae")).baselines,
        "kl_coefs": kl_coefs,
        "num_steps": num_steps,
        "num_turns": len(turns),
    }


LEARNING_RATE = 0.1
SMALL_STEPS = {
    "learning_rate": LEARNING_RATE, "final_learning_rate": LEARNING_RATE, "warmup_steps": 0, "max_steps": 3,
    "num_mini_batches": 1, "games_per_step": 8,
}  # fmt: skip
RUNS = {
    "spiral": (self_play_run, {"advantage": {"kind": "leave_one_out"}}),
    "ppo": (ppo_run, {"replay": {"share": 0.5}}),
}


def train_run(kind: str, folder: Path) -> dict[str, object]:
    """Return what three updates of a run of a notebook leave, with plain gradient descent."""
    module, sections = RUNS[kind]
    params = module.params_of(folder / "cache", training=SMALL_STEPS, **sections)
    run = module.make_run(params)
    value_learning_rate = run.learner.ppo.value_learning_rate
    run.learner.optimizer = torch.optim.SGD(parameter_groups(run.learner.actor, value_learning_rate))
    output_dir = folder / kind
    if kind == "ppo":
        state = run.train(
            run.restore(None, output_dir), output_dir, evaluate=lambda _: {}, say=lambda _: None
        )
        kept = {"failures": state.replay.failures, "curriculum": state.curriculum}
    else:
        state = resume_run(run, output_dir)
        with open_tracker(output_dir, config={}, tensorboard=False) as tracker:
            options = {"tracker": tracker, "output_dir": output_dir, "evaluate": lambda _: {}}
            state = train_spiral(run.learner, run.games, state, **options)
        kept = {"baselines": state.baselines}
    weights = [parameter.detach() for parameter in run.learner.actor.parameters_to_train()]
    return {"weights": weights, "kept": kept, "kl_coef": run.learner.kl_coef, "num_games": state.num_games}


if __name__ == "__main__":
    state, folder = PartialState(cpu=True), Path(sys.argv[1])
    result = train_updates(rank=state.process_index, num_ranks=state.num_processes)
    result |= {kind: train_run(kind, folder) for kind in RUNS}
    torch.save(result, folder / f"rank{state.process_index}.pt")
    state.destroy_process_group()

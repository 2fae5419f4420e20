"""The same run with other advantages: what does the baseline do?"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rlnb.metrics import open_tracker, read_metrics
from rlnb.policy import load_policy
from rlnb.training.checkpoints import checkpoint_to_resume, step_of
from rlnb.training.self_play_checkpoints import load_checkpoint, save_checkpoint
from rlnb.training.self_play_parts import arena_of, game_of, learner_of, self_play_of
from rlnb.training.spiral import train

Curve = dict[str, list[float]]  # {"steps": [...], "values": [...]}


def train_run(
    params: Any, output_dir: str | Path, *, show: Callable[[int, int], None] | None = None
) -> list[dict[str, Any]]:
    """A whole run from loading the model to its last checkpoint; the rows of its metrics. Resumes its own.

    What the notebook does cell by cell, without what it shows: for runs beside the one that is looked at.
    """
    output_dir = Path(output_dir)
    game = game_of(params)
    arena = arena_of(params, load_policy(params.model, seed=params.seed), game)
    learner = learner_of(params, arena)
    checkpoint = checkpoint_to_resume(params, output_dir)
    state = load_checkpoint(checkpoint, learner)
    measure = partial(arena.measure, learner.average, num_games=params.evaluation.interval_games)
    keep = params.training.save_total_limit
    tracking = {"config": params.model_dump(), **params.tracking.model_dump()}
    with open_tracker(output_dir, resume_step=step_of(checkpoint), **tracking) as tracker:
        if state.step == 0:
            tracker.report(0, measure())
        if state.step < params.training.max_steps:
            state = train(
                learner, self_play_of(params, arena), state, tracker=tracker, output_dir=output_dir,
                evaluate=measure, show=show,
                save=lambda now: save_checkpoint(output_dir, learner, now, params, keep=keep),
            )  # fmt: skip
            tracker.report(state.step, measure())
    return read_metrics(output_dir / "metrics.jsonl")


def with_advantage(params: Any, kind: str, *, seed: int, max_steps: int) -> Any:
    """The same parameters with another advantage, seed and length; schedules stretch with the length."""
    return params.model_copy(
        update={
            "seed": seed,
            "advantage": params.advantage.model_copy(update={"kind": kind}),
            "training": params.training.model_copy(update={"max_steps": max_steps}),
        }
    )


def compare_advantages(
    params: Any, output_dir: str | Path, *, kinds: Sequence[str], seeds: Sequence[int], max_steps: int,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, dict[int, list[dict[str, Any]]]]:  # fmt: skip
    """{kind: {seed: rows of metrics}} of runs in output_dir/KIND-SEED; what is there is not run again."""
    found: dict[str, dict[int, list[dict[str, Any]]]] = {kind: {} for kind in kinds}
    pairs = [(kind, seed) for seed in seeds for kind in kinds]
    for number, (kind, seed) in enumerate(pairs):
        own = with_advantage(params, kind, seed=seed, max_steps=max_steps)
        found[kind][seed] = train_run(own, Path(output_dir) / f"{kind}-{seed}")
        if progress:
            progress(number + 1, len(pairs))
    return found


def curves(
    runs: Mapping[str, Mapping[int, Sequence[Mapping[str, Any]]]], names: Sequence[str]
) -> dict[str, dict[int, Curve]]:
    """{arm: {seed: its curve}} of the mean of some metrics, where a step has them all."""
    return {
        kind: {
            seed: {
                "steps": [row["step"] for row in rows if has_all(row, names)],
                "values": [
                    sum(row[name] for name in names) / len(names) for row in rows if has_all(row, names)
                ],
            }
            for seed, rows in of_kind.items()
        }
        for kind, of_kind in runs.items()
    }


def has_all(row: Mapping[str, Any], names: Sequence[str]) -> bool:
    return all(row.get(name) is not None for name in names)

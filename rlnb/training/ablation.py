"""The same run with other advantages: what does the baseline do?"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rlnb.evaluation.arena import is_exact
from rlnb.evaluation.compare import student_mean
from rlnb.games.text_games import TextGame
from rlnb.metrics import open_tracker, read_metrics
from rlnb.policy import load_policy
from rlnb.policy.adapters import AdapterValues
from rlnb.training.checkpoints import checkpoint_to_resume, step_of
from rlnb.training.self_play_checkpoints import (
    kept_checkpoints,
    load_checkpoint,
    load_weights,
    save_checkpoint,
)
from rlnb.training.self_play_parts import arena_of, game_of, learner_of, self_play_of
from rlnb.training.spiral import train
from rlnb.training.update import Learner
from rlnb.training.warm_up import warm_up

Curve = dict[str, list[float]]  # {"steps": [...], "values": [...]}
Runs = dict[str, dict[int, list[dict[str, Any]]]]  # {arm: {seed: rows of its metrics}}


def train_run(
    params: Any, output_dir: str | Path, *, say: Callable[[str], None] = print
) -> list[dict[str, Any]]:
    """A whole run from loading the model to its last checkpoint; the rows of its metrics. Resumes its own.

    What the notebook does cell by cell, without what it shows: for runs beside the one that is looked at.
    """
    output_dir = Path(output_dir)
    game = game_of(params)
    arena = arena_of(params, load_policy(params.model, seed=params.seed), game)
    learner = learner_of(params, arena)
    table, checkpoint = self_play_of(params, arena), checkpoint_to_resume(params, output_dir)
    if params.game.warm_up_steps and not checkpoint:
        warm_up(learner, table, arena.encoder, num_steps=params.game.warm_up_steps)
    state = load_checkpoint(checkpoint, learner, output_dir=output_dir)
    measure = partial(arena.measure, learner.average, num_games=params.evaluation.interval_games)
    keep = params.training.save_total_limit
    tracking = {"config": params.model_dump(), **params.tracking.model_dump()}
    with open_tracker(output_dir, resume_step=state.step, **tracking) as tracker:
        if state.step == 0:
            tracker.report(0, measure())
        if state.step < params.training.max_steps:
            state = train(
                learner, table, state, tracker=tracker, output_dir=output_dir, evaluate=measure, say=say,
                save=lambda now: save_checkpoint(output_dir, learner, now, params, keep=keep),
            )  # fmt: skip
        tracker.report(state.step, measure())  # of a finished run again: it may have been killed just before
    return read_metrics(output_dir / "metrics.jsonl")


def with_advantage(params: Any, kind: str, *, seed: int, max_steps: int) -> Any:
    """The same parameters with another advantage, seed and length; schedules stretch with the length.

    Each begins at the model's own weights, also where the run itself goes on from a directory.
    """
    resume = "never" if params.training.resume == "never" else "auto"
    return params.model_copy(
        update={
            "seed": seed,
            "advantage": params.advantage.model_copy(update={"kind": kind}),
            "training": params.training.model_copy(update={"max_steps": max_steps, "resume": resume}),
        }
    )


def compare_advantages(
    params: Any, output_dir: str | Path, *, progress: Callable[[int, int], None] | None = None
) -> Runs:
    """The runs that the section `ablation` asks for, in output_dir/KIND-SEED-STEPS; none is run twice."""
    asked = params.ablation
    pairs = [(kind, seed) for seed in range(1, asked.num_seeds + 1) for kind in asked.kinds]
    found: Runs = {kind: {} for kind in asked.kinds}
    for number, (kind, seed) in enumerate(pairs):
        own = with_advantage(params, kind, seed=seed, max_steps=asked.max_steps)
        directory = Path(output_dir) / f"{kind}-{seed}-{asked.max_steps}"
        found[kind][seed] = train_run(own, directory, say=lambda _: None)
        if progress:
            progress(number + 1, len(pairs))
    return found


def kept_weights(
    learner: Learner, untrained: AdapterValues, output_dir: str | Path
) -> dict[str, AdapterValues]:
    """Those of a run that can play each other: untrained, at each checkpoint that is kept, last, averaged."""
    last = AdapterValues.of(learner.actor.policy)
    found = {"untrained": untrained}
    for checkpoint in kept_checkpoints(output_dir)[:-1]:  # the last one is what the policy holds
        found[f"step {step_of(checkpoint)}"] = load_weights(checkpoint, last)
    return found | {"last": last, "average": learner.average}


def judged_metrics(game: TextGame) -> tuple[str, ...]:
    """The metrics whose mean judges a run: least is best. Of games without exact ones there are none."""
    if game.short_name == "tic_tac_toe":
        return ("exact/loss_first", "exact/loss_second")
    return ("exact/nash_conv",) if is_exact(game) else ()


def verdicts(results: Mapping[str, Mapping[int, Curve]]) -> dict[str, str]:
    """What the last values of each arm say beside the first arm's, seed by seed.

    By Student's interval of the mean difference over paired seeds; one that holds 0 decides nothing.
    """
    first, *others = results
    found = {first: "what the others are compared with"}
    for kind in others:
        seeds = sorted(set(results[first]) & set(results[kind]))
        gaps = [results[kind][seed]["values"][-1] - results[first][seed]["values"][-1] for seed in seeds]
        if len(gaps) < 2:
            found[kind] = f"one seed shows nothing: {gaps[0]:+.3f}" if gaps else "no run"
            continue
        mean = student_mean(gaps)
        word = "lower" if mean.high < 0 else "higher" if mean.low > 0 else "not shown to differ"
        lower = sum(gap < 0 for gap in gaps)
        found[kind] = f"{word}: {mean}, lower in {lower} of {len(gaps)} seeds"
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

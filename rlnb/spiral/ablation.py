"""The ablation: the same run with other advantages and seeds, and what the paired differences show."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rlnb.games.text_games import TextGame
from rlnb.policy import load_policy
from rlnb.policy.adapters import WeightSnapshot
from rlnb.run.checkpoints import checkpoint_step, complete_checkpoints
from rlnb.run.tracking import open_tracker, read_metrics
from rlnb.selfplay.arena import is_exact
from rlnb.selfplay.checkpoints import load_weights
from rlnb.selfplay.rollouts import RewardFunction
from rlnb.selfplay.update import Learner
from rlnb.spiral.params import SpiralSelfPlayParams
from rlnb.spiral.setup import load_self_play_game, make_self_play_run, resume_run
from rlnb.spiral.training import train
from rlnb.statistics import student_mean

Rows = Sequence[Mapping[str, float]]  # of metrics.jsonl
Curve = dict[str, list[float]]  # {"steps": [...], "values": [...]}


def run_training(
    params: SpiralSelfPlayParams,
    output_dir: str | Path,
    *,
    reward: RewardFunction,
    show: Callable[[int, int], None] | None = None,
) -> list[dict[str, float]]:
    """Train, or resume, a run without a notebook, and return the rows of its metrics.

    It is evaluated before and after, also when it had finished: it may have been killed in between.
    """
    game = load_self_play_game(params)
    run = make_self_play_run(params, load_policy(params.model, seed=params.seed), game, reward=reward)
    state = resume_run(run, output_dir)

    def evaluate() -> Mapping[str, float]:
        num_games = params.evaluation.interval_games
        return run.arena.measure(run.learner.average, num_games=num_games).metrics

    tracking = {"config": params.model_dump(), **params.tracking.model_dump()}
    with open_tracker(output_dir, resume_step=state.step, **tracking) as tracker:
        if state.step == 0:
            tracker.report(0, evaluate())
        if state.step < params.training.max_steps:
            state = train(
                run.learner, run.games, state, tracker=tracker, output_dir=output_dir,
                evaluate=lambda _: evaluate(), show=show,
            )  # fmt: skip
        tracker.report(state.step, evaluate())
    return read_metrics(Path(output_dir) / "metrics.jsonl")


def make_variant(
    params: SpiralSelfPlayParams, kind: str, *, seed: int, max_steps: int
) -> SpiralSelfPlayParams:
    """Return the parameters with another advantage, seed and length; schedules stretch with the length.

    Each variant starts from the model's own weights, even if the run itself resumes from a directory.
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
    params: SpiralSelfPlayParams,
    output_dir: str | Path,
    *,
    reward: RewardFunction,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, dict[int, Rows]]:
    """Make the runs of the section `ablation` in output_dir/KIND-SEED-STEPS; finished ones are not repeated.

    Returns {kind: {seed: rows of its metrics}}.
    """
    ablation = params.ablation
    pairs = [(kind, seed) for seed in range(1, ablation.num_seeds + 1) for kind in ablation.kinds]
    runs: dict[str, dict[int, Rows]] = {kind: {} for kind in ablation.kinds}
    for num_done, (kind, seed) in enumerate(pairs, start=1):
        variant = make_variant(params, kind, seed=seed, max_steps=ablation.max_steps)
        directory = Path(output_dir) / f"{kind}-{seed}-{ablation.max_steps}"
        runs[kind][seed] = run_training(variant, directory, reward=reward)
        if progress:
            progress(num_done, len(pairs))
    return runs


def load_kept_snapshots(
    learner: Learner, untrained: WeightSnapshot, output_dir: str | Path
) -> dict[str, WeightSnapshot]:
    """Return a run's weights that can play each other: untrained, kept checkpoints, last, average."""
    last = WeightSnapshot.take(learner.actor.policy)
    snapshots = {"untrained": untrained}
    for checkpoint in complete_checkpoints(output_dir)[:-1]:  # the policy holds the newest
        snapshots[f"step {checkpoint_step(checkpoint)}"] = load_weights(checkpoint, last)
    return snapshots | {"last": last, "average": learner.average}


def exact_metrics(game: TextGame) -> tuple[str, ...]:
    """Return the metrics whose mean judges a run, lower is better; none for games without exact measures."""
    if game.short_name == "tic_tac_toe":
        return ("exact/loss_first", "exact/loss_second")
    return ("exact/nash_conv",) if is_exact(game) else ()


def make_curves(runs: Mapping[str, Mapping[int, Rows]], names: Sequence[str]) -> dict[str, dict[int, Curve]]:
    """Return {kind: {seed: curve}}: the mean of the metrics `names` at the steps that have them all."""
    curves: dict[str, dict[int, Curve]] = {}
    for kind, by_seed in runs.items():
        curves[kind] = {}
        for seed, rows in by_seed.items():
            complete = [row for row in rows if all(row.get(name) is not None for name in names)]
            curves[kind][seed] = {
                "steps": [row["step"] for row in complete],
                "values": [sum(row[name] for name in names) / len(names) for row in complete],
            }
    return curves


def compare_curves(curves: Mapping[str, Mapping[int, Curve]]) -> dict[str, str]:
    """Return {kind: how its last values compare with those of the first kind}, seed by seed.

    By Student's interval of the mean difference over paired seeds; an interval that holds 0 decides nothing.
    """
    first, *others = curves
    conclusions = {first: "the baseline of this comparison"}
    for kind in others:
        seeds = sorted(set(curves[first]) & set(curves[kind]))
        gaps = [curves[kind][seed]["values"][-1] - curves[first][seed]["values"][-1] for seed in seeds]
        if len(gaps) < 2:
            conclusions[kind] = f"one seed shows nothing: {gaps[0]:+.3f}" if gaps else "no run"
            continue
        mean = student_mean(gaps)
        result = "lower" if mean.high < 0 else "higher" if mean.low > 0 else "not shown to differ"
        num_lower = sum(gap < 0 for gap in gaps)
        conclusions[kind] = f"{result}: {mean}, lower in {num_lower} of {len(gaps)} seeds"
    return conclusions

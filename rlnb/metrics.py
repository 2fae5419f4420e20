"""Every metric name that rlnb writes, and the tracker that writes them.

`METRICS` is the only place of names. A run always has `metrics.jsonl`; TensorBoard and W&B get the same.
"""

import json
import math
import os
import re
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from rlnb.machine import rank

STATUSES: Final = (
    "ok_with_output",
    "ok_without_output",
    "no_code",
    "syntax_error",
    "runtime_error",
    "timeout",
    "memory_exceeded",
    "output_exceeded",
    "killed",
    "sandbox_error",
)
ENDINGS: Final = (
    "success",
    "failed",
    "stuck",
    "illegal",
    "exception",
    "timeout",
    "forbidden",
    "no_code",
    "sandbox_error",
)
STRATEGY: Final = (
    ("score", "graded reward, mean over completions", "log share"),
    ("valid_share", "completions that are a strategy and answer with a key", "share"),
    ("honest_share", "completions all of whose games ended by the rules", "share"),
    ("skill", "score of the honest completions alone", "log share"),
    ("win_share", "games that reached the target", "share"),
    ("distinct_programs", "different programs among the completions", "programs"),
    ("suspicious_share", "completions that the monitor counts", "share"),
)
GREEDY_STRATEGY: Final = (
    ("greedy_score", "score of the greedy completions", "log share"),
    ("greedy_skill", "score of the honest ones of the greedy completions", "log share"),
)
PLAYERS: Final = (
    ("corner", "the corner rule"),
    ("greedy_merge", "greedy merging"),
    ("best_of_untrained", "the best of the untrained samples"),
)
GAME: Final = (
    ("win_share", "programs that are valid and whose output the opponent does not predict", "share"),
    ("valid_share", "programs that run, print, and print the same in every interpreter", "share"),
    ("opponent_right", "valid programs whose output the opponent predicts", "share"),
    ("trivial_share", "valid programs that compute nothing", "share"),
    ("echo_share", "valid programs whose output stands in their source", "share"),
    ("distinct_shapes", "different programs, constants and names aside, a valid program", "share"),
)
GAME_IN_TRAINING: Final = (
    ("token_probability", "geometric mean of the opponent's probabilities of an output's tokens", "share"),
    ("false_comment_share", "valid programs with a comment that states another output", "share"),
    ("output_characters", "length of a valid program's output, mean", "characters"),
    ("predictor_right", "predictions of the role predictor that are right", "share"),
)
INVALID_KINDS: Final = (
    "no_code", "syntax_error", "long_code", "runtime_error", "timeout", "memory_exceeded", "output_exceeded",
    "killed", "silent", "long_output", "unreadable", "not_deterministic",
)  # fmt: skip
STEP_AXIS: Final = "train/global_step"


class Metric(NamedTuple):
    """What one metric measures, and its unit."""

    what: str
    unit: str


METRICS: Final[Mapping[str, Metric]] = {
    # The optimizer step, as TRL's GRPOTrainer logs it (docs/one_grpo_step.md).
    "loss": Metric("policy loss; about 0 on policy by construction, so watch the reward", "nats"),
    "grad_norm": Metric("gradient norm before clipping", "norm"),
    "learning_rate": Metric("learning rate of this step", "rate"),
    "epoch": Metric("passes over the prompts so far", "epochs"),
    "num_tokens": Metric("prompt and completion tokens seen so far", "tokens"),
    "step_time": Metric("wall time of the step", "s"),
    "entropy": Metric("mean entropy of the policy over completion tokens", "nats"),
    "kl": Metric("mean divergence from the reference policy; only with beta > 0", "nats"),
    "clip_ratio/low_mean": Metric("tokens clipped from below, mean over ranks", "share"),
    "clip_ratio/low_min": Metric("tokens clipped from below, least of all ranks", "share"),
    "clip_ratio/high_mean": Metric("tokens clipped from above, mean over ranks", "share"),
    "clip_ratio/high_max": Metric("tokens clipped from above, most of all ranks", "share"),
    "clip_ratio/region_mean": Metric("tokens clipped from either side", "share"),
    "policy_loss": Metric("loss without the entropy bonus; only with one", "nats"),
    "entropy_coef": Metric("weight of the entropy bonus; only with one", "weight"),
    # Rewards.
    "reward": Metric("mean reward over the batch", "reward"),
    "reward_std": Metric("standard deviation of the reward within a group, mean over groups", "reward"),
    "frac_reward_zero_std": Metric("groups whose rewards are all equal and so teach nothing", "share"),
    "rewards/{function}/mean": Metric("mean of one reward function", "reward"),
    "rewards/{function}/std": Metric("standard deviation of one reward function", "reward"),
    "reward/avg_batch_reward": Metric("mean execution reward over the batch", "reward"),
    "reward/successful_predictions_count": Metric("programs of the batch that ran without error", "programs"),
    "reward/pass_rate": Metric("completions that pass all tests of their task", "share"),
    # Completions.
    "completions/mean_length": Metric("length of a completion, mean", "tokens"),
    "completions/min_length": Metric("length of a completion, shortest", "tokens"),
    "completions/max_length": Metric("length of a completion, longest", "tokens"),
    "completions/mean_terminated_length": Metric("length of one that ended by itself, mean", "tokens"),
    "completions/min_terminated_length": Metric("length of one that ended by itself, shortest", "tokens"),
    "completions/max_terminated_length": Metric("length of one that ended by itself, longest", "tokens"),
    "completions/clipped_ratio": Metric("completions cut at max_completion_length", "share"),
    "completions/closed_fence": Metric("completions whose code block is closed", "share"),
    **{f"status/{name}_share": Metric(f"completions that ended as {name}", "share") for name in STATUSES},
    # Where the time went.
    "time/reward_seconds": Metric("wall time inside reward functions", "s"),
    "time/opponent_seconds": Metric("wall time of the opponent's pass, a part of reward_seconds", "s"),
    "time/tracking_seconds": Metric("wall time inside this tracker since the step before", "s"),
    # Held-out tasks: `known` are families that are trained on, `new` are families never trained on.
    **{
        f"heldout/{split}/{name}": Metric(f"{what}, held-out tasks of {split} families", unit)
        for split in ("known", "new")
        for name, what, unit in (
            ("reward", "mean reward", "reward"),
            ("pass_rate_sampled", "sampled completions that pass all tests", "share"),
            ("pass_rate_greedy", "greedy completions that pass all tests", "share"),
        )
    },
    # Strategies for 2048; scores are shares of the target's logarithm above random play.
    **{f"strategy/{name}": Metric(what, unit) for name, what, unit in STRATEGY},
    **{f"strategy/{name}_share": Metric(f"strategies that ended as {name}", "share") for name in ENDINGS},
    **{
        f"heldout/strategy/{name}": Metric(f"{what}; held-out boards and wording", unit)
        for name, what, unit in (*STRATEGY, *GREEDY_STRATEGY)
    },
    **{
        f"heldout/players/{name}": Metric(f"greedy_score of {what} on the same boards", "log share")
        for name, what in PLAYERS
    },
    # The code game; shares of valid programs but for the first two.
    **{f"game/{name}": Metric(what, unit) for name, what, unit in (*GAME, *GAME_IN_TRAINING)},
    **{f"game/{name}_share": Metric(f"programs without a round: {name}", "share") for name in INVALID_KINDS},
    **{f"heldout/game/{name}": Metric(f"{what}; held-out values", unit) for name, what, unit in GAME},
    "heldout/game/predictor_right": Metric(
        "fixed programs that the policy predicts, two-sided game", "share"
    ),
    "heldout/game/second_right": Metric(
        "valid programs whose output the second judge predicts; held-out values", "share"
    ),
    # MBPP, before, during and after training.
    "mbpp_eval/pass_rate": Metric("pass@1 on MBPP: right completions, mean over problems", "share"),
    "mbpp_eval/problems_passed": Metric("problems of MBPP that at least one completion solves", "problems"),
    # Generation by vLLM: how far its probabilities are from the trained policy's.
    "sampling/sampling_logp_difference/mean": Metric("log-probability gap to vLLM's, mean", "nats"),
    "sampling/sampling_logp_difference/max": Metric("log-probability gap to vLLM's, largest", "nats"),
    "sampling/importance_sampling_ratio/min": Metric("importance weight against vLLM, least", "ratio"),
    "sampling/importance_sampling_ratio/mean": Metric("importance weight against vLLM, mean", "ratio"),
    "sampling/importance_sampling_ratio/max": Metric("importance weight against vLLM, largest", "ratio"),
    # Once, when training ends.
    "train_loss": Metric("mean loss over the run", "nats"),
    "train_runtime": Metric("wall time of training", "s"),
    "train_samples_per_second": Metric("completions trained on per second", "1/s"),
    "train_steps_per_second": Metric("optimizer steps per second", "1/s"),
    "total_flos": Metric("floating-point operations, as transformers estimates them", "flop"),
}


class UnknownMetric(UserWarning):
    """A metric was reported under a name that METRICS does not have."""


def describe(name: str) -> Metric | None:
    """What the metric `name` is, or None when METRICS does not know it.

    `eval_` in front (TRL's own evaluation) and the name of a reward function are seen through.
    """
    name = name.removeprefix("eval_")
    return METRICS.get(re.sub(r"^rewards/[^/]+/(mean|std)$", r"rewards/{function}/\1", name))


def describe_metrics() -> str:
    """METRICS as a Markdown table, for the documentation."""
    rows = [f"| `{name}` | {metric.what} | {metric.unit} |" for name, metric in METRICS.items()]
    return "\n".join(["| metric | what it is | unit |", "|---|---|---|", *rows])


def read_metrics(path: Path | str) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl in the order of steps, one row a step.

    Reports of one step are joined, the later wins. A last line torn by a kill is left out; a file that
    is not there yet has no rows.
    """
    by_step: dict[int, dict[str, Any]] = {}
    for row in _whole_rows(Path(path)):
        by_step.setdefault(row["step"], {}).update(row)
    return [by_step[step] for step in sorted(by_step)]


class Tracker:
    """Writes metrics to metrics.jsonl and, where there is one, to a TensorBoard writer and a W&B run.

    Made by `open_tracker`. `seconds` is the wall time that it has taken itself so far.
    """

    def __init__(self, path: Path, *, tensorboard: Any = None, wandb_run: Any = None) -> None:
        self.path = path
        self.seconds = 0.0
        self._file = path.open("ab", buffering=0)  # a row is one write, so a kill leaves whole lines
        self._tensorboard = tensorboard
        self._wandb_run = wandb_run
        self._unknown: set[str] = set()
        self._timed_step: int | None = None
        self._timed_seconds = 0.0

    def report(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write the metrics of one step under exactly their names.

        Values are numbers or None (nothing to report; NaN and infinity become None too). The first report
        of a step carries `time/tracking_seconds`. A name that METRICS does not have is written all the
        same and warned about once: a typing error must not end a run of hours, and tests turn the warning
        `UnknownMetric` into an error.
        """
        with self._timed():
            values = {name: _number(value) for name, value in metrics.items()}
            if step != self._timed_step:
                values["time/tracking_seconds"] = self.seconds - self._timed_seconds
                self._timed_step, self._timed_seconds = step, self.seconds
            self._warn_of_unknown(values)
            row = {"step": step, "time": time.time(), **values}
            self._file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
            present = {name: value for name, value in values.items() if value is not None}
            if self._tensorboard is not None:
                self._tensorboard.add_event(_tensorboard_event(step, present))
            if self._wandb_run is not None:
                # Never step=: W&B drops what comes with a smaller step than its own counter.
                self._wandb_run.log({**present, STEP_AXIS: step})

    def close(self) -> None:
        """Flush and close everything; W&B uploads what is left."""
        with self._timed():
            self._file.close()
            if self._tensorboard is not None:
                self._tensorboard.close()
            if self._wandb_run is not None:
                self._wandb_run.finish()

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - started

    def _warn_of_unknown(self, values: Mapping[str, float | None]) -> None:
        for name in values:
            if name not in self._unknown and describe(name) is None:
                self._unknown.add(name)
                warnings.warn(
                    f"metric {name!r} is not in rlnb.metrics.METRICS; it is written, but undocumented. "
                    f"Add it to the table or correct the name.",
                    UnknownMetric,
                    stacklevel=4,
                )


def open_tracker(
    output_dir: Path | str,
    *,
    config: Mapping[str, Any],
    resume_step: int = 0,
    wandb: str = "disabled",
    project: str = "rlnb",
    run_name: str = "",
    tensorboard: bool = True,
) -> Tracker:
    """A tracker that writes to output_dir: metrics.jsonl, tensorboard/, and the W&B run's own folder.

    resume_step: the step that training goes on from, 0 at a fresh start. Rows of later steps, written
    by an attempt that was killed before its next checkpoint, are dropped, so that every step is there
    once. config: what W&B shows beside the run. wandb: "online", "offline" or "disabled", as
    `rlnb.params.resolve` has settled it. The others: the fields of `tracking` in the parameters. Under
    torchrun only rank 0 writes; the trackers of the others do nothing.
    """
    if rank() != 0:
        return Tracker(Path(os.devnull))
    directory = Path(output_dir)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "metrics.jsonl"
    _drop_rows_after(path, resume_step)
    return Tracker(
        path,
        tensorboard=_open_tensorboard(directory / "tensorboard", resume_step) if tensorboard else None,
        wandb_run=None
        if wandb == "disabled"
        else _open_wandb(directory, mode=wandb, project=project, run_name=run_name, config=config),
    )


def _number(value: Any) -> float | None:
    if value is None:
        return None
    number = value.item() if hasattr(value, "item") else value
    return number if math.isfinite(number) else None


def _whole_rows(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield json.loads(line)


def _drop_rows_after(path: Path, step: int) -> None:
    """Rewrite the file without rows after `step`, all where that is 0, and without a torn last line."""
    if not path.exists():
        return
    kept = path.with_suffix(".jsonl.tmp")
    with kept.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in _whole_rows(path) if row["step"] <= step > 0)
    kept.replace(path)


def _open_tensorboard(directory: Path, resume_step: int) -> Any:
    """TensorBoard's own writer: torch's wrapper around it would import torch into every reader of metrics."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(directory))
    # TensorBoard forgets what earlier files of this folder hold from this step on.
    start = SessionLog(status=SessionLog.START)
    writer.add_event(Event(wall_time=time.time(), step=resume_step + 1, session_log=start))
    return writer


def _tensorboard_event(step: int, values: Mapping[str, float]) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
    return Event(wall_time=time.time(), step=step, summary=Summary(value=scalars))


def _open_wandb(directory: Path, *, mode: str, project: str, run_name: str, config: Mapping[str, Any]) -> Any:
    """A W&B run whose id is kept in the directory, so that a resumed run goes on in the same curve."""
    import wandb

    id_file = directory / "wandb_run_id.txt"
    if not id_file.exists():
        id_file.write_text(uuid.uuid4().hex[:12])
    run = wandb.init(
        project=project,
        name=run_name or None,
        id=id_file.read_text().strip(),
        resume="allow" if mode == "online" else None,  # offline there is nothing to look up: W&B would warn
        mode=mode,  # type: ignore[arg-type]
        dir=str(directory),
        config=dict(config),
        settings=wandb.Settings(console="off", quiet=True),
    )
    run.define_metric(STEP_AXIS)
    run.define_metric("*", step_metric=STEP_AXIS)
    return run

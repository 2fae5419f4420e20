"""Evaluations of a policy in training: written as soon as they are done, and read by a run that resumes."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TypeVar

from accelerate.utils import broadcast_object_list
from pydantic import BaseModel, TypeAdapter
from pydantic_core import to_json, to_jsonable_python

from rlnb.machine import rank
from rlnb.policy import Policy, generate
from rlnb.policy.adapters import WeightSnapshot, first_weights, hash_trained, was_trained
from rlnb.policy.prompts import Prompt
from rlnb.results import to_plain_data, write_record
from rlnb.run.directory import say
from rlnb.run.interactive import check_own
from rlnb.run.stop_signal import StopSignal
from rlnb.run.tracking import Tracker, read_metrics
from rlnb.source_code.extraction import ends_of_answers

Evaluation = TypeVar("Evaluation")

NOT_TRAINED = "nothing was trained here; run the training cell, which goes on from its checkpoint"


def measure_once(
    path: Path,
    evaluate: Callable[[], Evaluation],
    *,
    kind: type[Evaluation],
    policy: Policy,
    params: BaseModel,
    settings: Mapping[str, object],
    warn: Callable[[Evaluation], Sequence[str]] = lambda _: (),
    snapshots: Sequence[WeightSnapshot] = (),
    name: str = "evaluation",
    summarize: Callable[[Evaluation], Mapping[str, object]] = lambda _: {},
) -> Evaluation:
    """Return the evaluation that an earlier attempt of this run saved; else evaluate, and save it at once.

    It is read if it was made with the same settings and, to the bit, the same trained weights, those of the
    policy and of `snapshots`. Rank 0 writes, and decides for all ranks whether to read: the file may reach
    them at different times, and an evaluation may wait for all of them. Where the file's name ends in
    "_before", the weights are those from before a training in this process: cells may be run again. Raises
    RuntimeError for "_after" where there was none, and for a run that this kernel has left. kind: of
    dataclasses of plain values, such as list[JudgedAnswer]; name: its key in the file. settings: all else
    that the result depends on. params: of the run, kept in the file for its readers, as is what `summarize`
    returns. warn: returns lines that are said of it.
    """
    if path.stem.endswith("_after") and not was_trained(policy):
        raise RuntimeError(NOT_TRAINED)
    check_own(path)
    is_before = path.stem.endswith("_before")
    with first_weights(policy).applied_to(policy) if is_before else nullcontext():
        settings = {**settings, "trained_sha256": hash_trained(policy, snapshots)}
        (kept,) = broadcast_object_list([_read(path, kind, name, settings) if rank() == 0 else None])
        evaluation = evaluate() if kept is None else kept
    if kept is None:
        # JSON has no NaN and no infinity; as texts they are read back as floats.
        text = to_json(evaluation, inf_nan_mode="strings", fallback=to_plain_data)
        record = {"params": params, "settings": settings, **summarize(evaluation), name: json.loads(text)}
        write_record(path, record)
    for line in warn(evaluation):
        say(path.parent, f"{path.stem}: {line}")
    return evaluation


def answer_before_and_after(
    policy: Policy, prompt: Prompt, *, function: str, max_new_tokens: int
) -> list[str]:
    """Return two greedy answers to a prompt: by the weights before the training in this process, and after.

    function: the name of the function that the answer defines, "" for another program.
    """
    answers = []
    for weights in (first_weights(policy).applied_to(policy), nullcontext()):
        with weights:
            answers += generate(
                policy,
                [prompt.text],
                max_new_tokens=max_new_tokens,
                temperature=0.0,
                is_complete=ends_of_answers([prompt.prefix], [function]),
            )
    return [answer.text for answer in answers]


def _read(path: Path, kind: type[Evaluation], name: str, settings: Mapping[str, object]) -> Evaluation | None:
    """Return the evaluation in a file, None where there is none of these settings; say what is done."""
    if not path.exists():
        return None
    try:
        saved = json.loads(path.read_bytes())
        if saved.get("settings") != to_jsonable_python(settings):
            print(f"{path} was made with other settings; evaluating again", flush=True)
            return None
        evaluation = TypeAdapter(kind).validate_python(saved[name])
    except (OSError, ValueError, KeyError, AttributeError, RecursionError):
        print(f"{path} is damaged or of another version; evaluating again", flush=True)
        return None
    print(f"{path} has this evaluation of the same weights; it is not done again", flush=True)
    return evaluation


def evaluate_step(
    step: int, evaluate: Callable[[int], Mapping[str, float]], tracker: Tracker, stop: StopSignal
) -> Mapping[str, float]:
    """Report and return the interval evaluation of a step that is saved and reported, {} after a signal.

    Also of the step that a run resumes from, whose evaluation a signal or a kill may have cut short; what
    `measure_once` has kept is read. A step that another run made has no row in this run's metrics.jsonl, and
    gets none.
    """
    rows = [row for row in read_metrics(tracker.path) if row["step"] == step]
    (is_own_step,) = broadcast_object_list([bool(rows)])  # rank 0 alone has the rows
    metrics = stop.evaluate(evaluate, step) if is_own_step else {}
    if not all(metrics.keys() <= row.keys() for row in rows):
        tracker.report(step, metrics)
    return metrics

"""All that is tested on two ranks, in one start of torchrun: starting it takes longer than any part."""

import json
import os
import sys
from functools import partial
from pathlib import Path

import torch
from accelerate import PartialState
from grpo_runs import LOSS_TYPES
from grpo_runs import train as train_grpo
from recorded_runs import measure_on_this_rank
from self_play_runs import RUNS
from self_play_runs import train_run as train_self_play
from test_evaluations import VERDICTS, ParamsOfTest, Verdict
from tiny_policy import load_tiny

from rlnb.code_execution.params import GrpoCodeExecutionParams
from rlnb.errors import RlnbError
from rlnb.evaluations import measure_once
from rlnb.machine import Machine, rank
from rlnb.notebook import join_ranks
from rlnb.run.checkpoints import STATE_FILE, checkpoint_to_resume, complete_checkpoint

CPU = Machine("cpu", "", None, 16.0, 2, "workstation", "offline")


def join(folder: Path) -> None:
    """Join the ranks as a notebook does that found no GPU."""
    join_ranks(CPU)
    (folder / f"num-seen-by-{rank()}").write_text(str(PartialState().num_processes))


def evaluate_twice(folder: Path) -> None:
    """Evaluate into a file that the other rank does not see, and again."""
    policy, calls = load_tiny(folder / "cache"), []
    path = folder / f"seen-by-{rank()}" / "arena_before.json"
    options = {"kind": list[Verdict], "settings": {}}
    for attempt in ("first", "second"):
        evaluate = partial(lambda attempt: calls.append(attempt) or VERDICTS, attempt)
        assert measure_once(path, evaluate, policy=policy, params=ParamsOfTest(), **options) == VERDICTS
    (folder / f"evaluated-by-{rank()}").write_text(" ".join(calls))


def resume(folder: Path) -> None:
    """Go on in a directory of which one rank sees an older state: both give it by the same relative path."""
    params = GrpoCodeExecutionParams.model_validate({"training": {"resume": "auto"}})
    started, view = Path.cwd(), folder / f"seen-by-{rank()}"
    for run, seen in {"older-on-0": ([36], [36, 40]), "older-on-1": ([36, 40], [36])}.items():
        for step in seen[rank()]:
            checkpoint = view / run / "checkpoints" / f"checkpoint-{step}"
            checkpoint.mkdir(parents=True)
            (checkpoint / STATE_FILE).write_text(json.dumps({"global_step": step}))
            complete_checkpoint(checkpoint, params)
        os.chdir(view)
        try:
            said = str(checkpoint_to_resume(params, run))
        except RlnbError as error:
            said = f"refused: {error}"
        os.chdir(started)
        (folder / f"{run}-{rank()}").write_text(said)


def play(folder: Path) -> None:
    torch.save({kind: train_self_play(kind, folder) for kind in RUNS}, folder / f"rank{rank()}.pt")


def train_by_trl(folder: Path) -> None:
    for loss_type in LOSS_TYPES:
        trained = train_grpo(folder / loss_type, loss_type, num_ranks=PartialState().num_processes)
        torch.save(trained, folder / f"{loss_type}{rank()}.pt")


PARTS = (join, evaluate_twice, resume, play, measure_on_this_rank, train_by_trl)  # a folder each, by its name


if __name__ == "__main__":
    for part in PARTS:
        part(Path(sys.argv[1], part.__name__))
        PartialState().wait_for_everyone()  # a rank that leaves first can abort the other
    PartialState().destroy_process_group()

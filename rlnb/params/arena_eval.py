"""Parameters of notebooks/arena_eval.ipynb and of `rlnb eval --checkpoint`."""

import os
from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from rlnb.params.playing import check_modes
from rlnb.params.sections import Conflict, Names, NotebookParams, Section

UNTRAINED = "untrained"
CHECKPOINT_FILES = ("params.yaml", "trainer_state.json")  # of a checkpoint; its run has the first one alone


class ContestParams(Section):
    checkpoint: str = Field(
        default=UNTRAINED,
        min_length=1,
        description="Checkpoint of spiral_self_play or ppo_openspiel that is measured; untrained = the model "
        "of contest.run_profile as it comes",
    )
    compare_with: str = Field(
        default="",
        description="Another checkpoint of the same run, or untrained, on the same seeds; empty = none",
    )
    notebook: Literal["ppo_openspiel", "spiral_self_play"] = Field(
        default="ppo_openspiel", description="Notebook of an untrained model's parameters"
    )
    run_profile: str = Field(
        default="auto", min_length=1, description="Profile of an untrained model's parameters"
    )
    weights: Literal["average", "last"] = Field(
        default="average", description="Which weights of a checkpoint play"
    )
    games: Names = Field(default=(), description="Games that are played; empty = those of the run")
    opponents: Names = Field(
        default=("random",),
        min_length=1,
        description="Opponents: random, mcts:N, perfect, nash; a game is played against those that can",
    )
    num_games: int = Field(
        default=100, ge=2, multiple_of=2, description="Games against each opponent, half from each seat"
    )
    modes: Names = Field(
        default=("constrained", "free"),
        min_length=1,
        description="How the policy answers: constrained (sampled and greedy), free, or both",
    )
    num_threads: int = Field(default=0, ge=0, description="CPU threads of torch; 0 = torch's own choice")

    _known_modes = check_modes("modes")

    def conflicts(self) -> Iterator[Conflict]:
        for field in ("checkpoint", "compare_with"):
            path = getattr(self, field)
            if path in ("", UNTRAINED):
                continue
            missing = [name for name in CHECKPOINT_FILES if not os.path.isfile(os.path.join(path, name))]
            if missing:
                yield Conflict(
                    f"contest.{field}",
                    f"holds no {missing[0]}, as checkpoints of spiral_self_play and ppo_openspiel do; write "
                    "a run's checkpoints/checkpoint-N, or untrained",
                )
        if self.compare_with == self.checkpoint:
            yield Conflict(
                "contest.compare_with",
                "is contest.checkpoint itself; write another, or nothing",
                ("contest.checkpoint",),
            )


class ArenaEvalParams(NotebookParams):
    """A checkpoint in the arena, alone or beside another."""

    output_dir: str = Field(
        default="outputs/arena_eval", min_length=1, description="Directory for the results"
    )
    contest: ContestParams = ContestParams()

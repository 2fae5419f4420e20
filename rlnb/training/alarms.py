"""What stops a self-play run before it trains for hours on nothing."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlnb.errors import TrainingDiverged
from rlnb.machine import rank
from rlnb.runs import write_text
from rlnb.training.checkpoints import latest_checkpoint
from rlnb.trajectories import PlayedGame


def ringing(metrics: Mapping[str, float], params: Any, *, first_length: float) -> dict[str, str]:
    """{alarm: what is wrong and what to change} after an update; params: the section `alarms`.

    first_length: tokens of an answer at the first update, to which later ones are compared.
    """
    found = {}
    invalid, entropy = metrics["play/invalid_share"], metrics["entropy"]
    length = metrics["play/completion_tokens"]
    if invalid > params.invalid_share:
        found["invalid"] = (
            f"{invalid:.0%} of the answers hold no legal move (alarms.invalid_share = "
            f"{params.invalid_share}); write game.acting = constrained, or take a model made for chat"
        )
    if entropy < params.entropy:
        found["entropy"] = (
            f"the entropy is {entropy:.2g} nats (alarms.entropy = {params.entropy}): the policy no longer "
            "tries anything; raise training.entropy_coef"
        )
    if length < params.length_share * first_length:
        found["length"] = (
            f"answers have shrunk from {first_length:.0f} to {length:.0f} tokens (alarms.length_share = "
            f"{params.length_share}); lower training.learning_rate; in self-play write advantage.kind = rae"
        )
    return found


def check_alarms(
    counts: Mapping[str, int], metrics: Mapping[str, float], params: Any, *, first_length: float
) -> None:
    """Raise TrainingDiverged where an alarm has rung `patience` updates in a row, by these counts."""
    for name, reason in ringing(metrics, params, first_length=first_length).items():
        if counts.get(name, 0) >= params.patience:
            raise TrainingDiverged(f"for {counts[name]} updates in a row {reason}")


@contextmanager
def kept_when_diverged(games: Sequence[PlayedGame], output_dir: str | Path) -> Iterator[None]:
    """Write the games to diverged.jsonl before TrainingDiverged is passed on, with where they are.

    And with the last good checkpoint, from which a run with other settings may go on.
    """
    try:
        yield
    except TrainingDiverged as error:
        path = Path(output_dir) / ("diverged.jsonl" if rank() == 0 else f"diverged-{rank()}.jsonl")
        write_text(path, "".join(json.dumps(game.as_record()) + "\n" for game in games))
        good = latest_checkpoint(output_dir)
        onwards = f"; then go on in another output_dir, by training.resume = {good}" if good else ""
        raise TrainingDiverged(f"{error}{onwards}. The games of this update are in {path}") from error

"""Metrics of a batch of games, and the file that keeps every game of a run."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

import numpy as np
from accelerate.utils import gather_object

from rlnb.machine import rank
from rlnb.selfplay.rollouts import FinishedGame, collect_trajectories, collect_turns

GAMES_FILE = "games.jsonl"


def play_metrics(games: Sequence[FinishedGame]) -> dict[str, float]:
    """Return the metrics of the learner's turns and of the outcomes, by their names in METRICS."""
    trajectories = collect_trajectories(games)
    turns = collect_turns(trajectories)
    lengths = [len(turn.completion_ids) for turn in turns]
    masses = [turn.legal_mass for turn in turns if not math.isnan(turn.legal_mass)]
    scores = [game.score(trajectory.seat) for game in games for trajectory in game.trajectories]
    metrics = {
        "play/first_score": float(np.mean([game.score(0) for game in games])),
        "play/score": float(np.mean(scores)),
        "play/draw_share": float(np.mean([game.winner is None for game in games])),
        "play/turns": len(turns) / len(games),
        "play/invalid_share": sum(turn.problem is not None for turn in turns) / max(1, len(turns)),
        "play/completion_tokens": float(np.mean(lengths)) if turns else 0.0,
        "play/distinct_share": len({game.history for game in games}) / len(games),
        "reward": float(np.mean([trajectory.reward for trajectory in trajectories])),
    }
    return metrics | ({"play/legal_mass": float(np.mean(masses))} if masses else {})


def mean_over_ranks(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the means over all ranks, the same on each, so that all ranks stop or continue together."""
    ranks: list[Mapping[str, float]] = gather_object([dict(metrics)])
    return {name: float(np.mean([values[name] for values in ranks if name in values])) for name in metrics}


class GamesFile:
    """Every game of a run as a line of games.jsonl, with the step that it was played for; by rank 0.

    after: the step that a run resumes from; later games, of an attempt that was killed, are dropped.
    """

    def __init__(self, output_dir: str | Path, *, after: int) -> None:
        self.path = Path(output_dir) / GAMES_FILE
        self.after = after
        self._file: IO[bytes] | None = None

    def __enter__(self) -> "GamesFile":
        if rank() == 0:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("r+b" if self.path.exists() else "w+b")
            self._file.seek(self._find_end(self._file))
            self._file.truncate()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._file:
            self._file.close()

    def _find_end(self, file: IO[bytes]) -> int:
        """Return where the complete lines of steps up to `after` end."""
        end = 0
        for line in file:
            if not line.endswith(b"\n") or json.loads(line)["step"] > self.after:
                break
            end += len(line)
        return end

    def write(self, games: Sequence[FinishedGame], step: int) -> None:
        if self._file:
            records = ({"step": step, **game.as_record()} for game in games)
            lines = (json.dumps(record, separators=(",", ":")) + "\n" for record in records)
            self._file.write("".join(lines).encode())
            self._file.flush()

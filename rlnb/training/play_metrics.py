"""What a batch of games looks like in numbers, and every game in a file."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

import numpy as np
from accelerate.utils import gather_object

from rlnb.machine import rank
from rlnb.trajectories import PlayedGame

GAMES_FILE = "games.jsonl"


def play_metrics(games: Sequence[PlayedGame]) -> dict[str, float]:
    """Of the learner's turns and of who won, by their names in METRICS."""
    turns = [turn for game in games for trajectory in game.trajectories for turn in trajectory.turns]
    lengths = [len(turn.completion_ids) for turn in turns]
    masses = [turn.legal_mass for turn in turns if not math.isnan(turn.legal_mass)]
    return {
        "play/first_score": float(np.mean([game.score(0) for game in games])),
        "play/score": float(np.mean([game.score(one.seat) for game in games for one in game.trajectories])),
        "play/draw_share": float(np.mean([game.winner is None for game in games])),
        "play/turns": len(turns) / len(games),
        "play/invalid_share": sum(turn.problem is not None for turn in turns) / max(1, len(turns)),
        "play/completion_tokens": float(np.mean(lengths)) if turns else 0.0,
        "play/distinct_share": len({game.history for game in games}) / len(games),
        "reward": float(np.mean([one.reward for game in games for one in game.trajectories])),
        **({"play/legal_mass": float(np.mean(masses))} if masses else {}),
    }


def mean_over_ranks(metrics: Mapping[str, float]) -> dict[str, float]:
    """The same on all ranks, so that all stop or go on together."""
    everyone: list[Mapping[str, float]] = gather_object([dict(metrics)])
    return {name: float(np.mean([one[name] for one in everyone if name in one])) for name in metrics}


def progress_line(step: int, max_steps: int, metrics: Mapping[str, float]) -> str:
    """One update in a line: who wins, how much is still tried, what the last evaluation found, seconds."""
    seconds = metrics["time/rollout_seconds"] + metrics["time/update_seconds"]
    exact = [
        f"{label} {metrics[name]:.3f}"
        for name, label in (
            ("exact/nash_conv", "NashConv"),
            ("exact/loss_first", "loses first"),
            ("exact/loss_second", "second"),
        )
        if name in metrics
    ]
    return "  ".join(
        (
            f"step {step}/{max_steps}",
            f"score {metrics['play/score']:.2f}",
            f"first seat {metrics['play/first_score']:.2f}",
            f"draws {metrics['play/draw_share']:.0%}",
            f"invalid {metrics['play/invalid_share']:.0%}",
            f"entropy {metrics['entropy']:.3f}",
            *exact,
            f"{seconds:.1f} s",
        )
    )


class GamesFile:
    """Every game of a run as a line of games.jsonl, with the step that it was played for; by rank 0.

    after: the step that a run goes on from; games of later ones, by an attempt that was killed, are dropped.
    """

    def __init__(self, output_dir: str | Path, *, after: int) -> None:
        self.path = Path(output_dir) / GAMES_FILE
        self.after = after
        self._file: IO[bytes] | None = None

    def __enter__(self) -> "GamesFile":
        if rank() == 0:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("r+b" if self.path.exists() else "w+b")
            self._file.seek(self._end_of(self._file))
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

    def _end_of(self, file: IO[bytes]) -> int:
        """Where the whole lines of steps up to `after` end."""
        end = 0
        for line in file:
            if not line.endswith(b"\n") or json.loads(line)["step"] > self.after:
                break
            end += len(line)
        return end

    def write(self, games: Sequence[PlayedGame], step: int) -> None:
        if self._file:
            lines = (
                json.dumps({"step": step, **game.as_record()}, separators=(",", ":")) + "\n" for game in games
            )
            self._file.write("".join(lines).encode())
            self._file.flush()

"""Lost games that are played again: tasks, never trajectories, so that PPO learns from its own play only.

What is kept of a game is what it takes to play it anew; the weights of that time play it. Every function
returns a new state. The states of all ranks are alike if all get the same results in the same order.
"""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rlnb.params.ppo_openspiel import ReplayParams

# The weight of a failure that is no worse than usual: seldom drawn beside others, yet drawn.
LEAST_DEFICIT = 0.01


@dataclass(frozen=True)
class Task:
    """What is needed to play a game again.

    game: OpenSpiel's name with parameters. seat: the learner's, 0 or 1. opponent: as in the parameters,
    "mcts:25". seed, opening_seed: those of its Episode. stage: name of the stage that it was played for.
    """

    game: str
    seat: int
    opponent: str
    seed: int
    opening_seed: int
    stage: str

    @property
    def matchup(self) -> str:
        """Whose scores are compared with one another: "kuhn_poker/1/nash"."""
        return f"{self.game}/{self.seat}/{self.opponent}"


class Result(NamedTuple):
    """How a task ended. score: 1, 0.5 or 0. is_fresh: not a replay. counts: for the gate of the stage."""

    task: Task
    score: float
    is_fresh: bool = True
    counts: bool = True


@dataclass(frozen=True)
class Failure:
    """A task that was lost.

    deficit: by how much its last score was below the mean score of fresh games of its matchup, at least 0.
    num_tries: how often it was played again. step, first_step: the updates of its last and of its first loss.
    """

    task: Task
    deficit: float
    num_tries: int
    step: int
    first_step: int


@dataclass(frozen=True)
class Replay:
    """The failures that are kept, the one lost most recently last. `asdict` and `of` take it through JSON."""

    failures: tuple[Failure, ...] = ()

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> "Replay":
        return cls(tuple(Failure(**{**one, "task": Task(**one["task"])}) for one in kept["failures"]))

    def add(self, failures: Iterable[Failure], params: ReplayParams) -> "Replay":
        """With these as the most recent ones; of each game the oldest go first, then the oldest of all."""
        most = max(1, int(params.capacity * params.max_game_share))
        kept: list[Failure] = []
        by_game: Counter[str] = Counter()
        for one in reversed((*self.failures, *failures)):
            if len(kept) < params.capacity and by_game[one.task.game] < most:
                kept.append(one)
                by_game[one.task.game] += 1
        return Replay(tuple(reversed(kept)))

    def draw(self, count: int, rng: random.Random) -> tuple[Task, ...]:
        """`count` different tasks, or all where there are fewer.

        One after the other, each time with a probability in proportion to the deficits of those left: the
        first to arrive in a race of exponential waiting times, whose rates are the deficits.
        """
        waits = [rng.expovariate(max(one.deficit, LEAST_DEFICIT)) for one in self.failures]
        order = sorted(range(len(waits)), key=waits.__getitem__)
        return tuple(self.failures[number].task for number in order[:count])

    def after(
        self,
        results: Sequence[Result],
        mean_scores: Mapping[str, float],
        *,
        step: int,
        success_score: float,
        params: ReplayParams,
    ) -> "Replay":
        """The state after the games of an update, fresh ones and replays.

        A failure that is won now (from `success_score` on), or was played again `max_tries` times, is
        dropped; lost anew it is the most recent again, with its new deficit. Fresh games that are lost are
        added. mean_scores: of fresh games by matchup, `CurriculumState.mean_scores`; KeyError for one that
        is not there. step: of the update.
        """
        left = {one.task: one for one in self.failures}
        lost = []
        for task, score, is_fresh, _ in results:
            known = left.pop(task, None)
            if score >= success_score:
                continue
            deficit = max(0.0, mean_scores[task.matchup] - score)
            if known is None and is_fresh:
                lost.append(Failure(task, deficit, 0, step, step))
            elif known is not None and known.num_tries + 1 < params.max_tries:
                lost.append(replace(known, deficit=deficit, num_tries=known.num_tries + 1, step=step))
        return Replay(tuple(left.values())).add(lost, params)

    def metrics(self, results: Sequence[Result], *, step: int) -> dict[str, float]:
        """Of an update and the state after it: what is kept, the replays among its games, and how old.

        play/replay_age: mean number of updates since the failures that are kept were first lost; NaN where
        none is kept. play/replay_share: of `results`; NaN without any.
        """
        ages = [step - one.first_step for one in self.failures]
        num_replays = sum(not one.is_fresh for one in results)
        return {
            "play/replay_size": float(len(self.failures)),
            "play/replay_share": num_replays / len(results) if results else float("nan"),
            "play/replay_age": sum(ages) / len(ages) if ages else float("nan"),
        }


def num_replays(num_games: int, share: float, num_failures: int, rng: random.Random) -> int:
    """How many of an update's games are replays: even, so that an even number of fresh ones is left.

    In the mean over updates `share * num_games`, but never more than there are failures.
    """
    return 2 * min(randomly_rounded(share * num_games / 2, rng), num_failures // 2)


def randomly_rounded(number: float, rng: random.Random) -> int:
    """One of the two whole numbers beside it, so that the mean is the number itself."""
    return int(number + rng.random())

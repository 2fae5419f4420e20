"""Failure replay: lost games that are played again. Only tasks are kept, so PPO learns from its own play.

A task holds what is needed to play a game again; the weights of today play it. Ranks that get the same
results in the same order have equal buffers.
"""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from rlnb.ppo.params import ReplayParams

LEAST_DEFICIT = 0.01  # weight of a failure that was no worse than usual: it is drawn, but seldom


@dataclass(frozen=True)
class ReplayTask:
    """What is needed to play a game again.

    game: OpenSpiel's name with parameters. seat: of the learner. opponent: as in the parameters, "mcts:25".
    seed, opening_seed: of the Episode. stage: name of the stage for which the game was first played.
    """

    game: str
    seat: int
    opponent: str
    seed: int
    opening_seed: int
    stage: str

    @property
    def matchup(self) -> str:
        """The games that are compared with one another: "kuhn_poker/1/nash"."""
        return f"{self.game}/{self.seat}/{self.opponent}"


class GameResult(NamedTuple):
    """The result of a game. score: 1, 0.5 or 0. is_fresh: not a replay. counts: in the stage's score."""

    task: ReplayTask
    score: float
    is_fresh: bool = True
    counts: bool = True


@dataclass(frozen=True)
class Failure:
    """A lost game.

    deficit: mean score of the matchup's fresh games minus the game's last score, at least 0. num_tries: how
    often it was replayed. step, first_step: updates of its last and of its first loss.
    """

    task: ReplayTask
    deficit: float
    num_tries: int
    step: int
    first_step: int


@dataclass(frozen=True)
class ReplayBuffer:
    """The failures to be replayed, most recently lost last."""

    failures: tuple[Failure, ...] = ()

    def add(self, failures: Iterable[Failure], params: ReplayParams) -> "ReplayBuffer":
        """Return the buffer with these failures as the most recent ones.

        Each game has room for `max_game_share` of the capacity; the oldest failures are dropped first.
        """
        most = max(1, int(params.capacity * params.max_game_share))
        newest_first: list[Failure] = []
        by_game: Counter[str] = Counter()
        for failure in reversed((*self.failures, *failures)):
            if len(newest_first) < params.capacity and by_game[failure.task.game] < most:
                newest_first.append(failure)
                by_game[failure.task.game] += 1
        return ReplayBuffer(tuple(reversed(newest_first)))

    def draw(self, count: int, rng: random.Random) -> tuple[ReplayTask, ...]:
        """Return `count` different tasks, or all if there are fewer.

        They are drawn one after another, each with a probability in proportion to its deficit among those
        left: the first to arrive in a race of exponential waiting times whose rates are the deficits.
        """
        waits = [rng.expovariate(max(failure.deficit, LEAST_DEFICIT)) for failure in self.failures]
        order = sorted(range(len(waits)), key=waits.__getitem__)
        return tuple(self.failures[index].task for index in order[:count])

    def update(
        self,
        results: Sequence[GameResult],
        mean_scores: Mapping[str, float],
        *,
        step: int,
        success_score: float,
        params: ReplayParams,
    ) -> "ReplayBuffer":
        """Return the buffer after an update's fresh games and replays.

        Failures that were won now (score >= success_score) or replayed `max_tries` times are dropped; those
        lost again become the most recent ones, with a new deficit. Lost fresh games are added.
        mean_scores: of fresh games by matchup; KeyError for a missing one.
        """
        kept = {failure.task: failure for failure in self.failures}
        lost = []
        for task, score, is_fresh, _ in results:
            failure = kept.pop(task, None)
            if score >= success_score:
                continue
            deficit = max(0.0, mean_scores[task.matchup] - score)
            if failure is None and is_fresh:
                lost.append(Failure(task, deficit, 0, step, step))
            elif failure is not None and failure.num_tries + 1 < params.max_tries:
                lost.append(replace(failure, deficit=deficit, num_tries=failure.num_tries + 1, step=step))
        return ReplayBuffer(tuple(kept.values())).add(lost, params)

    def metrics(self, results: Sequence[GameResult], *, step: int) -> dict[str, float]:
        """Return the size of the buffer, the share of replays among the results, and the mean age.

        play/replay_age: updates since the first loss; NaN for an empty buffer.
        """
        ages = [step - failure.first_step for failure in self.failures]
        num_replayed = sum(not result.is_fresh for result in results)
        return {
            "play/replay_size": float(len(self.failures)),
            "play/replay_share": num_replayed / len(results) if results else float("nan"),
            "play/replay_age": sum(ages) / len(ages) if ages else float("nan"),
        }


def num_replays(num_games: int, share: float, num_failures: int, rng: random.Random) -> int:
    """Return how many of an update's games are replays: an even number, so that fresh games come in pairs.

    On average over updates `share * num_games`, but never more than there are failures.
    """
    return 2 * min(round_randomly(share * num_games / 2, rng), num_failures // 2)


def round_randomly(value: float, rng: random.Random) -> int:
    """Return one of the two neighbouring integers, so that the mean is the value itself."""
    return int(value + rng.random())

"""The referee of 2048 strategies, and the reward functions that TRL calls.

The rewards themselves are functions of a StrategyResult in the notebook's reward cell.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import fmean

from rlnb.game_2048.board import BoardKind
from rlnb.game_2048.checks import is_suspicious
from rlnb.game_2048.params import GptOss2048Params
from rlnb.game_2048.play import BoardRules, Ending, StrategyGame, play_many, random_progress
from rlnb.game_2048.strategies import Extraction, extract_strategy
from rlnb.grpo.rewards import TrlReward, make_trl_rewards
from rlnb.run.metrics import ENDINGS
from rlnb.sandbox import FailureCount, Sandbox

# The score of a game that did not end by the rules. Any honest game scores at least HONEST_FLOOR, a bound
# that only targets of a few tiles could pass. The levels lie close together: large penalties would drown the
# differences between strategies once advantages are divided by the group's standard deviation, and a single
# level would tie groups that hold nothing honest yet.
HONEST_FLOOR = -0.95
ENDING_LEVELS: dict[Ending, float] = {"stuck": -1.0, "timeout": -1.0, "illegal": -1.1, "exception": -1.1}
NO_STRATEGY_LEVEL = -1.2
PLAYED = ("", "forbidden")  # problems of strategies that are played, as by the published rewards


@dataclass(frozen=True)
class StrategyResult:
    """A judged completion.

    code: its program, None if there is none. problem, reason: as in `Extraction`. games: one a board, in the
    order of the seeds; none if there is a problem, unless it is in PLAYED. baselines: float, one a board: the
    mean progress of random play from its seed.
    """

    code: str | None
    problem: str
    reason: str
    games: tuple[StrategyGame, ...]
    baselines: tuple[float, ...]

    @property
    def is_played(self) -> bool:
        """It was played, at least once without a failure of the sandbox, and has no forbidden import."""
        return bool(self.finished_games) and not self.problem

    @property
    def is_valid(self) -> bool:
        """The completion is a strategy, and answered its first board with a key."""
        return self.is_played and all(game.moves or game.is_honest for game in self.finished_games)

    @property
    def is_honest(self) -> bool:
        """All games ended by the rules: never stuck, no illegal key, no exception, no time limit."""
        return self.is_played and all(game.is_honest for game in self.finished_games)

    @property
    def was_loaded(self) -> bool:
        """The program could be defined, in every game."""
        return bool(self.finished_games) and all(game.was_loaded for game in self.finished_games)

    @property
    def finished_games(self) -> list[StrategyGame]:
        """The games without those in which the sandbox failed."""
        return [game for game in self.games if game.ending != "sandbox_error"]

    @property
    def has_failed_sandbox(self) -> bool:
        return bool(self.games) and not self.finished_games

    @property
    def ending(self) -> str:
        """One of ENDINGS: the worst of the games, "failed" before "success"."""
        if self.problem:
            return "forbidden" if self.problem == "forbidden" else "no_code"
        return max((game.ending for game in self.finished_games or self.games), key=ENDINGS.index)

    @property
    def why(self) -> str:
        """Why the strategy was refused, or the error of the first game that broke the rules."""
        return self.reason or next((game.error for game in self.games if game.error), "")

    @property
    def board_scores(self) -> tuple[float, ...]:
        """The score on each board: progress minus that of random play, or a level below any honest loss.

        Boards on which the sandbox failed are left out.
        """
        if self.problem:
            return (NO_STRATEGY_LEVEL,) * len(self.baselines)
        return tuple(
            max(HONEST_FLOOR, game.progress - baseline)
            if game.is_honest or game.is_won
            else ENDING_LEVELS[game.ending]
            for game, baseline in zip(self.games, self.baselines, strict=True)
            if game.ending != "sandbox_error"
        )

    @property
    def score(self) -> float | None:
        """The mean score over the boards; None if the sandbox failed in every game."""
        scores = self.board_scores
        return sum(scores) / len(scores) if scores else None

    @property
    def win_share(self) -> float:
        """The share of the finished games that reached the target, 0 with a forbidden import."""
        num_won = sum(game.is_won for game in self.finished_games if not self.problem)
        return num_won / max(1, len(self.finished_games))


StrategyRewardFunction = Callable[[StrategyResult], float | None]


@dataclass
class StrategyReferee:
    """Extracts, checks and plays the strategies in completions, each distinct one of a call once."""

    sandbox: Sandbox
    rules: BoardRules
    failures: FailureCount = field(default_factory=FailureCount)

    @classmethod
    def from_params(cls, params: GptOss2048Params, sandbox: Sandbox) -> "StrategyReferee":
        return cls(sandbox, BoardRules.from_params(params))

    def judge(
        self,
        completions: Sequence[str],
        prefixes: Sequence[str],
        kinds: Sequence[BoardKind],
        seeds: Sequence[Sequence[int]],
    ) -> list[StrategyResult]:
        """Play completions[i], which follows prefixes[i], on boards kinds[i] with each of seeds[i].

        Raises SandboxUnavailable if the sandbox failed in more than 1% of the games.
        """
        keys = list(zip(prefixes, completions, kinds, map(tuple, seeds), strict=True))
        extractions = {key: extract_strategy(key[1], prefix=key[0]) for key in dict.fromkeys(keys)}
        jobs = {
            key: [(extraction.code or "", key[2], seed) for seed in key[3] if extraction.problem in PLAYED]
            for key, extraction in extractions.items()
        }
        flat = list(chain.from_iterable(jobs.values()))
        games = dict(zip(flat, play_many(flat, self.sandbox, rules=self.rules), strict=True))
        results = {}
        for key, extraction in extractions.items():
            baselines = tuple(random_progress(key[2], seed, play_on=self.rules.play_on) for seed in key[3])
            played = tuple(games[job] for job in jobs[key])
            if refused := [game.error for game in played if not game.was_compiled]:
                extraction, played = Extraction(extraction.code, "syntax_error", refused[0]), ()
            results[key] = StrategyResult(
                extraction.code, extraction.problem, extraction.reason, played, baselines
            )
        self.failures.add(len(games), [g.error for g in games.values() if g.ending == "sandbox_error"])
        return [results[key] for key in keys]


def make_strategy_rewards(
    rewards: Sequence[StrategyRewardFunction], referee: StrategyReferee
) -> list[TrlReward]:
    """Return the reward functions for TRL, all on the same games, which the first logs.

    The dataset needs the columns `prefix`, `board` and `seeds`.
    """
    return make_trl_rewards(
        rewards,
        lambda completions, *, prefix, board, seeds, **_: referee.judge(
            completions, prefix, [BoardKind.parse(name) for name in board], seeds
        ),
        is_failed=lambda result: result.has_failed_sandbox,
        measure=compute_strategy_metrics,
        show=lambda results: {
            "outcome": [result.ending for result in results],
            "reason": [result.why for result in results],
        },
    )


def compute_strategy_metrics(results: Sequence[StrategyResult]) -> dict[str, float]:
    """Return the metrics of a batch by name; `strategy/skill` only if some result is honest."""
    scores = [result.score for result in results if result.score is not None]
    metrics = {"score": fmean(scores) if scores else math.nan}
    if honest := [result.score or 0.0 for result in results if result.is_honest]:
        metrics["skill"] = fmean(honest)
    metrics |= compute_strategy_shares(results)
    metrics["suspicious_share"] = fmean(is_suspicious(result.code or "") for result in results)
    metrics |= {f"{ending}_share": fmean(r.ending == ending for r in results) for ending in ENDINGS}
    return {f"strategy/{name}": value for name, value in metrics.items()}


def compute_strategy_shares(results: Sequence[StrategyResult]) -> dict[str, float]:
    """Return the shares of valid and honest results and of won games, and the number of distinct programs."""
    total = max(1, len(results))
    return {
        "valid_share": sum(result.is_valid for result in results) / total,
        "honest_share": sum(result.is_honest for result in results) / total,
        "win_share": sum(result.win_share for result in results) / total,
        "distinct_programs": float(len({result.code for result in results if result.code})),
    }

"""Rewards for strategies of 2048: the requirement's three functions, and one graded by how far games went.

"requirements" are the published rewards: function_works, no_cheating and strategy_succeeds of unsloth's
notebook gpt_oss_(20B)_Reinforcement_Learning_2048_Game. "graded" is, over the boards of a prompt, the mean of
log2(largest tile) / log2(target) minus the same for random play from the same seeds. What is not honest play
stands just below any honest loss: large penalties would drown the differences between strategies once
advantages are divided by the group's standard deviation, a single level would tie groups that hold nothing
honest yet.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rlnb.games.board2048 import BoardKind
from rlnb.metrics import ENDINGS
from rlnb.rewards.strategy_play import (
    HONEST,
    Ending,
    PlayedGame,
    Rules,
    derived_seed,
    play_many,
    random_progress,
)
from rlnb.sandbox import FailureCount, Sandbox
from rlnb.tasks.strategies import Extraction, extract_strategy, suspicious_kinds

StrategyRewardPreset = Literal["requirements", "graded"]
# Graded: what a game counts that did not end by the rules. An honest one counts HONEST_FLOOR at least, which
# only targets of a few tiles could pass.
HONEST_FLOOR = -0.95
ENDING_LEVELS: dict[Ending, float] = {"stuck": -1.0, "timeout": -1.0, "illegal": -1.1, "exception": -1.1}
NO_STRATEGY_LEVEL = -1.2
# The requirement's, by the published notebook: a stall ran there into the time limit, and whatever is no key
# ended the game as failed.
SUCCEEDS: dict[Ending, float] = {
    "success": 20.0, "failed": 2.0, "illegal": 2.0, "stuck": -1.0, "timeout": -1.0, "exception": -3.0,
}  # fmt: skip
CACHED_STRATEGIES = 512
SHOWN_SUSPICIOUS = 3  # programs kept of each kind
WEAKNESSES = {
    "random": "random play wins 6x6/2048 in 97.8% of its games: the requirement's rewards ask for legal "
    "moves, no more; reward.preset = graded, or a harder board, asks for skill",
    "loss": "a first answer that is no key earns +4 in all, a strategy that stalls +1: instant loss pays "
    "more than honest play that gets stuck; reward.preset = graded puts both below any honest loss",
    "pairs": "in groups of 2 every difference becomes +-0.71, whether it was 20 or 0.5: the sizes of these "
    "rewards do not matter; training.num_generations = 8 lets them",
    "cut": "completions of 200 tokens cut off most answers (published runs: 371 to 443 tokens on average); "
    "training.max_completion_length = 512 or more does not",
}


@dataclass(frozen=True)
class StrategyResult:
    """What became of one completion.

    code: its program, None where there is none. problem, reason: as `Extraction`, "" for what was played.
    games: one a board, in the order of the seeds; none where there is a problem. baselines: float, one a
    board: mean progress of random play from its seed. kinds: what looks suspicious in the program.
    """

    code: str | None
    problem: str
    reason: str
    games: tuple[PlayedGame, ...]
    baselines: tuple[float, ...]
    kinds: tuple[str, ...] = ()

    @property
    def is_valid(self) -> bool:
        """It is a strategy, and answered its first board with a key."""
        return bool(self.games) and all(game.moves or game.is_honest for game in self.games)

    @property
    def is_honest(self) -> bool:
        """All its games ended by the rules: never stuck, no illegal key, no exception, no time limit."""
        return bool(self.games) and all(game.ending in HONEST for game in self.games)

    @property
    def has_failed_sandbox(self) -> bool:
        """None of its games could be played, for no fault of its own."""
        return bool(self.games) and all(game.ending == "sandbox_error" for game in self.games)

    @property
    def ending(self) -> str:
        """One of ENDINGS: the worst of its games, "failed" before "success"."""
        if self.problem:
            return "forbidden" if self.problem == "forbidden" else "no_code"
        return max((game.ending for game in self.games), key=lambda ending: ENDINGS.index(ending))

    @property
    def board_scores(self) -> tuple[float, ...]:
        """The graded score on each board, in shares of the target's logarithm.

        Games that the sandbox failed are left out.
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
        """The graded reward; None where the sandbox failed in every game."""
        scores = self.board_scores
        return sum(scores) / len(scores) if scores else None

    @property
    def win_share(self) -> float:
        """Share of the games, without the sandbox's failures, that reached the target."""
        ran = [game for game in self.games if game.ending != "sandbox_error"]
        return sum(game.is_won for game in ran) / max(1, len(ran))


def function_works(result: StrategyResult) -> float | None:
    """+1 for a function that can be defined, -0.5 where that raises, -2 without one."""
    if result.problem:
        return -0.5 if result.problem == "forbidden" else -2.0
    return 1.0 if all(game.was_loaded for game in result.games) else -0.5


def no_cheating(result: StrategyResult) -> float | None:
    """+1 for a function without what is forbidden, -20 with it, -1 without a function."""
    if result.problem:
        return -20.0 if result.problem == "forbidden" else -1.0
    return 1.0


def strategy_succeeds(result: StrategyResult) -> float | None:
    """The mean over the boards of SUCCEEDS, 0 for what was not played; None where the sandbox failed."""
    if result.problem or not all(game.was_loaded for game in result.games):
        return 0.0
    ran = [game for game in result.games if game.ending != "sandbox_error"]
    values = [SUCCEEDS["success" if game.is_won else game.ending] for game in ran]
    return sum(values) / len(values) if values else None


def graded_play(result: StrategyResult) -> float | None:
    """The graded reward of a result."""
    return result.score


# Prefix and completion, board, seeds.
ResultKey = tuple[str, str, BoardKind, tuple[int, ...]]
PRESETS: dict[StrategyRewardPreset, tuple[Callable[[StrategyResult], float | None], ...]] = {
    "requirements": (function_works, no_cheating, strategy_succeeds),
    "graded": (graded_play,),
}


def extraction_of(completion: str, *, prefix: str) -> Extraction:
    """As `extract_strategy`; a text that breaks the reader itself is no program, and ends no training."""
    try:
        return extract_strategy(completion, prefix=prefix)
    except (RecursionError, ValueError, MemoryError) as error:
        return Extraction(None, "syntax_error", f"It cannot be read: {type(error).__name__}.")


@dataclass
class StrategyReferee:
    """Extracts, checks and plays the strategies in completions, each distinct one once.

    random_games: games a board of the random play that scores are measured from. suspicious: how many
    programs of each kind were seen; examples: some of them. seconds: time spent here.
    """

    sandbox: Sandbox
    rules: Rules
    random_games: int = 8
    seconds: float = 0.0
    failures: FailureCount = field(default_factory=FailureCount)
    suspicious: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    _results: dict[ResultKey, StrategyResult] = field(default_factory=dict)

    def judge(
        self,
        completions: Sequence[str],
        prefixes: Sequence[str],
        kinds: Sequence[BoardKind],
        seeds: Sequence[Sequence[int]],
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[StrategyResult]:
        """Play completions[i], which follows prefixes[i], on boards kinds[i] with each of seeds[i].

        Raises SandboxUnavailable when more than 1% of the games failed for the sandbox's sake.
        """
        started = time.perf_counter()
        keys = [
            (prefix, completion, kind, tuple(own))
            for prefix, completion, kind, own in zip(prefixes, completions, kinds, seeds, strict=True)
        ]
        new = [key for key in dict.fromkeys(keys) if key not in self._results]
        if len(self._results) + len(new) > CACHED_STRATEGIES:
            self._results = {key: self._results[key] for key in set(keys) & self._results.keys()}
        extractions = {key: extraction_of(key[1], prefix=key[0]) for key in new}
        played = {key: one for key, one in extractions.items() if not one.problem}
        jobs = [(one.code or "", key[2], seed) for key, one in played.items() for seed in key[3]]
        games = dict(
            zip(jobs, play_many(jobs, self.sandbox, rules=self.rules, progress=progress), strict=True)
        )
        for key, one in extractions.items():
            own = [games[one.code or "", key[2], seed] for seed in key[3]] if key in played else []
            self._results[key] = StrategyResult(
                one.code, one.problem, one.reason, tuple(own),
                tuple(self._baseline(key[2], seed) for seed in key[3]), suspicious_kinds(one.code or ""),
            )  # fmt: skip
        failed = [game.error for game in games.values() if game.ending == "sandbox_error"]
        self.failures.add(len(games), failed)
        self.seconds += time.perf_counter() - started
        return [self._results[key] for key in keys]

    def note(self, results: Sequence[StrategyResult]) -> None:
        """Count what looks suspicious, and keep some of it to be shown."""
        for result in results:
            for kind in result.kinds:
                self.suspicious[kind] += 1
                kept = self.examples.setdefault(kind, [])
                if result.code and result.code not in kept and len(kept) < SHOWN_SUSPICIOUS:
                    kept.append(result.code)

    def _baseline(self, kind: BoardKind, seed: int) -> float:
        return random_progress(
            kind,
            seed,
            num_games=self.random_games,
            four_probability=self.rules.four_probability,
            patience=self.rules.patience,
            play_on=self.rules.play_on,
        )


class StrategyReward:
    """A reward function for TRL: the dataset has the columns `prefix`, `board` and `seeds` beside `prompt`.

    Of several on one referee the first logs the metrics; the games are played once.
    """

    def __init__(
        self, function: Callable[[StrategyResult], float | None], referee: StrategyReferee, *, is_first: bool
    ) -> None:
        self.__name__ = function.__name__
        self.function, self.referee, self.is_first = function, referee, is_first

    def __call__(
        self,
        *,
        completions: Sequence[Any],
        prefix: Sequence[str],
        board: Sequence[str],
        seeds: Sequence[Sequence[int]],
        log_metric: Callable[[str, float], None] | None = None,
        log_extra: Callable[[str, list[Any]], None] | None = None,
        **_: Any,
    ) -> list[float | None]:
        """One reward a completion, None where the sandbox failed. TRL's other columns are not used."""
        started = time.perf_counter()
        texts = [text if isinstance(text, str) else str(text[0]["content"]) for text in completions]
        results = self.referee.judge(texts, prefix, [BoardKind.parse(name) for name in board], seeds)
        if self.is_first:
            self.referee.note(results)
            if log_metric:
                for name, value in strategy_metrics(results):
                    log_metric(name, value)
                log_metric("time/reward_seconds", time.perf_counter() - started)
            if log_extra:
                log_extra("outcome", [result.ending for result in results])
                log_extra("reason", [reason_of(result) for result in results])
        # TRL leaves a completion out of its group only when every function says None.
        return [None if result.has_failed_sandbox else self.function(result) for result in results]


def strategy_rewards(preset: StrategyRewardPreset, referee: StrategyReferee) -> list[StrategyReward]:
    """The reward functions of a preset, all on the same games."""
    return [
        StrategyReward(function, referee, is_first=index == 0)
        for index, function in enumerate(PRESETS[preset])
    ]


def reason_of(result: StrategyResult) -> str:
    """Why a strategy was refused, or the first of its games not by the rules; "" for an honest one."""
    return result.reason or next((game.error for game in result.games if game.error), "")


def strategy_metrics(results: Sequence[StrategyResult]) -> Iterator[tuple[str, float]]:
    """The metrics of a batch, (name, value); `strategy/skill` only where something was honest."""
    total = len(results)
    honest = [result for result in results if result.is_honest]
    scores = [result.score for result in results if result.score is not None]
    yield "strategy/score", sum(scores) / len(scores) if scores else math.nan
    yield "strategy/valid_share", sum(result.is_valid for result in results) / total
    yield "strategy/honest_share", len(honest) / total
    if honest:
        yield "strategy/skill", sum(result.score or 0.0 for result in honest) / len(honest)
    yield "strategy/win_share", sum(result.win_share for result in results) / total
    yield "strategy/distinct_programs", float(len({result.code for result in results if result.code}))
    yield "strategy/suspicious_share", sum(bool(result.kinds) for result in results) / total
    endings = Counter(result.ending for result in results)
    for ending in ENDINGS:
        yield f"strategy/{ending}_share", endings[ending] / total


def weaknesses(
    preset: StrategyRewardPreset,
    *,
    num_generations: int,
    max_completion_length: int,
    boards: Sequence[BoardKind],
) -> list[str]:
    """What is known to be weak in the requirement's rewards as they are asked for here; whole sentences."""
    if preset != "requirements":
        return []
    names = ["random"] * (BoardKind(6, 2048) in boards) + ["loss"]
    names += ["pairs"] * (num_generations == 2) + ["cut"] * (max_completion_length <= 200)
    return [WEAKNESSES[name] for name in names]


def board_seeds(*parts: object, num_boards: int) -> list[int]:
    """Return public seeds, for strategies of ours: whoever knows the parts can compute the tiles.

    A model's strategies play on boards of `rlnb.rewards.board_secret.BoardSecret.seeds`.
    """
    return [derived_seed(*parts, index) for index in range(num_boards)]

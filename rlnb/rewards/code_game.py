"""The code game: a program earns when another model cannot predict what it prints.

The program that runs is the one that the opponent reads: without comments and docstrings, which would be a
channel to it. Requirement: +1 when the opponent is wrong, -1 when it is right; what is no round at all, -1.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from rlnb.metrics import INVALID_KINDS
from rlnb.rewards.code_execution import text_of
from rlnb.rewards.opponents import Opponent, Verdict
from rlnb.rewards.program_pool import PooledProgram, ProgramPool
from rlnb.sandbox import FailureCount, Rerun, Reruns, Sandbox
from rlnb.tasks.extraction import extract_code
from rlnb.tasks.game_determinism import forbidden_use
from rlnb.tasks.game_mutants import mutants
from rlnb.tasks.game_programs import (
    constructs_of,
    echoes,
    is_trivial,
    shape_of,
    states_value,
    without_comments,
)
from rlnb.tasks.prediction import holds_control_token, is_readable, normalised, parse_prediction

GamePreset = Literal["required", "graded", "choice", "validity"]
INVALID_REWARD = -1.0
AUTHOR, PREDICTOR = "author", "predictor"
MUTANTS_PER_CHOICE = 4  # tried for each wrong output that is wanted: many print the same, or break


class Chooser(Protocol):
    """An opponent that can pick among given outputs."""

    def choose(self, programs: Sequence[str], options: Sequence[Sequence[str]]) -> list[int]: ...


@dataclass(frozen=True)
class GameRound:
    """One program and what became of it.

    code: as written, None where there was none. shown: what ran and what the opponent reads. kind:
    "valid", one of metrics.INVALID_KINDS or "sandbox_error". message: why not valid. output: normalised.
    """

    code: str | None
    kind: str
    message: str = ""
    shown: str = ""
    output: str = ""
    verdict: Verdict | None = None

    @property
    def is_valid(self) -> bool:
        return self.kind == "valid"

    @property
    def is_win(self) -> bool:
        """Valid, and the opponent was wrong."""
        return self.verdict is not None and not self.verdict.is_right

    def reward(self, preset: GamePreset) -> float | None:
        """The reward; None where the sandbox failed, which is nobody's fault."""
        if self.kind == "sandbox_error":
            return None
        if self.verdict is None:
            return 1.0 if self.is_valid and preset == "validity" else INVALID_REWARD
        if preset == "validity":
            return 1.0
        if preset == "graded":
            return 1.0 - 2.0 * self.verdict.token_probability
        return -1.0 if self.verdict.is_right else 1.0


@dataclass(frozen=True)
class GameReferee:
    """Turns completions into rounds, without an opponent yet.

    reruns: the interpreters that must all print the same. count_tokens: of source. max_output_chars: of the
    normalised output. max_code_tokens: of the program as it was written, comments included.
    """

    reruns: Reruns
    count_tokens: Callable[[str], int]
    max_output_chars: int = 200
    max_code_tokens: int = 200

    def rounds(self, completions: Sequence[str], prefixes: Sequence[str]) -> list[GameRound]:
        """completions[i] answers a prompt that ends in prefixes[i]; distinct programs run once."""
        rounds = [
            self.read(extract_code(text, prefix=prefix))
            for text, prefix in zip(completions, prefixes, strict=True)
        ]
        programs = list(dict.fromkeys(one.shown for one in rounds if one.is_valid))
        reruns = dict(zip(programs, self.reruns.run_many(programs), strict=True))
        return [self.after(one, reruns[one.shown]) if one.is_valid else one for one in rounds]

    def read(self, code: str | None) -> GameRound:
        """What can be said before anything runs; "valid" so far where nothing is wrong."""
        if code is None:
            return GameRound(None, "no_code", "there is no program in the answer")
        num_tokens = self.count_tokens(code)
        if num_tokens > self.max_code_tokens:
            message = f"has {num_tokens} tokens, more than the {self.max_code_tokens} allowed"
            return GameRound(code, "long_code", message)
        shown = without_comments(code)
        if shown is None:
            return GameRound(code, "syntax_error", "is not Python")
        if holds_control_token(shown):
            message = "holds a marker that a model takes for the end of a question"
            return GameRound(code, "unreadable", message, shown)
        if message := forbidden_use(shown):
            return GameRound(code, "not_deterministic", message, shown)
        return GameRound(code, "valid", "", shown)

    def after(self, one: GameRound, rerun: Rerun) -> GameRound:
        """The round of a program that ran."""
        execution = rerun.execution
        if execution.status != "ok":
            return replace(one, kind=execution.status, message=execution.error)
        if rerun.difference:
            return replace(one, kind="not_deterministic", message=rerun.difference)
        output = normalised(execution.stdout)
        if not output.strip():
            return replace(one, kind="silent", message="prints nothing")
        if len(output) > self.max_output_chars:
            message = f"prints {len(output)} characters, more than the {self.max_output_chars} allowed"
            return replace(one, kind="long_output", message=message)
        if not is_readable(output):
            return replace(one, kind="unreadable", message="prints what no answer can hold", output=output)
        return replace(one, output=output)


def judged(rounds: Sequence[GameRound], opponent: Opponent) -> list[GameRound]:
    """The rounds with the opponent's verdicts on the valid ones, in one call."""
    valid = [one for one in rounds if one.is_valid]
    verdicts = iter(
        opponent.judge([one.shown for one in valid], [one.output for one in valid]) if valid else []
    )
    return [replace(one, verdict=next(verdicts)) if one.is_valid else one for one in rounds]


@dataclass
class ChoosingOpponent:
    """The second form of the game: the opponent picks the true output among those of mutants.

    num_choices: outputs to pick from, the true one included. Where mutants give fewer, it picks among what
    there is. A program whose output no mutant changes counts as predicted, so that none is written to be
    like that; as a measure only verdicts with all options are comparable (`Verdict.num_options`).
    """

    chooser: Chooser
    sandbox: Sandbox
    num_choices: int = 4
    max_output_chars: int = 200
    seed: int = 0

    def judge(self, programs: Sequence[str], outputs: Sequence[str]) -> list[Verdict]:
        """logprobs are unknown: the numbers behind a choice are means over outputs of different lengths."""
        options = self.options(programs, outputs)
        asked = [row for row, texts in enumerate(options) if len(texts) > 1]
        chosen = self.chooser.choose([programs[row] for row in asked], [options[row] for row in asked])
        picked = dict(zip(asked, chosen, strict=True))
        return [
            Verdict(
                row not in picked or texts[picked[row]] == outputs[row],
                num_options=len(texts),
            )
            for row, texts in enumerate(options)
        ]

    def predict(self, programs: Sequence[str]) -> list[str]:
        raise NotImplementedError("a choice is made among outputs that include the true one; use judge")

    def options(self, programs: Sequence[str], outputs: Sequence[str]) -> list[list[str]]:
        """The true output and other ones, sorted, so that their order tells nothing."""
        count = (self.num_choices - 1) * MUTANTS_PER_CHOICE
        tried = [mutants(program, count=count, seed=self.seed) for program in programs]
        distinct = list(dict.fromkeys(mutant for several in tried for mutant in several))
        executions = dict(zip(distinct, self.sandbox.run_many(distinct), strict=True))
        options = []
        for several, output in zip(tried, outputs, strict=True):
            printed = [normalised(executions[m].stdout) for m in several if executions[m].status == "ok"]
            others = [
                text
                for text in dict.fromkeys(printed)
                if text.strip()
                and text != output
                and len(text) <= self.max_output_chars
                and is_readable(text)
            ]
            options.append(sorted([output, *others[: self.num_choices - 1]]))
        return options


class CodeGameReward:
    """A reward function for TRL that plays a round with every completion.

    The dataset has the columns `role` and `prefix` beside `prompt`. With a pool the game has two sides: a
    completion of the role "predictor" predicts the program `prefix` of the pool, and earns what its author
    loses, +1 when it is right and -1 when it is wrong. All members of a group have one role, so GRPO's
    baseline, the mean of the group, is one for each role. `seconds` counts the time spent here and
    `opponent_seconds` that of the opponent's passes, one a batch. Raises SandboxUnavailable when more than 1%
    of the programs failed for the sandbox's sake.
    """

    __name__ = "game"

    def __init__(
        self,
        referee: GameReferee,
        opponent: Opponent,
        *,
        preset: GamePreset,
        pool: ProgramPool | None = None,
    ) -> None:
        self.referee = referee
        self.opponent = opponent
        self.preset = preset
        self.pool = pool
        self.seconds = 0.0
        self.opponent_seconds = 0.0
        self.failures = FailureCount()

    def __call__(
        self,
        *,
        completions: Sequence[Any],
        prefix: Sequence[str],
        role: Sequence[str],
        trainer_state: Any = None,
        log_metric: Callable[[str, float], None] | None = None,
        log_extra: Callable[[str, list[Any]], None] | None = None,
        **_: Any,
    ) -> list[float | None]:
        """One reward a completion. TRL's other columns are accepted and not used."""
        started = time.perf_counter()
        texts = [text_of(completion) for completion in completions]
        authors = [row for row, name in enumerate(role) if name == AUTHOR]
        rounds = self.referee.rounds([texts[row] for row in authors], [prefix[row] for row in authors])
        asked = time.perf_counter()
        rounds = judged(rounds, self.opponent)
        opponent_seconds = time.perf_counter() - asked
        self.failures.add(len(rounds), [one.message for one in rounds if one.kind == "sandbox_error"])
        played = dict(zip(authors, rounds, strict=True))
        is_right = {
            row: parse_prediction(texts[row]) == self.pool.output_of(prefix[row])
            for row in range(len(texts))
            if row not in played and self.pool is not None
        }
        if self.pool is not None:
            step = trainer_state.global_step if trainer_state else 0
            self.pool.add([PooledProgram(one.shown, one.output, step) for one in rounds if one.is_valid])
        seconds = time.perf_counter() - started
        self.seconds += seconds
        self.opponent_seconds += opponent_seconds
        if log_metric:
            values = {f"game/{name}": value for name, value in game_metrics(rounds).items()}
            if is_right:
                values["game/predictor_right"] = mean_of(list(is_right.values()))
            values |= {"time/reward_seconds": seconds, "time/opponent_seconds": opponent_seconds}
            for name, value in values.items():
                log_metric(name, value)
        if log_extra:
            log_extra(
                "outcome", [played[row].kind if row in played else PREDICTOR for row in range(len(texts))]
            )
            log_extra("output", [played[row].output if row in played else "" for row in range(len(texts))])
        return [
            played[row].reward(self.preset) if row in played else 2.0 * is_right[row] - 1.0
            for row in range(len(texts))
        ]


@dataclass(frozen=True)
class Reading:
    """What can be said of a valid program by reading it."""

    is_trivial: bool
    is_echo: bool
    states_false: bool
    shape: str
    constructs: tuple[str, ...] = field(default=())


def reading_of(one: GameRound) -> Reading:
    """Of a valid round; comments are looked for in the code as it was written."""
    return Reading(
        is_trivial(one.shown),
        echoes(one.shown, one.output),
        states_value(one.code or "", one.output) == "false",
        shape_of(one.shown),
        constructs_of(one.shown),
    )


def game_metrics(rounds: Sequence[GameRound]) -> dict[str, float]:
    """Metrics of a batch, nan where nothing was valid. Shares of the valid programs but where said so.

    win_share and valid_share are of all completions: win = valid x (1 - opponent_right).
    """
    counted = [one for one in rounds if one.kind != "sandbox_error"]
    valid = [one for one in counted if one.is_valid]
    readings = [reading_of(one) for one in valid]
    verdicts = [one.verdict for one in valid if one.verdict is not None]
    known = [verdict.token_probability for verdict in verdicts if verdict.num_tokens]
    counts = Counter(one.kind for one in counted)
    return {
        "win_share": mean_of([one.is_win for one in counted]),
        "valid_share": mean_of([one.is_valid for one in counted]),
        "opponent_right": mean_of([verdict.is_right for verdict in verdicts]),
        "token_probability": mean_of(known),
        "trivial_share": mean_of([reading.is_trivial for reading in readings]),
        "echo_share": mean_of([reading.is_echo for reading in readings]),
        "false_comment_share": mean_of([reading.states_false for reading in readings]),
        "distinct_shapes": len({reading.shape for reading in readings}) / len(valid) if valid else math.nan,
        "output_characters": mean_of([len(one.output) for one in valid]),
        **{f"{kind}_share": counts[kind] / len(counted) if counted else math.nan for kind in INVALID_KINDS},
    }


def mean_of(values: Sequence[float]) -> float:
    """Their mean, nan without any."""
    return sum(values) / len(values) if values else math.nan

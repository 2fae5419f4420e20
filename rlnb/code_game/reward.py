"""The code game: a program earns when another model cannot predict what it prints.

What runs is what the opponent reads: the program without comments and docstrings, which would be a channel to
it. What a round pays is a function in the notebook's `reward` cell.
"""

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rlnb.code_game.determinism import find_forbidden_use
from rlnb.code_game.opponents import Judge, PredictionVerdict
from rlnb.code_game.params import MAX_CODE_TOKENS, MAX_OUTPUT_CHARS, GrpoCodeGameParams
from rlnb.code_game.prediction import CONTROL_TOKEN, compile_markers, is_readable, normalise_output
from rlnb.code_game.programs import is_echo, is_trivial, program_shape, strip_comments
from rlnb.grpo.rewards import TrlReward, make_trl_rewards
from rlnb.policy import Policy
from rlnb.run.metrics import INVALID_KINDS
from rlnb.sandbox import FailureCount, Rerun, Reruns
from rlnb.source_code.extraction import extract_program


@dataclass(frozen=True)
class GameRound:
    """One program and its outcome.

    code: as written, None where there was none. shown: what ran and what the opponent reads. kind:
    "valid", one of metrics.INVALID_KINDS or "sandbox_error". message: why not valid. output: normalised.
    """

    code: str | None
    kind: str
    message: str = ""
    shown: str = ""
    output: str = ""
    verdict: PredictionVerdict | None = None

    @property
    def is_valid(self) -> bool:
        return self.kind == "valid"

    @property
    def is_predicted(self) -> bool:
        return self.verdict is not None and self.verdict.is_right

    @property
    def is_win(self) -> bool:
        """Valid, and the opponent was wrong."""
        return self.verdict is not None and not self.verdict.is_right

    @property
    def token_probability(self) -> float:
        """Geometric mean of the opponent's probabilities of the output's tokens; nan where unknown."""
        return self.verdict.token_probability if self.verdict else math.nan


@dataclass(frozen=True)
class GameReferee:
    """Turns completions into rounds, not judged yet.

    reruns: the interpreters that must all print the same. count_tokens: of source. max_output_chars: of the
    normalised output. max_code_tokens: of the program as it was written, comments included. markers: what
    the policy or its opponent takes for a token of its own.
    """

    reruns: Reruns
    count_tokens: Callable[[str], int]
    max_output_chars: int = 200
    max_code_tokens: int = 200
    markers: re.Pattern[str] = CONTROL_TOKEN

    @classmethod
    def from_params(cls, params: GrpoCodeGameParams, policy: Policy, reruns: Reruns) -> "GameReferee":
        """Return the referee of a notebook; it counts the policy's tokens."""

        def count_tokens(code: str) -> int:
            return len(policy.tokenizer(code, add_special_tokens=False)["input_ids"])

        form, markers = params.game.form, compile_markers(policy.tokenizer)
        if params.opponent.kind == "endpoint":  # its tokenizer is not at hand
            markers = re.compile(f"{markers.pattern}|{CONTROL_TOKEN.pattern}")
        return cls(reruns, count_tokens, MAX_OUTPUT_CHARS[form], MAX_CODE_TOKENS[form], markers)

    def play(self, completions: Sequence[str], prefixes: Sequence[str]) -> list[GameRound]:
        """Return a round for each completion of a prompt that ends in its prefix."""
        answers = zip(completions, prefixes, strict=True)
        rounds = [self.read(extract_program(text, prefix=prefix)) for text, prefix in answers]
        reruns = iter(self.reruns.run_many([played.shown for played in rounds if played.is_valid]))
        return [self.finish(played, next(reruns)) if played.is_valid else played for played in rounds]

    def read(self, code: str | None) -> GameRound:
        """Return the round before anything runs; "valid" so far where nothing is wrong."""
        if code is None:
            return GameRound(None, "no_code", "there is no program in the answer")
        num_tokens = self.count_tokens(code)
        if num_tokens > self.max_code_tokens:
            message = f"has {num_tokens} tokens, more than the {self.max_code_tokens} allowed"
            return GameRound(code, "long_code", message)
        shown = strip_comments(code)
        if shown is None:
            return GameRound(code, "syntax_error", "is not Python")
        if self.markers.search(shown):
            message = "holds a marker that a model takes for the end of a question"
            return GameRound(code, "unreadable", message, shown)
        if message := find_forbidden_use(shown):
            return GameRound(code, "not_deterministic", message, shown)
        return GameRound(code, "valid", "", shown)

    def finish(self, played: GameRound, rerun: Rerun) -> GameRound:
        """Return the round of a program that ran."""
        if rerun.execution.status != "ok":
            return replace(played, kind=rerun.execution.status, message=rerun.execution.error)
        if rerun.difference:
            return replace(played, kind="not_deterministic", message=rerun.difference)
        output = normalise_output(rerun.execution.stdout)
        if not output.strip():
            return replace(played, kind="silent", message="prints nothing")
        if len(output) > self.max_output_chars:
            message = f"prints {len(output)} characters, more than the {self.max_output_chars} allowed"
            return replace(played, kind="long_output", message=message)
        if not is_readable(output) or self.markers.search(output):
            message = "prints what an answer cannot hold"
            return replace(played, kind="unreadable", message=message, output=output)
        return replace(played, output=output)


def judge_rounds(rounds: Sequence[GameRound], judge: Judge) -> list[GameRound]:
    """Return the rounds with the judge's verdicts on the valid ones, asked for in one call."""
    valid = [played for played in rounds if played.is_valid]
    if not valid:
        return list(rounds)
    outputs = [played.output for played in valid]
    verdicts = iter(judge.judge([played.shown for played in valid], outputs))
    return [replace(played, verdict=next(verdicts)) if played.is_valid else played for played in rounds]


def make_game_reward(
    referee: GameReferee, opponent: Judge, *, reward: Callable[[GameRound], float]
) -> TrlReward:
    """Return a function for TRL that plays a round with every completion. reward: what a judged round pays.

    The dataset needs the column `prefix`. Raises SandboxUnavailable when more than 1% of the programs failed
    because of the sandbox.
    """
    failures, seconds = FailureCount(), {"time/opponent_seconds": 0.0}

    def play(completions: Sequence[str], *, prefix: Sequence[str], **_: object) -> list[GameRound]:
        rounds = referee.play(completions, prefix)
        started = time.perf_counter()
        rounds = judge_rounds(rounds, opponent)
        seconds["time/opponent_seconds"] = time.perf_counter() - started
        failures.add(len(rounds), [played.message for played in rounds if played.kind == "sandbox_error"])
        return rounds

    def measure(rounds: Sequence[GameRound]) -> dict[str, float]:
        paid = [reward(played) for played in rounds if played.kind != "sandbox_error"]
        return {
            "reward/avg_batch_reward": mean_or_nan([each for each in paid if each is not None]),
            "reward/successful_predictions_count": float(sum(played.is_predicted for played in rounds)),
            **{f"game/{name}": value for name, value in game_metrics(rounds).items()},
            **seconds,
        }

    return make_trl_rewards(
        [reward],
        play,
        is_failed=lambda played: played.kind == "sandbox_error",
        measure=measure,
        show=lambda rounds: {
            "outcome": [played.kind for played in rounds],
            "reason": [played.message for played in rounds],
            "output": [played.output for played in rounds],
        },
    )[0]


def game_metrics(rounds: Sequence[GameRound]) -> dict[str, float]:
    """Return the metrics of a batch, nan where nothing was valid.

    win_share, valid_share and the shares of the invalid kinds are of all completions, the others of the valid
    programs: win = valid x (1 - opponent_right).
    """
    counted = [played for played in rounds if played.kind != "sandbox_error"]
    valid = [played for played in counted if played.is_valid]
    judged = [played for played in valid if played.verdict is not None]
    probabilities = [played.token_probability for played in judged]
    counts = Counter(played.kind for played in counted)
    return {
        "win_share": mean_or_nan([played.is_win for played in counted]),
        "valid_share": mean_or_nan([played.is_valid for played in counted]),
        "opponent_right": mean_or_nan([played.is_predicted for played in judged]),
        "token_probability": mean_or_nan([value for value in probabilities if not math.isnan(value)]),
        "trivial_share": mean_or_nan([is_trivial(played.shown) for played in valid]),
        "echo_share": mean_or_nan([is_echo(played.shown, played.output) for played in valid]),
        "distinct_shapes": len({program_shape(played.shown) for played in valid}) / (len(valid) or math.nan),
        "output_characters": mean_or_nan([len(played.output) for played in valid]),
        **{f"{kind}_share": counts[kind] / (len(counted) or math.nan) for kind in INVALID_KINDS},
    }


def mean_or_nan(values: Sequence[float]) -> float:
    return sum(values) / (len(values) or math.nan)

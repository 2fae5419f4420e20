"""Who reads a program of the code game and says what it prints."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from rlnb.policy import Policy, generate
from rlnb.policy.adapters import AdapterValues, adapters_off
from rlnb.policy.scoring import ReadText, TokenScores, read_once, score
from rlnb.tasks.prediction import (
    PREDICTION_STOP,
    answered,
    normalised,
    parse_prediction,
    prediction_prompt,
)


@dataclass(frozen=True)
class Verdict:
    """What an opponent made of one program.

    is_right: it predicts the output. logprob: of the output, nats, all tokens together; nan where it has no
    weights to ask. num_tokens: of the output. num_options: what it picked from, 0 where it predicted.
    """

    is_right: bool
    logprob: float = math.nan
    num_tokens: int = 0
    num_options: int = 0

    @property
    def token_probability(self) -> float:
        """Geometric mean of the probabilities of the output's tokens; nan where unknown."""
        return math.exp(self.logprob / self.num_tokens) if self.num_tokens else math.nan


class Opponent(Protocol):
    """Reads programs, in batches."""

    def judge(self, programs: Sequence[str], outputs: Sequence[str]) -> list[Verdict]:
        """Whether it predicts outputs[i] for programs[i]; outputs are normalised."""
        ...

    def predict(self, programs: Sequence[str]) -> list[str]:
        """The normalised output that it predicts for each program."""
        ...


@dataclass(frozen=True)
class ScriptedOpponent:
    """Predicts by a table, and nothing for a program that is not in it; for tests and examples."""

    predictions: Mapping[str, str]

    def judge(self, programs: Sequence[str], outputs: Sequence[str]) -> list[Verdict]:
        return compared(self.predict(programs), outputs)

    def predict(self, programs: Sequence[str]) -> list[str]:
        return [normalised(self.predictions.get(program, "")) for program in programs]


@dataclass
class ModelOpponent:
    """A language model, which reads `num_shots` solved examples before each program.

    weights: a context in which `policy.model` has the opponent's weights. Judging is one pass: greedy
    decoding writes the output when each of its tokens is the most likely one. With num_predictions
    above 1 it predicts so often at `temperature`, and the commonest prediction counts.
    """

    policy: Policy
    weights: Callable[[Policy], AbstractContextManager[None]] = adapters_off
    num_shots: int = 6
    num_predictions: int = 1
    temperature: float = 0.7
    max_prediction_tokens: int = 64
    batch_size: int = 32
    seed: int = 0
    _front: ReadText | None = None

    def judge(self, programs: Sequence[str], outputs: Sequence[str]) -> list[Verdict]:
        """One pass over the distinct pairs; a majority's verdicts know no probabilities."""
        if self.num_predictions > 1:
            return compared(self.predict(programs), outputs)
        pairs = list(dict.fromkeys(zip(programs, outputs, strict=True)))
        scores = dict(zip(pairs, self.scores(pairs), strict=True))
        return [verdict_of(self.policy, scores[pair]) for pair in zip(programs, outputs, strict=True)]

    def predict(self, programs: Sequence[str]) -> list[str]:
        """By decoding: greedily, or the commonest of `num_predictions` samples."""
        prompts = [prediction_prompt(program, num_shots=self.num_shots) for program in programs]
        with self.weights(self.policy):
            texts = generate(
                self.policy,
                [prompt for prompt in prompts for _ in range(self.num_predictions)],
                max_new_tokens=self.max_prediction_tokens,
                temperature=self.temperature if self.num_predictions > 1 else 0.0,
                seed=self.seed,
                batch_size=self.batch_size,
                ends=self.policy.own_ends,
                is_complete=lambda text: PREDICTION_STOP in text,
            )
        predictions = [parse_prediction(text) for text in texts]
        count = self.num_predictions
        return [majority(predictions[row * count : (row + 1) * count]) for row in range(len(programs))]

    def choose(self, programs: Sequence[str], options: Sequence[Sequence[str]]) -> list[int]:
        """The number of the option that it finds the likeliest output, by the mean over its tokens."""
        pairs = [(program, text) for program, texts in zip(programs, options, strict=True) for text in texts]
        verdicts = [verdict_of(self.policy, scores) for scores in self.scores(pairs)]
        means = iter([one.logprob / one.num_tokens for one in verdicts])
        chosen = []
        for texts in options:
            values = [next(means) for _ in texts]
            chosen.append(values.index(max(values)))
        return chosen

    def scores(self, pairs: Sequence[tuple[str, str]]) -> list[TokenScores]:
        """Token scores of each (program, output), with the fence that closes it."""
        with self.weights(self.policy):
            return score(
                self.policy,
                [prediction_prompt(program, num_shots=self.num_shots) for program, _ in pairs],
                [answered(output) for _, output in pairs],
                front=self.front(),
                batch_size=self.batch_size,
            )

    def front(self) -> ReadText | None:
        """The solved examples, read once; None where the model cannot go on from what was read.

        unsloth takes every pass behind a cache for the next token of a generation.
        """
        if self._front is None and self.num_shots and self.policy.engine != "unsloth":
            programs = ("print(1)", "x = 2")
            prompts = [prediction_prompt(program, num_shots=self.num_shots) for program in programs]
            self._front = read_once(self.policy, prompts)
        return self._front

    def forget(self) -> None:
        """To be called whenever the weights have changed."""
        self._front = None


def as_it_is(_: Policy) -> AbstractContextManager[None]:
    """The weights of another model, which nobody trains."""
    return nullcontext()


def base_opponent(policy: Policy, **options: object) -> ModelOpponent:
    """The policy with its adapters off: as it was before training, without a second copy of the weights."""
    return ModelOpponent(policy, adapters_off, **options)  # type: ignore[arg-type]


def snapshot_opponent(policy: Policy, snapshot: AdapterValues, **options: object) -> ModelOpponent:
    """The policy as it was when the snapshot was taken; `forget()` after each new one."""
    return ModelOpponent(policy, snapshot.at_work, **options)  # type: ignore[arg-type]


def num_output_tokens(policy: Policy, scores: TokenScores) -> int:
    """Tokens up to the one that ends the output's last line; what closes the fence says nothing of it."""
    for count in range(1, len(scores.token_ids) + 1):
        text = policy.tokenizer.decode(scores.token_ids[-count:])
        if text.startswith("\n") or "\n`" in text:
            return len(scores.token_ids) - count + 1
    return len(scores.token_ids)


def verdict_of(policy: Policy, scores: TokenScores) -> Verdict:
    """Right where every token is the most likely one, and the answer then ends instead of going on.

    Tokenizers may join the fence to what follows it, so a top token that only begins with it ends as well.
    """
    count = num_output_tokens(policy, scores)
    output = scores.until(count)
    is_closed = scores.is_top[count:].all() or policy.tokenizer.decode(
        scores.top_ids[count : count + 1]
    ).startswith(PREDICTION_STOP.strip())
    return Verdict(bool(output.is_top.all() and is_closed), float(output.logprobs.sum()), count)


def compared(predictions: Sequence[str], outputs: Sequence[str]) -> list[Verdict]:
    """Verdicts of predictions that were written out."""
    return [Verdict(left == right) for left, right in zip(predictions, outputs, strict=True)]


def majority(predictions: Sequence[str]) -> str:
    """The commonest prediction, the first of equals."""
    return Counter(predictions).most_common(1)[0][0]

"""Opponents of the code game, which read a program and predict what it prints."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol

from pydantic import JsonValue

from rlnb.code_game.params import MAX_OUTPUT_CHARS, MAX_PREDICTION_TOKENS, GrpoCodeGameParams
from rlnb.code_game.prediction import (
    OTHER_SHOTS,
    PREDICTION_STOP,
    SHOTS,
    Shots,
    parse_prediction,
    prediction_answer,
    prediction_prompt,
)
from rlnb.policy import Policy, generate
from rlnb.policy.adapters import WeightSnapshot, adapters_off
from rlnb.policy.endpoint import TEXT, Endpoint
from rlnb.policy.scoring import TokenScores, score


@dataclass(frozen=True)
class PredictionVerdict:
    """Whether an opponent predicts the output of one program.

    logprob: of the output, nats, all tokens together; nan where the opponent's weights are not at hand.
    num_tokens: of the output.
    """

    is_right: bool
    logprob: float = math.nan
    num_tokens: int = 0

    @property
    def token_probability(self) -> float:
        """Geometric mean of the probabilities of the output's tokens; nan where unknown."""
        return math.exp(self.logprob / self.num_tokens) if self.num_tokens else math.nan


class Judge(Protocol):
    """Says of programs whether their outputs, normalised, can be predicted."""

    def judge(self, programs: Sequence[str], outputs: Sequence[str]) -> list[PredictionVerdict]: ...


@dataclass(kw_only=True)
class Predictor:
    """A judge that writes predictions. shots: solved examples that it reads before each program."""

    shots: Shots = SHOTS
    max_prediction_tokens: int = 64

    def write(self, prompts: Sequence[str]) -> list[str]:
        """Return the most likely continuation of each prompt."""
        raise NotImplementedError

    def predict(self, programs: Sequence[str]) -> list[str]:
        """Return the normalised output that it expects of each program."""
        distinct = list(dict.fromkeys(programs))
        texts = self.write([prediction_prompt(program, shots=self.shots) for program in distinct])
        expected = dict(zip(distinct, map(parse_prediction, texts), strict=True))
        return [expected[program] for program in programs]

    def judge(self, programs: Sequence[str], outputs: Sequence[str]) -> list[PredictionVerdict]:
        predictions = self.predict(programs)
        return [PredictionVerdict(left == right) for left, right in zip(predictions, outputs, strict=True)]


@dataclass
class ModelOpponent(Predictor):
    """A language model in this process.

    weights: a context in which `policy.model` has the opponent's weights; nullcontext for its own. Judging is
    one forward pass: greedy decoding writes the output when each of its tokens is the most likely one.
    """

    policy: Policy
    weights: Callable[[Policy], AbstractContextManager[object]] = adapters_off
    batch_size: int = field(default=32, kw_only=True)

    def judge(self, programs: Sequence[str], outputs: Sequence[str]) -> list[PredictionVerdict]:
        """Return the verdict on each output, from the scores of it and of the closing fence, in one pass.

        "Right" where every token of the output is the most likely one and the answer then ends. Tokenizers
        split the fence, or join it to what follows it, so a token ends the answer that begins as it does.
        """
        pairs = list(dict.fromkeys(zip(programs, outputs, strict=True)))
        with self.weights(self.policy):
            scores = score(
                self.policy,
                [prediction_prompt(program, shots=self.shots) for program, _ in pairs],
                [prediction_answer(output) for _, output in pairs],
                batch_size=self.batch_size,
            )
        verdicts, fence = {}, PREDICTION_STOP.strip()
        for pair, output_scores in zip(pairs, scores, strict=True):
            count = count_output_tokens(self.policy, output_scores)
            is_top = output_scores.token_ids == output_scores.top_ids
            next_token = self.policy.tokenizer.decode(output_scores.top_ids[count : count + 1]).strip()
            is_closed = bool(next_token) and (next_token.startswith(fence) or fence.startswith(next_token))
            is_right = bool(is_top[:count].all()) and is_closed
            logprob = float(output_scores.logprobs[:count].sum())
            verdicts[pair] = PredictionVerdict(is_right, logprob, count)
        return [verdicts[pair] for pair in zip(programs, outputs, strict=True)]

    def write(self, prompts: Sequence[str]) -> list[str]:
        with self.weights(self.policy):
            written = generate(
                self.policy,
                prompts,
                max_new_tokens=self.max_prediction_tokens,
                temperature=0.0,
                batch_size=self.batch_size,
                is_complete=lambda _, text: PREDICTION_STOP in text,
            )
        return [completion.text for completion in written]


@dataclass
class EndpointOpponent(Predictor):
    """A model on a server with OpenAI's protocol, which shows no probabilities."""

    endpoint: Endpoint

    def write(self, prompts: Sequence[str]) -> list[str]:
        """Ask the server. Raises PolicyUnavailable."""
        settings: dict[str, JsonValue] = {"temperature": 0.0, "max_tokens": self.max_prediction_tokens}
        bodies: list[dict[str, JsonValue]] = [
            {"prompt": prompt, "stop": [PREDICTION_STOP], **settings} for prompt in prompts
        ]
        return [answer.text for answer in self.endpoint.answers(bodies, path=TEXT)]


def count_output_tokens(policy: Policy, scores: TokenScores) -> int:
    """Return the number of tokens up to the end of the output's last line, without the closing fence."""
    for count in range(1, len(scores.token_ids) + 1):
        text = policy.tokenizer.decode(scores.token_ids[-count:])
        if text.startswith("\n") or "\n`" in text:
            return len(scores.token_ids) - count + 1
    return len(scores.token_ids)


def load_reader(
    params: GrpoCodeGameParams, policy: Policy, snapshot: WeightSnapshot | None = None
) -> ModelOpponent | EndpointOpponent:
    """Return the opponent that `params.opponent` describes; snapshot: for the kind of this name."""
    opponent = params.opponent
    if opponent.kind == "endpoint":
        endpoint = Endpoint(opponent.base_url, opponent.model_id, num_parallel=params.evaluation.batch_size)
        # What it writes is judged, and a character may be four tokens: an output cut short would win unread.
        longest = 4 * MAX_OUTPUT_CHARS[params.game.form] + 8
        return EndpointOpponent(endpoint, max_prediction_tokens=longest)
    longest = MAX_PREDICTION_TOKENS[params.game.form]
    reader = ModelOpponent(policy, batch_size=params.evaluation.batch_size, max_prediction_tokens=longest)
    if opponent.kind == "snapshot":
        return replace(reader, weights=(snapshot or WeightSnapshot.take(policy)).applied_to)
    return reader


def make_judges(params: GrpoCodeGameParams, policy: Policy, reader: Judge) -> tuple[Judge, Judge | None]:
    """Return who judges evaluations, and the control's second judge, None without `evaluation.control`.

    The first is the opponent, or the untrained model where the opponent is a snapshot: figures from before
    and after are comparable only under one judge. The second is the untrained model with other examples.
    """
    longest = MAX_PREDICTION_TOKENS[params.game.form]
    untrained = ModelOpponent(policy, batch_size=params.evaluation.batch_size, max_prediction_tokens=longest)
    first = untrained if params.opponent.kind == "snapshot" else reader
    return first, replace(untrained, shots=OTHER_SHOTS) if params.evaluation.control else None

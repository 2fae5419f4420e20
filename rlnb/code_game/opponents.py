"""Opponents of the code game, which read a program and predict what it prints, and its second judge."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Protocol

from pydantic import JsonValue

from rlnb.code_game.params import GrpoCodeGameParams
from rlnb.code_game.prediction import (
    PREDICTION_STOP,
    is_readable,
    normalise_output,
    parse_prediction,
    prediction_answer,
    prediction_prompt,
)
from rlnb.code_game.programs import make_mutants
from rlnb.policy import Policy, generate, load_policy
from rlnb.policy.adapters import WeightSnapshot, adapters_off
from rlnb.policy.endpoint import TEXT, Endpoint
from rlnb.policy.scoring import CachedPrefix, TokenScores, cache_prefix, score
from rlnb.sandbox import Sandbox

MUTANTS_PER_CHOICE = 4  # tried for each wrong output that is wanted: many print the same, or break


@dataclass(frozen=True)
class PredictionVerdict:
    """Whether an opponent predicts the output of one program.

    logprob: of the output, nats, all tokens together; nan where the opponent's weights are not at hand.
    num_tokens: of the output. num_options: outputs that it picked from, 0 where it predicted.
    """

    is_right: bool
    logprob: float = math.nan
    num_tokens: int = 0
    num_options: int = 0

    @property
    def token_probability(self) -> float:
        """Geometric mean of the probabilities of the output's tokens; nan where unknown."""
        return math.exp(self.logprob / self.num_tokens) if self.num_tokens else math.nan


class Judge(Protocol):
    """Says of programs whether their outputs, normalised, can be predicted."""

    def judge(self, programs: Sequence[str], outputs: Sequence[str]) -> list[PredictionVerdict]: ...


@dataclass(kw_only=True)
class Predictor:
    """A judge that writes predictions.

    It reads `num_shots` solved examples before each program. With num_predictions above 1 that many are
    sampled at `temperature`, and the commonest counts.
    """

    num_shots: int = 6
    num_predictions: int = 1
    temperature: float = 0.7
    max_prediction_tokens: int = 64
    seed: int = 0

    def write(self, prompts: Sequence[str], *, temperature: float) -> list[str]:
        """Return the continuation of each prompt."""
        raise NotImplementedError

    def predict(self, programs: Sequence[str]) -> list[str]:
        """Return the normalised output that it expects of each program."""
        count = self.num_predictions
        prompts = [prediction_prompt(program, num_shots=self.num_shots) for program in programs]
        repeated = [prompt for prompt in prompts for _ in range(count)]
        texts = self.write(repeated, temperature=self.temperature if count > 1 else 0.0)
        outputs = list(map(parse_prediction, texts))
        groups = (outputs[start : start + count] for start in range(0, len(outputs), count))
        return [Counter(group).most_common(1)[0][0] for group in groups]  # the first of equally common ones

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
    _front: CachedPrefix | None = field(default=None, kw_only=True)

    def judge(self, programs: Sequence[str], outputs: Sequence[str]) -> list[PredictionVerdict]:
        """Score the distinct pairs in one pass; the verdicts of a majority have no probabilities."""
        if self.num_predictions > 1:
            return super().judge(programs, outputs)
        pairs = list(dict.fromkeys(zip(programs, outputs, strict=True)))
        verdicts = dict(zip(pairs, self.judge_pairs(pairs), strict=True))
        return [verdicts[pair] for pair in zip(programs, outputs, strict=True)]

    def write(self, prompts: Sequence[str], *, temperature: float) -> list[str]:
        with self.weights(self.policy):
            return generate(
                self.policy,
                prompts,
                max_new_tokens=self.max_prediction_tokens,
                temperature=temperature,
                seed=self.seed,
                batch_size=self.batch_size,
                ends=self.policy.end_token_ids,
                is_complete=lambda text: PREDICTION_STOP in text,
            )

    def choose(self, programs: Sequence[str], options: Sequence[Sequence[str]]) -> list[int]:
        """Return the index of each program's likeliest option, by the mean log-probability of its tokens."""
        pairs = [(program, text) for program, texts in zip(programs, options, strict=True) for text in texts]
        means = iter([verdict.logprob / verdict.num_tokens for verdict in self.judge_pairs(pairs)])
        by_program = [[next(means) for _ in texts] for texts in options]
        return [values.index(max(values)) for values in by_program]

    def judge_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[PredictionVerdict]:
        """Return the verdict on each (program, output), from the scores of output and closing fence.

        "Right" where every token of the output is the most likely one and the answer then ends. Tokenizers
        may join the fence to what follows it, so a top token that begins with a fence ends it too.
        """
        with self.weights(self.policy):
            scores = score(
                self.policy,
                [prediction_prompt(program, num_shots=self.num_shots) for program, _ in pairs],
                [prediction_answer(output) for _, output in pairs],
                front=self.front(),
                batch_size=self.batch_size,
            )
        verdicts = []
        for output_scores in scores:
            count = count_output_tokens(self.policy, output_scores)
            output = output_scores.until(count)
            next_text = self.policy.tokenizer.decode(output_scores.top_ids[count : count + 1])
            is_closed = output_scores.is_top[count:].all() or next_text.startswith(PREDICTION_STOP.strip())
            is_right = bool(output.is_top.all() and is_closed)
            verdicts.append(PredictionVerdict(is_right, float(output.logprobs.sum()), count))
        return verdicts

    def front(self) -> CachedPrefix | None:
        """Return the solved examples, read once; None where the model cannot continue from a cache."""
        if self._front is None and self.num_shots:
            prompts = [prediction_prompt(code, num_shots=self.num_shots) for code in ("print(1)", "x = 2")]
            self._front = cache_prefix(self.policy, prompts)
        return self._front

    def forget(self) -> None:
        """Drop what was read; call it whenever the weights have changed."""
        self._front = None


@dataclass
class EndpointOpponent(Predictor):
    """A model on a server with OpenAI's protocol, which shows no probabilities. seed: of request 0."""

    endpoint: Endpoint

    def predict(self, programs: Sequence[str]) -> list[str]:
        """Ask about equal programs once. Raises PolicyUnavailable."""
        distinct = list(dict.fromkeys(programs))
        expected = dict(zip(distinct, super().predict(distinct), strict=True))
        return [expected[program] for program in programs]

    def write(self, prompts: Sequence[str], *, temperature: float) -> list[str]:
        settings = {"temperature": temperature, "max_tokens": self.max_prediction_tokens}
        bodies: list[dict[str, JsonValue]] = [
            {"prompt": prompt, "stop": [PREDICTION_STOP], "seed": self.seed + index, **settings}
            for index, prompt in enumerate(prompts)
        ]
        texts = dict(self.endpoint.answers(bodies, path=TEXT))
        return [texts[index] for index in range(len(bodies))]


@dataclass
class ChoosingOpponent:
    """The second form of the game: the opponent picks the true output among those of mutants.

    num_choices: outputs to pick from, the true one included; it picks from fewer where mutants give fewer. A
    program whose output no mutant changes counts as predicted, so that such programs do not pay; only
    verdicts with all options are comparable as a measure (`PredictionVerdict.num_options`).
    """

    chooser: ModelOpponent
    sandbox: Sandbox
    num_choices: int = 4
    max_output_chars: int = 200
    seed: int = 0

    def judge(self, programs: Sequence[str], outputs: Sequence[str]) -> list[PredictionVerdict]:
        """Return whether it picks each output. Log-probabilities are left out, since lengths differ."""
        options = self.collect_options(programs, outputs)
        rows = [row for row, texts in enumerate(options) if len(texts) > 1]
        choices = self.chooser.choose([programs[row] for row in rows], [options[row] for row in rows])
        chosen = {row: options[row][choice] for row, choice in zip(rows, choices, strict=True)}
        return [
            PredictionVerdict(chosen.get(row, output) == output, num_options=len(options[row]))
            for row, output in enumerate(outputs)
        ]

    def collect_options(self, programs: Sequence[str], outputs: Sequence[str]) -> list[list[str]]:
        """Return each program's output and those of mutants, sorted so that their order tells nothing."""
        count = (self.num_choices - 1) * MUTANTS_PER_CHOICE
        mutants = [make_mutants(program, count=count, seed=self.seed) for program in programs]
        distinct = list(dict.fromkeys(chain.from_iterable(mutants)))
        executions = dict(zip(distinct, self.sandbox.run_many(distinct), strict=True))
        options = []
        for of_program, output in zip(mutants, outputs, strict=True):
            ran = [executions[mutant] for mutant in of_program if executions[mutant].status == "ok"]
            printed = dict.fromkeys(normalise_output(execution.stdout) for execution in ran)
            short = [text for text in printed if text.strip() and len(text) <= self.max_output_chars]
            others = [text for text in short if text != output and is_readable(text)]
            options.append(sorted([output, *others[: self.num_choices - 1]]))
        return options


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
    """Return the predictor that `params.opponent` describes; snapshot: for the kind of this name.

    Raises PolicyUnavailable where another model cannot be loaded.
    """
    opponent = params.opponent
    settings = opponent.model_dump(
        include={"num_shots", "num_predictions", "temperature", "max_prediction_tokens"}
    ) | {"seed": params.seed}
    if opponent.kind == "endpoint":
        endpoint = Endpoint(opponent.base_url, opponent.model_name, num_parallel=opponent.batch_size)
        return EndpointOpponent(endpoint, **settings)
    reader = ModelOpponent(policy, batch_size=opponent.batch_size, **settings)
    if opponent.kind == "model":
        return replace(reader, policy=load_other_model(params, opponent.model_id), weights=nullcontext)
    if opponent.kind == "snapshot":
        return replace(reader, weights=(snapshot or WeightSnapshot.take(policy)).applied_to)
    return reader


def make_judge(params: GrpoCodeGameParams, reader: Predictor, sandbox: Sandbox) -> Judge:
    """Return the opponent in the form that `reward.preset` asks for: the reader predicts, or chooses."""
    if params.reward.preset == "choice" and isinstance(reader, ModelOpponent):
        return make_choosing(params, reader, sandbox)
    return reader


def make_fixed_judge(params: GrpoCodeGameParams, policy: Policy, judge: Judge, sandbox: Sandbox) -> Judge:
    """Return who judges evaluations: the opponent, or the untrained model where the opponent is a snapshot.

    Figures from before and after, and of a control, are comparable only under one judge.
    """
    if params.opponent.kind != "snapshot":
        return judge
    return make_judge(params, ModelOpponent(policy, num_shots=params.opponent.num_shots), sandbox)


def make_second_judge(params: GrpoCodeGameParams, policy: Policy, sandbox: Sandbox) -> Judge | None:
    """Return a judge that is never trained against, None where `evaluation.second_judge` is "none".

    "choice" is the untrained model in the other form of the game: it picks among outputs, or predicts where
    picking is what is trained against. Otherwise the model with that name predicts.
    """
    evaluation, num_shots = params.evaluation, params.opponent.num_shots
    if evaluation.names_model:
        other_model = load_other_model(params, evaluation.second_judge)
        return ModelOpponent(other_model, nullcontext, num_shots=num_shots, batch_size=evaluation.batch_size)
    if evaluation.second_judge == "none" or not evaluation.enabled:
        return None
    untrained = ModelOpponent(policy, num_shots=num_shots, batch_size=evaluation.batch_size)
    return untrained if params.reward.preset == "choice" else make_choosing(params, untrained, sandbox)


def make_choosing(params: GrpoCodeGameParams, chooser: ModelOpponent, sandbox: Sandbox) -> ChoosingOpponent:
    return ChoosingOpponent(
        chooser,
        sandbox,
        num_choices=params.reward.num_choices,
        max_output_chars=params.game.max_output_chars,
        seed=params.seed,
    )


def load_other_model(params: GrpoCodeGameParams, model_id: str) -> Policy:
    """Return another model without adapters, loaded like the policy."""
    return load_policy(params.model.model_copy(update={"id": model_id, "adapters": ""}), is_trained=False)

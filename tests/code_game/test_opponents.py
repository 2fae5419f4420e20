"""Opponents: judging in one pass agrees with writing the prediction out, and what verdicts say."""

import math
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_policy import load_tiny, train_by_hand
from tokenizer_rules import FENCE_MERGES, make_tokenizer

from rlnb.code_game.opponents import EndpointOpponent, ModelOpponent, load_reader, make_judges
from rlnb.code_game.params import MAX_OUTPUT_CHARS, MAX_PREDICTION_TOKENS, GrpoCodeGameParams
from rlnb.code_game.prediction import (
    OTHER_SHOTS,
    SHOTS,
    load_prediction_set,
    prediction_answer,
    prediction_prompt,
    prediction_question,
)
from rlnb.policy import Completion, Policy, generate
from rlnb.policy.adapters import WeightSnapshot, adapters_off
from rlnb.policy.endpoint import Endpoint

MAX_STEPS, LEARNED = 400, 0.98


def solved() -> list[tuple[str, str]]:
    """Programs of one, two and three lines with their outputs, which have as many."""
    ones = [(f"print({n})", str(n)) for n in (3, 8, 14, 25, 41, 57)]
    pairs = ("ab", 1), ("tea", 5), ("so", 9), ("x", 2)
    twos = [(f"print('{word}')\nprint({n})", f"{word}\n{n}") for word, n in pairs]
    threes = [(f"for k in {[n] * 3}: print(k)", f"{n}\n{n}\n{n}") for n in (4, 7)]
    return [*ones, *twos, *threes]


def fit(policy: Policy) -> float:
    """Teach all weights the solved programs by heart, so that answers are outputs and come to an end.

    Return the probability of the least certain token: LEARNED after some 110 of MAX_STEPS steps.
    """
    texts = [(prediction_question(code), prediction_answer(output) + "\n\n") for code, output in solved()]
    pairs = [[policy.tokenizer(text)["input_ids"] for text in pair] for pair in texts]
    width = max(len(head) + len(tail) for head, tail in pairs)
    ids = torch.tensor([head + tail + [0] * (width - len(head) - len(tail)) for head, tail in pairs])
    taught = torch.zeros(ids.shape, dtype=torch.bool)
    for row, (head, tail) in enumerate(pairs):
        taught[row, len(head) : len(head) + len(tail)] = True
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=1e-3, betas=(0.9, 0.99))
    for _ in range(MAX_STEPS):
        logits = policy.model(input_ids=ids).logits[:, :-1]
        losses = torch.nn.functional.cross_entropy(logits[taught[:, 1:]], ids[taught], reduction="none")
        least = math.exp(-float(losses.detach().max()))
        if least >= LEARNED:
            break
        losses.mean().backward()
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return least


@pytest.fixture(scope="module", params=["bytes", "qwen"])
def reader(request, cache_dir: Path) -> ModelOpponent:
    """The tiny model after it has learned a few programs by heart; on others it is wrong in like form.

    By Qwen's rules "```" before a blank line is two tokens, the second with the end of the line.
    """
    policy = load_tiny(cache_dir, is_trained=False)
    if request.param == "qwen":
        texts = [prediction_question(program) for program in programs_read()]
        tokenizer = make_tokenizer("qwen", [*texts, "\n0123456789abcdefghijklmnopqrstuvwxyz"], FENCE_MERGES)
        assert len(tokenizer("1\n```\n\n")["input_ids"]) == 4 and len(tokenizer("```")["input_ids"]) == 1
        policy = replace(policy, tokenizer=tokenizer)
    assert fit(policy) >= LEARNED, "the fixture's model has not learned; mend fit() before the tests"
    return ModelOpponent(policy, nullcontext, shots=(), max_prediction_tokens=40, batch_size=8)


def programs_read() -> list[str]:
    return [code for code, _ in solved()] + [program.code for program in load_prediction_set()]


@pytest.fixture(scope="module")
def predictions(reader) -> list[str]:
    return reader.predict(programs_read())


def is_right(opponent: ModelOpponent, programs: list[str], outputs: list[str]) -> list[bool]:
    return [verdict.is_right for verdict in opponent.judge(programs, outputs)]


def test_the_judge_is_right_about_what_the_reader_itself_would_write(reader, predictions):
    # Where greedy decoding writes the output, the line end and the fence. Else it was cut, or wrote blanks
    # that nobody sees, or ended by a token that is no text: the one pass cannot know of these.
    prompts = [prediction_prompt(program) for program in programs_read()]
    written = generate(reader.policy, prompts, max_new_tokens=40, temperature=0, batch_size=8)
    texts = [completion.text for completion in written]
    closed = [
        (program, output)
        for program, output, text in zip(programs_read(), predictions, texts, strict=True)
        if text.startswith(prediction_answer(output))
    ]
    assert len(closed) >= 30
    agrees = is_right(reader, [program for program, _ in closed], [output for _, output in closed])
    assert all(agrees), [pair for pair, ok in zip(closed, agrees, strict=True) if not ok]


def test_the_judge_says_wrong_to_any_other_output(reader, predictions):
    shifted = zip(programs_read(), predictions, [*predictions[7:], *predictions[:7]], strict=True)
    others = [(program, other) for program, output, other in shifted if other != output]
    assert len(others) >= 30
    assert not any(is_right(reader, [program for program, _ in others], [text for _, text in others]))


def test_a_verdict_tells_the_probability_of_the_output_and_its_line_end_alone(reader):
    (verdict,) = reader.judge(["print(41)"], ["41"])
    assert verdict.is_right
    assert verdict.num_tokens == 3  # 4, 1 and the end of the line
    assert verdict.token_probability == pytest.approx(math.exp(verdict.logprob / 3))
    assert 0.5 < verdict.token_probability <= 1
    (other,) = reader.judge(["print(41)"], ["zz"])
    assert not other.is_right
    assert other.token_probability < verdict.token_probability


def logprobs(opponent: ModelOpponent) -> list[float]:
    return [verdict.logprob for verdict in opponent.judge(["print(1)", "print(2)"], ["1", "a\nb"])]


@pytest.mark.parametrize("kind", ["base", "snapshot"])
def test_an_opponent_stays_as_it_is_while_the_policy_changes(kind, cache_dir: Path):
    policy = load_tiny(cache_dir)
    train_by_hand(policy, seed=1)
    snapshot = WeightSnapshot.take(policy)
    weights = snapshot.applied_to if kind == "snapshot" else adapters_off
    opponent = ModelOpponent(policy, weights, shots=SHOTS[:1])
    before = logprobs(opponent)
    train_by_hand(policy, seed=2)
    now = logprobs(ModelOpponent(policy, nullcontext, shots=SHOTS[:1]))
    assert logprobs(opponent) == before != now
    snapshot.move_towards(policy, 1.0)  # a snapshot follows when it is taken again
    assert logprobs(opponent) == (now if kind == "snapshot" else before)


class Served:
    """In place of an Endpoint: gives each program its text, and keeps what it was asked."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.texts = texts
        self.asked: list[tuple[str, dict]] = []

    def answers(self, bodies, *, path):
        self.asked += [(path, body) for body in bodies]
        programs = [re.findall(r"```python\n(.*?)\n```", body["prompt"], re.DOTALL)[-1] for body in bodies]
        return [Completion(self.texts[program], False) for program in programs]


def test_a_server_reads_what_other_opponents_read_and_each_program_once():
    adds, lines, nothing = "print(2 + 2)", "print('a')\nprint('b')", "print(0.1 + 0.2)"
    served = Served({adds: "4\n```\n\nProgram:", lines: "a \r\nb\n", nothing: ""})
    opponent = EndpointOpponent(served, shots=SHOTS[:2], max_prediction_tokens=9)
    assert opponent.predict([lines, adds, lines, nothing, adds]) == ["a\nb", "4", "a\nb", "", "4"]
    settings = {"stop": ["\n```"], "temperature": 0.0, "max_tokens": 9}
    assert served.asked == [
        ("/completions", {"prompt": prediction_prompt(code, shots=SHOTS[:2]), **settings})
        for code in (lines, adds, nothing)
    ]
    right, wrong = opponent.judge([adds, lines], ["4", "a"])
    assert (right.is_right, wrong.is_right) == (True, False)
    assert math.isnan(right.token_probability)


def test_opponents_and_judges_are_those_of_the_parameters(cache_dir: Path):
    section = {"base_url": "http://h/v1", "model_id": "served"}
    opponent = load_reader(GrpoCodeGameParams(opponent=section, evaluation={"batch_size": 3}), policy=None)
    assert opponent.endpoint == Endpoint("http://h/v1", "served", num_parallel=3)
    assert opponent.max_prediction_tokens > len(("\U0001f0a1" * MAX_OUTPUT_CHARS["topic"]).encode())
    policy = load_tiny(cache_dir)
    for refresh_steps in (0, 10):
        evaluation = {"control": True, "batch_size": 3}
        params = GrpoCodeGameParams(opponent={"refresh_steps": refresh_steps}, evaluation=evaluation)
        reader = load_reader(params, policy)
        first, second = make_judges(params, policy, reader)
        assert (first is reader) == (refresh_steps == 0)
        assert first.weights is second.weights is adapters_off
        assert (first.shots, second.shots) == (SHOTS, OTHER_SHOTS)
        assert reader.batch_size == first.batch_size == second.batch_size == 3
        lengths = {judge.max_prediction_tokens for judge in (reader, first, second)}
        assert lengths == {MAX_PREDICTION_TOKENS[params.game.form]}
    assert make_judges(GrpoCodeGameParams(), policy, reader)[1] is None

"""Opponents: judging in one pass agrees with writing the prediction out, and what verdicts say."""

import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rlnb.params.sections import ModelParams
from rlnb.policy import Policy, generate, load_policy, model_directory
from rlnb.policy.adapters import AdapterValues, adapters_of
from rlnb.rewards.opponents import (
    ModelOpponent,
    ScriptedOpponent,
    Verdict,
    as_it_is,
    base_opponent,
    majority,
    snapshot_opponent,
)
from rlnb.tasks.prediction import answered, asked, normalised, prediction_prompt
from rlnb.tasks.prediction_set import prediction_set

MAX_STEPS, LEARNED = 400, 0.98


def model_params(model_id: str, cache_dir: Path) -> ModelParams:
    return ModelParams(
        id=model_id, cache_dir=str(cache_dir), engine="transformers", dtype="float32", attention="sdpa",
        load_in_4bit=False, lora_rank=4,
    )  # fmt: skip


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def solved() -> list[tuple[str, str]]:
    """Programs of one, two and three lines with their outputs, which have as many."""
    ones = [(f"print({n})", str(n)) for n in (3, 8, 14, 25, 41, 57)]
    twos = [
        (f"print('{w}')\nprint({n})", f"{w}\n{n}") for w, n in (("ab", 1), ("tea", 5), ("so", 9), ("x", 2))
    ]
    threes = [(f"for k in {[n] * 3}: print(k)", f"{n}\n{n}\n{n}") for n in (4, 7)]
    return [*ones, *twos, *threes]


def fit(policy: Policy) -> float:
    """Teach all weights the solved programs by heart, so that answers are outputs and come to an end.

    Return the probability of the least certain token. Training ends when that is LEARNED, or after MAX_STEPS.
    All programs are in every step and the steps are small: 103 to 113 steps are enough with the seeds 0 to 5.
    """
    pairs = [
        (policy.tokenizer(asked(code))["input_ids"], policy.tokenizer(answered(output) + "\n")["input_ids"])
        for code, output in solved()
    ]
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


@pytest.fixture(scope="module")
def reader(cache_dir: Path) -> ModelOpponent:
    """The tiny model after it has learned a few programs by heart; on others it is wrong in like form."""
    policy = load_policy(model_params("tiny", cache_dir), is_trained=False)
    least = fit(policy)
    assert least >= LEARNED, (
        f"the fixture's model has not learned its programs in {MAX_STEPS} steps: the least certain token has "
        f"probability {least:.3f} instead of {LEARNED}; mend fit() before looking at the tests"
    )
    return ModelOpponent(policy, as_it_is, num_shots=0, max_prediction_tokens=40, batch_size=8)


def programs_read() -> list[str]:
    return [code for code, _ in solved()] + [one.code for one in prediction_set()]


@pytest.fixture(scope="module")
def predictions(reader: ModelOpponent) -> list[str]:
    return reader.predict(programs_read())


def is_right(opponent: ModelOpponent, programs: list[str], outputs: list[str]) -> list[bool]:
    return [verdict.is_right for verdict in opponent.judge(programs, outputs)]


def test_the_reader_has_learned_to_write_outputs(predictions: list[str]) -> None:
    right = [left == output for left, (_, output) in zip(predictions, solved(), strict=False)]
    assert sum(right) >= 7, right
    assert sum("\n" in text for text in predictions) >= 8


def test_the_judge_is_right_about_what_the_reader_itself_would_write(
    reader: ModelOpponent, predictions: list[str]
) -> None:
    # Where greedy decoding writes the output, the line end and the fence. Else it was cut, or wrote blanks
    # that nobody sees, or ended by a token that is no text: the one pass cannot know of these.
    prompts = [prediction_prompt(program) for program in programs_read()]
    texts = generate(reader.policy, prompts, max_new_tokens=40, temperature=0, batch_size=8)
    closed = [
        (program, output)
        for program, output, text in zip(programs_read(), predictions, texts, strict=True)
        if text.startswith(answered(output))
    ]
    assert len(closed) >= 30
    agrees = is_right(reader, [program for program, _ in closed], [output for _, output in closed])
    assert all(agrees), [pair for pair, ok in zip(closed, agrees, strict=True) if not ok]


def test_the_judge_says_wrong_to_any_other_output(reader: ModelOpponent, predictions: list[str]) -> None:
    programs = programs_read()
    others = [*predictions[7:], *predictions[:7]]
    expected = [left == right for left, right in zip(predictions, others, strict=True)]
    found = is_right(reader, programs, others)
    assert not any(ok and not same for ok, same in zip(found, expected, strict=True))
    assert expected.count(False) >= 30


def test_the_first_lines_alone_of_what_it_would_write_are_wrong(
    reader: ModelOpponent, predictions: list[str]
) -> None:
    longer = [
        (code, text)
        for code, text in zip(programs_read(), predictions, strict=True)
        if "\n" in text and len(text) < 30
    ]
    assert len(longer) >= 8
    firsts = [text.rpartition("\n")[0] for _, text in longer]
    assert is_right(reader, [code for code, _ in longer], firsts) == [False] * len(longer)


def test_a_verdict_tells_the_probability_of_the_output_and_its_line_end_alone(reader: ModelOpponent) -> None:
    (verdict,) = reader.judge(["print(41)"], ["41"])
    assert verdict.is_right
    assert verdict.num_tokens == 3  # 4, 1 and the end of the line, in the tiny model's bytes
    assert verdict.token_probability == pytest.approx(math.exp(verdict.logprob / 3))
    assert 0.5 < verdict.token_probability <= 1
    (other,) = reader.judge(["print(41)"], ["zz"])
    assert not other.is_right
    assert other.token_probability < verdict.token_probability


def test_one_pair_asked_often_has_one_verdict(reader: ModelOpponent) -> None:
    programs, outputs = ["print(3)", "print(8)", "print(3)"], ["3", "3", "3"]
    first, second, third = reader.judge(programs, outputs)
    assert first == third != second
    seen: list[int] = []
    scores = reader.scores

    class Counting(ModelOpponent):
        def scores(self, pairs):
            seen.append(len(pairs))
            return scores(pairs)

    Counting(reader.policy, as_it_is, num_shots=0).judge(programs, outputs)
    assert seen == [2]


def test_examples_read_once_lead_to_the_same_verdicts(reader: ModelOpponent) -> None:
    programs = programs_read()[:30]
    outputs = [code[-3:] for code in programs]
    with_shots = replace(reader, num_shots=2)
    whole = replace(reader, num_shots=2, policy=replace(reader.policy, engine="unsloth"))
    assert with_shots.front() is not None
    assert whole.front() is None
    for one, other in zip(with_shots.judge(programs, outputs), whole.judge(programs, outputs), strict=True):
        assert (one.is_right, one.num_tokens) == (other.is_right, other.num_tokens)
        assert one.logprob == pytest.approx(other.logprob, abs=1e-2)


def test_the_choice_is_the_option_of_highest_mean_probability(reader: ModelOpponent) -> None:
    programs = ["print(41)", "print(8)"]
    options = [["14", "41", "a long text that it never saw"], ["8", "x"]]
    assert reader.choose(programs, options) == [1, 0]
    for program, texts, chosen in zip(programs, options, reader.choose(programs, options), strict=True):
        shares = [one.token_probability for one in reader.judge([program] * len(texts), texts)]
        assert chosen == shares.index(max(shares))


def test_a_majority_of_samples_is_the_same_for_a_seed_and_knows_no_probability(reader: ModelOpponent) -> None:
    voting = replace(reader, num_predictions=5, temperature=1.0, seed=3)
    programs, outputs = ["print(41)", "print(3)"], ["41", "nothing"]
    first, second = voting.judge(programs, outputs)
    assert (first.is_right, second.is_right) == (True, False)
    assert math.isnan(first.token_probability)
    assert first.num_tokens == 0
    unknown = [one.code for one in prediction_set()[:6]]
    assert voting.predict(unknown) == voting.predict(unknown)


def test_the_commonest_prediction_counts_and_of_equals_the_first() -> None:
    assert majority(["a", "b", "b"]) == "b"
    assert majority(["b", "a"]) == "b"


def test_a_scripted_opponent_predicts_by_its_table_and_nothing_else() -> None:
    scripted = ScriptedOpponent({"print(1)": "1\n", "print(2)": "3"})
    assert scripted.predict(["print(1)", "print(2)", "print(4)"]) == ["1", "3", ""]
    assert scripted.judge(["print(1)", "print(2)", "print(4)"], ["1", "2", "4"]) == [
        Verdict(True), Verdict(False), Verdict(False),
    ]  # fmt: skip


def test_a_verdict_without_tokens_has_no_probability() -> None:
    assert math.isnan(Verdict(True).token_probability)
    assert Verdict(False, math.log(0.25), 2).token_probability == pytest.approx(0.5)


def move(policy: Policy, *, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, parameter in adapters_of(policy):
            parameter.normal_(std=0.3, generator=generator)


def logprobs(opponent: ModelOpponent) -> list[float]:
    return [one.logprob for one in opponent.judge(["print(1)", "print(2)"], ["1", "a\nb"])]


def test_the_base_opponent_stays_as_it_is_while_the_policy_changes(cache_dir: Path) -> None:
    policy = load_policy(model_params("tiny", cache_dir))
    opponent = base_opponent(policy, num_shots=1)
    before = logprobs(opponent)
    move(policy, seed=1)
    assert logprobs(opponent) == before
    assert logprobs(ModelOpponent(policy, lambda _: nullcontext(), num_shots=1)) != before


def test_a_snapshot_follows_the_policy_only_when_it_is_taken_anew_and_what_was_read_forgotten(
    cache_dir: Path,
) -> None:
    policy = load_policy(model_params("tiny", cache_dir))
    move(policy, seed=1)
    snapshot = AdapterValues.of(policy)
    opponent = snapshot_opponent(policy, snapshot, num_shots=1)
    before = logprobs(opponent)
    move(policy, seed=2)
    assert logprobs(opponent) == before
    snapshot.take(policy)
    opponent.forget()
    renewed = logprobs(opponent)
    assert renewed == logprobs(ModelOpponent(policy, lambda _: nullcontext(), num_shots=1)) != before


@pytest.mark.slow
def test_judging_agrees_with_writing_out_on_the_embedded_model(cache_dir: Path) -> None:
    policy = load_policy(model_params("embedded", Path(model_directory("embedded", cache_dir)).parent))
    opponent = base_opponent(policy, num_shots=6, max_prediction_tokens=24)
    programs = [one.code for one in prediction_set()]
    outputs = [one.output for one in prediction_set()]
    predictions = opponent.predict(programs)
    decoded = [left == output for left, output in zip(predictions, outputs, strict=True)]
    judged = is_right(opponent, programs, outputs)
    agreeing = sum(left == right for left, right in zip(decoded, judged, strict=True))
    whole = [bool(text) and len(text) < 20 for text in predictions]  # below the 24 tokens: not cut
    own = [text for text, kept in zip(predictions, whole, strict=True) if kept]
    its = [code for code, kept in zip(programs, whole, strict=True) if kept]
    agreeing_with_itself = sum(is_right(opponent, its, [normalised(text) for text in own]))
    print(
        f"agree on {agreeing} of {len(programs)}, on its own predictions {agreeing_with_itself} of {len(own)}"
    )
    assert agreeing >= 58
    assert agreeing_with_itself >= 0.95 * len(own)

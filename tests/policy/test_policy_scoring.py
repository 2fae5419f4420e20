"""Scores of given texts: those of a plain pass over one row, and nothing of the policy is disturbed."""

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_policy import add_dropout, load_tiny, save_tiny_gpt_oss, train_by_hand
from tokenizer_rules import make_tokenizer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from rlnb.code_game.prediction import SHOTS, prediction_prompt
from rlnb.policy import Policy, generate
from rlnb.policy.adapters import adapters_off
from rlnb.policy.loading import save_tokenizer, show_all_text
from rlnb.policy.scoring import TokenScores, continue_ids, read_front, score

TWICE = "Write a Python function that returns twice its argument."
PROMPTS = ["Program:\nprint(1)\n", "a", TWICE, "b = 3" * 9, "x = 1\n" * 60]
TEXTS = ["1\n```", "b", "def f(n):\n    return 2 * n", "é" * 4, "a much longer continuation here"]


@pytest.fixture(scope="module")
def tiny(cache_dir: Path) -> Policy:
    policy = load_tiny(cache_dir)
    add_dropout(policy, 0.1)
    train_by_hand(policy)
    return policy


def plain_scores(policy: Policy, prompt: str, text: str) -> TokenScores:
    """One row without padding or cache, all its logits, read off one place before each token."""
    head = policy.tokenizer(prompt)["input_ids"]
    tail = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    policy.model.eval()
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([head + tail])).logits[0, len(head) - 1 : -1]
    logprobs = logits.log_softmax(-1)[range(len(tail)), tail]
    return TokenScores(np.array(tail), logprobs.numpy(), logits.argmax(-1).numpy())


def assert_same(found: list[TokenScores], expected: list[TokenScores]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        assert one.logprobs == pytest.approx(other.logprobs, abs=2e-4)
        assert one.top_ids.tolist() == other.top_ids.tolist()


@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_a_ragged_batch_scores_like_a_plain_pass_over_each_row(tiny: Policy, batch_size: int) -> None:
    expected = [plain_scores(tiny, *pair) for pair in zip(PROMPTS, TEXTS, strict=True)]
    tiny.model.train()  # dropout would show
    found = score(tiny, PROMPTS, TEXTS, batch_size=batch_size)
    assert_same(found, expected)
    assert len({len(one.logprobs) for one in found}) == len(TEXTS)


def test_what_greedy_decoding_writes_consists_of_top_tokens_and_a_change_does_not(tiny: Policy) -> None:
    prompts = [f"{letter} = {number}" for number, letter in enumerate("abcdefghijklmnop")]
    texts = [completion.text for completion in generate(tiny, prompts, max_new_tokens=8, temperature=0)]
    # Half of the random bytes are no text; what stands before them is what was written, token by token.
    pairs = [(prompt, text.partition("\ufffd")[0]) for prompt, text in zip(prompts, texts, strict=True)]
    asked, written = zip(*[pair for pair in pairs if pair[1]], strict=True)
    assert len(written) >= 5 and max(map(len, written)) >= 2, texts
    assert all((one.token_ids == one.top_ids).all() for one in score(tiny, asked, written))
    changed = [("#" if text[0] != "#" else "!") + text[1:] for text in written]
    assert all(one.token_ids[0] != one.top_ids[0] for one in score(tiny, asked, changed))


def test_an_empty_text_has_no_token(tiny: Policy) -> None:
    for texts, counts in ((["", ""], [0, 0]), (["", "d"], [0, 1])):
        assert [len(one.logprobs) for one in score(tiny, ["ab", "abc"], texts)] == counts


def test_what_all_prompts_begin_with_is_read_once_and_changes_no_score(tiny: Policy) -> None:
    front = "Solved: 1 + 1 is 2.\n\n"  # the tiny model's tokens are bytes
    shapes: list[tuple[int, int]] = []
    tiny.model.register_forward_pre_hook(
        lambda model, args, given: shapes.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    for others, num_more in ((PROMPTS, 0), (["", "1", "12"], -1), (["same", "same"], 3)):
        prompts = [front + other for other in others]  # of each, something is left to read
        texts = TEXTS[: len(prompts)]
        expected = [plain_scores(tiny, *pair) for pair in zip(prompts, texts, strict=True)]
        shapes.clear()
        for batch_size in (1, 32):  # what was read is not spoilt by its use
            assert_same(score(tiny, prompts, texts, batch_size=batch_size), expected)
        assert shapes.count((1, len(front) + num_more)) == 2


@pytest.fixture(scope="module")
def joining(tiny: Policy) -> Policy:
    """The tiny model with a tokenizer that makes one token of a fence and the blank line behind it."""
    programs = [prediction_prompt(program, shots=SHOTS) for program in ("print(8)", "total = 1", "(x)")]
    merges = [("`", "`"), ("``", "`"), ("Ċ", "Ċ"), ("```", "ĊĊ")]
    return replace(tiny, tokenizer=make_tokenizer("qwen", programs, merges))


def test_a_front_whose_end_joins_with_what_follows_changes_no_score(joining: Policy) -> None:
    fence = joining.tokenizer("```\n\nProgram")["input_ids"][0]
    assert joining.tokenizer.decode([fence]) == "```\n\n"  # else this test tells nothing
    prompts = [prediction_prompt(program, shots=SHOTS[:2]) for program in ("print(3)", "total = 1", "(x)")]
    heads = [joining.tokenizer(prompt)["input_ids"] for prompt in prompts]
    assert fence in heads[0][: read_front(joining, heads)[0]]
    texts = ["3\n```", "[1]\n```", "1"]
    expected = [plain_scores(joining, *pair) for pair in zip(prompts, texts, strict=True)]
    assert_same(score(joining, prompts, texts), expected)


def test_scoring_leaves_random_state_mode_and_gradients_alone(tiny: Policy) -> None:
    tiny.model.train()
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    score(tiny, PROMPTS[:1] * 2, TEXTS[:2])
    score(tiny, PROMPTS, TEXTS)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert tiny.model.training
    assert torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in tiny.model.parameters())


def test_adapters_are_at_work_unless_the_context_says_otherwise(tiny: Policy) -> None:
    base = copy.deepcopy(tiny.model).unload()
    untrained = [plain_scores(replace(tiny, model=base), *pair) for pair in zip(PROMPTS, TEXTS, strict=True)]
    trained = score(tiny, PROMPTS, TEXTS)
    with adapters_off(tiny):
        assert_same(score(tiny, PROMPTS, TEXTS), untrained)
    assert not np.allclose(trained[0].logprobs, untrained[0].logprobs, atol=1e-3)
    assert_same(score(tiny, PROMPTS, TEXTS), trained)


LETTERS = ["</s>", "▁", *"abcdefghijklmnopqrstuvwxyz0123456789=`\n"]


def sentencepiece(**rules) -> PreTrainedTokenizerFast:
    """Return a tokenizer of letters with the rules of Llama 2, Mistral 7B or Phi 3."""
    backend = Tokenizer(models.BPE({letter: index for index, letter in enumerate(LETTERS)}, []))
    for name, rule in rules.items():
        setattr(backend, name, rule)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
        decoders.Metaspace("▁", "always"),
    ],
)
def test_an_answer_begins_with_the_blanks_of_its_first_token(decoder):
    tokenizer = sentencepiece(normalizer=normalizers.Replace(" ", "▁"), decoder=decoder)
    body = "    x = 1\n    return x\n"
    tokens = tokenizer(body)["input_ids"]
    assert tokenizer.decode(tokens) == body[1:]
    show_all_text(tokenizer)
    assert tokenizer.decode(tokens) == body


def test_no_blank_comes_before_what_continues_a_text():
    metaspace = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    tokenizer = sentencepiece(pre_tokenizer=metaspace)
    assert tokenizer("15", add_special_tokens=False)["input_ids"][0] == LETTERS.index("▁")
    assert continue_ids(tokenizer, "15") == [LETTERS.index("1"), LETTERS.index("5")]


def test_a_tokenizer_is_saved_as_it_was_published_and_one_without_a_backend_stays_as_it_is(tmp_path):
    strips = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer = sentencepiece(normalizer=normalizers.Replace(" ", "▁"), decoder=strips)
    show_all_text(tokenizer)
    save_tokenizer(tokenizer, tmp_path)
    assert "Strip" in (tmp_path / "tokenizer.json").read_text()
    assert tokenizer.decode(tokenizer("  x")["input_ids"]) == "  x"
    show_all_text(ByT5Tokenizer())


def test_padding_does_not_use_up_a_sliding_window(cache_dir, tmp_path):
    save_tiny_gpt_oss(tmp_path / "oss", cache_dir=cache_dir)  # its window: 32
    policy = load_tiny(cache_dir, id=str(tmp_path / "oss"), lora_target_modules=("q_proj", "v_proj"))
    prompts = ["x = 1\n" * 20 + tail for tail in ("abcdefghij", "b" * 18)]
    expected = [plain_scores(policy, prompt, "15") for prompt in prompts]
    assert_same(score(policy, prompts, ["15"] * 2), expected)

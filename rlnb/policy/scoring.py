"""Log-probabilities of given texts under a policy, in one pass without decoding."""

import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicLayer

from rlnb.policy.generation import batches, generating
from rlnb.policy.loading import Policy

Front = tuple[int, DynamicCache | None]  # how many tokens all rows begin with, and their keys and values


@dataclass(frozen=True)
class TokenScores:
    """Log-probabilities of one continuation, token by token.

    token_ids: int (num_tokens,). logprobs: float (num_tokens,), nats, at temperature 1. top_ids: int
    (num_tokens,), the tokens that greedy decoding would have taken instead.
    """

    token_ids: np.ndarray
    logprobs: np.ndarray
    top_ids: np.ndarray


def score(
    policy: Policy, prompts: Sequence[str], continuations: Sequence[str], *, batch_size: int = 32
) -> list[TokenScores]:
    """Return the scores of continuations[i] after prompts[i] under the current weights and adapters.

    Prompt and continuation are tokenized separately, as in generation. What all prompts begin with is read
    once. Keeps the random state and the model's mode.
    """
    heads = [policy.tokenizer(prompt)["input_ids"] for prompt in prompts]
    tails = [continue_ids(policy.tokenizer, text) for text in continuations]
    scores: dict[int, TokenScores] = {}
    with generating(policy):
        front = read_front(policy, heads)
        heads = [head[front[0] :] for head in heads]
        lengths = [len(head) + len(tail) for head, tail in zip(heads, tails, strict=True)]
        order = sorted(range(len(heads)), key=lengths.__getitem__)
        for rows in batches(order, [lengths[row] for row in order], batch_size):
            batch = score_batch(policy, [heads[row] for row in rows], [tails[row] for row in rows], front)
            scores.update(zip(rows, batch, strict=True))
    return [scores[row] for row in range(len(heads))]


def continue_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return the tokens of a text that follows a line's end; sentencepiece puts a blank before one alone."""
    line, both, alone = (
        tokenizer(each, add_special_tokens=False)["input_ids"] for each in ("\n", f"\n{text}", text)
    )
    return both[len(line) :] if both[: len(line)] == line else alone  # else a token holds both


def read_front(policy: Policy, heads: Sequence[list[int]]) -> Front:
    """Return how many tokens several rows begin with, their last one left out, and the cache of those.

    0 and None where there are none, or if the model's cache, as of unsloth's Llamas, cannot be repeated, or
    is not of keys and values alone: padding behind the front would count in a sliding window, and run through
    a recurrent state.
    """
    shared = os.path.commonprefix([head[:-1] for head in heads]) if len(heads) > 1 else []
    if not shared:
        return 0, None
    ids = torch.tensor([shared], device=policy.device)
    cache = policy.model(input_ids=ids, use_cache=True, logits_to_keep=1).past_key_values
    is_plain = isinstance(cache, DynamicCache) and all(type(each) is DynamicLayer for each in cache.layers)
    return (len(shared), cache) if is_plain else (0, None)


def score_batch(
    policy: Policy, heads: Sequence[Sequence[int]], tails: Sequence[Sequence[int]], front: Front
) -> list[TokenScores]:
    """Return scores from one pass over rows padded on the left, so that all continuations end together."""
    rows = [torch.tensor([*head, *tail], dtype=torch.long) for head, tail in zip(heads, tails, strict=True)]
    pad = partial(pad_sequence, batch_first=True, padding_side="left")
    ids = pad(rows, padding_value=policy.tokenizer.pad_token_id).to(policy.device)
    mask = pad([torch.ones_like(row) for row in rows]).to(policy.device)
    num_logits = max(map(len, tails)) + 1  # a token's logits are at the position before it
    num_read, cache = front[0], copy.deepcopy(front[1])  # a pass appends to it
    if cache is not None:
        cache.batch_repeat_interleave(len(rows))
    logits = policy.model(
        input_ids=ids, attention_mask=torch.cat([mask.new_ones(len(rows), num_read), mask], dim=1),
        position_ids=num_read + (mask.cumsum(1) - 1).clamp(min=0), logits_to_keep=num_logits,
        past_key_values=cache, use_cache=cache is not None,
    ).logits[:, :-1]  # fmt: skip
    targets = ids[:, ids.shape[1] - num_logits + 1 :]
    top = logits.argmax(-1)
    logprobs = torch.log_softmax(logits.float(), dim=-1).gather(-1, targets[..., None])[..., 0]
    scores = []
    for tail, row_logprobs, row_top in zip(tails, logprobs.cpu().numpy(), top.cpu().numpy(), strict=True):
        last = slice(num_logits - 1 - len(tail), None)
        scores.append(TokenScores(np.array(tail), row_logprobs[last], row_top[last]))
    return scores

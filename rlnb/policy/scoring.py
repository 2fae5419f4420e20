"""Log-probabilities of given texts under a policy, in one pass without decoding."""

import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from rlnb.policy.generation import batches, generating
from rlnb.policy.loading import Policy


@dataclass(frozen=True)
class TokenScores:
    """Log-probabilities of one continuation, token by token.

    token_ids: int (num_tokens,). logprobs: float (num_tokens,), nats, at temperature 1. top_ids: int
    (num_tokens,), the tokens that greedy decoding would have taken instead.
    """

    token_ids: np.ndarray
    logprobs: np.ndarray
    top_ids: np.ndarray

    @property
    def is_top(self) -> np.ndarray:
        """bool (num_tokens,): the token is the one of greedy decoding."""
        return np.asarray(self.token_ids == self.top_ids)


@dataclass(frozen=True)
class CachedPrefix:
    """The tokens that several prompts begin with, and the keys and values of each layer for them."""

    token_ids: tuple[int, ...]
    cache: DynamicCache


def cache_prefix(policy: Policy, prompts: Sequence[str]) -> CachedPrefix | None:
    """Return the common beginning of prompts, as tokens, computed with the current weights.

    None if there is none, or if the model's cache, as of unsloth's Llamas, cannot be repeated for a batch.
    """
    shared = os.path.commonprefix([policy.tokenizer(prompt)["input_ids"] for prompt in prompts])
    if not shared:
        return None
    with generating(policy):
        ids = torch.tensor([shared], device=policy.device)
        cache = policy.model(input_ids=ids, use_cache=True, logits_to_keep=1).past_key_values
    return CachedPrefix(tuple(shared), cache) if isinstance(cache, DynamicCache) else None


def score(
    policy: Policy,
    prompts: Sequence[str],
    continuations: Sequence[str],
    *,
    front: CachedPrefix | None = None,
    batch_size: int = 32,
) -> list[TokenScores]:
    """Return the scores of continuations[i] after prompts[i] under the current weights and adapters.

    front: a cached beginning of prompts; prompts that begin otherwise are computed whole. Prompt and
    continuation are tokenized separately, as in generation. Keeps the random state and the model's mode.
    """
    heads = [policy.tokenizer(prompt)["input_ids"] for prompt in prompts]
    tails = [policy.tokenizer(text, add_special_tokens=False)["input_ids"] for text in continuations]
    known = [] if front is None else list(front.token_ids)
    is_cached = [bool(known) and head != known and head[: len(known)] == known for head in heads]
    heads = [head[len(known) :] if cached else head for head, cached in zip(heads, is_cached, strict=True)]
    lengths = [len(head) + len(tail) for head, tail in zip(heads, tails, strict=True)]
    scores: dict[int, TokenScores] = {}
    with generating(policy):
        for prefix, has_prefix in ((front, True), (None, False)):
            chosen = [row for row, cached in enumerate(is_cached) if cached is has_prefix]
            order = sorted(chosen, key=lengths.__getitem__)
            for rows in batches(order, [lengths[row] for row in order], batch_size):
                batch = score_batch(policy, [heads[r] for r in rows], [tails[r] for r in rows], prefix)
                scores.update(zip(rows, batch, strict=True))
    return [scores[row] for row in range(len(heads))]


def score_batch(
    policy: Policy, heads: Sequence[Sequence[int]], tails: Sequence[Sequence[int]], front: CachedPrefix | None
) -> list[TokenScores]:
    """Return scores from one pass over rows padded on the left, so that all continuations end together."""
    rows = [torch.tensor([*head, *tail], dtype=torch.long) for head, tail in zip(heads, tails, strict=True)]
    pad = partial(pad_sequence, batch_first=True, padding_side="left")
    ids = pad(rows, padding_value=policy.tokenizer.pad_token_id).to(policy.device)
    mask = pad([torch.ones_like(row) for row in rows]).to(policy.device)
    num_logits = max(map(len, tails)) + 1  # a token's logits are at the position before it
    num_cached, cache = 0, None
    if front is not None:
        num_cached, cache = len(front.token_ids), copy.deepcopy(front.cache)  # a pass appends to it
        cache.batch_repeat_interleave(len(rows))
    logits = policy.model(
        input_ids=ids,
        attention_mask=torch.cat([mask.new_ones(len(rows), num_cached), mask], dim=1),
        position_ids=num_cached + (mask.cumsum(1) - 1).clamp(min=0),
        logits_to_keep=num_logits,
        past_key_values=cache,
        use_cache=cache is not None,
    ).logits[:, :-1]
    targets = ids[:, ids.shape[1] - num_logits + 1 :]
    top = logits.argmax(-1)
    logprobs = torch.log_softmax(logits.float(), dim=-1).gather(-1, targets[..., None])[..., 0]
    scores = []
    for tail, row_logprobs, row_top in zip(tails, logprobs.cpu().numpy(), top.cpu().numpy(), strict=True):
        last = slice(num_logits - 1 - len(tail), None)
        scores.append(TokenScores(np.array(tail), row_logprobs[last], row_top[last]))
    return scores

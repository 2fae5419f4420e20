"""How likely a policy finds given texts: one pass, no decoding."""

import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rlnb.policy.generation import batches, generating
from rlnb.policy.loading import Policy


@dataclass(frozen=True)
class TokenScores:
    """Of one continuation, token by token.

    token_ids: int (num_tokens,). logprobs: float (num_tokens,), nats, at temperature 1. top_ids: int
    (num_tokens,), the tokens that greedy decoding would have taken in their places.
    """

    token_ids: np.ndarray
    logprobs: np.ndarray
    top_ids: np.ndarray

    @property
    def is_top(self) -> np.ndarray:
        """bool (num_tokens,): whether greedy decoding would have taken this token."""
        return np.asarray(self.token_ids == self.top_ids)

    def until(self, count: int) -> "TokenScores":
        """Those of the first `count` tokens."""
        return TokenScores(self.token_ids[:count], self.logprobs[:count], self.top_ids[:count])


@dataclass(frozen=True)
class ReadText:
    """What many prompts begin with, read once: its tokens, and the keys and values of each layer."""

    token_ids: tuple[int, ...]
    cache: Any


def read_once(policy: Policy, prompts: Sequence[str]) -> ReadText | None:
    """Read what these prompts begin with alike, by the weights as they are now; None where that is nothing.

    Compared as tokens: where a text is cut, some tokenizers join its end to what follows. What is kept is
    stale as soon as the weights change.
    """
    shared = os.path.commonprefix([policy.tokenizer(prompt)["input_ids"] for prompt in prompts])
    if not shared:
        return None
    with generating(policy):
        ids = torch.tensor([shared], device=policy.device)
        cache = policy.model(input_ids=ids, use_cache=True, logits_to_keep=1).past_key_values
    return ReadText(tuple(shared), cache)


def score(
    policy: Policy,
    prompts: Sequence[str],
    continuations: Sequence[str],
    *,
    front: ReadText | None = None,
    batch_size: int = 32,
) -> list[TokenScores]:
    """The scores of continuations[i] behind prompts[i], with the weights and adapters as they are now.

    front: what prompts begin with and was read already; one that begins otherwise is read whole. Prompt and
    continuation become tokens apart, as in generation. Keeps the random state and the model's mode.
    """
    heads = [policy.tokenizer(prompt)["input_ids"] for prompt in prompts]
    tails = [policy.tokenizer(text, add_special_tokens=False)["input_ids"] for text in continuations]
    known = [] if front is None else list(front.token_ids)
    goes_on = [bool(known) and len(head) > len(known) and head[: len(known)] == known for head in heads]
    heads = [head[len(known) :] if going else head for head, going in zip(heads, goes_on, strict=True)]
    lengths = [len(head) + len(tail) for head, tail in zip(heads, tails, strict=True)]
    scores: list[TokenScores | None] = [None] * len(heads)
    with generating(policy):
        for read, is_read in ((front, True), (None, False)):
            chosen = [row for row, going in enumerate(goes_on) if going is is_read]
            order = sorted(chosen, key=lengths.__getitem__)
            for rows in batches(order, [lengths[row] for row in order], batch_size):
                found = scored_batch(policy, [heads[r] for r in rows], [tails[r] for r in rows], read)
                for row, scored in zip(rows, found, strict=True):
                    scores[row] = scored
    return [scored for scored in scores if scored is not None]


def scored_batch(
    policy: Policy, heads: Sequence[Sequence[int]], tails: Sequence[Sequence[int]], front: ReadText | None
) -> list[TokenScores]:
    """One pass over rows padded on the left, so that all continuations end together."""
    width = max(len(head) + len(tail) for head, tail in zip(heads, tails, strict=True))
    num_kept = max(map(len, tails)) + 1  # the logits before a token tell of it
    pad = policy.tokenizer.pad_token_id
    rows = [[pad] * (width - len(h) - len(t)) + [*h, *t] for h, t in zip(heads, tails, strict=True)]
    ids = torch.tensor(rows, device=policy.device)
    mask = torch.tensor(
        [
            [0] * (width - len(h) - len(t)) + [1] * (len(h) + len(t))
            for h, t in zip(heads, tails, strict=True)
        ],
        device=policy.device,
    )
    num_read = 0 if front is None else len(front.token_ids)
    options: dict[str, Any] = {"use_cache": False}
    if front is not None:
        cache = copy.deepcopy(front.cache)  # a pass appends to it
        cache.batch_repeat_interleave(len(rows))
        options = {"use_cache": True, "past_key_values": cache}
    logits = policy.model(
        input_ids=ids,
        attention_mask=torch.cat([mask.new_ones(len(rows), num_read), mask], dim=1),
        position_ids=num_read + (mask.cumsum(1) - 1).clamp(min=0),
        logits_to_keep=num_kept,
        **options,
    ).logits[:, :-1]
    targets = ids[:, width - num_kept + 1 :]
    top = logits.argmax(-1)
    logprobs = torch.log_softmax(logits.float(), dim=-1).gather(-1, targets[..., None])[..., 0]
    found = []
    for row, tail in enumerate(tails):
        last = slice(num_kept - 1 - len(tail), None)
        found.append(
            TokenScores(np.array(tail), logprobs[row, last].cpu().numpy(), top[row, last].cpu().numpy())
        )
    return found

"""A policy read at chosen places: the distribution over the allowed tokens, and the value of the state.

Sequences are padded on the right and passed without a mask: with causal attention what follows a token does
not touch it, so a place reads the same whatever stands beside or behind it.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from rlnb.errors import PolicyUnavailable
from rlnb.policy.loading import Policy

NOT_ALLOWED = -1


class ActorCritic(nn.Module):
    """The language model as actor, and a linear head on its last hidden state as critic.

    The head is float32 and begins at 0; it reads the last token of a prompt, so that a value knows nothing of
    the answer. Schulman et al. 2017 (arXiv:1707.06347) share the trunk in the same way.
    """

    def __init__(self, policy: Policy, *, has_value: bool) -> None:
        super().__init__()
        self.policy = policy
        language_model = policy.model
        if hasattr(language_model, "get_base_model"):  # peft's wrapper; its layers stay in place
            language_model = language_model.get_base_model()
        self.decoder = language_model.base_model
        self.unembed = language_model.get_output_embeddings()
        self.softcap = getattr(language_model.config, "final_logit_softcapping", None)
        width = language_model.config.get_text_config().hidden_size
        self.value_head: nn.Linear | None = None
        if has_value:
            self.value_head = nn.Linear(width, 1, dtype=torch.float32, device=policy.device)
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)

    def hidden(self, sequences: Sequence[Sequence[int]]) -> torch.Tensor:
        """Last hidden states, (len(sequences), longest, width); behind a sequence's end they mean nothing."""
        longest = max(map(len, sequences))
        pad = self.policy.tokenizer.pad_token_id
        ids = torch.tensor(
            [[*sequence, *[pad] * (longest - len(sequence))] for sequence in sequences],
            device=self.policy.device,
        )
        states: torch.Tensor = self.decoder(input_ids=ids, use_cache=False).last_hidden_state
        return states

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 (num_places, vocabulary) of hidden states (num_places, width)."""
        logits: torch.Tensor = self.unembed(hidden.to(self.unembed.weight.dtype)).float()
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)

    def check_reading(self) -> None:
        """Raise PolicyUnavailable for a model whose logits are not its unembedded hidden states.

        Some scale them in between (Granite, Cohere): read here, they would be those of another policy.
        """
        ids = [self.policy.tokenizer.eos_token_id] * 2
        with torch.no_grad():
            own = self.logits(self.hidden([ids])[0, -1:])[0]
            theirs = self.policy.model(torch.tensor([ids], device=self.policy.device)).logits[0, -1].float()
        if not torch.allclose(own, theirs, rtol=1e-2, atol=1e-2 * float(theirs.abs().max())):
            raise PolicyUnavailable(
                f"model.id: the logits of {self.policy.source} are not its unembedded hidden states; "
                "take a model of the Llama, Qwen or SmolLM families"
            )

    def values(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 (num_places,) in units of the reward; zeros without a head."""
        if self.value_head is None:
            return torch.zeros(len(hidden), device=hidden.device)
        values: torch.Tensor = self.value_head(hidden.float())[:, 0]
        return values


def allowed_logprobs(
    logits: torch.Tensor, allowed: torch.Tensor, *, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities among the allowed tokens, and the mass that they have among all at temperature 1.

    logits: float (num_places, vocabulary). allowed: int (num_places, width), padded with NOT_ALLOWED. Returns
    float (num_places, width), -inf at the padding, and float (num_places,).
    """
    own = logits.gather(1, allowed.clamp(min=0)).masked_fill(allowed == NOT_ALLOWED, -torch.inf)
    mass = (own.logsumexp(-1) - logits.logsumexp(-1)).exp()
    return (own / temperature).log_softmax(-1), mass


def entropies_of(logprobs: torch.Tensor) -> torch.Tensor:
    """Entropy in nats of each row of log-probabilities; -inf counts nothing, in the gradient either."""
    finite = logprobs.masked_fill(logprobs == -torch.inf, 0.0)
    return -(logprobs.exp() * finite).sum(-1)


def padded(allowed: Sequence[Sequence[int]]) -> np.ndarray:
    """int (len(allowed), longest), padded with NOT_ALLOWED."""
    width = max((len(one) for one in allowed), default=0)
    table = np.full((len(allowed), width), NOT_ALLOWED, dtype=np.int64)
    for row, one in enumerate(allowed):
        table[row, : len(one)] = one
    return table


def passes(lengths: Sequence[int], *, max_tokens: int) -> Iterator[list[int]]:
    """Rows in passes of at most `max_tokens` with padding, the shortest first; at least one row each."""
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[row] > max_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


class Place(NamedTuple):
    """A token that is to come after a sequence, from among the allowed ones."""

    sequence: tuple[int, ...]
    allowed: tuple[int, ...]


class Distribution(NamedTuple):
    """Of a Place. logprobs: of the allowed tokens, in their order. mass: theirs among all tokens.
    value: of the state, were the sequence a prompt."""

    logprobs: tuple[float, ...]
    probabilities: tuple[float, ...]
    mass: float
    value: float


def distributions(
    actor: ActorCritic, places: Sequence[Place], *, temperature: float, max_tokens: int
) -> list[Distribution]:
    """What the policy says at each place, with the weights as they are now; keeps no gradients."""
    found: dict[int, Distribution] = {}
    with torch.inference_mode():
        for rows in passes([len(place.sequence) for place in places], max_tokens=max_tokens):
            states = actor.hidden([places[row].sequence for row in rows])
            ends = torch.tensor([len(places[row].sequence) - 1 for row in rows], device=states.device)
            last = states[torch.arange(len(rows), device=states.device), ends]
            allowed = torch.tensor(padded([places[row].allowed for row in rows]), device=states.device)
            logprobs, mass = allowed_logprobs(actor.logits(last), allowed, temperature=temperature)
            arrays: list[Any] = [
                one.tolist() for one in (logprobs, logprobs.double().exp(), mass, actor.values(last))
            ]
            for row, own, shares, one_mass, value in zip(rows, *arrays, strict=True):
                count = len(places[row].allowed)
                found[row] = Distribution(tuple(own[:count]), tuple(shares[:count]), one_mass, value)
    return [found[row] for row in range(len(places))]

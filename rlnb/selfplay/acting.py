"""A language model as a player of games: its forward passes, the legal answers as tokens, and two players.

`ActorCritic` reads the distribution over allowed tokens and the value of a state. `TokenTrie` holds the legal
answers as token sequences. `ConstrainedPlayer` samples among legal answers only, token by token;
`FreePlayer` generates text that the game parses.

Sequences are padded on the right and passed without an attention mask: with causal attention later tokens
do not affect earlier ones, so a result does not depend on the padding or on the rest of the batch.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedTokenizerBase

from rlnb.errors import ParamsError, PolicyUnavailable
from rlnb.policy.adapters import trained_parameters
from rlnb.policy.generation import evaluating, generate_ids
from rlnb.policy.loading import Policy
from rlnb.policy.prompts import Chat, open_answer, opened_thought
from rlnb.selfplay.params import ActingParams
from rlnb.selfplay.rollouts import Choice, Request, Turn

NOT_ALLOWED = -1
ROWS_IN_FLOAT32 = 16_384  # of the unembedding, converted at a time: 160 MiB at a width of 2,560
CACHE_SIZE = 50_000  # prompts; their tokens do not change while a model is trained


class ActorCritic(nn.Module):
    """A language model as actor, with a linear head on its last hidden state as critic.

    The head is float32 and starts at 0. It reads the last token of the prompt, so a value cannot depend on
    the answer. Schulman et al. 2017 (arXiv:1707.06347) share the trunk in the same way.
    """

    def __init__(self, policy: Policy, *, has_value: bool) -> None:
        super().__init__()
        self.policy = policy
        for module in policy.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0  # the training pass reads again what was played: both have to agree
            for name, value in list(vars(module).items()):
                if "dropout" in name and isinstance(value, float):  # of an attention, such as Llama's
                    setattr(module, name, 0.0)
        language_model = policy.model
        if hasattr(language_model, "get_base_model"):  # peft's wrapper; its layers stay in place
            language_model = language_model.get_base_model()
        self.decoder = language_model.base_model
        self.unembed = language_model.get_output_embeddings()
        config = language_model.config.get_text_config()
        self.softcap, width = getattr(config, "final_logit_softcapping", None), config.hidden_size
        self.value_head: nn.Linear | None = None
        if has_value:
            self.value_head = nn.Linear(width, 1, dtype=torch.float32, device=policy.device)
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)

    def parameters_to_train(self) -> list[nn.Parameter]:
        """Return the policy's trained parameters, then those of the value head."""
        head = [] if self.value_head is None else list(self.value_head.parameters())
        return [*(parameter for _, parameter in trained_parameters(self.policy)), *head]

    def hidden(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the last hidden states, (num_sequences, longest, width); meaningless at padding.

        ids: int64 (num_sequences, longest), padded on the right by any token.
        """
        states: torch.Tensor = self.decoder(input_ids=ids, use_cache=False).last_hidden_state
        return states

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 (num_positions, vocabulary) for hidden states (num_positions, width).

        The product is float32 whatever the weights are: at 40, logits in bfloat16 lie 0.25 apart.
        """
        head = self.unembed
        if type(head) is nn.Linear and head.weight.dtype != torch.float32:
            logits = float32_product(hidden, head.weight)
            logits = logits if head.bias is None else logits + head.bias
        else:
            logits = head(hidden.to(head.weight.dtype)).float()
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)

    def values(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 (num_positions,) in units of the reward; zeros without a value head."""
        if self.value_head is None:
            return torch.zeros(len(hidden), device=hidden.device)
        values: torch.Tensor = self.value_head(hidden.float())[:, 0]
        return values

    def check_logits(self) -> None:
        """Raise PolicyUnavailable for a model whose logits are not its unembedded hidden states.

        Some models scale them in between (Granite, Cohere), so `logits` would be those of another policy.
        """
        ids = torch.tensor([[self.policy.tokenizer.eos_token_id] * 2], device=self.policy.device)
        with torch.no_grad():
            ours = self.logits(self.hidden(ids)[0, -1:])[0]
            theirs = self.policy.model(ids).logits[0, -1].float()
        if not torch.allclose(ours, theirs, rtol=1e-2, atol=1e-2 * float(theirs.abs().max())):
            raise PolicyUnavailable(
                f"model.id: the logits of {self.policy.source} are not its unembedded hidden states; "
                "take a model of the Llama, Qwen or SmolLM families"
            )


def float32_product(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return hidden @ weight.T in float32 without a whole float32 copy of the weight, (vocabulary, width).

    Parts of the weight are converted one by one, and again in the backward pass. CUDA sums 16-bit products
    in float32 by itself, which has no derivative in torch.
    """
    if hidden.is_cuda and hidden.dtype == weight.dtype and not torch.is_grad_enabled():
        return torch.mm(hidden, weight.T, out_dtype=torch.float32)

    def part_product(part: torch.Tensor) -> torch.Tensor:
        return F.linear(hidden.float(), part.float())

    parts = weight.split(ROWS_IN_FLOAT32)
    return torch.cat([checkpoint(part_product, part, use_reentrant=False) for part in parts], dim=-1)


def allowed_logprobs(
    logits: torch.Tensor, allowed: torch.Tensor, *, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply the mask of legal moves: return log-probabilities among allowed tokens, and their mass among all.

    logits: float (num_positions, vocabulary). allowed: int (num_positions, width), padded with NOT_ALLOWED.
    Returns float (num_positions, width), -inf at the padding, and float (num_positions,), at temperature 1.
    """
    chosen = logits.gather(1, allowed.clamp(min=0)).masked_fill(allowed == NOT_ALLOWED, -torch.inf)
    mass = (chosen.logsumexp(-1) - logits.logsumexp(-1)).exp()
    return (chosen / temperature).log_softmax(-1), mass


def compute_entropies(logprobs: torch.Tensor) -> torch.Tensor:
    """Return the entropy in nats of each row; -inf adds nothing, in the gradient either."""
    finite = logprobs.masked_fill(logprobs == -torch.inf, 0.0)
    return -(logprobs.exp() * finite).sum(-1)


def pad_rows(rows: Sequence[Sequence[int]], *, pad: int, width: int = 1) -> torch.Tensor:
    """Return int64 (len(rows), longest), at least `width` wide, padded on the right."""
    longest = max([width, *map(len, rows)])
    padded = [[*row, *[pad] * (longest - len(row))] for row in rows]
    return torch.tensor(padded, dtype=torch.int64).view(len(rows), longest)


def split_by_length(lengths: Sequence[int], *, max_tokens: int) -> Iterator[list[int]]:
    """Yield indices in batches of at most `max_tokens` with padding, shortest first; at least one each."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[index] > max_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


class Position(NamedTuple):
    """A sequence, and the tokens that may follow it."""

    sequence: tuple[int, ...]
    allowed: tuple[int, ...]


class Distribution(NamedTuple):
    """The policy's next-token distribution at a Position.

    logprobs, probabilities: of the allowed tokens, in their order. mass: of the allowed tokens among all.
    value: of the state, if the sequence is a prompt.
    """

    logprobs: tuple[float, ...]
    probabilities: tuple[float, ...]
    mass: float
    value: float


def compute_distributions(
    actor: ActorCritic, positions: Sequence[Position], *, temperature: float, max_tokens: int
) -> list[Distribution]:
    """Return the distribution at each position by the current weights, without gradients."""
    distributions: dict[int, Distribution] = {}
    lengths = [len(position.sequence) for position in positions]
    with evaluating(actor.policy), torch.inference_mode():
        for rows in split_by_length(lengths, max_tokens=max_tokens):
            ids = pad_rows([positions[row].sequence for row in rows], pad=0)
            allowed = pad_rows([positions[row].allowed for row in rows], pad=NOT_ALLOWED)
            states = actor.hidden(ids.to(actor.policy.device))
            last = states[range(len(rows)), [lengths[row] - 1 for row in rows]]
            logprobs, mass = allowed_logprobs(
                actor.logits(last), allowed.to(last.device), temperature=temperature
            )
            results = (logprobs, logprobs.double().exp(), mass, actor.values(last))
            for row, *numbers in zip(rows, *(result.tolist() for result in results), strict=True):
                row_logprobs, probabilities, row_mass, value = numbers
                count = len(positions[row].allowed)
                distributions[row] = Distribution(
                    tuple(row_logprobs[:count]), tuple(probabilities[:count]), row_mass, value
                )
    return [distributions[row] for row in range(len(positions))]


@dataclass(frozen=True)
class TokenTrie:
    """Answers as token sequences, none of which is a prefix of another.

    leaves: {token sequence: index of the answer}. children: {prefix: token ids that may follow, rising}.
    """

    leaves: dict[tuple[int, ...], int]
    children: dict[tuple[int, ...], tuple[int, ...]]

    @classmethod
    def build(cls, answers: Sequence[Sequence[int]], *, end: int) -> "TokenTrie":
        """Return the trie of different answers as token ids; `end` is appended to prefixes of others."""
        sequences = [tuple(answer) for answer in answers]
        prefixes = {sequence[:count] for sequence in sequences for count in range(len(sequence))}
        ended = [(*sequence, end) if sequence in prefixes else sequence for sequence in sequences]
        following: dict[tuple[int, ...], set[int]] = {}
        for sequence in ended:
            for count, token in enumerate(sequence):
                following.setdefault(sequence[:count], set()).add(token)
        return cls(
            {sequence: index for index, sequence in enumerate(ended)},
            {prefix: tuple(sorted(tokens)) for prefix, tokens in following.items()},
        )

    @cached_property
    def branchings(self) -> tuple[tuple[int, ...], ...]:
        """The prefixes that several tokens may follow."""
        return tuple(prefix for prefix, tokens in self.children.items() if len(tokens) > 1)

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """For each answer, which child of the only branching leads to it; empty for several branchings."""
        if len(self.branchings) != 1:
            return ()
        (prefix,) = self.branchings
        column = {token: index for index, token in enumerate(self.children[prefix])}
        return tuple(column[leaf[len(prefix)]] for leaf in self.leaves)


class Encoder:
    """Prompts and legal answers as tokens; `as_text` adds a chat's markup to a prompt, or nothing.

    A prompt of more than `max_prompt_tokens` raises ParamsError: truncated, it would be another game.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        as_text: Callable[[str], str],
        *,
        end: int,
        max_prompt_tokens: int = 2**31,
    ) -> None:
        self.tokenizer = tokenizer
        self.as_text = as_text
        self.end = end
        self.max_prompt_tokens = max_prompt_tokens
        self._prompts: dict[str, tuple[int, ...]] = {}
        self.trie = lru_cache(maxsize=CACHE_SIZE)(self._build_trie)

    def prompt_ids(self, prompts: Sequence[str]) -> list[tuple[int, ...]]:
        """Return the tokens of each prompt; all new prompts are tokenized in one call."""
        new = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self._prompts]
        if new:
            if len(self._prompts) + len(new) > CACHE_SIZE:
                self._prompts.clear()
                new = list(dict.fromkeys(prompts))
            ids = self.tokenizer([self.as_text(prompt) for prompt in new])["input_ids"]
            longest = max(map(len, ids))
            if longest > self.max_prompt_tokens:
                raise ParamsError(
                    f"game.max_prompt_tokens = {self.max_prompt_tokens} is less than the {longest} tokens of "
                    f"a prompt; write at least {longest}, or game.style = compact where it is full"
                )
            self._prompts.update(zip(new, map(tuple, ids), strict=True))
        return [self._prompts[prompt] for prompt in prompts]

    def _build_trie(self, actions: tuple[int, ...]) -> TokenTrie:
        ids = self.tokenizer([str(action) for action in actions], add_special_tokens=False)["input_ids"]
        return TokenTrie.build(ids, end=self.end)


def make_encoder(game: ActingParams, chat: Chat) -> Encoder:
    """Return the encoder of a run: full prompts become chat messages, compact ones stay as they are."""

    def as_text(prompt: str) -> str:
        if game.style == "compact":
            return prompt
        return open_answer(chat.ask(prompt)) if game.acting == "constrained" else chat.ask(prompt)

    end = chat.tokenizer.eos_token_id
    return Encoder(chat.tokenizer, as_text, end=end, max_prompt_tokens=game.max_prompt_tokens)


@dataclass
class TrieWalk:
    """An answer that is being chosen, from the root of the trie of legal answers to a leaf.

    first: the distribution of the first choice.
    """

    request: Request
    prompt_ids: tuple[int, ...]
    trie: TokenTrie
    prefix: tuple[int, ...] = ()
    value: float = 0.0
    first: Distribution | None = None
    choices: list[Choice] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def position(self) -> Position:
        return Position(self.prompt_ids + self.prefix, self.trie.children[self.prefix])

    def go_to_choice(self) -> bool:
        """Pass tokens without an alternative; return False at a leaf."""
        while len(following := self.trie.children.get(self.prefix, ())) == 1:
            self.prefix = (*self.prefix, following[0])
        return bool(following)

    def take(self, distribution: Distribution, column: int) -> None:
        allowed = self.trie.children[self.prefix]
        self.first = self.first or distribution
        place = len(self.prompt_ids) + len(self.prefix)
        self.choices.append(Choice(place, allowed[column], allowed))
        self.logprobs.append(distribution.logprobs[column])
        self.prefix = (*self.prefix, allowed[column])

    def as_turn(self) -> Turn:
        request, trie, first = self.request, self.trie, self.first
        action = request.legal_actions[trie.leaves[self.prefix]]
        return Turn(
            prompt_ids=self.prompt_ids,
            completion_ids=self.prefix,
            choices=tuple(self.choices),
            logprobs=tuple(self.logprobs),
            action=action,
            legal_actions=request.legal_actions,
            ply=request.ply,
            value=self.value,
            probabilities=tuple([first.probabilities[column] for column in trie.columns] if first else []),
            legal_mass=first.mass if first and len(trie.children) == 1 else math.nan,
            text=str(action),
        )


@dataclass
class ConstrainedPlayer:
    """A player that answers with the id of a legal action, sampled token by token among the legal ids.

    Ids of one token take a single pass, which gives the exact distribution over the legal actions. Equal
    positions are passed once: make another player when the weights change.
    """

    actor: ActorCritic
    encoder: Encoder
    temperature: float = 1.0
    max_tokens_per_pass: int = 8192
    _cache: dict[Position, Distribution] = field(default_factory=dict, repr=False)

    def answer(self, requests: Sequence[Request]) -> list[Turn]:
        """Return one turn per request; all that have a token to choose share a batch, token after token."""
        prompts = self.encoder.prompt_ids([request.prompt for request in requests])
        walks = [
            TrieWalk(request, ids, self.encoder.trie(request.legal_actions))
            for ids, request in zip(prompts, requests, strict=True)
        ]
        if self.actor.value_head is not None:
            starts = self.compute_distributions([walk.position for walk in walks])
            for walk, start in zip(walks, starts, strict=True):
                walk.value = start.value
        while waiting := [walk for walk in walks if walk.go_to_choice()]:
            distributions = self.compute_distributions([walk.position for walk in waiting])
            for walk, distribution in zip(waiting, distributions, strict=True):
                walk.take(distribution, self.sample(distribution.probabilities, walk.request))
        return [walk.as_turn() for walk in walks]

    def sample(self, probabilities: Sequence[float], request: Request) -> int:
        """Return the column of a token, sampled by the game's own random state."""
        threshold = request.random.random() * sum(probabilities)
        for column, cumulative in enumerate(itertools.accumulate(probabilities)):
            if threshold < cumulative:
                return column
        return len(probabilities) - 1

    def compute_distributions(self, positions: Sequence[Position]) -> list[Distribution]:
        """Return the distributions at these positions, each passed once."""
        new = [position for position in dict.fromkeys(positions) if position not in self._cache]
        if new:
            computed = compute_distributions(
                self.actor, new, temperature=self.temperature, max_tokens=self.max_tokens_per_pass
            )
            self._cache.update(zip(new, computed, strict=True))
        return [self._cache[position] for position in positions]

    def probabilities(self, prompts: Sequence[str], legal: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
        """Return the exact policy of each prompt: float64 (num_legal,), in the order of its actions."""
        ids = self.encoder.prompt_ids(prompts)
        tries = [self.encoder.trie(actions) for actions in legal]
        positions = [
            Position(prompt + prefix, trie.children[prefix])
            for prompt, trie in zip(ids, tries, strict=True)
            for prefix in trie.branchings
        ]
        distributions = dict(zip(positions, self.compute_distributions(positions), strict=True))
        policies = []
        for prompt, trie in zip(ids, tries, strict=True):
            policy = np.ones(len(trie.leaves))
            for leaf, index in trie.leaves.items():
                for count, token in enumerate(leaf):
                    allowed = trie.children[leaf[:count]]
                    if len(allowed) > 1:
                        distribution = distributions[Position(prompt + leaf[:count], allowed)]
                        policy[index] *= distribution.probabilities[allowed.index(token)]
            policies.append(policy / policy.sum())
        return policies


@dataclass
class FreePlayer:
    """A player that writes an answer of up to `max_new_tokens`, which `Request.parse` reads."""

    actor: ActorCritic
    encoder: Encoder
    temperature: float
    max_new_tokens: int
    batch_size: int = 32
    max_tokens_per_pass: int = 8192

    def answer(self, requests: Sequence[Request]) -> list[Turn]:
        """Return one turn per request; every token of an answer is a choice among all tokens."""
        ids = self.encoder.prompt_ids([request.prompt for request in requests])
        texts = [self.encoder.as_text(request.prompt) for request in requests]
        completions = generate_ids(
            self.actor.policy, texts,
            max_new_tokens=self.max_new_tokens, temperature=self.temperature,
            row_seeds=[request.random.getrandbits(62) for request in requests], batch_size=self.batch_size,
        )  # fmt: skip
        values = [0.0] * len(ids)
        if self.actor.value_head is not None:
            positions = [Position(prompt, (self.encoder.end,)) for prompt in ids]
            distributions = compute_distributions(
                self.actor, positions, temperature=1.0, max_tokens=self.max_tokens_per_pass
            )
            values = [distribution.value for distribution in distributions]
        turns = []
        rows = zip(requests, texts, ids, completions, values, strict=True)
        for request, prompt, prompt_ids, (completion, is_cut), value in rows:
            text = self.encoder.tokenizer.decode(completion, skip_special_tokens=True)
            parsed = request.parse(opened_thought(prompt) + text, is_cut=is_cut)
            choices = tuple(Choice(len(prompt_ids) + k, token) for k, token in enumerate(completion))
            turn = Turn(
                prompt_ids, completion, choices, (), parsed.action, request.legal_actions, request.ply,
                parsed.problem, value=value, text=text,
            )  # fmt: skip
            turns.append(turn)
        return turns

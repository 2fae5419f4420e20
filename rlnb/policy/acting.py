"""How a language model acts in games: constrained to the legal answers, or free to write what it likes."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from rlnb.errors import ParamsError
from rlnb.policy.actor_critic import ActorCritic, Distribution, Place, distributions
from rlnb.policy.generation import evaluating, generate_ids
from rlnb.policy.token_trie import TokenTrie
from rlnb.trajectories import Choice, Request, Turn

CACHE_SIZE = 50_000  # prompts; their tokens do not change while a model is trained


class Encoder:
    """Prompts and legal answers as tokens; `as_text` puts a chat's markup around a prompt, or nothing.

    A prompt of more than `max_prompt_tokens` raises ParamsError: cut, it would no longer be the game.
    """

    def __init__(
        self, tokenizer: Any, as_text: Callable[[str], str], *, end: int, max_prompt_tokens: int = 2**31
    ) -> None:
        self.tokenizer = tokenizer
        self.as_text = as_text
        self.end = end
        self.max_prompt_tokens = max_prompt_tokens
        self._known: dict[str, tuple[int, ...]] = {}
        self._answers: dict[int, list[int]] = {}
        self.trie = lru_cache(maxsize=CACHE_SIZE)(self._trie)

    def prompt_ids(self, prompt: str) -> tuple[int, ...]:
        return self.all_prompt_ids([prompt])[0]

    def all_prompt_ids(self, prompts: Sequence[str]) -> list[tuple[int, ...]]:
        """Of each prompt; those that are new become tokens in one call, which a call for each would dwarf."""
        new = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self._known]
        if new:
            if len(self._known) + len(new) > CACHE_SIZE:
                self._known.clear()
                new = list(dict.fromkeys(prompts))
            found = self.tokenizer([self.as_text(prompt) for prompt in new])["input_ids"]
            longest = max(map(len, found))
            if longest > self.max_prompt_tokens:
                raise ParamsError(
                    f"game.max_prompt_tokens = {self.max_prompt_tokens} is less than the {longest} tokens of "
                    f"a prompt; write at least {longest}, or game.style = compact where it is full"
                )
            self._known.update(zip(new, map(tuple, found), strict=True))
        return [self._known[prompt] for prompt in prompts]

    def _trie(self, actions: tuple[int, ...]) -> TokenTrie:
        new = [action for action in actions if action not in self._answers]
        if new:  # there are fewer actions than sets of legal ones
            texts = [str(action) for action in new]
            ids = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
            self._answers.update(zip(new, ids, strict=True))
        return TokenTrie.of([self._answers[action] for action in actions], end=self.end)


@dataclass
class Walk:
    """One answer on its way down the trie of the legal ones."""

    prompt_ids: tuple[int, ...]
    trie: TokenTrie
    prefix: tuple[int, ...] = ()
    start: Distribution | None = None  # at the prompt's end
    steps: list[tuple[Place, Distribution, int]] = field(default_factory=list)

    @property
    def place(self) -> Place:
        """Where the next token is chosen."""
        return Place(self.prompt_ids + self.prefix, self.trie.children[self.prefix])

    def has_choice(self) -> bool:
        """Goes on over tokens without an alternative; whether there is one to choose then."""
        self.prefix = self.trie.forced(self.prefix)
        return self.prefix not in self.trie.leaves

    def take(self, found: Distribution, column: int) -> None:
        place = self.place
        self.steps.append((place, found, column))
        self.prefix = (*self.prefix, place.allowed[column])

    def as_turn(self, request: Request) -> Turn:
        action = request.legal_actions[self.trie.leaves[self.prefix]]
        return Turn(
            prompt_ids=self.prompt_ids,
            completion_ids=self.prefix,
            choices=tuple(
                [
                    Choice(len(place.sequence), place.allowed[column], place.allowed)
                    for place, _, column in self.steps
                ]
            ),
            logprobs=tuple([found.logprobs[column] for _, found, column in self.steps]),
            action=action,
            legal_actions=request.legal_actions,
            ply=request.ply,
            value=self.start.value if self.start else 0.0,
            probabilities=self.probabilities(),
            legal_mass=self.steps[0][1].mass if self.trie.is_single_token else math.nan,
            text=str(action),
        )

    def probabilities(self) -> tuple[float, ...]:
        """Of the legal actions in their order where one token decides, else empty: not all were read."""
        if not self.steps or not self.trie.columns:
            return ()
        shares = self.steps[0][1].probabilities
        return tuple([shares[column] for column in self.trie.columns])


class ConstrainedPlayer:
    """Answers with the id of a legal action, drawn token by token among those that still lead to one.

    Ids of one token need one pass, which gives the exact distribution over the legal actions. With `memo`
    equal places are passed once as long as the weights are the same: make another player when they change, or
    call `forget`.
    """

    def __init__(
        self, actor: ActorCritic, encoder: Encoder, *, temperature: float = 1.0, greedy: bool = False,
        memo: bool = True, max_tokens_per_pass: int = 8192,
    ) -> None:  # fmt: skip
        self.actor = actor
        self.encoder = encoder
        self.temperature = temperature
        self.greedy = greedy
        self.memo = memo
        self.max_tokens_per_pass = max_tokens_per_pass
        self.forget()

    def forget(self) -> None:
        """What was read by former weights."""
        self._known: dict[Place, Distribution] = {}

    def answer(self, requests: Sequence[Request]) -> list[Turn]:
        """One turn a request; all that have a token to choose are passed together, token after token."""
        prompts = self.encoder.all_prompt_ids([request.prompt for request in requests])
        walks = [
            Walk(ids, self.encoder.trie(request.legal_actions))
            for ids, request in zip(prompts, requests, strict=True)
        ]
        at_start = [walk for walk in walks if self.reads_values or len(walk.trie.children[()]) > 1]
        for walk, found in zip(at_start, self.read([walk.place for walk in at_start]), strict=True):
            walk.start = found
        while waiting := [pair for pair in zip(walks, requests, strict=True) if pair[0].has_choice()]:
            later = [walk for walk, _ in waiting if walk.prefix]
            found_later = iter(self.read([walk.place for walk in later]))
            for walk, request in waiting:
                found = next(found_later) if walk.prefix or walk.start is None else walk.start
                walk.take(found, self.draw(found, request))
        return [walk.as_turn(request) for walk, request in zip(walks, requests, strict=True)]

    @property
    def reads_values(self) -> bool:
        return self.actor.value_head is not None

    def draw(self, found: Distribution, request: Request) -> int:
        """The column of the token taken: by the game's own random state, or the likeliest."""
        shares = found.probabilities
        if self.greedy:
            return shares.index(max(shares))
        threshold = request.random.random() * sum(shares)
        for column, upto in enumerate(itertools.accumulate(shares)):
            if threshold < upto:
                return column
        return len(shares) - 1

    def read(self, places: Sequence[Place]) -> list[Distribution]:
        """The distributions at these places, each distinct one passed once where there is a memo."""
        options = {"temperature": self.temperature, "max_tokens": self.max_tokens_per_pass}
        if not places:
            return []
        with evaluating(self.actor.policy):
            if not self.memo:
                return distributions(self.actor, places, **options)  # type: ignore[arg-type]
            new = [place for place in dict.fromkeys(places) if place not in self._known]
            if new:
                found = distributions(self.actor, new, **options)  # type: ignore[arg-type]
                self._known.update(zip(new, found, strict=True))
        return [self._known[place] for place in places]

    def probabilities(self, prompts: Sequence[str], legal: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
        """Exact, for each prompt: float64 (num_legal,), in the order of its legal actions."""
        ids = self.encoder.all_prompt_ids(prompts)
        tries = [self.encoder.trie(actions) for actions in legal]
        places = [
            Place(prompt + prefix, trie.children[prefix])
            for prompt, trie in zip(ids, tries, strict=True)
            for prefix in trie.branchings
        ]
        read = iter(self.read(places))
        found = []
        for actions, trie in zip(legal, tries, strict=True):
            shares = {
                (*prefix, token): share
                for prefix in trie.branchings
                for token, share in zip(trie.children[prefix], next(read).probabilities, strict=True)
            }
            one = np.ones(len(actions))
            for leaf, number in trie.leaves.items():
                for count in range(1, len(leaf) + 1):
                    one[number] *= shares.get(leaf[:count], 1.0)
            found.append(one / one.sum())
        return found


class FreePlayer:
    """Writes an answer of up to `max_new_tokens` and is understood by `Request.parse`, or not."""

    def __init__(
        self, actor: ActorCritic, encoder: Encoder, *, temperature: float, max_new_tokens: int,
        batch_size: int = 32, max_tokens_per_pass: int = 8192,
    ) -> None:  # fmt: skip
        self.actor = actor
        self.encoder = encoder
        self.temperature = temperature
        self.max_new_tokens = max_new_tokens
        self.batch_size = batch_size
        self.max_tokens_per_pass = max_tokens_per_pass

    def answer(self, requests: Sequence[Request]) -> list[Turn]:
        """One turn a request; every token of an answer is a choice among all tokens."""
        ids = self.encoder.all_prompt_ids([request.prompt for request in requests])
        prompts = [self.encoder.as_text(request.prompt) for request in requests]
        completions = generate_ids(
            self.actor.policy, prompts, max_new_tokens=self.max_new_tokens, temperature=self.temperature,
            row_seeds=[request.random.getrandbits(62) for request in requests], batch_size=self.batch_size,
        )  # fmt: skip
        values = self.values(ids)
        turns = []
        for request, prompt_ids, completion, value in zip(requests, ids, completions, values, strict=True):
            text = self.encoder.tokenizer.decode(completion, skip_special_tokens=True)
            action, problem = request.parse(text)
            choices = tuple(Choice(len(prompt_ids) + k, token) for k, token in enumerate(completion))
            turns.append(
                Turn(
                    prompt_ids,
                    tuple(completion),
                    choices,
                    (),
                    action,
                    request.legal_actions,
                    request.ply,
                    problem=problem,
                    value=value,
                    text=text,
                )  # fmt: skip
            )
        return turns

    def values(self, prompts: Sequence[tuple[int, ...]]) -> list[float]:
        """Of the states; zeros without a value head."""
        if self.actor.value_head is None:
            return [0.0] * len(prompts)
        with evaluating(self.actor.policy):
            places = [Place(prompt, (self.encoder.end,)) for prompt in prompts]
            read = distributions(self.actor, places, temperature=1.0, max_tokens=self.max_tokens_per_pass)
        return [one.value for one in read]

"""The legal answers as a tree of tokens: what may come next, and where there is no choice."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class TokenTrie:
    """Answers as token sequences, none of which begins another.

    leaves: {token sequence: number of the answer}. children: {prefix: token ids that may follow, rising}.
    """

    leaves: dict[tuple[int, ...], int]
    children: dict[tuple[int, ...], tuple[int, ...]]

    @classmethod
    def of(cls, answers: Sequence[Sequence[int]], *, end: int) -> "TokenTrie":
        """Of answers as token ids; `end` is put behind those with which another begins.

        Raises ValueError where two are equal, one is empty, or one holds `end`.
        """
        sequences = [tuple(answer) for answer in answers]
        if len(set(sequences)) < len(sequences) or any(not one or end in one for one in sequences):
            raise ValueError("two answers have the same tokens, or one has none or the end token")
        beginnings = {sequence[:count] for sequence in sequences for count in range(len(sequence))}
        ended = [(*sequence, end) if sequence in beginnings else sequence for sequence in sequences]
        following: dict[tuple[int, ...], set[int]] = {}
        for sequence in ended:
            for count, token in enumerate(sequence):
                following.setdefault(sequence[:count], set()).add(token)
        return cls(
            {sequence: number for number, sequence in enumerate(ended)},
            {prefix: tuple(sorted(tokens)) for prefix, tokens in following.items()},
        )

    def forced(self, prefix: tuple[int, ...]) -> tuple[int, ...]:
        """The prefix, lengthened by the tokens that have no alternative."""
        while (after := self.children.get(prefix, ())) and len(after) == 1:
            prefix = (*prefix, after[0])
        return prefix

    @cached_property
    def branchings(self) -> tuple[tuple[int, ...], ...]:
        """The prefixes after which there is a choice."""
        return tuple(prefix for prefix, tokens in self.children.items() if len(tokens) > 1)

    @cached_property
    def is_single_token(self) -> bool:
        """Whether there are several answers, and each is one token."""
        return len(self.leaves) > 1 and len(self.children) == 1

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """For each answer, in their order, which child of the only branching leads to it; else empty."""
        if len(self.branchings) != 1:
            return ()
        (prefix,) = self.branchings
        column = {token: number for number, token in enumerate(self.children[prefix])}
        leaves = sorted(self.leaves, key=self.leaves.__getitem__)
        return tuple(column[leaf[len(prefix)]] for leaf in leaves)

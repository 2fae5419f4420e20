"""Turns as arrays: the only place where trajectories become what is passed through a model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rlnb.policy.actor_critic import padded, passes
from rlnb.trajectories import Turn

Array = np.ndarray


@dataclass(frozen=True)
class Batch:
    """Rows are passed through the model, points are places read in them, tokens are what was chosen there.

    rows: token sequences, each passed once. point_row, point_position: int (num_points,), the last token
    before a choice. allowed: int (num_points, width), padded with -1, or None where all tokens were allowed.
    token_point, token_turn: int (num_tokens,). token_column: int (num_tokens,), of what was chosen in
    `allowed`, its id without. turn_row, turn_position: int (num_turns,), the prompt's end: there a value is.
    advantages, targets, weights: float (num_turns,); targets: what the value should be.
    """

    rows: tuple[tuple[int, ...], ...]
    point_row: Array
    point_position: Array
    allowed: Array | None
    token_point: Array
    token_column: Array
    token_turn: Array
    turn_row: Array
    turn_position: Array
    advantages: Array
    targets: Array
    weights: Array

    def part(self, rows: Sequence[int]) -> "Part":
        """Some rows with all that belongs to them, numbered within."""
        place = np.full(len(self.rows), -1)
        place[list(rows)] = np.arange(len(rows))
        points = np.flatnonzero(place[self.point_row] >= 0)
        turns = np.flatnonzero(place[self.turn_row] >= 0)
        point_place = np.full(len(self.point_row), -1)
        point_place[points] = np.arange(len(points))
        tokens = np.flatnonzero(point_place[self.token_point] >= 0)
        return Part(
            rows=[self.rows[row] for row in rows],
            points=points,
            tokens=tokens,
            turns=turns,
            point_row=place[self.point_row[points]],
            turn_row=place[self.turn_row[turns]],
            token_point=point_place[self.token_point[tokens]],
        )

    def passes(self, rows: Sequence[int], *, max_tokens: int) -> Iterator["Part"]:
        """Parts of these rows, of at most `max_tokens` with padding."""
        for chosen in passes([len(self.rows[row]) for row in rows], max_tokens=max_tokens):
            yield self.part([rows[one] for one in chosen])

    def mini_batches(self, count: int, *, generator: np.random.Generator) -> list[list[int]]:
        """The rows in `count` parts at random, as equal as can be; turns with equal prompts stay together."""
        order = generator.permutation(len(self.rows))
        return [sorted(part.tolist()) for part in np.array_split(order, count)]


@dataclass(frozen=True)
class Part:
    """Rows of a batch. points, tokens, turns: their numbers in the batch; the others: numbers within."""

    rows: list[tuple[int, ...]]
    points: Array
    tokens: Array
    turns: Array
    point_row: Array
    turn_row: Array
    token_point: Array


def make_batch(
    turns: Sequence[Turn],
    advantages: Array,
    targets: Array,
    *,
    weights: Array | None = None,
    memo: bool = True,
) -> Batch:
    """The turns with their advantages, targets of their values and weights, each (num_turns,).

    memo: equal rows are one, which changes neither loss nor gradient. Raises ValueError for turns of which
    some were constrained and some not: they are never played in one batch.
    """
    rows: dict[tuple[object, ...], int] = {}
    sequences: list[tuple[int, ...]] = []
    points: list[tuple[int, int]] = []
    first_point: list[int] = []  # of each row
    allowed: list[tuple[int, ...]] = []
    tokens: list[tuple[int, int, int]] = []
    turn_row = np.zeros(len(turns), dtype=np.int64)
    for number, turn in enumerate(turns):
        before = turn.choices[-1].position - len(turn.prompt_ids) if turn.choices else 0
        sequence = turn.prompt_ids + turn.completion_ids[:before]
        positions = tuple(choice.position - 1 for choice in turn.choices)
        among = tuple(choice.allowed for choice in turn.choices)
        key = (sequence, len(turn.prompt_ids), positions, among) if memo else (number,)
        row = rows.setdefault(key, len(rows))
        if row == len(sequences):
            sequences.append(sequence)
            first_point.append(len(points))
            points += [(row, position) for position in positions]
            allowed += among
        turn_row[number] = row
        for k, choice in enumerate(turn.choices):
            column = choice.allowed.index(choice.token) if choice.allowed else choice.token
            tokens.append((first_point[row] + k, column, number))
    is_free = {not one for one in allowed}
    if len(is_free) > 1:
        raise ValueError("some turns are constrained and some are free; make a batch of each")
    point_array = np.array(points, dtype=np.int64).reshape(-1, 2)
    token_array = np.array(tokens, dtype=np.int64).reshape(-1, 3)
    return Batch(
        rows=tuple(sequences),
        point_row=point_array[:, 0],
        point_position=point_array[:, 1],
        allowed=None if is_free == {True} else padded(allowed),
        token_point=token_array[:, 0],
        token_column=token_array[:, 1],
        token_turn=token_array[:, 2],
        turn_row=turn_row,
        turn_position=np.array([len(turn.prompt_ids) - 1 for turn in turns], dtype=np.int64),
        advantages=np.asarray(advantages, dtype=np.float32),
        targets=np.asarray(targets, dtype=np.float32),
        weights=np.ones(len(turns), np.float32) if weights is None else np.asarray(weights, np.float32),
    )

"""What is left of played games: turns, trajectories, and whole games. Plain data, numpy at most."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

Problem = Literal["no_action", "illegal"]


class Choice(NamedTuple):
    """A token that the policy chose in a turn, and what it chose from.

    position: of the token in prompt_ids + completion_ids. allowed: the token ids that it was chosen from, in
    rising order; empty for all. A token without alternative is no choice: nothing is learned from it.
    """

    position: int
    token: int
    allowed: tuple[int, ...] = ()


@dataclass(frozen=True)
class Turn:
    """One answer of the policy.

    logprobs: float (num_choices,), nats, as it was played; empty where nobody looked. action: OpenSpiel's id
    of the move made, None where the answer held none that is legal. ply: how many moves of either player were
    made before it. probabilities: of the legal actions, where one token decides, else empty. legal_mass: what
    an unconstrained policy gives to the legal answers, NaN where they are not several of one token each.
    value: of the state, in units of the reward; 0 without a value head. text: the answer. reward: what was
    earned from here to the player's next turn; the game's result comes with the last.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    choices: tuple[Choice, ...]
    logprobs: tuple[float, ...]
    action: int | None
    legal_actions: tuple[int, ...]
    ply: int
    problem: Problem | None = None
    value: float = 0.0
    probabilities: tuple[float, ...] = ()
    legal_mass: float = float("nan")
    text: str = ""
    reward: float = 0.0


class Request(NamedTuple):
    """A game that waits for a player's answer.

    parse: what an answer in words means, (action or None, its problem or None). random: the game's own random
    state; nothing else may decide how an answer is drawn.
    """

    prompt: str
    legal_actions: tuple[int, ...]
    ply: int
    random: random.Random
    parse: Callable[[str], tuple[int | None, Problem | None]]


@runtime_checkable
class Player(Protocol):
    """Who answers many games at once; its turns come in the order of the requests."""

    def answer(self, requests: Sequence[Request]) -> list[Turn]: ...


@dataclass(frozen=True)
class Trajectory:
    """One player's record of one game.

    reward: of all its turns, in the units that are trained on. group: number of the opening that it shares
    with other games of its batch. bootstrap: value of what was still to come where the game was cut off.
    """

    game: str
    seat: int
    role: str
    turns: tuple[Turn, ...]
    reward: float
    opponent: str
    seed: int
    group: int = 0
    bootstrap: float = 0.0


class Move(NamedTuple):
    """A move as it was made: by whom, which action; is_opening: at random, before the players' own."""

    seat: int
    action: int
    is_opening: bool = False


@dataclass(frozen=True)
class PlayedGame:
    """A whole game.

    players: the names of those in seat 0 and 1. history: OpenSpiel's actions, deals included, from which any
    position is rebuilt. returns: of both seats, in the game's units. winner: seat, None for a draw.
    forfeit: the seat that lost by an answer without a legal move, else None. is_cut_off: whether it was ended
    before its end, as a draw. Trajectories are those of the seats that the policy played.
    """

    game: str
    players: tuple[str, str]
    seed: int
    history: tuple[int, ...]
    moves: tuple[Move, ...]
    returns: tuple[float, float]
    trajectories: tuple[Trajectory, ...] = field(default=())
    forfeit: int | None = None
    is_cut_off: bool = False

    @property
    def winner(self) -> int | None:
        if self.returns[0] == self.returns[1]:
            return None
        return int(self.returns[1] > self.returns[0])

    def score(self, seat: int) -> float:
        """1 for a win, 0.5 for a draw, 0 for a loss."""
        return 0.5 if self.winner is None else float(self.winner == seat)

    def as_record(self) -> dict[str, Any]:
        """What a line of games.jsonl holds; values and probabilities with four decimals."""
        turns = [(turn.ply, one.seat, turn) for one in self.trajectories for turn in one.turns]
        return {
            "game": self.game, "players": list(self.players), "seed": self.seed,
            "history": list(self.history), "returns": list(self.returns), "forfeit": self.forfeit,
            "is_cut_off": self.is_cut_off,
            "moves": [
                {"seat": one.seat, "action": one.action, "is_opening": one.is_opening} for one in self.moves
            ],
            "turns": [
                {
                    "seat": seat, "ply": ply, "text": turn.text, "action": turn.action,
                    "problem": turn.problem, "legal_actions": list(turn.legal_actions),
                    "value": round(turn.value, 4),
                    "probabilities": [round(one, 4) for one in turn.probabilities],
                }
                for ply, seat, turn in sorted(turns, key=lambda item: item[0])
            ],
        }  # fmt: skip


def turns_of(trajectories: Sequence[Trajectory]) -> list[Turn]:
    """All turns, trajectory by trajectory: the order of every array "(num_turns,)"."""
    return [turn for trajectory in trajectories for turn in trajectory.turns]


def last_turns(trajectories: Sequence[Trajectory]) -> np.ndarray:
    """bool (num_turns,): whether a turn is the last of its trajectory."""
    return np.array(
        [k == len(one.turns) - 1 for one in trajectories for k in range(len(one.turns))], dtype=bool
    )

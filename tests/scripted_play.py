"""A player whose answers a test chooses, parsed like any player's."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rlnb.games.text_games import load_game
from rlnb.selfplay.rollouts import (
    FinishedGame,
    GameRules,
    Player,
    Request,
    Turn,
    play_games,
    self_play_episodes,
)

# Tic-tac-toe: X 0, O 3, X 4, O 8 (blocks), X 1, O 2, and X 7 wins.
X_WINS = (0, 3, 4, 8, 1, 2, 7)


@dataclass
class Scripted:
    """A player that answers with `says(request)`."""

    says: Callable[[Request], str]
    num_requests: list[int] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)

    def answer(self, requests: list[Request]) -> list[Turn]:
        self.num_requests.append(len(requests))
        self.prompts += [request.prompt for request in requests]
        return [self.turn(request) for request in requests]

    def turn(self, request: Request) -> Turn:
        text = self.says(request)
        parsed = request.parse(text)
        legal = request.legal_actions
        return Turn((), (), (), (), parsed.action, legal, request.ply, parsed.problem, text=text)


def any_legal(request: Request) -> str:
    return str(request.random.choice(request.legal_actions))


def spiral_reward(event: str, seat_return: float) -> float:
    return {"end": seat_return, "invalid": -1.5, "forfeit": 0.0, "opponent_forfeit": 0.5}[event]


def one_game(player: Player, *, name: str = "tic_tac_toe") -> FinishedGame:
    """Return a game that a player has played against itself, with SPIRAL's rewards."""
    episodes = self_play_episodes(load_game(name), 1, seed=0)
    return play_games(episodes, {"policy": player}, rules=GameRules(reward=spiral_reward))[0]


def line(moves: Sequence[int], *, spoken: Mapping[int, Sequence[str]] | None = None) -> Scripted:
    """Return a player of these moves, by ply; `spoken`: {ply: answers given there before the move}."""
    left = {ply: list(texts) for ply, texts in (spoken or {}).items()}

    def says(request: Request) -> str:
        waiting = left.get(request.ply, [])
        return waiting.pop(0) if waiting else str(moves[request.ply])

    return Scripted(says)

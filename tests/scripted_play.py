"""A player whose answers a test chooses, parsed like any player's."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rlnb.selfplay.rollouts import Request, Turn

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


def line(moves: Sequence[int], *, spoken: Mapping[int, Sequence[str]] | None = None) -> Scripted:
    """Return a player of these moves, by ply; `spoken`: {ply: answers given there before the move}."""
    left = {ply: list(texts) for ply, texts in (spoken or {}).items()}

    def says(request: Request) -> str:
        waiting = left.get(request.ply, [])
        return waiting.pop(0) if waiting else str(moves[request.ply])

    return Scripted(says)

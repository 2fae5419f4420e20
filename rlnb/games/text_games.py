"""OpenSpiel's two-player games as text: the prompt of the player to move, and how its answer is read."""

import difflib
import functools
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pyspiel

from rlnb.errors import ParamsError
from rlnb.games.answers import ParsedAnswer, parse_answer, shortened
from rlnb.games.rendering import Rendering, hides, parameters
from rlnb.games.rendering_words import RULES, WORDED

Style = Literal["full", "compact"]
FIRST_ACTIONS = """
import sys, pyspiel
game = pyspiel.load_game(sys.argv[1])
if game.get_type().dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS:
    game = pyspiel.convert_to_turn_based(game)
state = game.new_initial_state()
if state.is_terminal():
    sys.exit("it is over before it starts")
for _ in range(1000):
    if not state.is_terminal():
        state.apply_action(state.legal_actions()[0])
"""


@dataclass(frozen=True)
class TextGame:
    """A two-player zero-sum game of OpenSpiel, played through prompts and answers in text.

    name: as OpenSpiel writes it, "tic_tac_toe" or "breakthrough(columns=6,rows=6)". game: always turn-based.
    roles: the name that the game gives each seat. asks_for_thoughts: full prompts do, as SPIRAL's. States are
    OpenSpiel's own; chance nodes are the caller's.
    """

    name: str
    style: Style
    game: pyspiel.Game
    roles: tuple[str, str]
    rendering: Rendering
    asks_for_thoughts: bool = False

    @property
    def has_hidden_information(self) -> bool:
        """Whether something is hidden from a player: cards, dice, a pending bid."""
        return hides(self.game)

    @property
    def short_name(self) -> str:
        """The name without parameters: "breakthrough"."""
        return self.name.partition("(")[0]

    def new_state(self) -> pyspiel.State:
        """Return the start of a game, which may be a chance node (cards to deal)."""
        return self.game.new_initial_state()

    def legal_words(self, state: pyspiel.State) -> dict[int, str]:
        """Return {id: words} of the legal actions of the player to move, in rising order of ids."""
        return self.rendering.all_words(state, mover(state))

    def prompt(self, state: pyspiel.State) -> str:
        """Return the prompt of the player to move. Raises ValueError where no player is to move.

        full: rules, seat and role, the state, the legal actions as `id -> words`, how to answer.
        compact: only the state, ending in "?".
        """
        player, rendering = mover(state), self.rendering
        if self.style == "compact":
            return rendering.compact(state, player)
        legal = "\n".join(f"{action} -> {words}" for action, words in self.legal_words(state).items())
        blocks = (
            rendering.rules or f"A game for two, called {self.name}; its rules are those of OpenSpiel.",
            rendering.seat(player),
            rendering.full(state, player),
            f"Your legal actions (id -> words):\n{legal}",
            "Please reason step by step, and put the id of your action within \\boxed{}."
            if self.asks_for_thoughts
            else "Choose one of them. End your answer with its id in a box: \\boxed{id}",
        )
        return "\n\n".join(blocks)

    def parse(self, text: str, state: pyspiel.State, *, is_cut: bool = False) -> ParsedAnswer:
        """Return the legal action that a text names, or why it names none, as `parse_answer` reads it.

        is_cut: by the limit of tokens, which matters where thoughts were to come before the answer.
        """
        return parse_answer(text, self.legal_words(state), is_cut=is_cut and self.asks_for_thoughts)

    def apply(self, state: pyspiel.State, action: int) -> None:
        """Play an action. Raises ValueError if it is illegal, which OpenSpiel does not always check."""
        legal = state.legal_actions()
        if action not in legal:
            raise ValueError(f"{self.name}: action {action!r} is not legal here; legal: {shortened(legal)}.")
        state.apply_action(action)


def mover(state: pyspiel.State) -> int:
    """Return the player to move, 0 or 1. Raises ValueError at the end of a game and at chance nodes."""
    player: int = state.current_player()
    if player < 0:
        raise ValueError(
            "No player is to move: " + ("the game is over." if state.is_terminal() else "chance is.")
        )
    return player


def states_in_play(game: TextGame, num_games: int, *, rng: random.Random) -> Iterator[pyspiel.State]:
    """Yield the state at every turn of random games; it changes when the generator goes on."""
    for _ in range(num_games):
        state = game.new_state()
        while not state.is_terminal():
            if not state.is_chance_node():
                yield state
            state.apply_action(rng.choice(state.legal_actions()))


def load_game(
    name: str, *, style: Style = "full", asks_for_thoughts: bool = False, field: str = "game.name"
) -> TextGame:
    """Return the game of a name, as pyspiel.load_game takes it.

    Raises ParamsError with the field, the name and the reason for unknown names and parameters, for games
    that are not zero-sum games for two, and for those that OpenSpiel cannot play to their end.
    """
    name = name.strip()
    place, short_name = f"{field} = {name!r}", name.partition("(")[0]
    known = [kind.short_name for kind in pyspiel.registered_games()]
    if short_name not in known:
        near = difflib.get_close_matches(short_name, known, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"for example: {', '.join(WORDED)}."
        raise ParamsError(f"{place}: OpenSpiel has no such game; {hint}")
    if short_name == "quoridor":
        raise ParamsError(f"{place} has known faults in OpenSpiel; choose another game.")
    if name not in {*WORDED, *RULES} and (fault := find_fault(name)):
        raise ParamsError(f"{place} cannot be played: {fault}; write other parameters, or another game.")
    game = pyspiel.load_game(name)
    if game.num_players() != 2:
        raise ParamsError(f"{place} has {game.num_players()} player(s); choose a game for two.")
    if game.get_type().utility != pyspiel.GameType.Utility.ZERO_SUM:
        raise ParamsError(
            f"{place} is not zero-sum; choose a game where one player wins what the other loses."
        )
    canonical = str(game).removesuffix("()")
    if game.get_type().dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS:
        game = pyspiel.convert_to_turn_based(game)
    worded = WORDED.get(short_name)
    if worded and worded.usual.items() <= parameters(game).items():
        rendering = worded(game)
    else:
        rendering = Rendering(game, RULES.get(short_name, ""))
    if not rendering.has_view:
        raise ParamsError(f"{place} has no text of what one player alone knows; choose another game.")
    return TextGame(canonical, style, game, rendering.roles, rendering, asks_for_thoughts)


@functools.cache
def find_fault(name: str) -> str:
    """Return why another process cannot play the game, or "": OpenSpiel dies of connect_four(rows=0)."""
    trial = subprocess.run([sys.executable, "-c", FIRST_ACTIONS, name], capture_output=True, text=True)
    if trial.returncode < 0:
        return f"OpenSpiel dies of it by signal {-trial.returncode}"
    return " ".join(trial.stderr.splitlines()[-1:])[:200] if trial.returncode else ""

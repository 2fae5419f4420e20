"""A game of OpenSpiel as text: the prompt of the player to move, and how its answer is read.

The words of tic-tac-toe, connect four, Nim, Kuhn and Leduc are in rendering_words.py.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal

import pyspiel

from rlnb.games.answers import ParsedAnswer, parse_answer, shortened

Style = Literal["full", "compact"]
PERFECT_INFORMATION = pyspiel.GameType.Information.PERFECT_INFORMATION


class TextGame:
    """A two-player zero-sum game of OpenSpiel, played through prompts and answers in text.

    A prompt shows the player to move what OpenSpiel's observation or information state of that player holds,
    here in OpenSpiel's own strings; subclasses use words of their own. States are OpenSpiel's own; chance
    nodes are the caller's.

    name: as OpenSpiel writes it, "tic_tac_toe" or "breakthrough(columns=6,rows=6)". game: always turn-based.
    sizes: its parameters. roles: the name that the game gives each seat. asks_for_thoughts: full prompts do,
    as SPIRAL's. has_hidden_information: cards, dice, or a bid that waits for the other's.
    """

    roles: tuple[str, str] = ("player 0", "player 1")  # who begins is not known here: in chess it is player 1
    rules: str = ""  # with `sizes` in braces
    usual: Mapping[str, object] = {}  # parameters that the words hold for; others get OpenSpiel's strings

    def __init__(self, game: pyspiel.Game, rules: str = "") -> None:
        self.name, self.game = str(game).removesuffix("()"), game
        self.style: Style = "full"
        self.asks_for_thoughts = False
        self.sizes: dict[str, Any] = game.get_parameters()
        kind = game.get_type()
        is_perfect = kind.information == PERFECT_INFORMATION
        self.has_hidden_information = not is_perfect
        if kind.dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS:  # the first of two bids is then secret
            self.game = pyspiel.convert_to_turn_based(game)
            self.has_hidden_information = True
            kind = self.game.get_type()
        self.rules = (rules or self.rules).format(**self.sizes)
        # An information state remembers all that a player saw; an observation may show only the present.
        # A bid still pending is in neither, so a simultaneous game that hides nothing else is observed.
        self.remembers = bool(kind.provides_information_state_string) and not (
            is_perfect and kind.provides_observation_string
        )
        self.observes = bool(kind.provides_observation_string) and not self.remembers

    @property
    def short_name(self) -> str:
        """The name without parameters: "breakthrough"."""
        return self.name.partition("(")[0]

    def new_state(self) -> pyspiel.State:
        """Return the start of a game, which may be a chance node (cards to deal)."""
        return self.game.new_initial_state()

    def prompt(self, state: pyspiel.State) -> str:
        """Return the prompt of the player to move. Raises ValueError where no player is to move.

        full: rules, seat and role, the state, the legal actions as `id -> words`, how to answer.
        compact: only the state, ending in "?".
        """
        player = mover(state)
        if self.style == "compact":
            return self.compact(state, player)
        legal = "\n".join(f"{action} -> {words}" for action, words in self.legal_words(state).items())
        blocks = (
            self.rules or f"A game for two, called {self.name}; its rules are those of OpenSpiel.",
            self.seat(player),
            self.full(state, player),
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

    def view(self, state: pyspiel.State, player: int) -> str:
        """Return what the player knows, in OpenSpiel's words."""
        if self.remembers:
            return str(state.information_state_string(player)).strip("\n")
        return str(state.observation_string(player) if self.observes else state).strip("\n")

    def compact(self, state: pyspiel.State, player: int) -> str:
        """Return the same for the compact style: as short as is clear."""
        return f"P{player}\n{self.view(state, player)}\n?"

    def full(self, state: pyspiel.State, player: int) -> str:
        """Return the same for the full style: some lines, without the rules and the legal actions."""
        return f"The state as you know it:\n{self.view(state, player)}"

    def legal_words(self, state: pyspiel.State) -> dict[int, str]:
        """Return {id: words} of the legal actions of the player to move, in rising order of ids."""
        player = mover(state)
        return {action: self.words(state, player, action) for action in sorted(state.legal_actions())}

    def words(self, state: pyspiel.State, player: int, action: int) -> str:
        """Return the name of a legal action on one line, and never a bare number, which reads as an id."""
        words = " ".join(str(state.action_to_string(player, action)).split())
        return f"value {words}" if re.fullmatch(r"[-+.\d\s]*", words) else words

    def seat(self, player: int) -> str:
        """Return who the player is."""
        role, order = self.roles[player], ("first", "second")[player]
        if role.startswith("player"):
            return f"You are {role}."
        if role.endswith("player"):
            return f"You are the {role} (player {player})."
        return f"You are {role} (player {player}, who moves {order})."


def mover(state: pyspiel.State) -> int:
    """Return the player to move, 0 or 1. Raises ValueError at the end of a game and at chance nodes."""
    player: int = state.current_player()
    if player < 0:
        raise ValueError(
            "No player is to move: " + ("the game is over." if state.is_terminal() else "chance is.")
        )
    return player

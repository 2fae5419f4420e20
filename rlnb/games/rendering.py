"""How a game's states and actions become text; the automatic form, which any OpenSpiel game can take."""

import re
from collections.abc import Mapping
from typing import Any

import pyspiel


def turn_based(game: pyspiel.Game) -> bool:
    """Return whether a simultaneous game was made turn-based: the first of two bids is then secret."""
    return bool(game.get_type().short_name == "turn_based_simultaneous_game")


def parameters(game: pyspiel.Game) -> dict[str, Any]:
    """Return OpenSpiel's parameters of the game, of a turn-based one those of the game inside."""
    parameters: dict[str, Any] = game.get_parameters()
    return parameters["game"] if turn_based(game) else parameters


def hides(game: pyspiel.Game) -> bool:
    """Return whether something is hidden from a player: cards, dice, or a bid that waits for the other's."""
    return turn_based(game) or game.get_type().information != pyspiel.GameType.Information.PERFECT_INFORMATION


def hides_only_bids(game: pyspiel.Game) -> bool:
    """Return whether a game hides nothing but the first of two bids."""
    if not turn_based(game):
        return False
    inner = parameters(game)["name"]
    kind = next(kind for kind in pyspiel.registered_games() if kind.short_name == inner)
    return bool(kind.information == pyspiel.GameType.Information.PERFECT_INFORMATION)


def plain_words(text: str) -> str:
    """Return an action's name on one line, and never a bare number, which would read as an id."""
    words = " ".join(text.split()).strip()
    return f"value {words}" if re.fullmatch(r"[-+.\d\s]*", words) else words


def tell(player: int, mover: int) -> str:
    """Return who moved, as `player` is told it."""
    return "you" if mover % 2 == player else "your opponent"


class Rendering:
    """The texts of a game, here made from OpenSpiel's own strings; subclasses use words of their own.

    A rendering shows the player to move what OpenSpiel's observation or information state of that player
    holds, and the game's public past. It reads states and never plays them: the rules are OpenSpiel's.
    """

    roles: tuple[str, str] = ("player 0", "player 1")  # who begins is not known here: in chess it is player 1
    rules: str = ""  # with `parameters` in braces
    usual: Mapping[str, object] = {}  # parameters that the words hold for; others get OpenSpiel's strings

    def __init__(self, game: pyspiel.Game, rules: str = "") -> None:
        kind = game.get_type()
        self.sizes = parameters(game)
        self.rules = (rules or self.rules).format(**self.sizes)
        self.hidden = hides(game)
        # An information state remembers all that a player saw; an observation may show only the present.
        # A bid still pending is in neither, so a simultaneous game that hides nothing else is observed.
        self.remembers = bool(kind.provides_information_state_string) and (
            (self.hidden and not hides_only_bids(game)) or not kind.provides_observation_string
        )
        self.observes = bool(kind.provides_observation_string) and not self.remembers

    @property
    def has_view(self) -> bool:
        """Whether OpenSpiel can say what one player knows, or both players know the whole state."""
        return self.remembers or self.observes or not self.hidden

    def view(self, state: pyspiel.State, player: int) -> str:
        """Return what the player knows, in OpenSpiel's words."""
        if self.remembers:
            return str(state.information_state_string(player))
        return str(state.observation_string(player) if self.observes else state)

    def compact(self, state: pyspiel.State, player: int) -> str:
        """Return the same for the compact style: as short as is clear."""
        return f"P{player}\n" + self.view(state, player).strip("\n") + "\n?"

    def full(self, state: pyspiel.State, player: int) -> str:
        """Return the same for the full style: some lines, without the rules and the legal actions."""
        return "The state as you know it:\n" + self.view(state, player).strip("\n")

    def words(self, state: pyspiel.State, player: int, action: int) -> str:
        """Return the name of a legal action of the player to move."""
        return plain_words(str(state.action_to_string(player, action)))

    def all_words(self, state: pyspiel.State, player: int) -> dict[int, str]:
        """Return {id: words} of the legal actions in rising order of ids."""
        return {action: self.words(state, player, action) for action in sorted(state.legal_actions())}

    def seat(self, player: int) -> str:
        """Return who the player is."""
        role, order = self.roles[player], ("first", "second")[player]
        if role.startswith("player"):
            return f"You are {role}."
        if role.endswith("player"):
            return f"You are the {role} (player {player})."
        return f"You are {role} (player {player}, who moves {order})."

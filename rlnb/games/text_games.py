"""OpenSpiel's two-player games as text: the prompt of the player to move, and how its answer is read."""

import difflib
import functools
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import pyspiel

from rlnb.errors import ParamsError
from rlnb.games import rendering_boards as boards
from rlnb.games import rendering_cards as cards
from rlnb.games.answers import ParsedAnswer, parse_answer, shortened
from rlnb.games.rendering import Rendering, hides

Style = Literal["full", "compact"]
TRY_SECONDS = 60

# The games with texts of their own; every other game gets OpenSpiel's strings. To word another one, write its
# class in rendering_boards.py (boards) or rendering_cards.py (cards, dice, bids) and enter it here.
WORDED: dict[str, type[Rendering]] = {
    "breakthrough": boards.Breakthrough,
    "clobber": boards.Clobber,
    "connect_four": boards.ConnectFour,
    "dots_and_boxes": boards.DotsAndBoxes,
    "goofspiel": cards.Goofspiel,
    "hex": boards.Hex,
    "kuhn_poker": cards.KuhnPoker,
    "leduc_poker": cards.LeducPoker,
    "liars_dice": cards.LiarsDice,
    "nim": boards.Nim,
    "othello": boards.Othello,
    "tic_tac_toe": boards.TicTacToe,
}


@dataclass(frozen=True)
class TextGame:
    """A two-player zero-sum game of OpenSpiel, played through prompts and answers in text.

    name: as OpenSpiel writes it, "tic_tac_toe" or "breakthrough(columns=6,rows=6)". game: always turn-based.
    roles: the name that the game gives each seat. States are OpenSpiel's own; chance nodes are the caller's.
    """

    name: str
    style: Style
    game: pyspiel.Game
    roles: tuple[str, str]
    rendering: Rendering

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

        full: rules, seat and role, the opponent's last move where it is public, the state, the legal actions
        as `id -> words`, how to answer. compact: only the state, ending in "?".
        """
        player, rendering = mover(state), self.rendering
        if self.style == "compact":
            return rendering.compact(state, player)
        legal = "\n".join(f"{action} -> {words}" for action, words in self.legal_words(state).items())
        blocks = (
            rendering.rules or f"A game for two, called {self.name}; its rules are those of OpenSpiel.",
            " ".join(filter(None, (rendering.seat(player), rendering.last_moves(state, player)))),
            rendering.full(state, player),
            f"Your legal actions (id -> words):\n{legal}",
            "Choose one of them. End your answer with its id in a box: \\boxed{id}",
        )
        return "\n\n".join(blocks)

    def parse(self, text: str, state: pyspiel.State) -> ParsedAnswer:
        """Return the legal action that a text names, or why it names none, as `parse_answer` reads it."""
        return parse_answer(text, self.legal_words(state))

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


def states_in_play(
    game: TextGame, num_games: int, *, rng: random.Random, choose: Callable[[list[int]], int] | None = None
) -> Iterator[pyspiel.State]:
    """Yield the state at every turn of some games; it changes when the generator goes on.

    choose: picks one of a player's legal actions; None picks at random, as chance does.
    """
    for _ in range(num_games):
        state = game.new_state()
        while not state.is_terminal():
            is_chance = state.is_chance_node()
            if not is_chance:
                yield state
            legal = state.legal_actions()
            state.apply_action(rng.choice(legal) if is_chance or choose is None else choose(legal))


def load_game(name: str, *, style: Style = "full", field: str = "game.name") -> TextGame:
    """Return the game of a name, as pyspiel.load_game takes it.

    Raises ParamsError with the field, the name and the remedy for unknown names and parameters, for games
    that are not zero-sum games for two, and for those that OpenSpiel itself does not trust (quoridor).
    """
    name = name.strip()
    place = f"{field} = {name!r}"
    kind = _known_kind(name, place)
    fault = "" if name in WORDED else _try_game(name)
    if fault:
        raise ParamsError(f"{place} cannot be played: {fault}. Its parameters: {_parameters(kind)}.")
    game = pyspiel.load_game(name)
    if game.num_players() != 2:
        raise ParamsError(f"{place} has {game.num_players()} player(s); choose a game for two.")
    if game.get_type().utility != pyspiel.GameType.Utility.ZERO_SUM:
        raise ParamsError(
            f"{place} is not zero-sum; choose a game where one player wins what the other loses."
        )
    canonical = str(game).removesuffix("()")
    game = _sequential(game)
    rendering = WORDED.get(kind.short_name, Rendering)(game)
    if not rendering.has_view:
        raise ParamsError(f"{place} has no text of what one player alone knows; choose another game.")
    return TextGame(canonical, style, game, rendering.roles, rendering)


def _known_kind(name: str, place: str) -> pyspiel.GameType:
    """Return the kind of game. Raises ParamsError unless OpenSpiel lists it and its parameters."""
    shape = re.fullmatch(r"(\w+)(?:\((.*)\))?", name, re.DOTALL)
    kinds = {kind.short_name: kind for kind in pyspiel.registered_games()}
    if shape is None or shape[1] not in kinds:
        near = difflib.get_close_matches(shape[1] if shape else name, kinds, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"for example: {', '.join(WORDED)}."
        raise ParamsError(f"{place}: OpenSpiel has no such game; {hint}")
    if shape[1] == "quoridor":
        raise ParamsError(f"{place} has known faults in OpenSpiel; choose another game.")
    kind, inside = kinds[shape[1]], (shape[2] or "").strip()
    if "(" in inside or not inside:  # a game inside a game (misere): left to OpenSpiel
        return kind
    known = kind.parameter_specification
    for part in inside.split(","):
        key, equals, _ = part.partition("=")
        if not equals or key.strip() not in known:
            near = difflib.get_close_matches(key.strip(), known, n=1)
            hint = f"did you mean {near[0]}?" if near and equals else f"its parameters: {_parameters(kind)}."
            raise ParamsError(f"{place}: {shape[1]} has no parameter {key.strip()!r}; {hint}")
    return kind


def _parameters(kind: pyspiel.GameType) -> str:
    return ", ".join(f"{key}={value}" for key, value in kind.parameter_specification.items()) or "none"


def _sequential(game: pyspiel.Game) -> pyspiel.Game:
    is_simultaneous = game.get_type().dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS
    return pyspiel.convert_to_turn_based(game) if is_simultaneous else game


@functools.lru_cache(maxsize=256)
def _try_game(name: str) -> str:
    """Return why a process that plays the game fails or dies, or "".

    open_spiel 2.0.2 prints before it raises, checks values (rows=1) only while it builds or plays a game, and
    with connect_four(rows=0) writes behind its board. So another process tries the game first.
    """
    code = "import sys; from rlnb.games.text_games import find_fault; print(find_fault(sys.argv[1]))"
    try:
        trial = subprocess.run(
            [sys.executable, "-c", code, name],
            capture_output=True,
            text=True,
            timeout=TRY_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"OpenSpiel has not played it to an end in {TRY_SECONDS} s"
    if trial.returncode < 0:
        return f"OpenSpiel dies of it ({signal.Signals(-trial.returncode).name})"
    return trial.stdout.strip() if trial.returncode == 0 else f"its trial failed: {trial.stderr.strip()}"


def find_fault(name: str) -> str:
    """Return why OpenSpiel cannot play a game to its end, or "": some parameters fail only there.

    open_spiel 2.0.2: hex(board_size=0) has no first move; goofspiel(num_cards=4,num_turns=3) fails last.
    """
    try:
        state = _sequential(pyspiel.load_game(name)).new_initial_state()
        for num_moves in range(1000):
            if state.is_terminal():
                return "" if num_moves else "it is over before it starts"
            legal = state.legal_actions()
            if not legal:
                return "a player has no legal action"
            state.apply_action(legal[0])
    except (RuntimeError, ValueError, IndexError, MemoryError) as error:  # SpielError is a RuntimeError
        lines = str(error).strip().splitlines() or ["OpenSpiel gives no reason"]
        return lines[0].rstrip(".:")
    return ""

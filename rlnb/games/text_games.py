"""OpenSpiel's two-player games as text: a prompt for the player to move, and its answer read back."""

import contextlib
import difflib
import functools
import os
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
from rlnb.games.answers import ParsedAnswer, parse_answer, shortened
from rlnb.games.rendering import Rendering, hides
from rlnb.games.rendering_boards import (
    Breakthrough,
    Clobber,
    ConnectFour,
    DotsAndBoxes,
    Hex,
    Nim,
    Othello,
    TicTacToe,
)
from rlnb.games.rendering_cards import Goofspiel, KuhnPoker, LeducPoker, LiarsDice

__all__ = ["WORDED", "ParsedAnswer", "Style", "TextGame", "load_game"]

Style = Literal["full", "compact"]

# The games with texts of their own; every other game gets OpenSpiel's strings.
WORDED: dict[str, type[Rendering]] = {
    "breakthrough": Breakthrough,
    "clobber": Clobber,
    "connect_four": ConnectFour,
    "dots_and_boxes": DotsAndBoxes,
    "goofspiel": Goofspiel,
    "hex": Hex,
    "kuhn_poker": KuhnPoker,
    "leduc_poker": LeducPoker,
    "liars_dice": LiarsDice,
    "nim": Nim,
    "othello": Othello,
    "tic_tac_toe": TicTacToe,
}


@dataclass(frozen=True)
class TextGame:
    """A two-player zero-sum game of OpenSpiel, told and answered in text.

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
        """Whether a player does not see all: cards, dice, a pending bid."""
        return hides(self.game)

    @property
    def short_name(self) -> str:
        """The name without parameters: "breakthrough"."""
        return self.name.partition("(")[0]

    def new_state(self) -> pyspiel.State:
        """The start of a game; it may be a chance node (cards to deal)."""
        return self.game.new_initial_state()

    def legal_words(self, state: pyspiel.State) -> dict[int, str]:
        """Words of each legal action of the player to move, by OpenSpiel's id, in rising order of ids."""
        return self.rendering.all_words(state, mover(state))

    def prompt(self, state: pyspiel.State) -> str:
        """What the player to move is told; ValueError where no player is to move.

        full: rules, own seat and role, the opponent's last move where it is public, the state, the legal
        actions as `id -> words`, how to answer. compact: the state alone, ending in "?".
        """
        player = mover(state)
        if self.style == "compact":
            return self.rendering.compact(state, player)
        return self._full_prompt(state, player)

    def _full_prompt(self, state: pyspiel.State, player: int) -> str:
        rendering = self.rendering
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
        """The legal action that a text names, or why it names none; the rules are those of `parse_answer`."""
        return parse_answer(text, self.legal_words(state))

    def apply(self, state: pyspiel.State, action: int) -> None:
        """Plays an action; ValueError where it is not legal (OpenSpiel does not always look)."""
        legal = state.legal_actions()
        if action not in legal:
            raise ValueError(f"{self.name}: action {action!r} is not legal here; legal: {shortened(legal)}.")
        state.apply_action(action)


def mover(state: pyspiel.State) -> int:
    """The player to move, 0 or 1; ValueError at the end of a game and where chance moves."""
    player: int = state.current_player()
    if player < 0:
        raise ValueError(
            "No player is to move: " + ("the game is over." if state.is_terminal() else "chance is.")
        )
    return player


def states_in_play(
    game: TextGame, num_games: int, *, rng: random.Random, choose: Callable[[list[int]], int] | None = None
) -> Iterator[pyspiel.State]:
    """The state at every turn of some games; it changes when the next one is asked for.

    choose: of a player's legal actions; None = each is as likely, as it is to chance.
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
    """The game of that name; ParamsError with the field, the name and the remedy where there is none.

    name: as pyspiel.load_game takes it. Refused: unknown names and parameters, games that are not for two,
    not zero-sum, or that OpenSpiel itself does not trust (quoridor).
    """
    if style not in ("full", "compact"):
        raise ParamsError(f"{field}: style = {style!r} is not one of full, compact.")
    name = name.strip()
    place = f"{field} = {name!r}"
    kind = _known_kind(name, place)
    with _silenced_stderr():
        crash = _crash(name) if "(" in name else ""
        game, problem = (None, crash) if crash else _loaded(name)
    if game is None:
        raise ParamsError(f"{place} cannot be played: {problem}. Its parameters: {_parameters(kind)}.")
    if game.num_players() != 2:
        raise ParamsError(f"{place} has {game.num_players()} player(s); choose a game for two.")
    if game.get_type().utility != pyspiel.GameType.Utility.ZERO_SUM:
        raise ParamsError(
            f"{place} is not zero-sum; choose a game where one player wins what the other loses."
        )
    canonical = str(game).removesuffix("()")
    if game.get_type().dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS:
        game = pyspiel.convert_to_turn_based(game)
    rendering = WORDED.get(kind.short_name, Rendering)(game)
    if not rendering.has_view:
        raise ParamsError(f"{place} has no text of what one player alone knows; choose another game.")
    with _silenced_stderr():
        problem = _fault_in_play(game)
    if problem:
        raise ParamsError(f"{place} cannot be played: {problem}. Its parameters: {_parameters(kind)}.")
    return TextGame(canonical, style, game, rendering.roles, rendering)


def _known_kind(name: str, place: str) -> pyspiel.GameType:
    """The kind of game, if OpenSpiel lists it and its parameters: asked for others, it would print."""
    shape = re.fullmatch(r"(\w+)(?:\((.*)\))?", name, re.DOTALL)
    kinds = {kind.short_name: kind for kind in pyspiel.registered_games()}
    if shape is None or shape[1] not in kinds:
        near = difflib.get_close_matches(shape[1] if shape else name, kinds, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"for example: {', '.join(WORDED)}."
        raise ParamsError(f"{place} is no game of OpenSpiel; {hint}")
    if shape[1] == "quoridor":
        raise ParamsError(f"{place} has known faults in OpenSpiel; choose another game.")
    kind, inside = kinds[shape[1]], (shape[2] or "").strip()
    if "(" in inside or not inside:  # a game inside a game (misere): left to OpenSpiel, silenced
        return kind
    known = kind.parameter_specification
    for part in inside.split(","):
        key, equals, _ = part.partition("=")
        if not equals or key.strip() not in known:
            near = difflib.get_close_matches(key.strip(), known, n=1)
            hint = f"did you mean {near[0]}?" if near and equals else f"its parameters: {_parameters(kind)}."
            raise ParamsError(f"{place}: {key.strip()!r} is no parameter of {shape[1]}; {hint}")
    return kind


def _parameters(kind: pyspiel.GameType) -> str:
    return ", ".join(f"{key}={value}" for key, value in kind.parameter_specification.items()) or "none"


# What a wrong parameter ends in: SpielError (a RuntimeError), or an error of the C++ library.
_FAULTS = (RuntimeError, ValueError, IndexError, MemoryError)


def _loaded(name: str) -> tuple[pyspiel.Game | None, str]:
    try:
        return pyspiel.load_game(name), ""
    except _FAULTS as error:
        return None, _first_line(error)


# What `load_game` does with a game, without looking at what it raises.
_TRY = """
import sys, pyspiel
state = pyspiel.load_game(sys.argv[1]).new_initial_state()
for _ in range(1000):
    if state.is_terminal() or not state.legal_actions():
        break
    state.apply_action(state.legal_actions()[0])
"""
_TRY_SECONDS = 60


@functools.lru_cache(maxsize=256)
def _crash(name: str) -> str:
    """Why a process that tries the game dies by a signal, or "": its own does, not ours.

    open_spiel 2.0.2: connect_four(rows=0) writes behind its board.
    """
    try:
        tried = subprocess.run(
            [sys.executable, "-c", _TRY, name], capture_output=True, timeout=_TRY_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"OpenSpiel has not played it to an end in {_TRY_SECONDS} s"
    died = tried.returncode < 0
    return f"OpenSpiel dies of it ({signal.Signals(-tried.returncode).name})" if died else ""


def _fault_in_play(game: pyspiel.Game) -> str:
    """Why the game cannot be played to an end, or "": some parameters fail only there.

    open_spiel 2.0.2: hex(board_size=0) has no first move; goofspiel(num_cards=4,num_turns=3) fails last.
    """
    try:
        state = game.new_initial_state()
        for num_moves in range(1000):
            if state.is_terminal():
                return "" if num_moves else "it is over before it starts"
            legal = state.legal_actions()
            if not legal:
                return "a player has no legal action"
            state.apply_action(legal[0])
    except _FAULTS as error:
        return _first_line(error)
    return ""


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or ["OpenSpiel gives no reason"]
    return lines[0].rstrip(".:")


@contextlib.contextmanager
def _silenced_stderr() -> Iterator[None]:
    """What C++ writes to stderr meanwhile is dropped.

    open_spiel 2.0.2 prints before it raises, and checks values (rows=1) only while it builds or plays a game:
    its lists have names and no ranges. So these calls are silenced, and no others. This can go when OpenSpiel
    raises without printing. Another thread's stderr is silent meanwhile, for milliseconds.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)

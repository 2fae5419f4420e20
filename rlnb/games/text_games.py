"""Load OpenSpiel's two-player games as text, by name."""

import difflib
import functools
import random
import subprocess
import sys
from collections.abc import Iterator

import pyspiel

from rlnb.errors import ParamsError
from rlnb.games.rendering import Style, TextGame
from rlnb.games.rendering_words import RULES, WORDED

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
    worded = WORDED.get(short_name)
    if worded and worded.usual.items() <= game.get_parameters().items():
        text_game = worded(game)
    else:
        text_game = TextGame(game, RULES.get(short_name, ""))
    if text_game.has_hidden_information and not (text_game.remembers or text_game.observes):
        raise ParamsError(f"{place} has no text of what one player alone knows; choose another game.")
    text_game.style, text_game.asks_for_thoughts = style, asks_for_thoughts
    return text_game


@functools.cache
def find_fault(name: str) -> str:
    """Return why another process cannot play the game, or "": OpenSpiel dies of connect_four(rows=0)."""
    trial = subprocess.run([sys.executable, "-c", FIRST_ACTIONS, name], capture_output=True, text=True)
    if trial.returncode < 0:
        return f"OpenSpiel dies of it by signal {-trial.returncode}"
    return " ".join(trial.stderr.splitlines()[-1:])[:200] if trial.returncode else ""

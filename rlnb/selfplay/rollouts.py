"""Play many games in lockstep and record them: turns, trajectories and whole games.

All games that wait for the same player are answered in one batch. Records are plain data, numpy at most.
"""

import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import pyspiel
from pydantic import JsonValue

from rlnb.games.answers import ParsedAnswer, Problem
from rlnb.games.opponents import Opponent
from rlnb.games.text_games import TextGame

LEARNER = "policy"
NUM_PARALLEL = 512  # games in lockstep
Event = Literal["end", "invalid", "forfeit", "opponent_forfeit"]
RewardFunction = Callable[[Event, float], float]  # see GameRules.reward


class Choice(NamedTuple):
    """A token that the policy chose in a turn, and the tokens it chose from.

    position: of the token in prompt_ids + completion_ids. allowed: the token ids it was chosen from, in
    rising order; empty for the whole vocabulary. A forced token is not a choice: it teaches nothing.
    """

    position: int
    token: int
    allowed: tuple[int, ...] = ()

    @property
    def column(self) -> int:
        """The token's index in `allowed`, or its id where the whole vocabulary was."""
        return self.allowed.index(self.token) if self.allowed else self.token


class Turn(NamedTuple):
    """One answer of the policy.

    logprobs: float (num_choices,), nats, at the time of play; empty in free play. action: OpenSpiel's id of
    the move, None where the answer names no legal one. ply: number of moves of both players before it.
    probabilities: of the legal actions where a single token decides, else empty. legal_mass: probability
    that an unconstrained policy gives to the legal answers, NaN unless each is a single token. value: of the
    state, in units of the reward; 0 without a value head. reward: earned between this turn and the player's
    next; the reward of the game's end is added to the last turn.
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

    parse: reads an answer; is_cut: by the limit of tokens. random: the game's own random state; all sampling
    of the answer must draw from it.
    """

    prompt: str
    legal_actions: tuple[int, ...]
    ply: int
    random: random.Random
    parse: Callable[..., ParsedAnswer]


@runtime_checkable
class Player(Protocol):
    """A language model that answers many games at once, one turn per request, in their order."""

    def answer(self, requests: Sequence[Request]) -> list[Turn]: ...


@dataclass(frozen=True)
class Trajectory:
    """One player's record of one game.

    reward: sum over its turns, in the units that are trained on. group: index of the opening, which other
    games of the batch may share.
    """

    game: str
    seat: int
    role: str
    turns: tuple[Turn, ...]
    reward: float
    group: int = 0

    @property
    def role_name(self) -> str:
        return f"{self.game}/{self.role}"


class Move(NamedTuple):
    """A move. is_random: it was drawn at random, in the opening or by `Episode.random_move_share`."""

    seat: int
    action: int
    is_random: bool = False


@dataclass(frozen=True)
class FinishedGame:
    """The record of a whole game.

    players: names of the players in seats 0 and 1. history: OpenSpiel's actions including deals, from which
    any position can be rebuilt. returns: of both seats, in the game's units. forfeit: the seat that lost by
    an answer without a legal move, else None. trajectories: of the seats that the policy played.
    """

    game: str
    players: tuple[str, str]
    seed: int
    history: tuple[int, ...]
    moves: tuple[Move, ...]
    returns: tuple[float, float]
    trajectories: tuple[Trajectory, ...] = ()
    forfeit: int | None = None

    @property
    def winner(self) -> int | None:
        """The seat that won, None for a draw."""
        return None if self.returns[0] == self.returns[1] else int(self.returns[1] > self.returns[0])

    def score(self, seat: int) -> float:
        """Return 1 for a win, 0.5 for a draw, 0 for a loss."""
        return 0.5 if self.winner is None else float(self.winner == seat)

    def as_record(self) -> dict[str, JsonValue]:
        """Return a line of games.jsonl; values and probabilities have four decimals."""
        turns = [(turn, trajectory.seat) for trajectory in self.trajectories for turn in trajectory.turns]
        return {
            "game": self.game, "players": list(self.players), "seed": self.seed,
            "history": list(self.history), "returns": list(self.returns), "forfeit": self.forfeit,
            "moves": [move._asdict() for move in self.moves],
            "turns": [
                {
                    "seat": seat, "ply": turn.ply, "text": turn.text, "action": turn.action,
                    "problem": turn.problem, "legal_actions": list(turn.legal_actions),
                    "value": round(turn.value, 4),
                    "probabilities": [round(probability, 4) for probability in turn.probabilities],
                }
                for turn, seat in sorted(turns, key=lambda item: item[0].ply)
            ],
        }  # fmt: skip


def collect_trajectories(games: Iterable[FinishedGame]) -> list[Trajectory]:
    return [trajectory for game in games for trajectory in game.trajectories]


def collect_turns(trajectories: Iterable[Trajectory]) -> list[Turn]:
    """Return all turns, trajectory by trajectory: the order of every array "(num_turns,)"."""
    return [turn for trajectory in trajectories for turn in trajectory.turns]


def reward_with_return(event: Event, seat_return: float) -> float:
    """Return the game's own return at its end, and 0 for other events."""
    return seat_return if event == "end" else 0.0


@dataclass(frozen=True)
class GameRules:
    """The rewards of a game, and the consequence of an answer without a legal move.

    reward: called with an event and the seat's return in the game's units. Events: "invalid" for each answer
    without a legal move (return 0), then at the end of the game, once for each seat, "end", "forfeit" or
    "opponent_forfeit"; a forfeit has the return of the worst loss.
    invalid: forfeit = the game is lost at once; random = a random legal move is made instead.
    """

    reward: RewardFunction = reward_with_return
    invalid: Literal["forfeit", "random"] = "forfeit"


@dataclass(frozen=True)
class Episode:
    """A game to be played.

    players: names of the players in seats 0 and 1. seed: of all randomness after the opening. opening_seed:
    of the deal and of up to `max_opening_plies` random moves before the players' own, each count equally
    likely; equal seeds give equal openings. group: index of the opening. random_move_share: probability with
    which a later move, too, is drawn at random in a player's place; it is no turn, so nothing learns from it.
    """

    game: TextGame
    players: tuple[str, str]
    seed: int
    opening_seed: int
    max_opening_plies: int = 0
    group: int = 0
    random_move_share: float = 0.0


@dataclass
class GameInProgress:
    """A game that is being played."""

    episode: Episode
    rules: GameRules
    state: pyspiel.State
    rng: random.Random
    moves: list[Move] = field(default_factory=list)
    turns: tuple[list[Turn], list[Turn]] = field(default_factory=lambda: ([], []))
    forfeit: int | None = None

    @classmethod
    def start(cls, episode: Episode, rules: GameRules) -> "GameInProgress":
        """Deal and make the random moves of the opening, none of which ends the game."""
        opening = random.Random(episode.opening_seed)
        game = cls(episode, rules, episode.game.new_state(), random.Random(episode.seed))
        game.deal(opening)
        for _ in range(opening.randint(0, episode.max_opening_plies)):
            before, num_moves = game.state.clone(), len(game.moves)
            game.move(opening.choice(game.state.legal_actions()), is_random=True)
            game.deal(opening)
            if game.is_over:  # by the move, or by what chance made of it
                game.state = before
                del game.moves[num_moves:]
                break
        game.pass_to_player()
        return game

    def deal(self, rng: random.Random) -> None:
        """Make chance moves until it is a player's turn."""
        while self.state.is_chance_node():
            actions, probabilities = zip(*self.state.chance_outcomes(), strict=True)
            self.state.apply_action(rng.choices(actions, probabilities)[0])

    def pass_to_player(self) -> None:
        """Make chance moves and random ones until a player has to answer."""
        self.deal(self.rng)
        share = self.episode.random_move_share
        while share and not self.is_over and self.rng.random() < share:
            self.move(self.rng.choice(self.state.legal_actions()), is_random=True)
            self.deal(self.rng)

    @property
    def is_over(self) -> bool:
        return self.forfeit is not None or self.state.is_terminal()

    @property
    def seat(self) -> int:
        return int(self.state.current_player())

    def move(self, action: int, *, is_random: bool = False) -> None:
        move = Move(self.seat, action, is_random)
        self.episode.game.apply(self.state, action)  # raises ValueError for an illegal one
        self.moves.append(move)

    def request(self) -> Request:
        game, state = self.episode.game, self.state
        parse = partial(game.parse, state=state)
        return Request(game.prompt(state), tuple(state.legal_actions()), len(self.moves), self.rng, parse)

    def play(self, turn: Turn) -> None:
        """Take the learner's turn."""
        action = turn.action
        if action is None:
            turn = turn._replace(reward=self.rules.reward("invalid", 0.0))
            if self.rules.invalid == "random":
                action = self.rng.choice(self.state.legal_actions())
        self.turns[self.seat].append(turn)
        if action is None:
            self.forfeit = self.seat
        else:
            self.move(action)

    def finish(self) -> FinishedGame:
        """Return the record, with trajectories of the seats in which the learner had a turn."""
        episode = self.episode
        events: list[Event] = ["end", "end"]
        if self.forfeit is not None:
            least = episode.game.game.min_utility()
            returns = (least, -least) if self.forfeit == 0 else (-least, least)
            events = ["opponent_forfeit", "opponent_forfeit"]
            events[self.forfeit] = "forfeit"
        else:
            first, second = self.state.returns()
            returns = (float(first), float(second))
        trajectories = tuple(
            self.trajectory(seat, self.rules.reward(events[seat], returns[seat]))
            for seat in (0, 1)
            if episode.players[seat] == LEARNER and self.turns[seat]
        )
        return FinishedGame(
            game=episode.game.name,
            players=episode.players,
            seed=episode.seed,
            history=tuple(self.state.history()),
            moves=tuple(self.moves),
            returns=returns,
            trajectories=trajectories,
            forfeit=self.forfeit,
        )

    def trajectory(self, seat: int, final_reward: float) -> Trajectory:
        turns, episode = self.turns[seat], self.episode
        if final_reward:
            turns = [*turns[:-1], turns[-1]._replace(reward=turns[-1].reward + final_reward)]
        return Trajectory(
            game=episode.game.name,
            seat=seat,
            role=episode.game.roles[seat],
            turns=tuple(turns),
            reward=sum(turn.reward for turn in turns),
            group=episode.group,
        )


def play_games(
    episodes: Sequence[Episode],
    players: Mapping[str, Player | Opponent],
    *,
    rules: GameRules | None = None,
    num_parallel: int = NUM_PARALLEL,
) -> list[FinishedGame]:
    """Play all episodes, `num_parallel` at a time, and return the games in their order.

    players: by the names in the episodes; KeyError for a missing one. A finished game is replaced by the
    next. Each game has its own random state, so it does not depend on the games played in parallel.
    """
    rules = rules or GameRules()
    finished: dict[int, FinishedGame] = {}
    waiting = iter(enumerate(episodes))
    games: dict[int, GameInProgress] = {}
    while True:
        for index, episode in itertools.islice(waiting, num_parallel - len(games)):
            games[index] = GameInProgress.start(episode, rules)
        if not games:
            return [finished[index] for index in range(len(episodes))]
        advance_games(list(games.values()), players)
        for index, game in list(games.items()):
            if game.is_over:
                finished[index] = game.finish()
                del games[index]


def advance_games(games: Sequence[GameInProgress], players: Mapping[str, Player | Opponent]) -> None:
    """Play one move or answer of each game, in one batch for each player."""
    by_player: dict[str, list[GameInProgress]] = {}
    for game in games:
        if not game.is_over:
            by_player.setdefault(game.episode.players[game.seat], []).append(game)
    for name, waiting in by_player.items():
        player = players[name]
        if isinstance(player, Player):
            turns = player.answer([game.request() for game in waiting])
            for game, turn in zip(waiting, turns, strict=True):
                game.play(turn)
        else:
            actions = player.act([game.state for game in waiting], [game.rng for game in waiting])
            for game, action in zip(waiting, actions, strict=True):
                game.move(action)
        for game in waiting:
            game.pass_to_player()


def self_play_episodes(
    game: TextGame, num_games: int, *, seed: int, max_opening_plies: int = 0, games_per_opening: int = 1,
    random_move_share: float = 0.0,
) -> list[Episode]:  # fmt: skip
    """Return games of the learner against itself; `games_per_opening` consecutive games share an opening."""
    rng = random.Random(seed)
    openings = [rng.getrandbits(48) for _ in range(-(-num_games // games_per_opening))]
    groups = [index // games_per_opening for index in range(num_games)]
    return [
        Episode(
            game, (LEARNER, LEARNER), seed=rng.getrandbits(48), opening_seed=openings[group],
            max_opening_plies=max_opening_plies, group=group, random_move_share=random_move_share,
        )
        for group in groups
    ]  # fmt: skip


def paired_episodes(game: TextGame, opponent: str, num_games: int, *, seed: int) -> list[Episode]:
    """Return games against an opponent; seats alternate, and both play each seed and opening."""
    rng = random.Random(seed)
    seeds, openings = ([rng.getrandbits(48) for _ in range(-(-num_games // 2))] for _ in range(2))
    seats = ((LEARNER, opponent), (opponent, LEARNER))
    return [
        Episode(game, seats[index % 2], seeds[pair], openings[pair], group=pair)
        for index in range(num_games)
        for pair in [index // 2]
    ]

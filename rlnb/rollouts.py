"""Play many games in lockstep: whoever waits for the same player is answered in one batch."""

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import pyspiel

from rlnb.games.opponents import Opponent
from rlnb.games.text_games import TextGame
from rlnb.trajectories import Move, PlayedGame, Player, Problem, Request, Trajectory, Turn

LEARNER = "policy"


@dataclass(frozen=True)
class Rules:
    """What a game is worth, and what becomes of an answer without a legal move.

    reward: returns = the game's own, divided by reward_scale; outcome = 1, 0 or -1 for a win, a draw or a
    loss, whatever the game counts in. max_turns: a game is cut off, as a draw, when the learner is to have a
    turn more than this; 0 = never. invalid: forfeit = the game is lost at once, random = a random
    legal move is made instead, retry = the player is told and asked again, up to `num_retries` times, then it
    has lost. invalid_reward: what each such answer earns. Where rewards are returns, it takes the place of a
    game lost by forfeit, and forfeit_reward is what the other player earns by it (SPIRAL: -1.5 and +0.5);
    where they are outcomes, it comes on top of the loss.
    """

    reward: Literal["returns", "outcome"] = "returns"
    reward_scale: float = 1.0
    max_turns: int = 0
    invalid: Literal["forfeit", "retry", "random"] = "forfeit"
    num_retries: int = 2
    invalid_reward: float = -1.5
    forfeit_reward: float = 0.5


@dataclass(frozen=True)
class Episode:
    """A game that is to be played.

    players: names of those in seat 0 and 1. seed: of everything random in it after the opening.
    opening_seed: of the deal and of `max_opening_plies` or fewer random moves before the players' own, each
    number as likely; equal seeds give equal openings. group: number of the opening.
    """

    game: TextGame
    players: tuple[str, str]
    seed: int
    opening_seed: int
    max_opening_plies: int = 0
    group: int = 0


@dataclass
class Table:
    """A game that is being played."""

    episode: Episode
    rules: Rules
    state: pyspiel.State
    rng: random.Random
    moves: list[Move] = field(default_factory=list)
    turns: tuple[list[Turn], list[Turn]] = field(default_factory=lambda: ([], []))
    num_invalid: int = 0  # in a row, by the player to move
    last_reason: str = ""
    forfeit: int | None = None
    cut_off: tuple[int, float] | None = None  # who was to move, and the value of what was still to be played

    @classmethod
    def opened(cls, episode: Episode, rules: Rules) -> "Table":
        """Dealt, and the random moves of its opening made; none of them ends the game."""
        opening = random.Random(episode.opening_seed)
        table = cls(episode, rules, episode.game.new_state(), random.Random(episode.seed))
        table.deal(opening)
        for _ in range(opening.randint(0, episode.max_opening_plies)):
            action = opening.choice(table.state.legal_actions())
            if table.state.child(action).is_terminal():
                break
            table.move(action, is_opening=True)
            table.deal(opening)
        table.deal(table.rng)
        return table

    def deal(self, source: random.Random) -> None:
        """Let chance move as long as it is its turn."""
        while self.state.is_chance_node():
            actions, shares = zip(*self.state.chance_outcomes(), strict=True)
            self.state.apply_action(source.choices(actions, shares)[0])

    @property
    def is_over(self) -> bool:
        return self.forfeit is not None or self.cut_off is not None or self.state.is_terminal()

    @property
    def seat(self) -> int:
        return int(self.state.current_player())

    def move(self, action: int, *, is_opening: bool = False) -> None:
        self.moves.append(Move(self.seat, action, is_opening))
        self.episode.game.apply(self.state, action)
        self.num_invalid, self.last_reason = 0, ""

    def request(self) -> Request:
        """What the player to move is asked."""
        game, state = self.episode.game, self.state
        prompt = game.prompt(state)
        if self.last_reason:
            prompt = asked_again(prompt, self.last_reason)
        return Request(prompt, tuple(state.legal_actions()), len(self.moves), self.rng, self.parse)

    def parse(self, text: str) -> tuple[int | None, Problem | None]:
        """What an answer means here; why it means nothing is kept for the next request."""
        answer = self.episode.game.parse(text, self.state)
        self.last_reason = answer.reason
        return answer.action, answer.problem

    def play(self, turn: Turn) -> None:
        """Take a player's answer; where it is one too many, its value stands for the rest of the game."""
        seat, rules = self.seat, self.rules
        if rules.max_turns and len(self.turns[seat]) >= rules.max_turns:
            self.cut_off = seat, turn.value
            return
        if turn.action is not None:
            self.turns[seat].append(turn)
            self.move(turn.action)
            return
        self.turns[seat].append(replace(turn, reward=rules.invalid_reward))
        self.num_invalid += 1
        if rules.invalid == "random":
            self.move(self.rng.choice(self.state.legal_actions()))
        elif rules.invalid == "forfeit" or self.num_invalid > rules.num_retries:
            self.forfeit = seat

    def finished(self) -> PlayedGame:
        """The record, with the trajectories of the seats that the learner played and had a turn in."""
        episode, returns = self.episode, (0.0, 0.0)
        if self.forfeit is None:
            if self.cut_off is None:
                first, second = self.state.returns()
                returns = (float(first), float(second))
            rewards = [self.reward(one) for one in returns]
        else:
            least = episode.game.game.min_utility()
            returns = (least, -least) if self.forfeit == 0 else (-least, least)
            # The last turn of the one who forfeits has the reward of its answer already.
            if self.rules.reward == "outcome":
                rewards = [self.reward(one) for one in returns]
            else:
                rewards = [0.0 if seat == self.forfeit else self.rules.forfeit_reward for seat in (0, 1)]
        return PlayedGame(
            game=episode.game.name,
            players=episode.players,
            seed=episode.seed,
            history=tuple(self.state.history()),
            moves=tuple(self.moves),
            returns=returns,
            trajectories=tuple(
                self.trajectory(seat, rewards[seat])
                for seat in (0, 1)
                if episode.players[seat] == LEARNER and self.turns[seat]
            ),
            forfeit=self.forfeit,
            is_cut_off=self.cut_off is not None,
        )

    def reward(self, result: float) -> float:
        """What a seat's return is worth to learn from."""
        if self.rules.reward == "outcome":
            return float((result > 0) - (result < 0))
        return result / self.rules.reward_scale

    def trajectory(self, seat: int, result: float) -> Trajectory:
        turns, episode = self.turns[seat], self.episode
        if result:
            turns = [*turns[:-1], replace(turns[-1], reward=turns[-1].reward + result)]
        return Trajectory(
            game=episode.game.name,
            seat=seat,
            role=episode.game.roles[seat],
            turns=tuple(turns),
            reward=sum(turn.reward for turn in turns),
            opponent=episode.players[1 - seat],
            seed=episode.seed,
            group=episode.group,
            bootstrap=self.bootstrap(seat),
        )

    def bootstrap(self, seat: int) -> float:
        """The value, to a seat, of what a cut-off game still had to come; the game is zero-sum."""
        if self.cut_off is None:
            return 0.0
        mover, value = self.cut_off
        return value if seat == mover else -value


def asked_again(prompt: str, reason: str) -> str:
    """The prompt after an answer that was not valid."""
    return f"{prompt}\n\nYour last answer was not valid: {reason} Answer again."


def play_games(
    episodes: Sequence[Episode],
    players: Mapping[str, Player | Opponent],
    *,
    rules: Rules | None = None,
    num_parallel: int = 256,
    progress: Callable[[int, int], None] | None = None,
) -> list[PlayedGame]:
    """Play all episodes, `num_parallel` at a time, and return the games in their order.

    players: a language model as Player, or an Opponent, by the names in the episodes. A finished game is
    replaced by the next. Each game has its own random state, so that it is the same whatever is played beside
    it. Raises KeyError for a player that is not there. progress: called with (done, all).
    """
    rules = rules or Rules()
    games: list[PlayedGame | None] = [None] * len(episodes)
    waiting = iter(enumerate(episodes))
    tables: dict[int, Table] = {}
    num_done = 0
    while True:
        for number, episode in itertools.islice(waiting, num_parallel - len(tables)):
            tables[number] = Table.opened(episode, rules)
        if not tables:
            return [game for game in games if game is not None]
        step(list(tables.values()), players)
        for number, table in [(number, table) for number, table in tables.items() if table.is_over]:
            games[number] = table.finished()
            del tables[number]
            num_done += 1
        if progress:
            progress(num_done, len(episodes))


def step(tables: Sequence[Table], players: Mapping[str, Player | Opponent]) -> None:
    """One move or answer at each table, gathered by who is to move."""
    by_player: dict[str, list[Table]] = {}
    for table in tables:
        if not table.is_over:
            by_player.setdefault(table.episode.players[table.seat], []).append(table)
    for name, own in by_player.items():
        player = players[name]
        if isinstance(player, Player):
            for table, turn in zip(own, player.answer([table.request() for table in own]), strict=True):
                table.play(turn)
        else:
            actions = player.act([table.state for table in own], [table.rng for table in own])
            for table, action in zip(own, actions, strict=True):
                table.move(action)
        for table in own:
            table.deal(table.rng)


def self_play(
    game: TextGame, count: int, *, seed: int, max_opening_plies: int = 0, games_per_opening: int = 1
) -> list[Episode]:
    """`count` games of the learner against itself; `games_per_opening` in a row share an opening."""
    source = random.Random(seed)
    openings = [source.getrandbits(48) for _ in range(-(-count // games_per_opening))]
    groups = [number // games_per_opening for number in range(count)]
    return [
        Episode(game, (LEARNER, LEARNER), source.getrandbits(48), openings[group], max_opening_plies, group)
        for group in groups
    ]


def against(
    game: TextGame,
    opponent: str,
    count: int,
    *,
    seed: int,
    max_opening_plies: int = 0,
    games_per_opening: int = 2,
) -> list[Episode]:
    """`count` games against one opponent; seats alternate strictly, each seed is played from both seats.

    games_per_opening: even, so that both seats have each opening equally often.
    """
    source = random.Random(seed)
    seeds = [source.getrandbits(48) for _ in range(-(-count // 2))]
    openings = [source.getrandbits(48) for _ in range(-(-count // games_per_opening))]
    seats = ((LEARNER, opponent), (opponent, LEARNER))
    groups = [number // games_per_opening for number in range(count)]
    return [
        Episode(game, seats[number % 2], seeds[number // 2], openings[group], max_opening_plies, group)
        for number, group in enumerate(groups)
    ]

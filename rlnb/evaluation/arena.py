"""How well a policy plays: sampled games from both seats, and exact measures where a game allows them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyspiel

from rlnb.evaluation.compare import Estimate, wilson_interval
from rlnb.evaluation.nash import nash_conv
from rlnb.evaluation.tictactoe import TicTacToeResult, measure_rows, probabilities_by_state
from rlnb.games.opponents import Opponent, best_scores, load_opponent, yardstick
from rlnb.games.text_games import TextGame, load_game
from rlnb.policy.acting import ConstrainedPlayer, Encoder, FreePlayer
from rlnb.policy.actor_critic import ActorCritic
from rlnb.policy.adapters import AdapterValues
from rlnb.rollouts import LEARNER, Rules, against, play_games
from rlnb.trajectories import PlayedGame, Player, Request, Turn

EXACT_GAMES = ("tic_tac_toe", "kuhn_poker", "leduc_poker")  # liar's dice takes seconds a time: `nash_conv`
ARENA_SEED = 2**40  # seeds of training are below
SEATS = ("first", "second")
Weights = Literal["last", "average"]


@dataclass(frozen=True)
class ArenaRow:
    """Games of a policy from one seat against one opponent.

    score: 1 for a win, 0.5 for a draw, 0 for a loss, mean with its Wilson interval. mean_return: in its
    units, chips in poker. random_score: what uniform random play gets at that seat against itself. ceiling:
    the best possible score against this opponent, where it is known. invalid_share: of the policy's answers.
    distinct_share: games with different moves.
    """

    game: str
    opponent: str
    seat: int
    role: str
    acting: str
    greedy: bool
    weights: Weights
    num_games: int
    wins: int
    draws: int
    losses: int
    score: Estimate
    mean_return: float
    random_score: float | None
    ceiling: float | None
    invalid_share: float
    distinct_share: float


def arena_rows(
    games: Sequence[PlayedGame], game: TextGame, *, acting: str, greedy: bool, weights: Weights = "last"
) -> list[ArenaRow]:
    """One row for each seat that the learner had in these games, which are against one opponent."""
    rows = []
    known = yardstick(game)
    for seat in (0, 1):
        own = [played for played in games if played.players[seat] == LEARNER]
        if not own:
            continue
        opponent = own[0].players[1 - seat]
        ceiling = best_scores(game, opponent)
        scores = [played.score(seat) for played in own]
        turns = [turn for played in own for one in played.trajectories for turn in one.turns]
        rows.append(
            ArenaRow(
                game=game.name, opponent=opponent, seat=seat, role=game.roles[seat], acting=acting,
                greedy=greedy, weights=weights, num_games=len(own), wins=scores.count(1.0),
                draws=scores.count(0.5), losses=scores.count(0.0),
                score=wilson_interval(float(np.mean(scores)), len(own)),
                mean_return=float(np.mean([played.returns[seat] for played in own])),
                random_score=known.random_score[seat] if known else None,
                ceiling=ceiling[seat] if ceiling else None,
                invalid_share=sum(turn.problem is not None for turn in turns) / max(1, len(turns)),
                distinct_share=len({played.history for played in own}) / len(own),
            )
        )  # fmt: skip
    return rows


@dataclass(frozen=True)
class WithWeights:
    """A player that answers with other values of the trained weights, such as a former checkpoint's."""

    player: Player
    values: AdapterValues
    actor: ActorCritic

    def answer(self, requests: Sequence[Request]) -> list[Turn]:
        with self.values.at_work(self.actor.policy):
            return self.player.answer(requests)


@dataclass(frozen=True)
class Arena:
    """Who is measured, at which game: the actor with the weights that it has when it is asked.

    Games begin at the beginning, with the same seeds at every evaluation, which are never those of training.
    """

    actor: ActorCritic
    encoder: Encoder
    game: TextGame
    rules: Rules
    params: Any

    def constrained(self, *, greedy: bool = False) -> ConstrainedPlayer:
        return ConstrainedPlayer(
            self.actor, self.encoder, temperature=self.params.game.temperature, greedy=greedy,
            memo=self.params.training.prompt_memo, max_tokens_per_pass=self.params.training.tokens_per_pass,
        )  # fmt: skip

    def free(self, *, greedy: bool = False) -> FreePlayer:
        asked = self.params.game
        return FreePlayer(
            self.actor, self.encoder, temperature=0.0 if greedy else asked.temperature,
            max_new_tokens=asked.max_new_tokens, batch_size=asked.batch_size,
            max_tokens_per_pass=self.params.training.tokens_per_pass,
        )  # fmt: skip

    def player(self, acting: str, *, greedy: bool = False) -> Player:
        return self.constrained(greedy=greedy) if acting == "constrained" else self.free(greedy=greedy)

    def probabilities(self, states: Sequence[pyspiel.State]) -> list[np.ndarray]:
        """Of the legal actions of each state, in their order: exact, at the temperature of play."""
        return self.constrained().probabilities(
            [self.game.prompt(state) for state in states], [tuple(state.legal_actions()) for state in states]
        )

    @property
    def can_be_exact(self) -> bool:
        return bool(self.params.evaluation.exact) and is_exact(self.game)

    def exact(self) -> dict[str, float]:
        """Measures without sampling, by their names in METRICS without "exact/"; none for most games."""
        if not self.can_be_exact:
            return {}
        if self.game.short_name != "tic_tac_toe":
            return {"nash_conv": nash_conv(self.game.game, self.probabilities)}
        rows = probabilities_by_state(self.probabilities)
        return tictactoe_metrics(measure_rows(rows, greedy=False), measure_rows(rows, greedy=True))

    def against(
        self,
        opponents: Mapping[str, Player | Opponent],
        *,
        num_games: int,
        acting: str,
        greedy: bool = False,
        weights: Weights = "last",
        progress: Callable[[int, int], None] | None = None,
    ) -> list[ArenaRow]:
        """`num_games` against each opponent, half of them from each seat."""
        rows: list[ArenaRow] = []
        for number, (name, opponent) in enumerate(opponents.items()):
            games = self.games_against(name, opponent, num_games, acting=acting, greedy=greedy)
            rows += arena_rows(games, self.game, acting=acting, greedy=greedy, weights=weights)
            if progress:
                progress(number + 1, len(opponents))
        return rows

    def games_against(
        self, name: str, opponent: Player | Opponent, num_games: int, *, acting: str, greedy: bool = False
    ) -> list[PlayedGame]:
        """Seats alternate, each seed is played from both; the same seeds whoever plays: games pair."""
        episodes = against(self.game, name, num_games, seed=ARENA_SEED + self.params.seed)
        players = {LEARNER: self.player(acting, greedy=greedy), name: opponent}
        return play_games(episodes, players, rules=self.rules, num_parallel=self.params.game.num_parallel)

    def opponents(self) -> dict[str, Player | Opponent]:
        """Those of `evaluation.opponents`; a directory is a checkpoint's weights, by the directory's name."""
        found: dict[str, Player | Opponent] = {}
        for name in self.params.evaluation.opponents:
            if not Path(name).is_dir():
                found[name] = load_opponent(name, self.game, field="evaluation.opponents")
                continue
            values = AdapterValues.of(self.actor.policy)
            values.load_trained(name)
            player = self.player(self.params.game.acting)
            found[Path(name).name] = WithWeights(player, values, self.actor)
        return found

    def measure(self, average: AdapterValues, *, num_games: int) -> dict[str, float]:
        """Metrics of an evaluation: exact ones of the last and of the averaged weights, and sampled games."""
        found = {f"exact/{name}": value for name, value in self.exact().items()}
        with average.at_work(self.actor.policy):
            found |= {f"exact/average/{name}": value for name, value in self.exact().items()}
        return found | arena_metrics(self.rows_as_trained(average, num_games=num_games))

    def rows_as_trained(self, average: AdapterValues, *, num_games: int) -> list[ArenaRow]:
        """Sampled games in the way of training, of the last and of the averaged weights."""
        acting, opponents = self.params.game.acting, self.opponents()
        rows = self.against(opponents, num_games=num_games, acting=acting)
        with average.at_work(self.actor.policy):
            return rows + self.against(opponents, num_games=num_games, acting=acting, weights="average")

    def cross_play(self, values: Mapping[str, AdapterValues], *, num_games: int) -> np.ndarray:
        """float (len(values), len(values)): the mean score of the row's weights against the column's."""
        acting = self.params.game.acting
        scores = np.full((len(values), len(values)), 0.5)
        for row, own in enumerate(values.values()):
            for column, (name, other) in enumerate(values.items()):
                if row < column:
                    episodes = against(self.game, name, num_games, seed=ARENA_SEED + self.params.seed)
                    players = {
                        LEARNER: WithWeights(self.player(acting), own, self.actor),
                        name: WithWeights(self.player(acting), other, self.actor),
                    }
                    games = play_games(
                        episodes, players, rules=self.rules, num_parallel=self.params.game.num_parallel
                    )
                    mean = float(np.mean([one.score(one.players.index(LEARNER)) for one in games]))
                    scores[row, column], scores[column, row] = mean, 1 - mean
        return scores


def is_exact(game: TextGame) -> bool:
    """Whether the game is one of EXACT_GAMES, with OpenSpiel's own parameters."""
    return game.short_name in EXACT_GAMES and (
        load_game(game.short_name).game.get_parameters() == game.game.get_parameters()
    )


def arena_metrics(rows: Sequence[ArenaRow]) -> dict[str, float]:
    """{"arena/random/first_score": 0.7, "arena/random/average_first_score": 0.8, ...}."""
    prefixes = {"last": "", "average": "average_"}
    found = {
        f"arena/{row.opponent}/{prefixes[row.weights]}{SEATS[row.seat]}_score": row.score.value
        for row in rows
    }
    for opponent in dict.fromkeys(row.opponent for row in rows if row.weights == "last"):
        shares = [one.invalid_share for one in rows if one.opponent == opponent and one.weights == "last"]
        found[f"arena/{opponent}/invalid_share"] = sum(shares) / len(shares)
    return found


def tictactoe_metrics(sampled: TicTacToeResult, greedy: TicTacToeResult) -> dict[str, float]:
    """The figures of the curve, sampled and greedy, by seat."""
    found = {"nash_conv": sampled.nash_conv, "self_play_draw": sampled.self_play_draw}
    for seat, name in enumerate(SEATS):
        found |= {
            f"loss_{name}": sampled.seats[seat].loss,
            f"greedy_loss_{name}": greedy.seats[seat].loss,
            f"random_score_{name}": sampled.seats[seat].score_against_random,
            f"best_response_{name}": sampled.seats[seat].best_response_value,
            f"greedy_best_response_{name}": greedy.seats[seat].best_response_value,
            f"blunder_{name}": sampled.seats[seat].blunder_rate,
        }
    return found

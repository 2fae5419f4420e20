"""How well a policy plays: matches from both seats, and exact measures of small games.

Matches begin at the start of the game. Their seeds are the same at every evaluation and differ from those of
training, so that games of two evaluations, or of two policies, pair.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pyspiel

from rlnb.evaluations import measure_once
from rlnb.games.exact import TicTacToeResult, measure_rows, nash_conv, probabilities_by_state
from rlnb.games.opponent_names import USUAL_SIMULATIONS, count_simulations, opponent_kind
from rlnb.games.opponents import best_scores, has_usual_parameters, load_opponent, yardstick
from rlnb.games.text_games import TextGame, load_game
from rlnb.policy.adapters import WeightSnapshot
from rlnb.policy.loading import Policy
from rlnb.run.health import CUT_MOVES, INVALID_MOVES, MAX_CUT_SHARE, MAX_INVALID_SHARE
from rlnb.selfplay.acting import ActorCritic, ConstrainedPlayer, FreePlayer, make_encoder
from rlnb.selfplay.params import GameRunParams
from rlnb.selfplay.rollouts import (
    LEARNER,
    FinishedGame,
    GameRules,
    Player,
    collect_trajectories,
    collect_turns,
    paired_episodes,
    play_games,
)
from rlnb.statistics import Estimate, wilson_interval

EXACT_GAMES = ("tic_tac_toe", "kuhn_poker", "leduc_poker")  # liar's dice takes seconds each time
ARENA_SEED = 2**40  # training uses smaller seeds
SEATS = ("first", "second")
# Games of random play against an opponent; 20 games of othello against mcts:25 take three seconds.
NUM_GAMES, NUM_LONG_GAMES = 400, 20
LONG_GAME = 100  # moves at most; games that may be longer are played less often


@dataclass(frozen=True)
class Match:
    """Games of a policy from one seat against one opponent, played with one set of weights.

    weights: "last" or "average". scores: of each game in the order of the seeds, 1
    for a win, 0.5 for a draw, 0 for a loss. score: their mean with its Wilson interval. mean_return: in the
    game's units. random_score: that of random play in this seat, ceiling: the best possible one,
    both against this opponent and None where they are not known. distinct_share: of games that differ.
    cut_share: of answers that the limit of tokens cut, which are invalid.
    """

    game: str
    opponent: str
    seat: int
    role: str
    weights: str
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
    scores: tuple[float, ...] = ()
    cut_share: float = 0.0


@dataclass(frozen=True)
class ArenaEvaluation:
    """What one evaluation measures.

    rows: all matches. exact: the exact results of tic-tac-toe by way to play ("sampled", "greedy", and
    "average, sampled" for averaged weights), empty for other games. metrics: for metrics.jsonl.
    """

    rows: tuple[Match, ...]
    exact: Mapping[str, TicTacToeResult]
    metrics: Mapping[str, float]


@dataclass
class Arena:
    """A policy with the games and opponents by which it is measured; it answers as in training.

    params: of the run. opponents: each game with the names of its opponents. has_value: whether its actor has
    a value head. names_games: whether metrics begin with the name of the game. Raises PolicyUnavailable for a
    model whose logits cannot be read.
    """

    policy: Policy
    params: GameRunParams
    rules: GameRules
    opponents: Sequence[tuple[TextGame, tuple[str, ...]]]
    _: KW_ONLY
    has_value: bool
    names_games: bool = False

    def __post_init__(self) -> None:
        self.actor = ActorCritic(self.policy, has_value=self.has_value)
        self.actor.check_logits()
        self.encoder = make_encoder(self.params.game, self.policy.chat)

    def player(self) -> Player:
        """Return a player with the policy's present weights, which answers as `game.acting` says."""
        game = self.params.game
        if game.acting == "constrained":
            return self.constrained()
        return FreePlayer(
            self.actor, self.encoder, game.temperature, game.max_new_tokens, game.batch_size,
            self.params.training.tokens_per_pass,
        )  # fmt: skip

    def constrained(self) -> ConstrainedPlayer:
        """Return a player with the policy's present weights that samples among the legal moves."""
        return ConstrainedPlayer(
            self.actor, self.encoder, self.params.game.temperature, self.params.training.tokens_per_pass
        )  # fmt: skip

    def probabilities(self, game: TextGame, states: Sequence[pyspiel.State]) -> list[np.ndarray]:
        """Return the exact probabilities of each state's legal actions at the temperature of play."""
        return self.constrained().probabilities(
            [game.prompt(state) for state in states], [tuple(state.legal_actions()) for state in states]
        )

    def using(self, snapshot: WeightSnapshot | None) -> AbstractContextManager[None]:
        """Return a context in which the policy has these weights; None for its present ones."""
        return snapshot.applied_to(self.policy) if snapshot else nullcontext()

    def play_match(self, game: TextGame, opponent: str, *, num_games: int, weights: str) -> list[Match]:
        """Return the matches of both seats against one opponent. weights: the name of the present ones."""
        other = load_opponent(opponent, game, field="evaluation.opponents")
        episodes = paired_episodes(game, opponent, num_games, seed=ARENA_SEED + self.params.seed)
        games = play_games(episodes, {LEARNER: self.player(), opponent: other}, rules=self.rules)
        return summarise_matches(games, game, weights=weights)

    def measure(
        self,
        average: WeightSnapshot,
        *,
        num_games: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> ArenaEvaluation:
        """Return the evaluation of the present weights and of their average.

        Both play as in training, and are measured exactly where the game and the answers allow it; before a
        training, where they are the same, once. num_games: against each opponent in each game, half of them
        from each seat.
        """
        is_same = average.equals_weights_of(self.policy)
        snapshots = {"last": None} if is_same else {"last": None, "average": average}
        pairs = [
            (weights, game, name) for weights in snapshots for game, names in self.opponents for name in names
        ]
        rows: list[Match] = []
        for num_done, (weights, game, name) in enumerate(pairs, start=1):
            with self.using(snapshots[weights]):
                rows += self.play_match(game, name, num_games=num_games, weights=weights)
            if progress:
                progress(num_done, len(pairs))
        if is_same:
            rows += [replace(row, weights="average") for row in rows]
        exact, metrics = self.measure_exactly(average)
        for game, _ in self.opponents:
            for name, value in match_metrics(select_matches(rows, game=game.name)).items():
                metrics[f"{game.name}/{name}" if self.names_games else name] = value
        return ArenaEvaluation(tuple(rows), exact, metrics)

    def measure_once(
        self,
        average: WeightSnapshot,
        label: str,
        *,
        num_games: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> ArenaEvaluation:
        """Return `measure`, kept in arena_<label>.json of the run; see `rlnb.evaluations.measure_once`.

        label: "before", "step-20" or "after".
        """
        params = self.params
        return measure_once(
            Path(params.output_dir, f"arena_{label}.json"),
            lambda: self.measure(average, num_games=num_games, progress=progress),
            kind=ArenaEvaluation,
            policy=self.policy,
            snapshots=[average],
            params=params,
            settings={
                **params.model_dump(mode="json", include={"seed", "model", "game"}),
                "opponents": [(game.name, names) for game, names in self.opponents],
                "exact": params.evaluation.exact,
                "num_games": num_games,
            },
            warn=lambda played: describe_answers(played.rows),
        )

    def measure_exactly(self, average: WeightSnapshot) -> tuple[dict[str, TicTacToeResult], dict[str, float]]:
        """Return tic-tac-toe's results by way to play, and the metrics of all games with exact measures.

        Answers in free text have none: the probability of an id as first token is not that of the move.
        """
        exact: dict[str, TicTacToeResult] = {}
        metrics: dict[str, float] = {}
        games = [game for game, _ in self.opponents if is_exact(game)]
        is_measured = self.params.evaluation.exact and self.params.game.acting == "constrained"
        is_same = average.equals_weights_of(self.policy)
        for game in games if is_measured else []:
            for snapshot, infix, prefix in ((None, "", ""), (average, "average/", "average, ")):
                if snapshot is None or not is_same:
                    with self.using(snapshot):
                        values, results = exact_measures(game, partial(self.probabilities, game))
                exact |= {f"{prefix}{way}": result for way, result in results.items()}
                start = f"{game.name}/" if self.names_games else ""
                metrics |= {f"{start}exact/{infix}{name}": value for name, value in values.items()}
        return exact, metrics


def summarise_matches(games: Sequence[FinishedGame], game: TextGame, *, weights: str = "last") -> list[Match]:
    """Summarise games against one opponent: a match for each seat that the learner took."""
    rows = []
    for seat in (0, 1):
        seat_games = [played for played in games if played.players[seat] == LEARNER]
        if not seat_games:
            continue
        opponent = seat_games[0].players[1 - seat]
        ceiling = best_scores(game, opponent)
        random_scores = score_random_play(game, opponent)
        scores = tuple(played.score(seat) for played in seat_games)
        turns = collect_turns(collect_trajectories(seat_games))
        match = Match(
            game=game.name, opponent=opponent, seat=seat, role=game.roles[seat], weights=weights,
            num_games=len(seat_games), wins=scores.count(1.0),
            draws=scores.count(0.5), losses=scores.count(0.0),
            score=wilson_interval(float(np.mean(scores)), len(scores)),
            mean_return=float(np.mean([played.returns[seat] for played in seat_games])),
            random_score=random_scores[seat] if random_scores else None,
            ceiling=ceiling[seat] if ceiling else None,
            invalid_share=sum(turn.problem is not None for turn in turns) / max(1, len(turns)),
            distinct_share=len({played.history for played in seat_games}) / len(seat_games),
            scores=scores,
            cut_share=sum(turn.problem == "cut" for turn in turns) / max(1, len(turns)),
        )  # fmt: skip
        rows.append(match)
    return rows


def score_random_play(game: TextGame, opponent: str) -> tuple[float, float] | None:
    """Return the scores (1, 0.5, 0) of uniformly random play in (seat 0, seat 1) against an opponent.

    They are exact where `yardstick` knows them, else the means of games with fixed seeds. None: against
    itself in a game that `yardstick` does not know; by symmetry the mean of both seats is a half. MCTS with
    more than USUAL_SIMULATIONS simulations is taken for MCTS with that many, since a game against it may take
    hours: random play scores no more against more of them.
    """
    if known := yardstick(game, opponent):
        return known.random_score
    if opponent == "random":
        return None
    if opponent_kind(opponent) == "mcts":
        opponent = f"mcts:{min(count_simulations(opponent), USUAL_SIMULATIONS)}"
    return play_at_random(game.name, opponent)


@cache
def play_at_random(name: str, opponent: str) -> tuple[float, float]:
    """Play random play against the opponent, half of the games from each seat."""
    game = load_game(name)
    num_games = NUM_GAMES if game.game.max_game_length() <= LONG_GAME else NUM_LONG_GAMES
    episodes = paired_episodes(game, opponent, num_games, seed=0)
    players = {LEARNER: load_opponent("random", game), opponent: load_opponent(opponent, game)}
    games = play_games(episodes, players)
    first, second = (
        sum(played.score(seat) for played in games if played.players[seat] == LEARNER) / (num_games // 2)
        for seat in (0, 1)
    )
    return first, second


def describe_answers(rows: Sequence[Match]) -> list[str]:
    """Return warnings about invalid and cut answers in these matches, a line each."""
    invalid, cut = np.mean([(row.invalid_share, row.cut_share) for row in rows] or [(0.0, 0.0)], axis=0)
    lines = [f"warning: {invalid:.0%} {INVALID_MOVES}"] if invalid > MAX_INVALID_SHARE else []
    return [*lines, f"warning: {cut:.0%} {CUT_MOVES}"] if cut > MAX_CUT_SHARE else lines


def select_matches(rows: Sequence[Match], **fields: object) -> list[Match]:
    """Return the matches whose fields have these values."""
    return [row for row in rows if all(getattr(row, name) == value for name, value in fields.items())]


def match_measures(rows: Sequence[Match]) -> dict[str, dict[str, dict[str, float]]]:
    """Return scores for `rlnb.results.compare`: {weights: {game and opponent: {pair of games: mean score}}}.

    A pair is a seed played from both seats; its two games depend on each other, so it counts as one item.
    """
    scores: dict[tuple[str, str], list[tuple[float, ...]]] = defaultdict(list)
    for row in rows:
        scores[f"score, {row.weights} weights", f"{row.game} against {row.opponent}"].append(row.scores)
    measures: dict[str, dict[str, dict[str, float]]] = defaultdict(dict)
    for (measure, split), seats in scores.items():
        means = np.mean(seats, axis=0).tolist()
        measures[measure][split] = {f"pair {index}": mean for index, mean in enumerate(means)}
    return dict(measures)


def match_metrics(rows: Sequence[Match]) -> dict[str, float]:
    """Return {"arena/random/first_score": 0.7, "arena/random/average_first_score": 0.8, ...}."""
    metrics: dict[str, float] = {}
    shares: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        prefix = "average_" if row.weights == "average" else ""
        metrics[f"arena/{row.opponent}/{prefix}{SEATS[row.seat]}_score"] = row.score.value
        if row.weights == "last":
            shares[f"arena/{row.opponent}/invalid_share"].append(row.invalid_share)
            shares[f"arena/{row.opponent}/cut_share"].append(row.cut_share)
    return metrics | {name: sum(values) / len(values) for name, values in shares.items()}


def is_exact(game: TextGame) -> bool:
    """Return whether the game is one of EXACT_GAMES with OpenSpiel's default parameters."""
    return game.short_name in EXACT_GAMES and has_usual_parameters(game)


def exact_measures(
    game: TextGame, probabilities: Callable[[Sequence[pyspiel.State]], list[np.ndarray]]
) -> tuple[dict[str, float], dict[str, TicTacToeResult]]:
    """Return measures without sampling by name, and tic-tac-toe's results, sampled and greedy."""
    if game.short_name != "tic_tac_toe":
        return {"nash_conv": nash_conv(game.game, probabilities)}, {}
    rows = probabilities_by_state(probabilities)
    sampled, greedy = measure_rows(rows, greedy=False), measure_rows(rows, greedy=True)
    measures = {"nash_conv": sampled.nash_conv, "self_play_draw": sampled.self_play_draw}
    for name, seat, greedy_seat in zip(SEATS, sampled.seats, greedy.seats, strict=True):
        measures |= {
            f"loss_{name}": seat.loss,
            f"greedy_loss_{name}": greedy_seat.loss,
            f"random_score_{name}": seat.score_against_random,
            f"best_response_{name}": seat.best_response_value,
            f"greedy_best_response_{name}": greedy_seat.best_response_value,
            f"blunder_{name}": seat.blunder_rate,
        }
    return measures, {"sampled": sampled, "greedy": greedy}

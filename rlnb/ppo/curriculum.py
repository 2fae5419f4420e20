"""The curriculum: stages of games and opponents, the games to play next, the end of a stage, failure replay.

A stage ends by the mean score of its own fresh games. Replays are selected failures, and games of earlier
stages are easier, so neither counts. Of a lost game only the task is kept, and the weights of today play it:
PPO learns from its own play. All functions are pure: the next games follow from state and seed, so ranks that
get the same results in the same order choose the same games.
"""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import starmap
from typing import NamedTuple

import numpy as np

from rlnb.errors import ParamsError
from rlnb.games.opponents import Opponent, best_scores, load_opponent
from rlnb.games.text_games import TextGame
from rlnb.ppo.params import CurriculumParams, PpoOpenspielParams
from rlnb.selfplay.arena import Match, score_random_play, select_matches
from rlnb.selfplay.rollouts import LEARNER, Episode, FinishedGame, paired_episodes
from rlnb.statistics import Estimate, wilson_interval

FIELD = "curriculum.stages"
DECAY = 0.99  # a matchup's mean score covers about the last 1 / (1 - DECAY) of its games
SUCCESS_SCORE = 0.5  # a game counts as a success from this score on: a draw
EARLIER_SHARE = 0.15  # of the fresh games that are of earlier stages
MAX_TRIES = 4  # a failure is dropped when it is won, or played again this often
CAPACITY = 1000  # failures that the replay buffer keeps
MAX_GAME_SHARE = 0.5  # of the replay buffer that failures of one game may take
LEAST_DEFICIT = 0.01  # weight of a failure that was no worse than usual: it is drawn, but seldom


class Pairing(NamedTuple):
    game: TextGame
    opponent: str


@dataclass(frozen=True)
class Curriculum:
    """The stages with their games loaded. pairings: of each stage."""

    params: CurriculumParams
    pairings: tuple[tuple[Pairing, ...], ...]

    @property
    def games(self) -> dict[str, TextGame]:
        """All games, by OpenSpiel's names."""
        return {game.name: game for stage_pairings in self.pairings for game, _ in stage_pairings}


def load_curriculum(params: PpoOpenspielParams) -> Curriculum:
    """Return the curriculum with its games loaded, without any model.

    Raises ParamsError for an unknown game or opponent, for a game that none of its opponents can play, and
    for a threshold above the known ceiling of its stage.
    """
    pairings = tuple(tuple(starmap(Pairing, stage)) for stage in params.load_games())
    for stage, stage_pairings in zip(params.curriculum.stages, pairings, strict=True):
        if stage.threshold > (highest := score_ceiling(stage_pairings)):
            raise ParamsError(
                f"{FIELD}: stage {stage.name!r}: threshold = {stage.threshold} is above {highest:.4f}, the "
                "highest mean score that its games and opponents allow. Write less, or change these."
            )
    return Curriculum(params.curriculum, pairings)


def score_ceiling(pairings: Sequence[Pairing]) -> float:
    """Return the highest mean score over the pairings and both seats; where it is unknown it counts as 1."""
    best = [best_scores(game, opponent) or (1.0, 1.0) for game, opponent in pairings]
    return sum(sum(scores) / 2 for scores in best) / len(best)


def score_of_random_play(pairings: Sequence[Pairing]) -> float:
    """Return random play's mean score over the pairings and both seats."""
    seats = [score_random_play(*pairing) for pairing in pairings]
    return sum(sum(scores) / 2 if scores else 0.5 for scores in seats) / len(seats)


def load_opponents(curriculum: Curriculum) -> dict[str, Opponent]:
    """Return all opponents of all stages by name, as `play_games` takes them."""
    pairings = [pairing for stage in curriculum.pairings for pairing in stage]
    return {name: load_opponent(name, game, field=FIELD) for game, name in pairings}


@dataclass(frozen=True)
class ReplayTask:
    """What is needed to play a game again.

    game: OpenSpiel's name with parameters. seat: of the learner. opponent: as in the parameters, "mcts:25".
    seed, opening_seed: of the Episode.
    """

    game: str
    seat: int
    opponent: str
    seed: int
    opening_seed: int

    @property
    def matchup(self) -> str:
        """The games that are compared with one another: "kuhn_poker/1/nash"."""
        return f"{self.game}/{self.seat}/{self.opponent}"


class GameResult(NamedTuple):
    """The result of a game. score: 1, 0.5 or 0. is_fresh: not a replay. counts: in the stage's score."""

    task: ReplayTask
    score: float
    is_fresh: bool = True
    counts: bool = True


@dataclass(frozen=True)
class Failure:
    """A lost game.

    deficit: mean score of the matchup's fresh games minus the game's last score, at least 0. num_tries: how
    often it was replayed. first_step: the update of its first loss.
    """

    task: ReplayTask
    deficit: float
    num_tries: int
    first_step: int


@dataclass(frozen=True)
class ReplayBuffer:
    """The failures to be replayed, most recently lost last."""

    failures: tuple[Failure, ...] = ()

    def add(self, failures: Iterable[Failure], *, capacity: int = CAPACITY) -> "ReplayBuffer":
        """Return the buffer with these failures as the most recent ones; the oldest are dropped first."""
        most = max(1, int(capacity * MAX_GAME_SHARE))
        newest_first: list[Failure] = []
        by_game: Counter[str] = Counter()
        for failure in reversed((*self.failures, *failures)):
            if len(newest_first) < capacity and by_game[failure.task.game] < most:
                newest_first.append(failure)
                by_game[failure.task.game] += 1
        return ReplayBuffer(tuple(reversed(newest_first)))

    def draw(self, count: int, rng: random.Random) -> tuple[ReplayTask, ...]:
        """Return `count` different tasks, or all if there are fewer.

        They are drawn one after another, each with a probability in proportion to its deficit among those
        left: the first to arrive in a race of exponential waiting times whose rates are the deficits.
        """
        waits = [rng.expovariate(max(failure.deficit, LEAST_DEFICIT)) for failure in self.failures]
        order = sorted(range(len(waits)), key=waits.__getitem__)
        return tuple(self.failures[index].task for index in order[:count])

    def update(
        self, results: Sequence[GameResult], mean_scores: Mapping[str, float], *, step: int
    ) -> "ReplayBuffer":
        """Return the buffer after an update's fresh games and replays.

        Failures that were no loss now or were replayed MAX_TRIES times are dropped; those lost again become
        the most recent ones, with a new deficit. Lost fresh games are added.
        mean_scores: of fresh games by matchup; KeyError for a missing one.
        """
        kept = {failure.task: failure for failure in self.failures}
        lost = []
        for task, score, is_fresh, _ in results:
            failure = kept.pop(task, None)
            if score >= SUCCESS_SCORE:
                continue
            deficit = max(0.0, mean_scores[task.matchup] - score)
            if failure is None and is_fresh:
                lost.append(Failure(task, deficit, 0, step))
            elif failure is not None and failure.num_tries + 1 < MAX_TRIES:
                lost.append(replace(failure, deficit=deficit, num_tries=failure.num_tries + 1))
        return ReplayBuffer(tuple(kept.values())).add(lost)

    def metrics(self, results: Sequence[GameResult], *, step: int) -> dict[str, float]:
        """Return the buffer's size, the share of replays, and the mean age: updates since the first loss."""
        ages = [step - failure.first_step for failure in self.failures]
        num_replayed = sum(not result.is_fresh for result in results)
        return {
            "play/replay_size": float(len(self.failures)),
            "play/replay_share": num_replayed / len(results) if results else float("nan"),
            "play/replay_age": sum(ages) / len(ages) if ages else float("nan"),
        }


def num_replays(num_games: int, share: float, num_failures: int, rng: random.Random) -> int:
    """Return how many of an update's games are replays: even, on average `share * num_games`."""
    return 2 * min(round_randomly(share * num_games / 2, rng), num_failures // 2)


def round_randomly(value: float, rng: random.Random) -> int:
    """Return one of the two neighbouring integers, so that the mean is the value itself."""
    return int(value + rng.random())


@dataclass(frozen=True)
class MeanScore:
    """A matchup's mean score over fresh games, each weighted DECAY times the next."""

    value: float = 0.0
    num_games: int = 0

    def add(self, score: float) -> "MeanScore":
        share = (1 - DECAY) / (1 - DECAY ** (self.num_games + 1))
        return MeanScore(self.value + (score - self.value) * share, self.num_games + 1)


@dataclass(frozen=True)
class CurriculumState:
    """The progress of a run in its curriculum.

    stage: index. scores: of the last `window` games that count. num_episodes: such games since the stage
    began. matchups: by "game/seat/opponent", over all stages.
    """

    stage: int = 0
    scores: tuple[float, ...] = ()
    num_episodes: int = 0
    matchups: dict[str, MeanScore] = field(default_factory=dict)

    @property
    def score(self) -> float:
        """The mean of the window, NaN while it is empty."""
        return sum(self.scores) / len(self.scores) if self.scores else float("nan")

    @property
    def mean_scores(self) -> dict[str, float]:
        return {name: mean.value for name, mean in self.matchups.items()}

    def metrics(self) -> dict[str, float]:
        return {
            "curriculum/stage": float(self.stage + 1),
            "curriculum/score": self.score,
            "curriculum/episodes": float(self.num_episodes),
        }


class Assignment(NamedTuple):
    """A game to be played. is_fresh, counts: as in its GameResult."""

    episode: Episode
    task: ReplayTask
    is_fresh: bool
    counts: bool


def draw_fresh_games(
    state: CurriculumState, curriculum: Curriculum, count: int, *, seed: int
) -> list[Assignment]:
    """Return `count` new games in pairs: the same seeds, from seat 0 and then from seat 1.

    The stage's games take turns, in an order that is shuffled for each round. On average a share of
    EARLIER_SHARE of the pairs is of games of earlier stages, drawn uniformly, which do not count.
    """
    rng = random.Random(seed)
    earlier = [pairing for pairings in curriculum.pairings[: state.stage] for pairing in pairings]
    share = EARLIER_SHARE if earlier else 0.0
    num_earlier = round_randomly(share * count / 2, rng)
    stage, pairings = curriculum.params.stages[state.stage].name, curriculum.pairings[state.stage]
    num_current = count // 2 - num_earlier
    drawn = []
    for turn in range(state.num_episodes // 2, state.num_episodes // 2 + num_current):
        round_index, place = divmod(turn, len(pairings))
        order = random.Random(f"{stage}/{round_index}").sample(range(len(pairings)), len(pairings))
        drawn.append(pairings[order[place]])
    drawn += rng.choices(earlier, k=num_earlier)
    assignments = []
    for pair, (game, opponent) in enumerate(drawn):
        episodes = paired_episodes(game, opponent, 2, seed=rng.getrandbits(40))  # below ARENA_SEED
        for seat, episode in enumerate(episodes):
            task = ReplayTask(game.name, seat, opponent, episode.seed, episode.opening_seed)
            counts = pair < num_current
            assignments.append(Assignment(replace(episode, group=pair), task, is_fresh=True, counts=counts))
    return assignments


def draw_replays(tasks: Iterable[ReplayTask], curriculum: Curriculum, *, seed: int) -> list[Assignment]:
    """Return the same games once more: the same deals and openings, from the same seats.

    seed: of all randomness after the opening, since with the seed of a lost game the learner would draw the
    moves that lost. Groups are negative: no fresh game shares the opening.
    """
    games, rng = curriculum.games, random.Random(seed)
    assignments = []
    for index, task in enumerate(tasks):
        players = (LEARNER, task.opponent) if task.seat == 0 else (task.opponent, LEARNER)
        episode = Episode(games[task.game], players, rng.getrandbits(48), task.opening_seed, group=-1 - index)
        assignments.append(Assignment(episode, task, is_fresh=False, counts=False))
    return assignments


def collect_results(assignments: Sequence[Assignment], games: Sequence[FinishedGame]) -> list[GameResult]:
    return [
        GameResult(task, game.score(task.seat), is_fresh, counts)
        for (_, task, is_fresh, counts), game in zip(assignments, games, strict=True)
    ]


def advance_curriculum(
    state: CurriculumState, results: Sequence[GameResult], params: CurriculumParams
) -> tuple[CurriculumState, str | None]:
    """Return the state after an update's games, and a line if the stage changed.

    The run advances if the window's mean is at least `threshold`, never before `min_episodes`. A new stage
    begins with an empty window; the mean scores of matchups continue.
    """
    stage, matchups = params.stages[state.stage], dict(state.matchups)
    for task, score, is_fresh, _ in results:
        if is_fresh:
            matchups[task.matchup] = matchups.get(task.matchup, MeanScore()).add(score)
    scores = [result.score for result in results if result.counts]
    state = replace(
        state,
        scores=(*state.scores, *scores)[-stage.window :],
        num_episodes=state.num_episodes + len(scores),
        matchups=matchups,
    )
    is_last = state.stage + 1 == len(params.stages)
    if is_last or state.num_episodes < stage.min_episodes or state.score < stage.threshold:
        return state, None
    line = f"Curriculum Progression: Advanced to stage {state.stage + 2}/{len(params.stages)}"
    return replace(state, stage=state.stage + 1, scores=(), num_episodes=0), line


class StageScore(NamedTuple):
    """The result of a stage after training.

    score: mean over its games and both seats with its 95% interval, of those that were played against the
    stage's opponent; None if none was. random_score: that of random play in them. final_score: the score
    that the stage has to exceed. not_measured: what was not played.
    """

    name: str
    score: Estimate | None
    random_score: float | None
    num_games: int
    final_score: float
    not_measured: tuple[Pairing, ...] = ()

    @property
    def verdict(self) -> str:
        """Return "success" if the whole interval is above both final_score and random play's score."""
        if self.score is None or self.random_score is None:
            return "not measured"
        required = max(self.final_score, self.random_score)
        if self.score.value <= required:
            return "no success"
        return "success" if self.score.low > required else "undecided: play more games"


def score_stages(rows: Sequence[Match], curriculum: Curriculum) -> list[StageScore]:
    """Return the score of each stage; each of its games that was played has the same weight.

    rows: of one set of weights.
    """
    scores = []
    for stage, pairings in zip(curriculum.params.stages, curriculum.pairings, strict=True):
        matches = {each: select_matches(rows, game=each[0].name, opponent=each[1]) for each in pairings}
        played = {pairing: group for pairing, group in matches.items() if group}
        num_games = sum(row.num_games for group in played.values() for row in group)
        score, random_score = None, None
        if played:
            means = [np.mean([row.score.value for row in group]) for group in played.values()]
            score = wilson_interval(float(np.mean(means)), num_games)
            random_score = score_of_random_play(list(played))
        missing = tuple(pairing for pairing in pairings if pairing not in played)
        scores.append(StageScore(stage.name, score, random_score, num_games, stage.final_score, missing))
    return scores

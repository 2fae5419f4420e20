"""The curriculum: stages of games and opponents, the games to play next, and the end of each stage.

A stage ends by the mean score of its own fresh games. Replays are selected failures, and games of earlier
stages are easier, so neither counts. All functions are pure: the next games follow from state and seed.
"""

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pyspiel

from rlnb.errors import ParamsError
from rlnb.games.opponents import Opponent, best_scores, load_opponent, parse_simulations, refusals
from rlnb.games.text_games import TextGame, load_game
from rlnb.ppo.params import CurriculumParams, PpoOpenspielParams, Stage
from rlnb.ppo.replay import GameResult, ReplayTask, round_randomly
from rlnb.selfplay.arena import Match, select_matches
from rlnb.selfplay.rollouts import LEARNER, Episode, FinishedGame, paired_episodes

FIELD = "curriculum.stages"
DECAY = 0.99  # a matchup's mean score covers about the last 1 / (1 - DECAY) of its games


class Pairing(NamedTuple):
    """A game and its opponent in a stage."""

    game: TextGame
    opponent: str


@dataclass(frozen=True)
class Curriculum:
    """The stages with their games loaded. pairings: of each stage."""

    params: CurriculumParams
    pairings: tuple[tuple[Pairing, ...], ...]
    max_opening_plies: int = 0

    @property
    def games(self) -> dict[str, TextGame]:
        """All games, by OpenSpiel's names."""
        return {game.name: game for stage_pairings in self.pairings for game, _ in stage_pairings}


def load_curriculum(params: PpoOpenspielParams) -> Curriculum:
    """Return the curriculum with its games loaded; takes milliseconds and no model.

    Raises ParamsError for an unknown game or opponent, for a game that none of its opponents can play, and
    for a threshold above the known ceiling of its stage.
    """
    stages, max_opening_plies = params.curriculum.stages, params.game.max_opening_plies
    names = dict.fromkeys(name for stage in stages for name in stage.games)
    games = {name: load_game(name, style=params.game.style, field=FIELD) for name in names}
    pairings = tuple(
        tuple(Pairing(games[name], choose_opponent(games[name], stage)) for name in stage.games)
        for stage in stages
    )
    for stage, stage_pairings in zip(stages, pairings, strict=True):
        check_threshold(stage, stage_pairings, max_opening_plies=max_opening_plies)
    return Curriculum(params.curriculum, pairings, max_opening_plies)


def choose_opponent(game: TextGame, stage: Stage) -> str:
    """Return the first of the stage's opponents that can play the game without cheating.

    Raises ParamsError if none can, and for any unknown name among them.
    """
    reasons = refusals(game)
    refused, able = [], []
    for name in stage.opponents:
        kind, place = name, f"{FIELD}: stage {stage.name!r}: opponent"
        if name.startswith("mcts"):
            kind, _ = "mcts:N", parse_simulations(name, field=place)
        if reasons.get(kind):
            refused.append(f"{name!r}: {reasons[kind]}")
        else:
            load_opponent(name, game, field=place)
            able.append(name)
    if able:
        return able[0]
    usable = " or ".join(repr(kind) for kind, reason in reasons.items() if not reason)
    raise ParamsError(
        f"{FIELD}: stage {stage.name!r}: none of its opponents can play {game.name}: {' '.join(refused)} "
        f"Add {usable} to its opponents, or take the game out."
    )


def check_threshold(stage: Stage, pairings: Sequence[Pairing], *, max_opening_plies: int = 0) -> None:
    """Raise ParamsError if no play reaches the stage's threshold, with the ceiling of each game."""
    ceilings = [score_ceiling(pairing, max_opening_plies=max_opening_plies) for pairing in pairings]
    highest = sum(ceilings) / len(ceilings)
    if stage.threshold <= highest:
        return
    by_game = ", ".join(
        f"{game.name} against {opponent} {round(score, 4)}"
        for (game, opponent), score in zip(pairings, ceilings, strict=True)
    )
    writable = math.floor(highest * 1e4) / 1e4  # rounded up it would be refused again
    raise ParamsError(
        f"{FIELD}: stage {stage.name!r}: threshold = {stage.threshold} is above {writable}, the highest mean "
        f"score over both seats that its games allow ({by_game}). Write less than that, or change its games "
        f"or opponents."
    )


def score_ceiling(pairing: Pairing, *, max_opening_plies: int = 0) -> float:
    """Return the highest possible mean score over both seats; 1 if it is not known.

    Random openings do not raise it against random play. Perfect players and equilibria may inherit a mistake
    from a random opening, and the ceiling after that is not known.
    """
    if max_opening_plies and pairing.opponent != "random":
        return 1.0
    best = best_scores(pairing.game, pairing.opponent)
    return sum(best) / 2 if best else 1.0


@dataclass(frozen=True)
class ByGame:
    """An opponent with one player for each game, by OpenSpiel's text of the game."""

    name: str
    players: Mapping[str, Opponent]

    def act(self, states: Sequence[pyspiel.State], randoms: Sequence[random.Random]) -> list[int]:
        by_game: dict[str, list[int]] = {}
        for index, state in enumerate(states):
            by_game.setdefault(str(state.get_game()), []).append(index)
        actions = [0] * len(states)
        for game, indices in by_game.items():
            chosen = self.players[game].act(
                [states[index] for index in indices], [randoms[index] for index in indices]
            )
            for index, action in zip(indices, chosen, strict=True):
                actions[index] = action
        return actions


def load_opponents(curriculum: Curriculum) -> dict[str, Opponent]:
    """Return all opponents of all stages by name, as `play_games` takes them."""
    players: dict[str, dict[str, Opponent]] = {}
    for game, name in (pairing for stage_pairings in curriculum.pairings for pairing in stage_pairings):
        by_game = players.setdefault(name, {})
        if str(game.game) not in by_game:
            by_game[str(game.game)] = load_opponent(name, game, field=FIELD)
    return {name: ByGame(name, by_game) for name, by_game in players.items()}


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
        """The mean of the window; NaN while it is empty."""
        return sum(self.scores) / len(self.scores) if self.scores else float("nan")

    def share_of_successes(self, least: float) -> float:
        """Return the share of the window's scores that are at least `least`; 1 while it is empty."""
        return sum(score >= least for score in self.scores) / len(self.scores) if self.scores else 1.0

    @property
    def mean_scores(self) -> dict[str, float]:
        """The mean scores of fresh games by matchup, with which failures are compared."""
        return {name: mean.value for name, mean in self.matchups.items()}

    def metrics(self) -> dict[str, float]:
        """Return the stage, counted from 1, and its score and number of games since it began."""
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
    `earlier_share` of the pairs is of games of earlier stages, drawn uniformly, which do not count.
    All ranks compute the games of all ranks and play their share of the pairs. ValueError for an odd count.
    """
    if count % 2:
        raise ValueError(f"{count} games are not pairs")
    rng, stages = random.Random(seed), curriculum.params.stages
    earlier = [
        (stages[index].name, pairing)
        for index in range(state.stage)
        for pairing in curriculum.pairings[index]
    ]
    share = curriculum.params.earlier_share if earlier else 0.0
    num_earlier = round_randomly(share * count / 2, rng)
    stage, pairings = stages[state.stage].name, curriculum.pairings[state.stage]
    first_turn = state.num_episodes // 2
    num_current = count // 2 - num_earlier
    drawn = [(stage, choose_pairing(stage, pairings, first_turn + turn)) for turn in range(num_current)]
    drawn += rng.choices(earlier, k=num_earlier)
    assignments = []
    for pair, (stage, (game, opponent)) in enumerate(drawn):
        episodes = paired_episodes(
            game, opponent, 2, seed=rng.getrandbits(40), max_opening_plies=curriculum.max_opening_plies
        )  # seeds of 40 bits: below ARENA_SEED
        for seat, episode in enumerate(episodes):
            task = ReplayTask(game.name, seat, opponent, episode.seed, episode.opening_seed, stage)
            counts = pair < num_current
            assignments.append(Assignment(replace(episode, group=pair), task, is_fresh=True, counts=counts))
    return assignments


def choose_pairing(stage: str, pairings: Sequence[Pairing], turn: int) -> Pairing:
    """Return the pairing of a turn: each has one turn a round, in an order shuffled for that round."""
    round_index, place = divmod(turn, len(pairings))
    order = random.Random(f"{stage}/{round_index}").sample(range(len(pairings)), len(pairings))
    return pairings[order[place]]


def draw_replays(
    tasks: Iterable[ReplayTask], curriculum: Curriculum, *, seed: int | None
) -> list[Assignment]:
    """Return the same games once more: the same deals and openings, from the same seats.

    seed: of all randomness after the opening. For training it must be new: the learner draws its moves from
    the game's seed, and with the seed of a lost game it would draw the moves that lost. None repeats the game
    exactly, as long as the players are the same.
    Groups are negative, since replays share an opening with no fresh game. KeyError for an unknown game.
    """
    games, rng = curriculum.games, None if seed is None else random.Random(seed)
    assignments = []
    for index, task in enumerate(tasks):
        players = (LEARNER, task.opponent) if task.seat == 0 else (task.opponent, LEARNER)
        game_seed = rng.getrandbits(48) if rng else task.seed
        episode = Episode(
            games[task.game], players, game_seed, task.opening_seed, curriculum.max_opening_plies, -1 - index
        )
        assignments.append(Assignment(episode, task, is_fresh=False, counts=False))
    return assignments


def collect_results(assignments: Sequence[Assignment], games: Sequence[FinishedGame]) -> list[GameResult]:
    """Return the results of the assignments. games: in the same order, as `play_games` returns them."""
    return [
        GameResult(task, game.score(task.seat), is_fresh, counts)
        for (_, task, is_fresh, counts), game in zip(assignments, games, strict=True)
    ]


def advance_curriculum(
    state: CurriculumState, results: Sequence[GameResult], params: CurriculumParams
) -> tuple[CurriculumState, str | None]:
    """Return the state after an update's games, and a line if the stage changed.

    The run advances if the window's mean is at least `threshold` and falls back if it is below
    `fall_back_below`, never before `min_episodes`. A new stage begins with an empty window; the mean scores
    of matchups continue.
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
    if state.num_episodes < stage.min_episodes:
        return state, None
    num_stages = len(params.stages)
    if state.score >= stage.threshold and state.stage + 1 < num_stages:
        next_stage, verb = state.stage + 1, "Advanced"
    elif state.score < params.fall_back_below and state.stage > 0:
        next_stage, verb = state.stage - 1, "Fell back"
    else:
        return state, None
    line = f"Curriculum Progression: {verb} to stage {next_stage + 1}/{num_stages}"
    return replace(state, stage=next_stage, scores=(), num_episodes=0), line


class StageScore(NamedTuple):
    """The result of a stage after training.

    score: mean over its games and both seats, NaN if none was played. missing: games of the stage that were
    not played against its opponents. final_score: the score that the stage has to exceed.
    """

    name: str
    score: float
    num_games: int
    final_score: float
    missing: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        if not self.num_games:
            return "not measured"
        if self.missing:
            return f"none: {', '.join(self.missing)} not measured"
        return "success" if self.score > self.final_score else "no success"


def score_stages(rows: Sequence[Match], curriculum: Curriculum) -> list[StageScore]:
    """Return the score of each stage; each of its games has the same weight.

    rows: of one way to act and one set of weights.
    """
    scores = []
    for stage, pairings in zip(curriculum.params.stages, curriculum.pairings, strict=True):
        matches = [select_matches(rows, game=game.name, opponent=name) for game, name in pairings]
        means = [np.mean([row.score.value for row in group]) for group in matches if group]
        missing = tuple(
            f"{game.name} against {opponent}"
            for (game, opponent), group in zip(pairings, matches, strict=True)
            if not group
        )
        num_games = sum(row.num_games for group in matches for row in group)
        mean = float(np.mean(means)) if means else float("nan")
        scores.append(StageScore(stage.name, mean, num_games, stage.final_score, missing))
    return scores

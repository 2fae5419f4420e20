"""Stages of games and opponents: what is played next, and when the next stage begins.

A stage ends by the mean score of its own fresh games. Replays are chosen failures and games of earlier stages
are easier: neither counts. Every function returns a new state, and the next games follow from state and seed.
"""

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pyspiel

from rlnb.errors import ParamsError
from rlnb.games.opponents import Opponent, best_scores, load_opponent, refusals, simulations_of
from rlnb.games.text_games import TextGame, load_game
from rlnb.params.ppo_openspiel import CurriculumParams, PpoOpenspielParams, Stage
from rlnb.rollouts import LEARNER, Episode, against
from rlnb.training.replay import Result, Task, randomly_rounded
from rlnb.trajectories import PlayedGame

FIELD = "curriculum.stages"
# A matchup's mean score looks back over some 1 / (1 - decay) of its games.
DECAY = 0.99


class Pairing(NamedTuple):
    """A game and the opponent that it is played against in a stage."""

    game: TextGame
    opponent: str


@dataclass(frozen=True)
class Curriculum:
    """The stages with their games loaded; `load_curriculum` makes it. pairings: of each stage."""

    params: CurriculumParams
    pairings: tuple[tuple[Pairing, ...], ...]
    max_opening_plies: int = 0

    @property
    def games(self) -> dict[str, TextGame]:
        """All games, by the names that OpenSpiel writes."""
        return {pairing.game.name: pairing.game for own in self.pairings for pairing in own}


def load_curriculum(params: PpoOpenspielParams) -> Curriculum:
    """The curriculum, once all its games load, have an opponent and can be played as well as it asks.

    Takes milliseconds and no model. Raises ParamsError: for a game or an opponent that is none, for a game
    that none of its opponents can play, and for a threshold above the known ceiling of its stage.
    """
    asked, style, max_opening_plies = params.curriculum, params.game.style, params.game.max_opening_plies
    names = dict.fromkeys(name for stage in asked.stages for name in stage.games)
    games = {name: load_game(name, style=style, field=FIELD) for name in names}
    pairings = tuple(
        tuple(Pairing(games[name], opponent_for(games[name], stage)) for name in stage.games)
        for stage in asked.stages
    )
    for stage, own in zip(asked.stages, pairings, strict=True):
        check_threshold(stage, own, max_opening_plies=max_opening_plies)
    return Curriculum(asked, pairings, max_opening_plies)


def opponent_for(game: TextGame, stage: Stage) -> str:
    """The first of the stage's opponents that can play the game without cheating.

    Raises ParamsError where none can, and for names that no game knows, also where an earlier one can play.
    """
    reasons = refusals(game)
    refused, able = [], []
    for name in stage.opponents:
        kind, place = name, f"{FIELD}: stage {stage.name!r}: opponent"
        if name.startswith("mcts"):
            kind, _ = "mcts:N", simulations_of(name, field=place)
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
    """Raise ParamsError where no play reaches the stage's threshold, with what is the most by game."""
    each = [ceiling(pairing, max_opening_plies=max_opening_plies) for pairing in pairings]
    most = sum(each) / len(each)
    if stage.threshold <= most:
        return
    by_game = ", ".join(
        f"{game.name} against {opponent} {round(own, 4)}"
        for (game, opponent), own in zip(pairings, each, strict=True)
    )
    writable = math.floor(most * 1e4) / 1e4  # rounded up it would be refused again
    raise ParamsError(
        f"{FIELD}: stage {stage.name!r}: threshold = {stage.threshold} is above {writable}, the highest mean "
        f"score over both seats that its games allow ({by_game}). Write less than that, or change its games "
        f"or opponents."
    )


def ceiling(pairing: Pairing, *, max_opening_plies: int = 0) -> float:
    """The highest mean score over both seats, as far as it is known; 1 where it is not.

    Random moves of an opening leave the learner no more against random play; perfect play and equilibria
    may begin with a mistake by them, and how much that is worth nobody computed.
    """
    if max_opening_plies and pairing.opponent != "random":
        return 1.0
    best = best_scores(pairing.game, pairing.opponent)
    return sum(best) / 2 if best else 1.0


@dataclass(frozen=True)
class ByGame:
    """An opponent with a player of its own for each game, by OpenSpiel's text of the game."""

    name: str
    players: Mapping[str, Opponent]

    def act(self, states: Sequence[pyspiel.State], randoms: Sequence[random.Random]) -> list[int]:
        by_game: dict[str, list[int]] = {}
        for number, state in enumerate(states):
            by_game.setdefault(str(state.get_game()), []).append(number)
        actions = [0] * len(states)
        for game, numbers in by_game.items():
            chosen = self.players[game].act(
                [states[number] for number in numbers], [randoms[number] for number in numbers]
            )
            for number, action in zip(numbers, chosen, strict=True):
                actions[number] = action
        return actions


def opponents_of(curriculum: Curriculum) -> dict[str, Opponent]:
    """What `play_games` needs beside the learner: all opponents of all stages, by their names."""
    players: dict[str, dict[str, Opponent]] = {}
    for game, name in (pairing for own in curriculum.pairings for pairing in own):
        of_name = players.setdefault(name, {})
        if str(game.game) not in of_name:
            of_name[str(game.game)] = load_opponent(name, game, field=FIELD)
    return {name: ByGame(name, own) for name, own in players.items()}


@dataclass(frozen=True)
class MeanScore:
    """Of a matchup's fresh games, each weighing DECAY times the next; exact from the first game on."""

    value: float = 0.0
    num_games: int = 0

    def after(self, score: float) -> "MeanScore":
        share = (1 - DECAY) / (1 - DECAY ** (self.num_games + 1))
        return MeanScore(self.value + (score - self.value) * share, self.num_games + 1)


@dataclass(frozen=True)
class CurriculumState:
    """Where a run is in its curriculum. `asdict` and `of` take it through JSON.

    stage: index. scores: of the newest `window` games that count. num_episodes: those since the stage began.
    matchups: by "game/seat/opponent", over all stages.
    """

    stage: int = 0
    scores: tuple[float, ...] = ()
    num_episodes: int = 0
    matchups: dict[str, MeanScore] = field(default_factory=dict)

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> "CurriculumState":
        matchups = {name: MeanScore(**one) for name, one in kept["matchups"].items()}
        return cls(**{**kept, "scores": tuple(kept["scores"]), "matchups": matchups})

    @property
    def score(self) -> float:
        """Mean of the window; NaN while it is empty."""
        return sum(self.scores) / len(self.scores) if self.scores else float("nan")

    def share_of_successes(self, least: float) -> float:
        """Of the window's games, those with a score of `least` or more; 1 while it is empty."""
        return sum(one >= least for one in self.scores) / len(self.scores) if self.scores else 1.0

    @property
    def mean_scores(self) -> dict[str, float]:
        """Of fresh games by matchup: what a failure is measured against."""
        return {name: one.value for name, one in self.matchups.items()}

    def metrics(self) -> dict[str, float]:
        """The stage counts from 1; its score and games are those since it began."""
        return {
            "curriculum/stage": float(self.stage + 1),
            "curriculum/score": self.score,
            "curriculum/episodes": float(self.num_episodes),
        }


class Assignment(NamedTuple):
    """A game to be played, and what becomes of its score. is_fresh, counts: as in its Result."""

    episode: Episode
    task: Task
    is_fresh: bool
    counts: bool


def assignment(episode: Episode, stage: str, *, is_fresh: bool, counts: bool) -> Assignment:
    seat = episode.players.index(LEARNER)
    task = Task(episode.game.name, seat, episode.players[1 - seat], episode.seed, episode.opening_seed, stage)
    return Assignment(episode, task, is_fresh, counts)


def fresh_episodes(
    state: CurriculumState, curriculum: Curriculum, count: int, *, seed: int
) -> list[Assignment]:
    """`count` games that were never played, in pairs: the same seeds, from seat 0 and then from seat 1.

    The stage's games take turns, in an order that is shuffled anew for each round. A share of the pairs,
    `earlier_share` in the mean, is of games of earlier stages, each of these as likely, and does not count.
    All ranks ask for the games of all ranks and play their part of the pairs. ValueError for an odd count.
    """
    if count % 2:
        raise ValueError(f"{count} games are not pairs")
    source, stages = random.Random(seed), curriculum.params.stages
    earlier = [
        (stages[number].name, pairing)
        for number in range(state.stage)
        for pairing in curriculum.pairings[number]
    ]
    share = curriculum.params.earlier_share if earlier else 0.0
    num_earlier = randomly_rounded(share * count / 2, source)
    name, own = stages[state.stage].name, curriculum.pairings[state.stage]
    first = state.num_episodes // 2
    turns = [in_turn(name, own, first + number) for number in range(count // 2 - num_earlier)]
    drawn = [(name, pairing) for pairing in turns] + source.choices(earlier, k=num_earlier)
    return [
        assignment(replace(episode, group=pair), stage, is_fresh=True, counts=pair < len(turns))
        for pair, (stage, (game, opponent)) in enumerate(drawn)
        for episode in against(
            game, opponent, 2, seed=source.getrandbits(40), max_opening_plies=curriculum.max_opening_plies
        )
    ]  # seeds of 40 bits: below ARENA_SEED


def in_turn(stage: str, pairings: Sequence[Pairing], number: int) -> Pairing:
    """Whose turn it is in a stage's pair of that number: each once a round, in an order of that round."""
    games_round, place = divmod(number, len(pairings))
    order = random.Random(f"{stage}/{games_round}").sample(range(len(pairings)), len(pairings))
    return pairings[order[place]]


def replayed_episodes(tasks: Iterable[Task], curriculum: Curriculum, *, seed: int | None) -> list[Assignment]:
    """The same games once more: the same deals and openings, from the same seats.

    seed: of all that is random after the opening. To train on replays give one of the update: the learner
    draws its moves from its game's seed, and with that of a lost game it would draw the moves that lost, not
    those of its policy. None: exactly the same game, as long as the players are the same.
    Their groups are negative: they share an opening with no fresh game. KeyError for a game that the
    curriculum has not.
    """
    games, source = curriculum.games, None if seed is None else random.Random(seed)
    found = []
    for number, task in enumerate(tasks):
        players = (LEARNER, task.opponent) if task.seat == 0 else (task.opponent, LEARNER)
        own = source.getrandbits(48) if source else task.seed
        episode = Episode(
            games[task.game], players, own, task.opening_seed, curriculum.max_opening_plies, -1 - number
        )
        found.append(Assignment(episode, task, is_fresh=False, counts=False))
    return found


def results_of(assignments: Sequence[Assignment], games: Sequence[PlayedGame]) -> list[Result]:
    """How the assignments ended. games: in their order, as `play_games` returns them."""
    return [
        Result(task, game.score(task.seat), is_fresh, counts)
        for (_, task, is_fresh, counts), game in zip(assignments, games, strict=True)
    ]


def advance(
    state: CurriculumState, results: Sequence[Result], params: CurriculumParams
) -> tuple[CurriculumState, str | None]:
    """The state after an update's games, and what to say if the stage changed.

    On with `threshold` or more, back with less than `fall_back_below`, as the mean of the window, and never
    before `min_episodes`. A new stage begins with an empty window; mean scores of matchups go on.
    """
    stage, matchups = params.stages[state.stage], dict(state.matchups)
    for task, score, is_fresh, _ in results:
        if is_fresh:
            matchups[task.matchup] = matchups.get(task.matchup, MeanScore()).after(score)
    own = [one.score for one in results if one.counts]
    state = replace(
        state,
        scores=(*state.scores, *own)[-stage.window :],
        num_episodes=state.num_episodes + len(own),
        matchups=matchups,
    )
    if state.num_episodes < stage.min_episodes:
        return state, None
    num_stages = len(params.stages)
    if state.score >= stage.threshold and state.stage + 1 < num_stages:
        number, word = state.stage + 1, "Advanced"
    elif state.score < params.fall_back_below and state.stage > 0:
        number, word = state.stage - 1, "Fell back"
    else:
        return state, None
    said = f"Curriculum Progression: {word} to stage {number + 1}/{num_stages}"
    return replace(state, stage=number, scores=(), num_episodes=0), said

"""What is played in each stage, by whom, and when the next stage begins; on real games."""

import json
from collections import Counter
from dataclasses import asdict, replace

import pytest
from pydantic import TypeAdapter
from pytest import approx
from refusals import refused, with_cell

from rlnb.games.text_games import load_game
from rlnb.params import load_params
from rlnb.ppo.curriculum import (
    CurriculumState,
    GameResult,
    Pairing,
    ReplayTask,
    advance_curriculum,
    draw_fresh_games,
    load_curriculum,
    score_ceiling,
    score_of_random_play,
    score_stages,
)
from rlnb.ppo.display import show_success
from rlnb.ppo.params import PpoOpenspielParams
from rlnb.selfplay.arena import Match
from rlnb.selfplay.rollouts import LEARNER
from rlnb.statistics import Estimate, wilson_interval

EASY = {"name": "easy", "games": ["tic_tac_toe", "nim"], "threshold": 0.6, "window": 10, "min_episodes": 4}
CARDS = {"name": "cards", "games": ["kuhn_poker"], "threshold": 0.5, "window": 10, "min_episodes": 4}
HARD = {
    "name": "hard",
    "games": ["tic_tac_toe", "kuhn_poker", "goofspiel(num_cards=8)"],
    "opponents": ["mcts:2", "nash", "random"],
    "threshold": 0.4,
}


def params(*stages: dict) -> PpoOpenspielParams:
    return PpoOpenspielParams.model_validate({"curriculum": {"stages": stages or (EASY, CARDS, HARD)}})


def curriculum(*stages: dict):
    return load_curriculum(params(*stages))


def results(*scores: float, is_fresh: bool = True, counts: bool = True, seat: int = 0) -> list[GameResult]:
    task = ReplayTask("nim", seat, "random", 1, 2)
    return [GameResult(task, score, is_fresh, counts) for score in scores]


def advanced(state: CurriculumState, games: list[GameResult]):
    return advance_curriculum(state, games, params().curriculum)


def matchups(assignments) -> Counter:
    return Counter(
        (assignment.task.game, assignment.task.opponent, assignment.task.seat) for assignment in assignments
    )


def test_a_stage_ends_when_enough_games_have_the_score_in_the_mean():
    state, said = advanced(CurriculumState(), results(1, 1, 1))
    assert said is None  # three games, min_episodes = 4
    state, said = advanced(state, results(*[0] * 12, *[1] * 5))
    assert (said, state.score, state.num_episodes) == (None, 0.5, 20)  # the newest ten count
    state, said = advanced(state, results(1))
    assert said == "Curriculum Progression: Advanced to stage 2/3"  # 6 / 10, the threshold itself
    assert (state.stage, state.scores, state.num_episodes) == (1, (), 0)
    assert state.mean_scores.keys() == {"nim/0/random"}


@pytest.mark.parametrize("score", [0.0, 1.0])
def test_what_does_not_count_neither_opens_the_gate_nor_holds_it_shut(score):
    """Replays, and games of earlier stages."""
    others = [*results(*[score] * 50, is_fresh=False, counts=False), *results(*[score] * 50, counts=False)]
    state, said = advanced(CurriculumState(), others)
    assert (said, state.scores, state.num_episodes) == (None, (), 0)
    state, _ = advanced(state, results(1, 1))
    _, said = advanced(state, [*others, *results(1, 1)])
    assert said == "Curriculum Progression: Advanced to stage 2/3"


@pytest.mark.parametrize("stage, score", [(2, 1), (1, 0)], ids=["the last goes on", "none falls back"])
def test_a_stage_may_go_on(stage, score):
    state, said = advanced(CurriculumState(stage=stage), results(*[score] * 500))
    assert (said, state.stage, state.num_episodes) == (None, stage, 500)


def test_mean_scores_are_of_each_seat_and_of_fresh_games_only():
    games = [*results(1, 0.5), *results(0, seat=1, counts=False), *results(0, 0, 0, is_fresh=False)]
    state, _ = advanced(CurriculumState(), games)
    # The older game weighs 0.99: (0.99 * 1 + 0.5) / 1.99
    assert state.mean_scores == {"nim/0/random": approx(1.49 / 1.99), "nim/1/random": 0.0}
    assert TypeAdapter(CurriculumState).validate_python(json.loads(json.dumps(asdict(state)))) == state


def test_games_come_in_pairs_with_the_same_seeds_from_both_seats():
    assignments = draw_fresh_games(CurriculumState(), curriculum(), 12, seed=3)
    for first, second in zip(assignments[::2], assignments[1::2], strict=True):
        assert first.episode.players == (LEARNER, "random")
        assert second.task == replace(first.task, seat=1)
        assert second.episode == replace(first.episode, players=("random", LEARNER))
    assert len({(game.task.seed, game.episode.group) for game in assignments}) == 6
    # The first stage has no earlier ones, whatever their share.
    assert all(game.is_fresh and game.counts for game in assignments)
    assert matchups(assignments) == {
        (name, "random", seat): 3 for name in ("tic_tac_toe", "nim") for seat in (0, 1)
    }


def test_every_game_of_a_stage_is_played_equally_often_whatever_the_size_of_an_update():
    course, state, played = curriculum(HARD), CurriculumState(), []
    for seed in range(15):  # 15 updates of 4 pairs are 20 rounds of 3 games
        assignments = draw_fresh_games(state, course, 8, seed=seed)
        played += assignments
        lost = [GameResult(assignment.task, 0.0) for assignment in assignments]
        state, _ = advance_curriculum(state, lost, course.params)
    assert matchups(played) == {
        (game, opponent, seat): 20
        for game, opponent in (
            ("tic_tac_toe", "mcts:2"), ("kuhn_poker", "nash"), ("goofspiel(num_cards=8)", "random")
        )
        for seat in (0, 1)
    }  # fmt: skip
    assert len(state.scores) == 120 == state.num_episodes


def test_a_share_of_pairs_is_of_earlier_stages_and_does_not_count():
    course = curriculum()
    assignments = [
        assignment
        for seed in range(400)
        for assignment in draw_fresh_games(CurriculumState(stage=2), course, 6, seed=seed)
    ]
    earlier = [assignment for assignment in assignments if not assignment.counts]
    assert len(assignments) == 2400
    assert len(earlier) / 2400 == approx(0.15, abs=0.03)
    assert all(assignment.is_fresh for assignment in assignments)
    counts = matchups(earlier)
    assert counts.keys() == {
        (game, "random", seat) for game in ("tic_tac_toe", "nim", "kuhn_poker") for seat in (0, 1)
    }
    assert all(count / len(earlier) == approx(1 / 6, abs=0.05) for count in counts.values()), counts
    assert all(counts[game, name, 0] == counts[game, name, 1] for game, name, _ in counts)


def test_the_defaults_load():
    course = load_curriculum(PpoOpenspielParams())
    assert [len(pairings) for pairings in course.pairings] == [6, 6, 12]


@pytest.mark.parametrize(
    ("stage", "reason"),
    [
        ({"games": ["nim", "kuhn_poker"], "opponents": ["mcts:25"]}, "stage 'easy': none of its opponents"),
        # Half of the games are against perfect play: (0.5 + 1) / 2.
        ({"opponents": ["perfect", "random"], "threshold": 0.8}, "threshold = 0.8 is above 0.7500"),
    ],
)
def test_what_cannot_be_played_is_refused_before_any_model(stage, reason):
    said = refused(curriculum, {**EASY, **stage})
    assert said.startswith("curriculum.stages") and reason in said


def test_two_stages_of_one_name_are_refused():
    assert "curriculum.stages " in refused(
        with_cell, {"curriculum": {"stages": [EASY, EASY]}}, "ppo_openspiel"
    )


def test_a_ceiling_is_the_mean_over_games_and_seats_with_one_where_it_is_unknown():
    perfect = Pairing(load_game("tic_tac_toe"), "perfect")
    kuhn = Pairing(load_game("kuhn_poker"), "random")  # 0.75 and 0.625 from its seats
    assert score_ceiling([perfect, kuhn]) == approx((0.5 + 0.6875) / 2)
    assert score_ceiling([perfect, Pairing(load_game("liars_dice(numdice=2)"), "random")]) == 0.75


def match(game: str, opponent: str, score: float, seat: int = 0, num_games: int = 10) -> Match:
    return Match(
        game=game, opponent=opponent, seat=seat, role="", weights="average",
        num_games=num_games, wins=num_games // 2, draws=0, losses=num_games // 2,
        score=Estimate(score, 0.0, 1.0), mean_return=0.0, random_score=None, ceiling=None,
        invalid_share=0.0, distinct_share=1.0, scores=(0.0, 1.0) * (num_games // 2),
    )  # fmt: skip


def test_the_verdict_on_a_stage_is_by_its_own_games_and_by_intervals():
    easy = {"name": "easy", "games": ["nim"], "threshold": 0.6, "final_score": 0.5}
    both = {**easy, "games": ["nim", "clobber"], "final_score": 0.0}
    course = curriculum(
        easy,
        {**easy, "name": "mcts", "games": ["tic_tac_toe"], "opponents": ["mcts:2"], "final_score": 0.3},
        {**easy, "name": "later", "games": ["clobber"]},
        {**both, "name": "half"},
    )
    rows = [
        match("nim", "random", 0.8, num_games=200), match("nim", "random", 0.4, seat=1, num_games=200),
        match("tic_tac_toe", "mcts:2", 0.4, num_games=2000), match("tic_tac_toe", "random", 0.0),
    ]  # fmt: skip
    scores = score_stages(rows, course)
    assert [(stage.num_games, stage.verdict) for stage in scores] == [
        (400, "success"),
        (2000, "no success"),  # above 0.3 as a whole, but random play has a half
        (0, "not measured"),
        (400, "success"),  # in the game that was played
    ]
    assert [[game.name for game, _ in stage.not_measured] for stage in scores] == [
        [], [], ["clobber"], ["clobber"]
    ]  # fmt: skip
    assert "Not measured in half: clobber against random." in repr(show_success(scores))
    assert scores[0].score == wilson_interval((0.8 + 0.4) / 2, 400)
    few = [match("nim", "random", 0.6), match("nim", "random", 0.6, seat=1)]
    assert score_stages(few, course)[0].verdict == "undecided: play more games"  # 20 games: 0.387 to 0.781


@pytest.mark.parametrize("profile", ["cpu", "embedded", pytest.param("default", marks=pytest.mark.slow)])
def test_no_gate_is_passed_by_random_play(profile):
    """The interval of the games that the window holds is above; the preset `requirements` has one."""
    course = load_curriculum(load_params("ppo_openspiel", profile=profile, environ={}))
    for stage, pairings in zip(course.params.stages, course.pairings, strict=True):
        score_at_gate = wilson_interval(stage.threshold, stage.window)
        assert score_at_gate.low > score_of_random_play(pairings)

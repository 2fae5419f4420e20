"""What is played in each stage, by whom, and when the next one begins; on real games."""

import json
from collections import Counter, defaultdict
from dataclasses import asdict

import pyspiel
import pytest
from pytest import approx

from rlnb.errors import ParamsError
from rlnb.games.opponents import RandomPlayer, best_scores, equilibrium
from rlnb.games.text_games import load_game
from rlnb.params.ppo_openspiel import PpoOpenspielParams
from rlnb.rollouts import LEARNER, play_games
from rlnb.training.curriculum import (
    CurriculumState,
    MeanScore,
    Pairing,
    advance,
    ceiling,
    fresh_episodes,
    load_curriculum,
    opponent_for,
    opponents_of,
    replayed_episodes,
    results_of,
)
from rlnb.training.replay import Result, Task

EASY = {"name": "easy", "games": ["tic_tac_toe", "nim"], "threshold": 0.6, "window": 10, "min_episodes": 4}
CARDS = {"name": "cards", "games": ["kuhn_poker"], "threshold": 0.5, "window": 10, "min_episodes": 4}
HARD = {
    "name": "hard",
    "games": ["tic_tac_toe", "kuhn_poker", "goofspiel(num_cards=8)"],
    "opponents": ["mcts:2", "nash", "random"],
    "threshold": 0.4,
}


def params(*stages: dict, game: dict | None = None, **changes) -> PpoOpenspielParams:
    curriculum = {"stages": stages or (EASY, CARDS, HARD), **changes}
    return PpoOpenspielParams.model_validate({"curriculum": curriculum, "game": game or {}})


def curriculum(*stages: dict, **changes):
    return load_curriculum(params(*stages, **changes))


def results(*scores: float, is_fresh: bool = True, counts: bool = True, seat: int = 0) -> list[Result]:
    task = Task("nim", seat, "random", 1, 2, "easy")
    return [Result(task, score, is_fresh, counts) for score in scores]


def advanced(state: CurriculumState, found: list[Result], **changes):
    return advance(state, found, params(**changes).curriculum)


def matchups(assignments) -> Counter:
    return Counter((one.task.game, one.task.opponent, one.task.seat) for one in assignments)


# When the next stage begins


def test_a_stage_ends_when_enough_games_have_the_score_in_the_mean():
    state, said = advanced(CurriculumState(), results(1, 1, 1))
    assert said is None  # three games, min_episodes = 4
    state, said = advanced(state, results(0, 0))
    assert said == "Curriculum Progression: Advanced to stage 2/3"  # 3 / 5, the threshold itself
    assert (state.stage, state.scores, state.num_episodes) == (1, (), 0)
    assert state.mean_scores.keys() == {"nim/0/random"}


def test_only_the_newest_games_are_in_the_mean():
    state, _ = advanced(CurriculumState(), results(*[0] * 12))
    assert (len(state.scores), state.num_episodes) == (10, 12)
    state, said = advanced(state, results(1, 1, 1, 1, 1))
    assert (said, state.score) == (None, 0.5)  # 5 / 10
    _, said = advanced(state, results(1))
    assert said == "Curriculum Progression: Advanced to stage 2/3"


@pytest.mark.parametrize("kind", [{"is_fresh": False}, {}], ids=["replays", "games of earlier stages"])
@pytest.mark.parametrize("score", [0.0, 1.0])
def test_what_does_not_count_neither_opens_the_gate_nor_holds_it_shut(kind, score):
    others = results(*[score] * 100, counts=False, **kind)
    state, said = advanced(CurriculumState(), others)
    assert (said, state.scores, state.num_episodes) == (None, (), 0)
    state, _ = advanced(state, results(1, 1))
    _, said = advanced(state, [*others, *results(1, 1)])
    assert said == "Curriculum Progression: Advanced to stage 2/3"


def test_the_last_stage_goes_on():
    state, said = advanced(CurriculumState(stage=2), results(*[1] * 500))
    assert (said, state.stage, state.num_episodes, state.score) == (None, 2, 500, 1.0)


def test_nobody_falls_back_unless_that_is_asked_for():
    lost = results(*[0] * 10)
    state, said = advanced(CurriculumState(stage=1), lost)
    assert (said, state.stage) == (None, 1)
    state, said = advanced(CurriculumState(stage=1), lost[:3], fall_back_below=0.2)
    assert (said, state.stage) == (None, 1)  # fewer than min_episodes
    state, said = advanced(CurriculumState(stage=1), lost, fall_back_below=0.2)
    assert said == "Curriculum Progression: Fell back to stage 1/3"
    assert (state.stage, state.scores, state.num_episodes) == (0, (), 0)
    state, said = advanced(CurriculumState(), lost, fall_back_below=0.2)
    assert (said, state.stage) == (None, 0)  # before the first there is none


def test_mean_scores_are_of_each_seat_and_of_fresh_games_only():
    found = [*results(1, 0.5), *results(0, seat=1, counts=False), *results(0, 0, 0, is_fresh=False)]
    state, _ = advanced(CurriculumState(), found)
    # The older game weighs 0.99: (0.99 * 1 + 0.5) / 1.99
    assert state.mean_scores == {"nim/0/random": approx(1.49 / 1.99), "nim/1/random": 0.0}


def test_a_mean_score_is_exact_from_the_start_and_forgets_what_is_long_ago():
    mean = MeanScore()
    for _ in range(3):
        mean = mean.after(0.5)
    assert mean == MeanScore(approx(0.5), 3)
    for _ in range(1000):
        mean = mean.after(1.0)
    assert mean.value == approx(1, abs=1e-4)


def test_a_state_goes_through_json():
    state, _ = advanced(CurriculumState(), [*results(1, 0.5), *results(0, seat=1)])
    assert CurriculumState.of(json.loads(json.dumps(asdict(state)))) == state


def test_metrics_count_stages_from_one():
    state, _ = advanced(CurriculumState(), results(1, 0.5))
    assert state.metrics() == {"curriculum/stage": 1.0, "curriculum/score": 0.75, "curriculum/episodes": 2.0}
    assert CurriculumState(stage=2).metrics() == approx(
        {"curriculum/stage": 3.0, "curriculum/score": float("nan"), "curriculum/episodes": 0.0}, nan_ok=True
    )


# What is played


def test_games_come_in_pairs_with_the_same_seeds_from_both_seats():
    found = fresh_episodes(CurriculumState(), curriculum(earlier_share=0.9), 12, seed=3)
    for first, second in zip(found[::2], found[1::2], strict=True):
        assert first.episode.players == (LEARNER, "random")
        assert second.episode.players == ("random", LEARNER)
        assert (first.task.seat, second.task.seat) == (0, 1)
        assert first.episode.game is second.episode.game
        assert {(one.seed, one.opening_seed, one.group) for one in (first.episode, second.episode)} == {
            (first.task.seed, first.task.opening_seed, first.episode.group)
        }
    assert len({one.task.seed for one in found}) == len({one.episode.group for one in found}) == 6
    # The first stage has no earlier ones, whatever their share.
    assert all(one.is_fresh and one.counts and one.task.stage == "easy" for one in found)
    assert matchups(found) == {
        (game, "random", seat): 3 for game in ("tic_tac_toe", "nim") for seat in (0, 1)
    }


def test_every_game_of_a_stage_is_played_equally_often_whatever_the_size_of_an_update():
    course, state, found = curriculum(earlier_share=0.0), CurriculumState(stage=2), []
    for seed in range(15):  # 15 updates of 4 pairs are 20 rounds of 3 games
        assignments = fresh_episodes(state, course, 8, seed=seed)
        games = play_games(
            [one.episode for one in assignments], {LEARNER: RandomPlayer(), **opponents_of(course)}
        )
        found += assignments
        state, _ = advance(state, results_of(assignments, games), course.params)
    assert matchups(found) == {
        (game, opponent, seat): 20
        for game, opponent in (
            ("tic_tac_toe", "mcts:2"), ("kuhn_poker", "nash"), ("goofspiel(num_cards=8)", "random")
        )
        for seat in (0, 1)
    }  # fmt: skip
    assert len(state.scores) == 120 == state.num_episodes


def test_the_order_of_games_changes_from_round_to_round():
    course = curriculum()
    found = fresh_episodes(CurriculumState(), course, 200, seed=0)
    rounds = Counter(
        tuple(one.task.game for one in found[start : start + 4 : 2]) for start in range(0, 200, 4)
    )
    assert rounds.keys() == {("tic_tac_toe", "nim"), ("nim", "tic_tac_toe")}


def test_a_share_of_pairs_is_of_earlier_stages_and_does_not_count():
    course = curriculum(earlier_share=0.25)
    found = [
        one
        for seed in range(400)
        for one in fresh_episodes(CurriculumState(stage=2), course, 6, seed=seed)  # 0.75 pairs an update
    ]
    earlier = [one for one in found if not one.counts]
    assert len(found) == 2400
    assert len(earlier) / 2400 == approx(0.25, abs=0.03)
    assert all(one.is_fresh for one in found)
    assert {one.task.stage for one in earlier} == {"easy", "cards"}
    assert {one.task.stage for one in found if one.counts} == {"hard"}
    counts = matchups(earlier)
    assert counts.keys() == {
        (game, "random", seat) for game in ("tic_tac_toe", "nim", "kuhn_poker") for seat in (0, 1)
    }
    assert all(number / len(earlier) == approx(1 / 6, abs=0.04) for number in counts.values()), counts
    assert all(counts[game, name, 0] == counts[game, name, 1] for game, name, _ in counts)


def test_games_follow_from_the_seed_and_another_seed_gives_others():
    course = curriculum()
    one, same, other = (
        [found.task for found in fresh_episodes(CurriculumState(stage=2), course, 16, seed=seed)]
        for seed in (5, 5, 6)
    )
    assert one == same
    assert not {task.seed for task in one} & {task.seed for task in other}


def test_an_odd_number_of_games_is_an_error():
    with pytest.raises(ValueError, match=r"^5 games are not pairs$"):
        fresh_episodes(CurriculumState(), curriculum(), 5, seed=0)


def test_a_replayed_task_is_the_same_game_with_the_same_deal_and_moves():
    course = curriculum(game={"max_opening_plies": 2})
    players = {LEARNER: RandomPlayer(), **opponents_of(course)}
    fresh = [
        one
        for stage in range(3)
        for one in fresh_episodes(CurriculumState(stage=stage), course, 12, seed=stage)
    ]
    replays = replayed_episodes([one.task for one in fresh], course, seed=None)
    first, again = (
        play_games([one.episode for one in found], players, num_parallel=num_parallel)
        for found, num_parallel in ((fresh, 256), (replays, 5))
    )
    assert [(one.players, one.history) for one in first] == [(one.players, one.history) for one in again]
    assert not any(one.is_fresh or one.counts for one in replays)
    assert [one.task for one in replays] == [one.task for one in fresh]
    assert max(one.episode.group for one in replays) < 0
    found = results_of(replays, again)
    assert [one.score for one in found] == [
        game.score(one.task.seat) for one, game in zip(fresh, first, strict=True)
    ]
    assert {one.score for one in found} >= {0.0, 1.0}


# Who plays against the learner


def test_mcts_gives_way_to_nash_in_poker_and_to_random_where_no_table_is():
    stage = params().curriculum.stages[2]
    names = ("hex(board_size=5)", "kuhn_poker", "liars_dice", "liars_dice(numdice=2)", "goofspiel")
    assert [opponent_for(load_game(name), stage) for name in names] == [
        "mcts:2", "nash", "nash", "random", "random"
    ]  # fmt: skip


def test_one_opponent_answers_games_of_several_kinds_in_their_order():
    course = curriculum({**EASY, "games": ["tic_tac_toe", "connect_four"], "opponents": ["mcts:50"]})
    assignments = fresh_episodes(CurriculumState(), course, 40, seed=0)
    games = play_games(
        [one.episode for one in assignments], {LEARNER: RandomPlayer(), **opponents_of(course)}
    )
    found = defaultdict(list)
    for one in results_of(assignments, games):
        found[one.task.game].append(one.score)
    assert {game: len(scores) for game, scores in found.items()} == {"tic_tac_toe": 20, "connect_four": 20}
    assert all(sum(scores) / 20 < 0.25 for scores in found.values()), found


# What is refused


def test_the_defaults_load():
    course = load_curriculum(PpoOpenspielParams())
    assert [len(own) for own in course.pairings] == [6, 6, 12]
    assert {pairing.game.name: pairing.opponent for pairing in course.pairings[2]} == {
        "tic_tac_toe": "mcts:25", "connect_four": "mcts:25", "nim": "mcts:25", "kuhn_poker": "nash",
        "breakthrough(columns=6,rows=6)": "mcts:25", "hex(board_size=5)": "mcts:25",
        "leduc_poker": "nash", "liars_dice": "nash", "goofspiel(num_cards=8)": "random",
        "othello": "mcts:25", "clobber": "mcts:25", "dots_and_boxes": "mcts:25",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (
            {"games": ["conect_four"]},
            "curriculum.stages = 'conect_four' is no game of OpenSpiel; did you mean connect_four?",
        ),
        (
            {"games": ["nim", "kuhn_poker"], "opponents": ["mcts:25"]},
            "curriculum.stages: stage 'easy': none of its opponents can play kuhn_poker: 'mcts:25': "
            "MCTS sees the other player's card. Add 'random' or 'nash' to its opponents, or take the game "
            "out.",
        ),
        (
            {"games": ["kuhn_poker"], "opponents": ["random", "nsah"]},
            "curriculum.stages: stage 'easy': opponent = 'nsah' is no opponent. Use 'random' or 'nash'.",
        ),
        (
            {"games": ["kuhn_poker"], "opponents": ["mcts", "random"]},
            "curriculum.stages: stage 'easy': opponent = 'mcts' names no number of simulations from 2 to "
            "1,000,000; write 'mcts:10' (a beginner), 'mcts:50' or 'mcts:200'.",
        ),
        (
            {"games": ["leduc_poker", "tic_tac_toe"], "threshold": 0.9},  # .89187, cut off and not rounded
            "curriculum.stages: stage 'easy': threshold = 0.9 is above 0.8918, the highest mean score over "
            "both seats that its games allow (leduc_poker against random 0.8038, tic_tac_toe against random "
            "0.9799). Write less than that, or change its games or opponents.",
        ),
        (
            {"opponents": ["perfect", "random"], "threshold": 0.8},
            "curriculum.stages: stage 'easy': threshold = 0.8 is above 0.75, the highest mean score over "
            "both seats that its games allow (tic_tac_toe against perfect 0.5, nim against random 1.0). "
            "Write less than that, or change its games or opponents.",
        ),
    ],
)
def test_what_cannot_be_played_is_refused_before_any_model(stage, message):
    with pytest.raises(ParamsError) as error:
        curriculum({**EASY, **stage})
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("name", "opponent", "max_opening_plies", "expected"),
    [
        ("tic_tac_toe", "perfect", 0, 0.5),
        ("tic_tac_toe", "perfect", 2, 1.0),  # it may begin with a mistake
        ("kuhn_poker", "random", 2, 0.6875),
        ("kuhn_poker", "nash", 0, 0.59253),
        ("kuhn_poker", "nash", 2, 1.0),
        ("kuhn_poker", "mcts:25", 0, 1.0),
        ("liars_dice(numdice=2)", "random", 0, 1.0),
        ("leduc_poker(suit_isomorphism=True)", "nash", 0, 1.0),
        ("connect_four", "random", 0, 1.0),
    ],
)
def test_a_ceiling_is_the_mean_over_both_seats_and_one_where_nobody_knows(
    name, opponent, max_opening_plies, expected
):
    found = ceiling(Pairing(load_game(name), opponent), max_opening_plies=max_opening_plies)
    assert found == approx(expected, abs=1e-5)


def test_the_ceiling_itself_may_be_asked_for():
    assert curriculum({**CARDS, "threshold": 0.6875}).pairings[0][0].opponent == "random"


@pytest.mark.parametrize(
    "name",
    ["kuhn_poker", *(pytest.param(name, marks=pytest.mark.slow) for name in ("leduc_poker", "liars_dice"))],
)
def test_no_play_scores_more_against_an_equilibrium_than_the_table_says(name):
    found = [best_response_score(pyspiel.load_game(name), equilibrium(name), seat) for seat in (0, 1)]
    assert found == approx(best_scores(load_game(name), "nash"), abs=1e-5)


def best_response_score(game: pyspiel.Game, policy: pyspiel.Policy, seat: int) -> float:
    """The highest mean score against the policy, by what is seen at each decision."""
    decisions = defaultdict(list)  # by information state: {action: node} of each history

    def node(state: pyspiel.State, reach: float):
        if state.is_terminal():
            return reach * (0.5 if not state.returns()[seat] else float(state.returns()[seat] > 0))
        if state.current_player() == seat:
            choices = {action: node(state.child(action), reach) for action in state.legal_actions()}
            decisions[state.information_state_string()].append(choices)
            return state.information_state_string(), choices
        if state.is_chance_node():
            shares = state.chance_outcomes()
        else:
            shares = policy.get_state_policy(state.information_state_string())
        return [node(state.child(action), reach * share) for action, share in shares]

    best: dict[str, int] = {}

    def value(found) -> float:
        if isinstance(found, float):
            return found
        if isinstance(found, list):
            return sum(map(value, found))
        key, choices = found
        if key not in best:
            best[key] = max(choices, key=lambda action: sum(value(one[action]) for one in decisions[key]))
        return value(choices[best[key]])

    return value(node(game.new_initial_state(), 1.0))

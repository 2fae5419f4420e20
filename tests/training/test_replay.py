"""Which lost games are kept, drawn and dropped."""

import json
import random
from collections import Counter
from dataclasses import asdict

import pytest
from pytest import approx
from scripted_play import Scripted, any_legal

from rlnb.params.ppo_openspiel import PpoOpenspielParams, ReplayParams
from rlnb.rollouts import LEARNER, play_games
from rlnb.training.curriculum import (
    CurriculumState,
    fresh_episodes,
    load_curriculum,
    opponents_of,
    replayed_episodes,
    results_of,
)
from rlnb.training.replay import Failure, Replay, Result, Task, num_replays, randomly_rounded

MEANS = {"nim/0/random": 0.75, "nim/1/random": 0.25, "kuhn_poker/1/nash": 0.5}


def task(seed: int, game: str = "nim", seat: int = 0, opponent: str = "random") -> Task:
    return Task(game, seat, opponent, seed, seed + 1000, "easy")


def failure(seed: int, deficit: float = 0.5, *, game: str = "nim", tries: int = 0) -> Failure:
    return Failure(task(seed, game), deficit, tries, 0, 0)


def settings(**changes: object) -> ReplayParams:
    return ReplayParams(**{"max_game_share": 1.0, **changes})


def after(replay: Replay, *results: Result, step: int = 7, success_score: float = 0.5, **changes) -> Replay:
    return replay.after(results, MEANS, step=step, success_score=success_score, params=settings(**changes))


def seeds(replay: Replay) -> list[int]:
    return [one.task.seed for one in replay.failures]


def test_a_lost_game_is_kept_with_what_it_lacks_to_the_mean_of_its_seat():
    found = after(Replay(), Result(task(1), 0.0), Result(task(2, seat=1), 0.0))
    assert found.failures == (
        Failure(task(1), 0.75, 0, 7, 7),  # the first seat wins three games of four: this was a bad one
        Failure(task(2, seat=1), 0.25, 0, 7, 7),
    )


@pytest.mark.parametrize(("success_score", "kept"), [(0.5, []), (1.0, [1])])
def test_a_draw_is_a_failure_only_where_a_win_is_asked_for(success_score, kept):
    found = after(Replay(), Result(task(1), 0.5), Result(task(2), 1.0), success_score=success_score)
    assert seeds(found) == kept


def test_a_game_no_worse_than_usual_lacks_nothing():
    found = after(Replay(), Result(task(1, seat=1), 0.5), success_score=1.0)
    assert found.failures[0].deficit == 0.0  # and not 0.25 - 0.5


def test_a_failure_that_is_won_is_dropped_and_the_others_stay():
    found = after(Replay((failure(1), failure(2))), Result(task(1), 1.0, is_fresh=False, counts=False))
    assert found.failures == (failure(2),)


def test_a_failure_lost_again_is_the_most_recent_one_and_remembers_its_first_loss():
    found = after(Replay((failure(1, 0.1), failure(2))), Result(task(1), 0.0, is_fresh=False, counts=False))
    assert found.failures == (failure(2), Failure(task(1), 0.75, 1, 7, 0))


def test_a_failure_is_dropped_after_its_last_try():
    replay, lost = Replay((failure(1),)), Result(task(1), 0.0, is_fresh=False, counts=False)
    tries = []
    while replay.failures:
        tries.append(replay.failures[0].num_tries)
        replay = after(replay, lost, max_tries=3)
    assert tries == [0, 1, 2]


def test_a_replay_of_what_is_no_longer_kept_is_not_kept_anew():
    assert after(Replay(), Result(task(1), 0.0, is_fresh=False, counts=False)) == Replay()


def test_a_matchup_without_mean_score_is_an_error():
    with pytest.raises(KeyError, match=r"^'kuhn_poker/0/nash'$"):
        after(Replay(), Result(task(1, "kuhn_poker", 0, "nash"), 0.0))


def test_the_most_recent_failures_are_kept():
    replay = Replay().add(map(failure, range(5)), settings(capacity=3))
    assert seeds(replay) == [2, 3, 4]
    assert seeds(after(replay, Result(task(9), 0.0), capacity=3)) == [3, 4, 9]


def test_one_game_takes_no_more_than_its_share_and_its_oldest_go_first():
    mixed = [failure(seed, game="hex" if seed in (1, 4) else "nim") for seed in range(7)]
    asked = settings(capacity=4, max_game_share=0.5)
    assert seeds(Replay().add(mixed, asked)) == [1, 4, 5, 6]  # nim 0, 2 and 3 are older than nim 5, 6
    asked = settings(capacity=3, max_game_share=0.7)
    assert seeds(Replay().add(mixed, asked)) == [4, 5, 6]  # two of nim, and the newest of hex
    assert seeds(Replay().add([failure(8), failure(9)], settings(capacity=1, max_game_share=0.1))) == [9]


def test_tasks_are_drawn_in_proportion_to_their_deficits():
    replay, rng = Replay((failure(1, 0.1), failure(2, 0.3), failure(3, 0.6))), random.Random(0)
    counts = Counter(replay.draw(1, rng)[0].seed for _ in range(6000))
    expected = {1: 600, 2: 1800, 3: 3600}
    chi_square = sum((counts[seed] - mean) ** 2 / mean for seed, mean in expected.items())
    assert chi_square < 9.21, counts  # 2 degrees of freedom: exceeded once in a hundred seeds


def test_the_second_draw_is_in_proportion_among_those_left():
    replay, rng = Replay((failure(1, 0.1), failure(2, 0.3), failure(3, 0.6))), random.Random(0)
    drawn = [tuple(one.seed for one in replay.draw(2, rng)) for _ in range(6000)]
    seconds = Counter(second for first, second in drawn if first == 3)
    assert seconds[2] / seconds.total() == approx(0.75, abs=0.03)  # .3 / (.1 + .3); 3600 draws


def test_drawn_tasks_differ_and_there_are_no_more_than_failures():
    replay, rng = Replay(tuple(map(failure, range(10)))), random.Random(0)
    assert sorted(one.seed for one in replay.draw(16, rng)) == list(range(10))
    assert all(len(set(replay.draw(6, rng))) == 6 for _ in range(100))
    assert Replay().draw(4, rng) == () == replay.draw(0, rng)


def test_a_failure_without_deficit_is_drawn_seldom_but_drawn():
    replay, rng = Replay((failure(1, 0.0), failure(2, 0.49))), random.Random(0)
    share = sum(replay.draw(1, rng)[0].seed == 1 for _ in range(6000)) / 6000
    assert share == approx(0.02, abs=0.008)  # .01 / (.01 + .49)


def test_draws_follow_from_the_seed():
    replay = Replay(tuple(map(failure, range(50))))
    one, same, other = (replay.draw(10, random.Random(seed)) for seed in (1, 1, 2))
    assert one == same != other


def test_a_state_goes_through_json():
    replay = after(Replay((failure(1, tries=2),)), Result(task(2**48 - 1, "kuhn_poker", 1, "nash"), 0.0))
    assert Replay.of(json.loads(json.dumps(asdict(replay)))) == replay
    assert Replay.of(json.loads(json.dumps(asdict(Replay())))) == Replay()


def test_size_share_and_age_are_reported():
    replay = Replay((Failure(task(1), 0.5, 2, 9, 4), Failure(task(2), 0.5, 0, 10, 10)))
    results = [Result(task(3), 1.0), Result(task(1), 0.0, is_fresh=False, counts=False)] * 2
    assert replay.metrics(results, step=10) == {
        "play/replay_size": 2.0,
        "play/replay_share": 0.5,
        "play/replay_age": 3.0,  # updates since the first loss: 6 and 0
    }
    assert Replay().metrics([Result(task(3), 1.0)], step=10) == approx(
        {"play/replay_size": 0.0, "play/replay_share": 0.0, "play/replay_age": float("nan")}, nan_ok=True
    )


def test_replays_come_in_even_numbers_with_the_share_as_their_mean():
    rng = random.Random(0)
    numbers = [num_replays(16, 0.3, 1000, rng) for _ in range(4000)]
    assert set(numbers) == {4, 6}
    assert sum(numbers) / 4000 == approx(4.8, abs=0.05)


def test_there_are_no_more_replays_than_failures_and_none_where_none_is_asked_for():
    rng = random.Random(0)
    assert [num_replays(16, 0.3, number, rng) for number in (0, 1, 2, 3)] == [0, 0, 2, 2]
    assert {num_replays(16, 0.0, 1000, rng) for _ in range(100)} == {0}


def test_rounding_at_random_leaves_whole_numbers_alone():
    rng = random.Random(0)
    assert {randomly_rounded(3.0, rng) for _ in range(1000)} == {3}
    assert {randomly_rounded(2.5, rng) for _ in range(1000)} == {2, 3}


def test_replays_in_training_keep_the_deal_and_draw_the_moves_anew():
    stage = {"name": "easy", "games": ["tic_tac_toe", "kuhn_poker"], "threshold": 0.6}
    course = load_curriculum(PpoOpenspielParams.model_validate({"curriculum": {"stages": [stage]}}))
    players = {LEARNER: Scripted(any_legal), **opponents_of(course)}

    def played(assignments):
        games = play_games([one.episode for one in assignments], players)
        return list(zip(results_of(assignments, games), games, strict=True))

    fresh = played(fresh_episodes(CurriculumState(), course, 400, seed=0))
    lost = {result.task: game for result, game in fresh if result.score == 0}
    as_it_was = played(replayed_episodes(lost, course, seed=None))
    anew = played(replayed_episodes(lost, course, seed=1))
    assert [game.history for _, game in as_it_was] == [game.history for game in lost.values()]
    assert [result.task for result, _ in anew] == list(lost)
    in_poker = [(result.task, game.history[:2]) for result, game in anew if game.game == "kuhn_poker"]
    assert in_poker == [(task, lost[task].history[:2]) for task, _ in in_poker]  # the cards
    wins = Counter(result.task.game for result, _ in anew if result.score == 1)
    assert wins["tic_tac_toe"] > 20 and wins["kuhn_poker"] > 5, wins

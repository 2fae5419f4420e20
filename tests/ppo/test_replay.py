"""Which lost games are kept, drawn and dropped."""

import random
from collections import Counter

from pytest import approx
from scripted_play import Scripted, any_legal

from rlnb.ppo.curriculum import (
    CurriculumState,
    Failure,
    GameResult,
    ReplayBuffer,
    ReplayTask,
    collect_results,
    draw_fresh_games,
    draw_replays,
    load_curriculum,
    load_opponents,
    num_replays,
    round_randomly,
)
from rlnb.ppo.params import PpoOpenspielParams
from rlnb.selfplay.rollouts import LEARNER, play_games

MEANS = {"nim/0/random": 0.75, "nim/1/random": 0.25, "kuhn_poker/1/nash": 0.5}


def task(seed: int, game: str = "nim", seat: int = 0, opponent: str = "random") -> ReplayTask:
    return ReplayTask(game, seat, opponent, seed, seed + 1000)


def failure(seed: int, deficit: float = 0.5, *, game: str = "nim", tries: int = 0) -> Failure:
    return Failure(task(seed, game), deficit, tries, 0)


def after(replay: ReplayBuffer, *results: GameResult) -> ReplayBuffer:
    return replay.update(results, MEANS, step=7)


def replayed(seed: int, score: float) -> GameResult:
    return GameResult(task(seed), score, is_fresh=False, counts=False)


def seeds(replay: ReplayBuffer) -> list[int]:
    return [failure.task.seed for failure in replay.failures]


def test_a_lost_game_is_kept_with_what_it_lacks_to_the_mean_of_its_seat():
    replay = after(ReplayBuffer(), GameResult(task(1), 0.0), GameResult(task(2, seat=1), 0.0))
    assert replay.failures == (
        Failure(task(1), 0.75, 0, 7),  # the first seat wins three games of four: this was a bad one
        Failure(task(2, seat=1), 0.25, 0, 7),
    )
    assert after(ReplayBuffer(), GameResult(task(1), 0.5), GameResult(task(2), 1.0)) == ReplayBuffer()


def test_a_failure_that_is_won_is_dropped_and_the_others_stay():
    replay = after(ReplayBuffer((failure(1), failure(2))), replayed(1, 1.0))
    assert replay.failures == (failure(2),)
    assert after(ReplayBuffer(), replayed(1, 0.0)) == ReplayBuffer()  # lost, but not kept any more


def test_a_failure_lost_again_is_the_most_recent_one_and_remembers_its_first_loss():
    replay = after(ReplayBuffer((failure(1, 0.1), failure(2))), replayed(1, 0.0))
    assert replay.failures == (failure(2), Failure(task(1), 0.75, 1, 0))


def test_a_failure_is_dropped_after_its_last_try():
    replay, lost = ReplayBuffer((failure(1),)), replayed(1, 0.0)
    tries = []
    while replay.failures:
        tries.append(replay.failures[0].num_tries)
        replay = after(replay, lost)
    assert tries == [0, 1, 2, 3]


def test_one_game_takes_no_more_than_its_share_and_its_oldest_go_first():
    mixed = [failure(seed, game="hex" if seed in (1, 4) else "nim") for seed in range(7)]
    # Half of the places: nim 0, 2 and 3 are older than nim 5 and 6.
    assert seeds(ReplayBuffer().add(mixed, capacity=4)) == [1, 4, 5, 6]
    assert seeds(ReplayBuffer().add(mixed, capacity=3)) == [4, 6]
    assert seeds(ReplayBuffer().add([failure(8), failure(9)], capacity=1)) == [9]


def test_tasks_are_drawn_in_proportion_to_their_deficits_among_those_left():
    replay, rng = ReplayBuffer((failure(1, 0.1), failure(2, 0.3), failure(3, 0.6))), random.Random(0)
    drawn = [tuple(kept.seed for kept in replay.draw(2, rng)) for _ in range(6000)]
    firsts = Counter(first for first, _ in drawn)
    assert [firsts[seed] / 6000 for seed in (1, 2, 3)] == approx([0.1, 0.3, 0.6], abs=0.03)
    seconds = Counter(second for first, second in drawn if first == 3)
    assert seconds[2] / seconds.total() == approx(0.75, abs=0.03)  # .3 / (.1 + .3); 3600 draws
    assert sorted(kept.seed for kept in replay.draw(16, rng)) == [1, 2, 3]  # no more than there are
    assert ReplayBuffer().draw(4, rng) == () == replay.draw(0, rng)
    assert replay.draw(3, random.Random(1)) == replay.draw(3, random.Random(1))
    replay = ReplayBuffer((failure(1, 0.0), failure(2, 0.49)))
    share = sum(replay.draw(1, rng)[0].seed == 1 for _ in range(6000)) / 6000
    assert share == approx(0.02, abs=0.008)  # without deficit seldom, but drawn: .01 / (.01 + .49)


def test_size_share_and_age_are_reported():
    replay = ReplayBuffer((Failure(task(1), 0.5, 2, 4), Failure(task(2), 0.5, 0, 10)))
    results = [GameResult(task(3), 1.0), replayed(1, 0.0)] * 2
    assert replay.metrics(results, step=10) == {
        "play/replay_size": 2.0,
        "play/replay_share": 0.5,
        "play/replay_age": 3.0,  # updates since the first loss: 6 and 0
    }


def test_replays_come_in_even_numbers_with_the_share_as_their_mean():
    rng = random.Random(0)
    counts = [num_replays(16, 0.3, 1000, rng) for _ in range(4000)]
    assert set(counts) == {4, 6}
    assert sum(counts) / 4000 == approx(4.8, abs=0.05)
    assert [num_replays(16, 0.3, num_failures, rng) for num_failures in (0, 1, 2, 3)] == [0, 0, 2, 2]
    assert {round_randomly(3.0, rng) for _ in range(1000)} == {3}
    assert {round_randomly(2.5, rng) for _ in range(1000)} == {2, 3}


def test_replays_in_training_keep_the_deal_and_draw_the_moves_anew():
    stage = {"name": "easy", "games": ["tic_tac_toe", "kuhn_poker"], "threshold": 0.6}
    course = load_curriculum(PpoOpenspielParams.model_validate({"curriculum": {"stages": [stage]}}))
    players = {LEARNER: Scripted(any_legal), **load_opponents(course)}

    def played(assignments):
        games = play_games([assignment.episode for assignment in assignments], players)
        return list(zip(collect_results(assignments, games), games, strict=True))

    fresh = played(draw_fresh_games(CurriculumState(), course, 400, seed=0))
    lost = {result.task: game for result, game in fresh if result.score == 0}
    anew = played(draw_replays(lost, course, seed=1))
    assert not any(result.is_fresh or result.counts for result, _ in anew)
    assert [result.task for result, _ in anew] == list(lost)
    in_poker = [(result.task, game.history[:2]) for result, game in anew if game.game == "kuhn_poker"]
    assert in_poker == [(task, lost[task].history[:2]) for task, _ in in_poker]  # the cards
    wins = Counter(result.task.game for result, _ in anew if result.score == 1)
    assert wins["tic_tac_toe"] > 20 and wins["kuhn_poker"] > 5, wins

"""Self-play training: fresh games for every update, nothing of an opponent's in the batch, and it learns."""

import dataclasses
import json
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from self_play_run import CPU, params_of, parts_of

from rlnb.errors import ParamsError
from rlnb.evaluation.arena import ARENA_SEED
from rlnb.games.text_games import load_game
from rlnb.machine import recommend
from rlnb.metrics import open_tracker
from rlnb.params import load_params, resolve
from rlnb.rollouts import LEARNER, against, play_games
from rlnb.training.ablation import train_run
from rlnb.training.credit import Credit, credit
from rlnb.training.self_play_parts import game_of, self_play_of
from rlnb.training.spiral import SelfPlay, SelfPlayState, batch_of, is_due, train
from rlnb.trajectories import turns_of

KUHN = {
    "game": {"name": "kuhn_poker", "reward_scale": 2.0},
    "training": {
        "learning_rate": 1e-3, "final_learning_rate": 1e-3, "warmup_steps": 0, "max_steps": 12,
        "games_per_step": 128, "num_epochs": 4, "save_steps": 100,
    },
    "evaluation": {"eval_interval_steps": 0},
}  # fmt: skip


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def episodes_of(cache_dir: Path, step: int, *, seed: int = 42, **game: object):
    params = params_of(cache_dir, seed=seed, game=game)
    arena = SimpleNamespace(game=game_of(params), rules=None)
    return self_play_of(params, arena).episodes(step)


def seeds_of(episodes) -> list[tuple[int, int]]:
    return [(one.seed, one.opening_seed) for one in episodes]


def test_games_differ_from_update_to_update_and_from_seed_to_seed(cache_dir):
    first = seeds_of(episodes_of(cache_dir, 0))
    assert seeds_of(episodes_of(cache_dir, 0)) == first
    others = [seeds_of(episodes_of(cache_dir, step, seed=seed)) for step, seed in [(1, 42), (0, 43), (43, 0)]]
    drawn = [pair for games in [first, *others] for pair in games]
    assert len(set(drawn)) == len(drawn) == 4 * 8


def test_the_arenas_games_are_never_those_of_training(cache_dir):
    """Seeds of an update are below 2**32, and those of an arena at 2**40 and above."""
    params = params_of(cache_dir, seed=2**32 - 1, game={"opponent": "random"})
    table = self_play_of(params, SimpleNamespace(game=game_of(params), rules=None))
    trained = {pair for step in range(300) for pair in seeds_of(table.episodes(step))}
    assert len(trained) == 300 * 4  # each from both seats
    measured = set(seeds_of(against(table.game, "random", 1000, seed=ARENA_SEED + params.seed)))
    assert len(measured) == 500
    assert trained.isdisjoint(measured)
    assert ARENA_SEED > 2**32


def test_games_of_one_opening_share_it_and_are_played_apart(cache_dir):
    episodes = episodes_of(cache_dir, 0, games_per_opening=4, max_opening_plies=1)
    assert [one.group for one in episodes] == [0] * 4 + [1] * 4
    assert len({one.opening_seed for one in episodes}) == 2
    assert len({one.seed for one in episodes}) == 8


def test_an_opponent_sits_in_either_seat_in_turn_and_none_of_its_turns_is_in_the_batch(cache_dir):
    params = params_of(cache_dir, game={"name": "tic_tac_toe", "opponent": "random"})
    _, _, table = parts_of(params)
    assert [one.players for one in table.episodes(0)] == [(LEARNER, "random"), ("random", LEARNER)] * 4
    games = table.play(0)
    for number, game in enumerate(games):
        (own,) = game.trajectories
        made = [(move.seat, move.action) for move in game.moves if not move.is_opening]
        assert own.seat == number % 2
        assert [turn.action for turn in own.turns] == [action for seat, action in made if seat == own.seat]
        assert len(own.turns) <= len(made)
    assert any(len(game.trajectories[0].turns) < len(game.moves) for game in games)
    batch = batch_of(games, credit(games, {}, params.advantage), has_value=True, training=params.training)
    assert len(batch.advantages) == len(turns_of([one for game in games for one in game.trajectories]))


@pytest.fixture(scope="module")
def played(cache_dir):
    """Six games of tic-tac-toe that the tiny model has played against itself."""
    params = params_of(cache_dir, game={"name": "tic_tac_toe"}, training={"games_per_step": 6})
    return parts_of(params)[2].play(0)


def test_trajectories_that_teach_nothing_are_left_out_where_that_is_asked(played):
    trajectories = [one for game in played for one in game.trajectories]
    lengths = [len(one.turns) for one in trajectories]
    # The third earns something at its last turn alone, the fifth at its first alone, the others nowhere.
    earned = [np.zeros(length) for length in lengths]
    earned[2][-1], earned[4][0] = 0.5, -0.5
    credited = Credit(np.concatenate(earned), np.arange(float(sum(lengths))), {})
    for drop, kept in [(True, [2, 4]), (False, range(len(lengths)))]:
        training = SimpleNamespace(drop_zero_advantages=drop, prompt_memo=False)
        batch = batch_of(played, credited, has_value=True, training=training)
        starts = np.cumsum([0, *lengths])
        expected = np.concatenate([np.arange(starts[one], starts[one + 1]) for one in kept])
        assert sorted(batch.targets.tolist()) == expected.tolist()
        assert batch.advantages.sum() == 0 and abs(batch.advantages).sum() == 1


def test_where_no_trajectory_teaches_anything_all_are_kept(played):
    count = len(turns_of([one for game in played for one in game.trajectories]))
    training = SimpleNamespace(drop_zero_advantages=True, prompt_memo=False)
    batch = batch_of(played, Credit(np.zeros(count), np.zeros(count), {}), has_value=True, training=training)
    assert len(batch.advantages) == count


def test_a_turn_without_a_choice_teaches_a_value_and_nothing_else(played):
    """The ninth mark of tic-tac-toe has one cell left."""
    turns = turns_of([one for game in played for one in game.trajectories])
    forced = sum(len(turn.legal_actions) == 1 for turn in turns)
    assert forced > 0
    training = SimpleNamespace(drop_zero_advantages=False, prompt_memo=True)
    credited = Credit(np.ones(len(turns)), np.ones(len(turns)), {})
    for has_value, count in [(True, len(turns)), (False, len(turns) - forced)]:
        batch = batch_of(played, credited, has_value=has_value, training=training)
        assert len(batch.advantages) == count


def test_the_state_after_an_update_counts_games_and_rings():
    params = SimpleNamespace(
        training=SimpleNamespace(games_per_step=8),
        alarms=SimpleNamespace(invalid_share=0.5, entropy=1e-4, length_share=0.1),
    )
    credited = Credit(np.zeros(0), np.zeros(0), {"nim/first player": 0.25})
    metrics = {"play/invalid_share": 0.75, "entropy": 1.0, "play/completion_tokens": 40.0}
    state = SelfPlayState(step=2, num_games=16, alarms={"invalid": 1, "entropy": 3})
    after = state.after(metrics, credited, params)
    assert after == SelfPlayState(3, 24, {"nim/first player": 0.25}, {"invalid": 2}, 40.0)
    short = after.after(metrics | {"play/completion_tokens": 3.0}, credited, params)
    assert short.first_length == 40.0
    assert short.alarms == {"invalid": 3, "length": 1}


@pytest.mark.parametrize("enabled, interval, due", [(True, 2, [2, 4]), (True, 0, []), (False, 2, [])])
def test_evaluations_fall_on_every_interval(enabled, interval, due):
    asked = SimpleNamespace(enabled=enabled, eval_interval_steps=interval)
    assert [step for step in range(1, 6) if is_due(step, asked)] == due


def test_every_game_is_kept_with_its_step(cache_dir, tmp_path):
    params = params_of(cache_dir, training={"max_steps": 2})
    rows = train_run(params, tmp_path)
    games = [json.loads(line) for line in (tmp_path / "games.jsonl").read_text().splitlines()]
    assert [game["step"] for game in games] == [1] * 8 + [2] * 8
    assert [row.get("play/num_games") for row in rows] == [None, 8, 16]
    for step in (1, 2):
        first = [game["returns"][0] > game["returns"][1] for game in games if game["step"] == step]
        assert rows[step]["play/first_score"] == pytest.approx(np.mean(first))
        turns = [len(game["turns"]) for game in games if game["step"] == step]
        assert rows[step]["play/turns"] == pytest.approx(np.mean(turns))


@pytest.mark.parametrize(
    "section, fields, message",
    [
        (
            "evaluation",
            {"opponents": ["random", "mcts:50"]},
            "evaluation.opponents = 'mcts:50' cannot play kuhn_poker: MCTS sees the other player's card. "
            "Use 'random' or 'nash'.",
        ),
        (
            "game",
            {"opponent": "mcts:50"},
            "game.opponent = 'mcts:50' cannot play kuhn_poker: MCTS sees the other player's card. "
            "Use 'random' or 'nash'.",
        ),
        (
            "game",
            {"opponent": "minimax"},
            "game.opponent = 'minimax' is no opponent. Use 'random' or 'nash'.",
        ),
    ],
)
def test_an_opponent_that_cannot_play_is_refused_before_any_model_is_loaded(
    tmp_path, section, fields, message
):
    params = params_of(tmp_path / "no_model", **{section: fields})
    with pytest.raises(ParamsError) as refusal:
        train_run(params, tmp_path / "run")
    assert str(refusal.value) == message
    assert list(tmp_path.iterdir()) == []


def test_a_game_that_is_none_is_refused_before_any_model_is_loaded(tmp_path):
    params = params_of(tmp_path / "no_model", game={"name": "kuhn_pokre"})
    with pytest.raises(ParamsError, match=r"^game\.name = 'kuhn_pokre'.*kuhn_poker"):
        train_run(params, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_an_ablation_needs_a_game_with_exact_measures(tmp_path):
    params = params_of(tmp_path, game={"name": "connect_four"}, ablation={"enabled": True})
    with pytest.raises(ParamsError) as refusal:
        game_of(params)
    assert str(refusal.value) == (
        "ablation.enabled = true cannot compare runs of connect_four: they are judged by exact measures, "
        "which only tic_tac_toe, kuhn_poker, leduc_poker have. Write false"
    )


def test_a_prompt_that_is_too_long_ends_the_run_with_its_length(cache_dir):
    _, _, table = parts_of(params_of(cache_dir, game={"name": "tic_tac_toe", "max_prompt_tokens": 8}))
    prompt = load_game("tic_tac_toe", style="compact")
    length = len(prompt.prompt(prompt.new_state()).encode())
    with pytest.raises(ParamsError, match="max_prompt_tokens") as refusal:
        play_games(table.episodes(0)[:1], {LEARNER: table.player()})
    assert str(refusal.value) == (
        f"game.max_prompt_tokens = 8 is less than the {length} tokens of a prompt; write at least "
        f"{length}, or game.style = compact where it is full"
    )


@dataclasses.dataclass(frozen=True)
class Shuffled(SelfPlay):
    """The same games, each trajectory paid what another of its role and step has earned."""

    def play(self, step: int):
        games = super().play(step)
        paid = [one.reward for game in games for one in game.trajectories]
        random.Random(step).shuffle(paid)
        return [
            replace(game, trajectories=tuple(self.repaid(one, paid.pop()) for one in game.trajectories))
            for game in games
        ]

    def repaid(self, trajectory, reward: float):
        turns = (*trajectory.turns[:-1], replace(trajectory.turns[-1], reward=reward))
        return replace(trajectory, turns=turns, reward=reward)


def distances(cache_dir: Path, output_dir: Path, kind: type[SelfPlay]) -> tuple[float, float]:
    """NashConv of the weights before and after a short training."""
    params = params_of(cache_dir, seed=1, advantage={"kind": "rae"}, **KUHN)
    arena, learner, table = parts_of(params)
    before = arena.exact()["nash_conv"]
    with open_tracker(output_dir, config={}, tensorboard=False) as tracker:
        train(
            learner, kind(**vars(table)), SelfPlayState(), tracker=tracker, output_dir=output_dir,
            evaluate=dict, save=lambda state: None,
        )  # fmt: skip
    return before, arena.exact()["nash_conv"]


def test_twelve_updates_of_kuhn_bring_play_nearer_to_equilibrium(cache_dir, tmp_path):
    before, after = distances(cache_dir, tmp_path, SelfPlay)
    assert before > 0.8
    assert after < 0.5  # 0.26 to 0.32 with the seeds 1 to 12


def test_with_another_games_reward_nothing_is_learned(cache_dir, tmp_path):
    before, after = distances(cache_dir, tmp_path, Shuffled)
    assert before > 0.8
    assert after > 0.6  # 0.66 to 1.50 with the seeds 1 to 12


def last_row(profile, cache_dir, output_dir) -> dict:
    """Of a whole run of the profile: judged at its last update, never at its best."""
    overrides = {"seed": 1, "model": {"cache_dir": str(cache_dir)}}
    params = load_params("spiral_self_play", profile=profile, overrides=overrides, environ={})
    params = resolve(params, recommend(CPU))
    last = train_run(params, output_dir)[-1]
    assert last["step"] == params.training.max_steps
    return last


@pytest.mark.slow
def test_the_profile_kuhn_reaches_its_bar(cache_dir, tmp_path):
    """Averaged weights; it takes one to three minutes."""
    assert last_row("kuhn", cache_dir, tmp_path)["exact/average/nash_conv"] <= 0.05


@pytest.mark.slow
def test_the_profile_cpu_learns_tic_tac_toe_so_that_nobody_beats_it(cache_dir, tmp_path):
    """Averaged weights, in both seats; it takes a quarter of an hour."""
    last = last_row("cpu", cache_dir, tmp_path)
    for seat in ("first", "second"):
        assert last[f"exact/average/loss_{seat}"] <= 0.03
        assert last[f"exact/average/greedy_loss_{seat}"] == 0
        assert last[f"exact/average/greedy_best_response_{seat}"] == 0

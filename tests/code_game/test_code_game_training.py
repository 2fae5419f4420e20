"""Training on the code game: opponents that disturb nothing, and runs that go on where they stopped."""

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from scripted_opponent import ScriptedOpponent
from tiny_policy import load_tiny
from transformers import TrainerCallback
from trl import GRPOTrainer

from rlnb.code_game.opponents import ModelOpponent
from rlnb.code_game.params import GrpoCodeGameParams
from rlnb.code_game.prediction import prediction_prompt
from rlnb.code_game.reward import CodeGameReward, GameReferee, GameRound, PooledProgram, ProgramPool
from rlnb.code_game.training import (
    LAG_STEPS,
    GameState,
    build_game_dataset,
    build_game_rows,
    largest_mean,
    opponent_time_share,
)
from rlnb.errors import ParamsError
from rlnb.grpo import training as grpo
from rlnb.policy.adapters import WeightSnapshot, adapters_off
from rlnb.sandbox import Limits, Reruns

NUM_STEPS, STOP_STEP, NUM_MEMBERS = 4, 2, 4


@pytest.fixture(scope="module")
def referee():
    with Reruns(Limits(cpu_seconds=1), num_interpreters=2, num_workers=2) as reruns:
        yield GameReferee(reruns, len)


def game_params(**sections: Any) -> GrpoCodeGameParams:
    training = {
        "learning_rate": 1e-2, "max_steps": NUM_STEPS, "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2, "num_generations": NUM_MEMBERS, "max_completion_length": 8,
        "save_steps": STOP_STEP, "gradient_checkpointing": False,
    }  # fmt: skip
    values = {"game": {"form": "seeded"}, "opponent": {"num_shots": 1}} | sections
    return GrpoCodeGameParams(training=training, **values)


def config_of(params: GrpoCodeGameParams, output_dir: Path) -> Any:
    return grpo.grpo_config(params.training, output_dir=output_dir, seed=1, dtype="float32", use_gpu=False)


def graded(played: GameRound) -> float:
    """Pay -1 to all where the opponent, as a scripted one, shows no probabilities."""
    return 1.0 - 2.0 * played.token_probability if played.token_probability >= 0 else -1.0


@dataclass
class Watched:
    """The game's reward on programs made of the completions, since random weights write none.

    Pays by the letters of a completion, whatever the opponent says, and notes what was asked.
    """

    reward: CodeGameReward
    __name__: str = "watched"
    asked: list[tuple[int, str, str]] = field(default_factory=list)
    told: list[list[float | None]] = field(default_factory=list)

    def __call__(self, *, completions, prompts, role, prefix, **others):
        step = others["trainer_state"].global_step
        self.asked += [(step, *pair) for pair in zip(role, prompts, strict=True)]
        codes = [f"```python\nprint({sum(map(ord, text)) % 9973})\n```" for text in completions]
        told = self.reward(completions=codes, role=role, prefix=[""] * len(prefix), **others)
        self.told.append([float(value) for value in told])
        return [sum(map(ord, text)) % 7 for text in completions]


class StopAt(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = state.global_step >= STOP_STEP


class Run(NamedTuple):
    adapters: dict[str, torch.Tensor]
    watched: Watched
    snapshot: WeightSnapshot | None
    pool: ProgramPool | None


def run(
    cache_dir: Path, output_dir: Path, referee: GameReferee, kind: str, *,
    two_sided: bool = False, stop: bool = False, checkpoint: str | None = None,
) -> Run:  # fmt: skip
    """Train the tiny model against an opponent of this kind."""
    torch.set_num_threads(1)
    params, policy = game_params(), load_tiny(cache_dir)
    config = config_of(params, output_dir)
    snapshot = WeightSnapshot.take(policy) if kind == "snapshot" else None
    pool = ProgramPool() if two_sided else None
    opponent: Any = ScriptedOpponent({})
    if kind != "scripted":
        weights = snapshot.applied_to if snapshot else adapters_off
        opponent = ModelOpponent(policy, weights, num_shots=1)
    watched = Watched(CodeGameReward(referee, opponent, reward=graded, pool=pool))
    trainer = GRPOTrainer(
        policy.model, reward_funcs=[watched], args=config,
        train_dataset=build_game_dataset(params, policy, config, pool), processing_class=policy.tokenizer,
    )  # fmt: skip
    grpo.prepare_adapters(trainer)
    game_state = GameState(policy, opponent, snapshot=snapshot, refresh_steps=3, pool=pool)
    game_state.resume(checkpoint)
    for callback in [game_state, *[StopAt()] * stop]:
        trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=checkpoint)
    if isinstance(opponent, ModelOpponent):
        assert opponent.front() is not None
    return Run(WeightSnapshot.take(policy).values, watched, snapshot, pool)


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def runs(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory, referee: GameReferee):
    """Uninterrupted runs by the kind of opponent, each made once."""

    @cache
    def make(kind: str, two_sided: bool = False) -> Run:
        return run(cache_dir, tmp_path_factory.mktemp("run"), referee, kind, two_sided=two_sided)

    return make


@pytest.mark.parametrize("kind", ["base", "snapshot"])
def test_the_opponents_passes_change_nothing_in_the_training(runs: Callable[..., Run], kind: str):
    scripted, other = runs("scripted"), runs(kind)
    assert same(scripted.adapters, other.adapters)
    assert scripted.watched.asked == other.watched.asked
    assert any(abs(value).max() > 0 for name, value in other.adapters.items() if "lora_B" in name)
    assert len({value for told in other.watched.told for value in told}) > NUM_STEPS  # it was really asked


def test_the_base_and_the_snapshot_judge_alike_until_the_snapshot_is_taken_anew(runs):
    base, snapshot = runs("base").watched.told, runs("snapshot").watched.told
    assert base[:3] == [pytest.approx(told, abs=1e-5) for told in snapshot[:3]]
    assert base[3] != pytest.approx(snapshot[3], abs=1e-4)


@pytest.mark.parametrize(("kind", "two_sided"), [("snapshot", False), ("scripted", True)])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(
    runs, cache_dir: Path, tmp_path: Path, referee: GameReferee, kind: str, two_sided: bool
):
    whole = runs(kind, two_sided)
    run(cache_dir, tmp_path, referee, kind, two_sided=two_sided, stop=True)
    checkpoint = str(tmp_path / "checkpoints" / f"checkpoint-{STOP_STEP}")
    resumed = run(cache_dir, tmp_path, referee, kind, two_sided=two_sided, checkpoint=checkpoint)
    assert same(whole.adapters, resumed.adapters)
    assert resumed.watched.asked == [entry for entry in whole.watched.asked if entry[0] >= STOP_STEP]
    assert resumed.watched.told == whole.watched.told[STOP_STEP:]
    if whole.snapshot is not None and resumed.snapshot is not None:
        assert same(whole.snapshot.values, resumed.snapshot.values)
    assert resumed.pool == whole.pool


def test_both_roles_are_asked_in_each_step_once_there_is_something_to_predict(runs):
    two_sided, half = runs("scripted", True), 2 * NUM_MEMBERS
    of_step = [Counter(role for at, role, _ in two_sided.watched.asked if at == n) for n in range(NUM_STEPS)]
    assert of_step[:LAG_STEPS] == [Counter(author=2 * half)] * LAG_STEPS
    assert of_step[LAG_STEPS:] == [Counter(author=half, predictor=half)] * (NUM_STEPS - LAG_STEPS)
    asked = two_sided.watched.asked
    groups = [asked[start : start + NUM_MEMBERS] for start in range(0, len(asked), NUM_MEMBERS)]
    assert all(len(set(group)) == 1 for group in groups)  # its members are asked the same
    known = {entry.code: entry for entry in two_sided.pool.programs}
    for step, role, prompt in asked:
        if role == "predictor":
            program = known[re.findall(r"```python\n(.*?)\n```", prompt, re.DOTALL)[-1]]
            assert program.step <= step - LAG_STEPS
            assert prompt == prediction_prompt(program.code, num_shots=1)


def test_without_a_pool_every_prompt_asks_for_a_program(cache_dir: Path, tmp_path: Path):
    params, policy = game_params(), load_tiny(cache_dir)
    config = config_of(params, tmp_path)
    dataset = build_game_dataset(params, policy, config)
    assert len(dataset) == grpo.num_prompts(config) == NUM_STEPS * 4
    assert set(dataset["role"]) == {"author"}
    assert all(row["prompt"].endswith(row["prefix"]) for row in dataset)
    assert list(dataset["prompt"]) == list(build_game_dataset(params, policy, config)["prompt"])


@pytest.mark.parametrize(("share", "num_predictors"), [(0.5, 2), (0.01, 1), (0.99, 3)])
def test_neither_role_is_ever_left_out_of_a_step(
    cache_dir: Path, tmp_path: Path, share: float, num_predictors: int
):
    params = game_params(game={"form": "seeded", "two_sided": True, "predictor_share": share})
    config = config_of(params, tmp_path)
    pool = ProgramPool([PooledProgram("print(6 * 7)", "42", 0), PooledProgram("print('b')", "b", 1)])
    dataset = build_game_dataset(params, load_tiny(cache_dir), config, pool)
    roles = [row["role"] for row in dataset]
    steps = [roles[start : start + 4] for start in range(0, len(roles), 4)]
    assert steps[:LAG_STEPS] == [["author"] * 4] * LAG_STEPS
    expected = ["predictor"] * num_predictors + ["author"] * (4 - num_predictors)
    assert steps[LAG_STEPS:] == [expected] * (NUM_STEPS - LAG_STEPS)
    predicted = {row["prefix"] for row in list(dataset)[8:12] if row["role"] == "predictor"}
    assert predicted == {"print(6 * 7)"}  # the other one is of a step too late
    assert not any("42" in row["prompt"][-60:] for row in dataset if row["role"] == "predictor")


def test_a_limit_that_leaves_no_question_is_refused(cache_dir: Path):
    params = game_params(game={"form": "seeded", "max_prompt_tokens": 16})
    with pytest.raises(ParamsError, match="^game.max_prompt_tokens = 16 leaves no question; write more$"):
        build_game_rows(params, load_tiny(cache_dir))


def test_a_checkpoint_without_the_files_of_the_game_changes_nothing(cache_dir: Path, tmp_path: Path):
    policy, pool = load_tiny(cache_dir), ProgramPool([PooledProgram("print(1)", "1", 0)])
    snapshot = WeightSnapshot.take(policy)
    before = {name: value.clone() for name, value in snapshot.values.items()}
    state = GameState(policy, ModelOpponent(policy), snapshot=snapshot, refresh_steps=1, pool=pool)
    for checkpoint in (None, str(tmp_path)):
        state.resume(checkpoint)
    assert same(snapshot.values, before)
    assert pool.programs == [PooledProgram("print(1)", "1", 0)]


def test_the_largest_mean_over_a_window_skips_what_was_not_measured():
    assert largest_mean([0.0, 0.2, 0.4, 0.0], 2) == pytest.approx(0.3)
    assert largest_mean([0.1, None, 0.5], 2) == pytest.approx(0.3)
    assert math.isnan(largest_mean([0.2, 0.4], 5))  # two steps are no mean of five


def test_the_opponents_share_is_that_of_the_steps_which_were_logged():
    rows = [
        {"step": 0, "heldout/game/win_share": 0.2},
        {"step": 1, "step_time": 10.0, "time/opponent_seconds": 1.0},
        {"step": 2, "step_time": 30.0, "time/opponent_seconds": 3.0},
    ]
    assert opponent_time_share(rows) == pytest.approx(0.1)
    assert math.isnan(opponent_time_share(rows[:1]))


def test_a_full_pool_answers_the_same_before_and_after_the_next_step_is_added(monkeypatch):
    monkeypatch.setattr("rlnb.code_game.reward.POOL_SIZE", 5)
    pool = ProgramPool()
    for step in range(6):
        before = pool.until(step - 1)  # what the prompts of the step after this one are drawn from
        pool.add([PooledProgram(f"print({step}{n})", f"{step}{n}", step) for n in range(3)])
        assert pool.until(step - 1) == before
        assert len(before) == min(5, 3 * step)
        assert set(before) <= set(pool.programs) and len(pool.programs) <= 5 + 3

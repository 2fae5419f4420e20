"""Training on the code game: opponents that disturb nothing, and runs that go on where they stopped."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
import torch
from recipes import make_config
from scripted_opponent import ScriptedOpponent
from tiny_policy import load_tiny
from transformers import TrainerCallback
from trl import GRPOTrainer

from rlnb.code_game.opponents import ModelOpponent
from rlnb.code_game.params import GrpoCodeGameParams
from rlnb.code_game.prediction import SHOTS
from rlnb.code_game.reward import GameReferee, GameRound, make_game_reward
from rlnb.code_game.training import SnapshotCallback, build_game_dataset, train_control
from rlnb.grpo import training as grpo
from rlnb.grpo.rewards import TrlReward
from rlnb.policy.adapters import WeightSnapshot, adapters_off
from rlnb.sandbox import Limits, Reruns

NUM_STEPS, STOP_STEP, NUM_MEMBERS = 4, 2, 4


@pytest.fixture(scope="module")
def referee():
    with Reruns(Limits(cpu_seconds=1), num_interpreters=2, num_workers=2) as reruns:
        yield GameReferee(reruns, len)


def game_params(output_dir: Path) -> GrpoCodeGameParams:
    training = {
        "learning_rate": 1e-2, "max_steps": NUM_STEPS, "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2, "num_generations": NUM_MEMBERS, "max_completion_length": 8,
        "save_steps": STOP_STEP, "gradient_checkpointing": False,
    }  # fmt: skip
    return GrpoCodeGameParams(training=training, game={"form": "seeded"}, seed=1, output_dir=str(output_dir))


def graded(played: GameRound) -> float:
    """Pay -1 to all where the opponent, as a scripted one, shows no probabilities."""
    return 1.0 - 2.0 * played.token_probability if played.token_probability >= 0 else -1.0


def test_a_control_begins_by_itself_where_its_run_has_to_go_on(monkeypatch, tmp_path: Path):
    told = []
    monkeypatch.setattr(
        "rlnb.code_game.training.train", lambda _, params: told.append(params.training.resume)
    )
    trainer = Mock(args=Mock(output_dir=""))
    for resume in ("latest", str(tmp_path), "auto", "never"):
        params = GrpoCodeGameParams(output_dir=str(tmp_path), training={"resume": resume})
        train_control(trainer, params, load_tiny(tmp_path / "model"), Mock(), evaluate=list)
    assert told == ["auto", "auto", "auto", "never"]


@dataclass
class Watched:
    """The game's reward on programs made of the completions, since random weights write none.

    Pays by the letters of a completion, whatever the opponent says, and notes what was asked.
    """

    reward: TrlReward
    __name__: str = "watched"
    asked: list[tuple[int, str]] = field(default_factory=list)
    told: list[list[float | None]] = field(default_factory=list)

    def __call__(self, *, completions, prompts, prefix, **others):
        step = others["trainer_state"].global_step
        self.asked += [(step, prompt) for prompt in prompts]
        codes = [f"```python\nprint({sum(map(ord, text)) % 9973})\n```" for text in completions]
        told = self.reward(completions=codes, prefix=[""] * len(prefix), **others)
        self.told.append([float(value) for value in told])
        return [sum(map(ord, text)) % 7 for text in completions]


class StopAt(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = state.global_step >= STOP_STEP


class Run(NamedTuple):
    adapters: dict[str, torch.Tensor]
    watched: Watched
    snapshot: WeightSnapshot | None


def run(
    cache_dir: Path, output_dir: Path, referee: GameReferee, kind: str, *,
    stop: bool = False, checkpoint: str | None = None,
) -> Run:  # fmt: skip
    """Train the tiny model against an opponent of this kind."""
    torch.set_num_threads(1)
    params, policy = game_params(output_dir), load_tiny(cache_dir)
    config = make_config(params, policy, notebook="grpo_code_game", resume_from_checkpoint=checkpoint)
    snapshot = WeightSnapshot.take(policy) if kind == "snapshot" else None
    opponent: Any = ScriptedOpponent({})
    if kind != "scripted":
        weights = snapshot.applied_to if snapshot else adapters_off
        opponent = ModelOpponent(policy, weights, shots=SHOTS[:1])
    watched = Watched(make_game_reward(referee, opponent, reward=graded))
    trainer = GRPOTrainer(
        policy.model, reward_funcs=[watched], args=config,
        train_dataset=build_game_dataset(params, policy, config), processing_class=policy.tokenizer,
    )  # fmt: skip
    grpo.prepare_adapters(trainer)
    if snapshot is not None:
        trainer.add_callback(SnapshotCallback(policy, snapshot, refresh_steps=3))
    for callback in [StopAt()] * stop:
        trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=checkpoint)
    return Run(WeightSnapshot.take(policy).values, watched, snapshot)


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def runs(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory, referee: GameReferee):
    """Uninterrupted runs by the kind of opponent, each made once."""

    @cache
    def make(kind: str) -> Run:
        return run(cache_dir, tmp_path_factory.mktemp("run"), referee, kind)

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


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(
    runs, cache_dir: Path, tmp_path: Path, referee: GameReferee
):
    whole = runs("snapshot")
    run(cache_dir, tmp_path, referee, "snapshot", stop=True)
    checkpoint = str(tmp_path / "checkpoints" / f"checkpoint-{STOP_STEP}")
    resumed = run(cache_dir, tmp_path, referee, "snapshot", checkpoint=checkpoint)
    assert same(whole.adapters, resumed.adapters)
    assert resumed.watched.asked == [entry for entry in whole.watched.asked if entry[0] >= STOP_STEP]
    assert resumed.watched.told == whole.watched.told[STOP_STEP:]
    assert same(whole.snapshot.values, resumed.snapshot.values)

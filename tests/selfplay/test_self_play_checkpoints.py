"""A self-play run that was stopped goes on as if it had not been, to the bit, and never from another's."""

import shutil
import signal
import threading
from pathlib import Path

import pytest
import torch
from self_play_run import (
    Killed,
    checkpoint_of,
    differing,
    kill_after,
    params_of,
    rows_of,
    send_sigterm,
    train_run,
)

from rlnb.errors import Preempted
from rlnb.policy import load_policy
from rlnb.policy.adapters import WeightSnapshot, trained_parameters
from rlnb.run import health, stop_signal
from rlnb.run.checkpoints import checkpoint_step, complete_checkpoints, latest_checkpoint

LORA = {"model": {"lora_rank": 4}, "advantage": {"kind": "rae"}, "training": {"magnet_coef": 0.0}}
RECIPES = {
    "rae with LoRA": LORA,
    "gae with a magnet": {"advantage": {"kind": "gae"}},
    "free": {"game": {"acting": "free", "max_new_tokens": 3}, "advantage": {"kind": "leave_one_out"}},
}


@pytest.fixture(autouse=True, scope="module")
def no_alarm_for_invalid_answers():
    """While one is raised nothing is saved."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(health, "MAX_INVALID_SHARE", 1.0)
        yield


def make_params(cache_dir: Path, recipe: dict, **training: object):
    sections = {name: dict(fields) for name, fields in recipe.items()}
    usual = {"max_steps": 4, "games_per_step": 8, "save_steps": 2, "num_epochs": 1}
    sections["training"] = usual | sections.get("training", {}) | training
    sections["evaluation"] = {"eval_interval_steps": 2}
    return params_of(cache_dir, **sections)


def attempt(params, output_dir: Path, *, seed: int = 0, **options: object):
    """Train as in a process of its own: another seed stands for another process's random state."""
    torch.manual_seed(seed)
    return train_run(params, output_dir, **options)


def assert_same_run(run: Path, other: Path, *, step: int) -> None:
    assert rows_of(run) == rows_of(other)
    assert (run / "games.jsonl").read_bytes() == (other / "games.jsonl").read_bytes()
    assert differing(checkpoint_of(run, step), checkpoint_of(other, step)) == []


@pytest.fixture(scope="module")
def uninterrupted(cache_dir, tmp_path_factory: pytest.TempPathFactory):
    """{recipe: the directory of its run of four updates}."""
    directories = {}
    for name, recipe in RECIPES.items():
        directories[name] = tmp_path_factory.mktemp("uninterrupted")
        rows = attempt(make_params(cache_dir, recipe), directories[name])
        assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    return directories


@pytest.mark.parametrize(
    "recipe, last",
    [("gae with a magnet", 2), ("free", 3), ("rae with LoRA", 3), ("rae with LoRA", 4)],
    ids=lambda value: {2: "at a checkpoint", 3: "between two", 4: "before the last evaluation"}.get(
        value, value
    ),
)
def test_a_killed_run_goes_on_as_if_it_had_not_been_stopped(cache_dir, uninterrupted, tmp_path, recipe, last):
    params = make_params(cache_dir, RECIPES[recipe])
    with pytest.raises(Killed):
        attempt(params, tmp_path, show=kill_after(last))
    assert rows_of(tmp_path)[-1]["step"] == last
    assert last != 4 or "exact/nash_conv" not in rows_of(tmp_path)[-1]
    assert checkpoint_step(latest_checkpoint(tmp_path)) == last // 2 * 2
    attempt(params, tmp_path, seed=999)
    assert_same_run(tmp_path, uninterrupted[recipe], step=4)


def test_a_checkpoint_is_also_due_by_time(cache_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(stop_signal, "SAVE_MINUTES", 1e-9)
    with pytest.raises(Killed):
        attempt(make_params(cache_dir, LORA, save_steps=100), tmp_path, show=kill_after(1))
    assert checkpoint_step(latest_checkpoint(tmp_path)) == 1


def test_a_run_without_the_optimizers_state_in_checkpoints_goes_on_with_a_new_optimizer(
    cache_dir, uninterrupted, tmp_path, capsys
):
    params = make_params(cache_dir, LORA, save_optimizer=False)
    with pytest.raises(Killed):
        attempt(params, tmp_path, show=kill_after(3))
    whole, saved = uninterrupted["rae with LoRA"], checkpoint_of(tmp_path, 2)
    assert saved["optimizer"].keys() == checkpoint_of(whole, 2)["optimizer"].keys() - {"optimizer"}
    assert differing(saved, checkpoint_of(whole, 2)) == ["/optimizer"]  # weights, averages, baselines
    attempt(params, tmp_path)
    rows, usual = rows_of(tmp_path), rows_of(whole)
    assert rows[:3] == usual[:3] and [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert rows[3]["reward"] == usual[3]["reward"]  # played by the weights of step 2


def test_sigterm_saves_the_step_and_the_run_goes_on_from_it(cache_dir, uninterrupted, tmp_path):
    params = make_params(cache_dir, LORA, save_steps=100)

    def show(step: int, max_steps: int) -> None:
        if step == 1:
            sender = threading.Thread(target=send_sigterm)
            sender.start()
            sender.join()

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Preempted):
        attempt(params, tmp_path, show=show)
    assert signal.getsignal(signal.SIGTERM) is before
    assert [row["step"] for row in rows_of(tmp_path)] == [0, 1, 2]
    assert not any(name.startswith(("exact", "arena")) for name in rows_of(tmp_path)[2])
    assert [checkpoint_step(path) for path in complete_checkpoints(tmp_path)] == [2]
    attempt(params, tmp_path, seed=999)
    whole = uninterrupted["rae with LoRA"]
    assert (tmp_path / "games.jsonl").read_bytes() == (whole / "games.jsonl").read_bytes()
    assert differing(checkpoint_of(tmp_path, 4), checkpoint_of(whole, 4)) == []
    # The evaluation of the step at which the run was stopped is made up.
    assert any(name.startswith("exact") for name in rows_of(tmp_path)[2])
    assert rows_of(tmp_path) == rows_of(whole)


@pytest.mark.parametrize("invalid_share", [1.0, -1.0], ids=["quiet", "with an alarm, so not saved before"])
def test_a_signal_during_an_interval_evaluation_stops_the_run_with_the_step_saved(
    cache_dir, uninterrupted, tmp_path, monkeypatch, invalid_share
):
    monkeypatch.setattr(health, "MAX_INVALID_SHARE", invalid_share)
    params, whole = make_params(cache_dir, LORA, save_steps=100), uninterrupted["rae with LoRA"]
    finished: list[int] = []

    def progress(num_done: int, num_pairs: int) -> None:
        finished.append(num_done)
        send_sigterm()

    for _ in range(2):  # in the evaluation of step 2, then in the one that the next attempt makes up
        with pytest.raises(Preempted, match="SIGTERM"):
            attempt(params, tmp_path, progress=progress)
        assert [row["step"] for row in rows_of(tmp_path)] == [0, 1, 2]  # no further step
        assert not any(name.startswith(("exact", "arena")) for name in rows_of(tmp_path)[2])
        assert [checkpoint_step(path) for path in complete_checkpoints(tmp_path)] == [2]
    assert finished == [1, 1]  # of two matches each time
    monkeypatch.setattr(health, "MAX_INVALID_SHARE", 1.0)
    attempt(params, tmp_path)
    assert rows_of(tmp_path) == rows_of(whole)
    if invalid_share > 0:  # the state counts alarms
        assert_same_run(tmp_path, whole, step=4)


def test_a_run_can_continue_the_whole_state_of_another_in_its_own_directory(
    cache_dir, uninterrupted, tmp_path, capsys
):
    whole = uninterrupted["rae with LoRA"]
    source = complete_checkpoints(whole)[0]
    attempt(make_params(cache_dir, LORA, resume=source), tmp_path, seed=999)
    assert f"taking the whole state of {source}: step 2" in capsys.readouterr().out
    assert rows_of(tmp_path) == rows_of(whole)[3:]
    assert differing(checkpoint_of(tmp_path, 4), checkpoint_of(whole, 4)) == []


def test_a_run_goes_on_with_another_learning_rate_size_and_number_of_updates(
    cache_dir, uninterrupted, tmp_path, capsys
):
    """The run had finished: four updates of eight games."""
    whole = tmp_path / "run"
    shutil.copytree(uninterrupted["rae with LoRA"], whole)
    changed = {"learning_rate": 1e-4, "final_learning_rate": 0.0, "games_per_step": 4, "max_steps": 6}
    attempt(make_params(cache_dir, LORA, save_steps=1, **changed), whole)
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith("changed since checkpoint-4: ")
    assert all(f"training.{name} " in line for name in (*changed, "save_steps"))
    assert f" {line}\n" in (whole / "train.log").read_text()
    former, rows = rows_of(uninterrupted["rae with LoRA"]), rows_of(whole)
    assert rows[:4] == former[:4] and [row["step"] for row in rows] == [0, 1, 2, 3, 4, 5, 6]
    rates = [row["learning_rate"] for row in rows[5:]]  # linear: updates 5 and 6 of 6, the warm-up is over
    assert rates == pytest.approx([1e-4 * 5 / 6 * (1 - 4 / 5), 0.0])
    assert [row["play/num_games"] for row in rows[4:]] == [32, 36, 40]
    assert [checkpoint_step(path) for path in complete_checkpoints(whole)] == [5, 6]
    steps = {state["step"] for state in checkpoint_of(whole, 6)["optimizer"]["optimizer"]["state"].values()}
    assert steps == {12.0}  # two mini-batches an update, those of the first four included


def test_a_checkpoint_of_adapters_is_what_peft_loads(cache_dir, uninterrupted):
    whole = uninterrupted["rae with LoRA"]
    checkpoint = latest_checkpoint(whole)
    params = make_params(cache_dir, LORA).model
    policy = load_policy(params.model_copy(update={"adapters": checkpoint}), seed=7)
    loaded = dict(trained_parameters(policy))
    kept = WeightSnapshot.take(policy)
    kept.load_trained(checkpoint)
    assert loaded.keys() == kept.values.keys() and any(value.any() for value in kept.values.values())
    assert all(torch.equal(loaded[name], value) for name, value in kept.values.items())

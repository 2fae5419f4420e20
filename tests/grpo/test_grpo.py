"""What we hang on TRL: exact resume, evaluation that disturbs nothing, stopping on a signal."""

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import huggingface_hub
import pandas
import pytest
import recipes
import torch
import trl
from datasets import Dataset
from metric_table import METRICS, is_known
from recipes import make_config
from safetensors.numpy import load_file
from tiny_policy import load_tiny, train_by_hand
from tiny_run import lower_case, train
from transformers import TrainerState
from trl import GRPOTrainer
from trl.generation.vllm_generation import VLLMGeneration

from rlnb.code_execution.params import GrpoCodeExecutionParams
from rlnb.display.completions import read_completions
from rlnb.errors import ParamsError, Preempted, TrainingDiverged
from rlnb.grpo import kl
from rlnb.grpo import training as grpo
from rlnb.grpo.answer_trainer import AnswerTrainer
from rlnb.grpo.config import GRPOConfig, order_prompts
from rlnb.grpo.rewards import make_trl_rewards
from rlnb.params import load_params
from rlnb.params.bases import find_base, read_base
from rlnb.params.training import TrainingParams, VllmParams
from rlnb.policy import Policy, model_directory, save_adapters
from rlnb.policy.adapters import adapters_off
from rlnb.run.checkpoints import checkpoint_step, find_damage, latest_checkpoint, saved_recipe
from rlnb.run.tracking import read_metrics

SCRIPT = str(Path(__file__).with_name("tiny_run.py"))
COMPARED = ("loss", "grad_norm", "reward", "entropy", "learning_rate", "completions/mean_length")
WITH_REFERENCE = {"beta": 0.5}
BY_TIME = {"save_steps": 100, "save_minutes": 1e-6}
CPU_POLICY = Mock(device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six steps. Runs next to it find the model that it built."""
    output_dir = tmp_path_factory.mktemp("runs") / "uninterrupted"
    train(output_dir)
    return output_dir


def stop_after(output_dir: Path, *, step: int, by: signal.Signals, **settings: float) -> str:
    """Start a run, send it a signal once a step is through, and return what it said on stderr."""
    command = [sys.executable, SCRIPT, str(output_dir), json.dumps(settings)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # with the modules of tests
    with subprocess.Popen(command, **pipes, text=True, env=environ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == f"step {step}":
                process.send_signal(by)
                break
        return process.communicate(timeout=200)[1]


def assert_same_training(first: Path, second: Path) -> None:
    histories = [json.loads((path / "history.json").read_text()) for path in (first, second)]
    for name in COMPARED:
        assert [row[name] for row in histories[0]] == [row[name] for row in histories[1]], name
    weights = [load_file(path / "adapters" / "adapter_model.safetensors") for path in (first, second)]
    assert weights[0].keys() == weights[1].keys()
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])


def test_a_run_learns_and_keeps_two_checkpoints(uninterrupted: Path):
    weights = load_file(uninterrupted / "adapters" / "adapter_model.safetensors")
    assert any(abs(weight).max() > 0 for name, weight in weights.items() if "lora_B" in name)
    for folder in ("checkpoints", "adapters"):  # TRL's card names a model "None"
        assert not (uninterrupted / folder / "README.md").exists()
    names = sorted(path.name for path in (uninterrupted / "checkpoints").glob("checkpoint-*"))
    assert names == ["checkpoint-4", "checkpoint-6"]
    checkpoint = uninterrupted / "checkpoints" / "checkpoint-6"
    assert find_damage(checkpoint) == "" and "base_model.json" in saved_recipe(checkpoint)["files"]
    assert find_base(checkpoint) == "tiny"


def test_a_run_with_a_reference_policy_that_a_signal_stopped_resumes_to_the_bit(uninterrupted: Path) -> None:
    with_reference, stopped = (uninterrupted.with_name(name) for name in ("with_reference", "stopped"))
    train(with_reference, **WITH_REFERENCE)
    assert "Preempted: SIGTERM" in stop_after(stopped, step=3, by=signal.SIGTERM, **WITH_REFERENCE)
    assert 3 <= checkpoint_step(latest_checkpoint(stopped)) < 6
    train(stopped, **WITH_REFERENCE)
    assert_same_training(with_reference, stopped)
    saved = [stopped / "adapters", Path(latest_checkpoint(stopped) or "")]
    assert not any(path.is_dir() for directory in saved for path in directory.iterdir())  # no copy of it
    losses = [json.loads((path / "history.json").read_text()) for path in (uninterrupted, stopped)]
    assert losses[0][-1]["loss"] != losses[1][-1]["loss"]


def test_a_run_that_saves_by_time_and_is_killed_resumes_to_the_bit(uninterrupted: Path) -> None:
    killed = uninterrupted.with_name("killed")
    stop_after(killed, step=4, by=signal.SIGKILL, **BY_TIME)
    assert checkpoint_step(latest_checkpoint(killed)) >= 3
    train(killed, **BY_TIME)
    assert_same_training(uninterrupted, killed)
    assert len(list((killed / "checkpoints").glob("checkpoint-*"))) == 2
    train(killed, **BY_TIME)  # its training is through: it trains no further
    assert_same_training(uninterrupted, killed)
    assert [row["step"] for row in read_metrics(killed / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]


def test_a_run_continues_the_whole_state_of_another_run_that_is_named_by_its_directory(
    uninterrupted: Path,
) -> None:
    other, own = (uninterrupted.with_name(name) for name in ("other", "own"))
    shutil.copytree(uninterrupted / "checkpoints/checkpoint-4", other / "checkpoints/checkpoint-4")
    train(own, resume=str(other))
    assert_same_training(uninterrupted, own)
    assert [row["step"] for row in read_metrics(own / "metrics.jsonl")] == [5, 6]


def test_a_run_goes_on_with_another_learning_rate_batch_and_number_of_steps(uninterrupted: Path) -> None:
    """The run had finished: six steps, the rate falling linearly from 0.01 to 0."""
    longer = uninterrupted.with_name("longer")
    shutil.copytree(uninterrupted, longer)
    changed = {"learning_rate": 0.004, "max_steps": 8, "per_device_train_batch_size": 8, "save_steps": 1}
    train(longer, **changed, **WITH_REFERENCE)
    assert "training.learning_rate 0.01 -> 0.004" in (longer / "train.log").read_text()
    rows = read_metrics(longer / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [row["learning_rate"] for row in rows[6:]] == pytest.approx([0.004 * 2 / 8, 0.004 * 1 / 8])
    assert ["kl" in row for row in rows] == [False] * 5 + [True] * 3  # without beta at the last step alone
    saved = longer / "checkpoints" / "checkpoint-7"
    groups = torch.load(saved / "optimizer.pt", weights_only=True)["param_groups"]
    assert [group["initial_lr"] for group in groups] == [0.004] * len(groups)
    before, after = (
        load_file(path / "adapter_model.safetensors")
        for path in (uninterrupted / "checkpoints" / "checkpoint-6", saved)
    )
    assert max(abs(before[name] - after[name]).max() for name in before) > 1e-4  # a step of AdamW at 0.001
    assert json.loads((saved / "trainer_state.json").read_text())["max_steps"] == 8


def test_a_run_whose_checkpoints_lack_the_optimizers_state_goes_on(uninterrupted: Path) -> None:
    small = uninterrupted.with_name("small")
    train(small, save_optimizer=False, max_steps=2)
    assert not [*small.glob("checkpoints/checkpoint-2/optimizer*")]
    train(small, save_optimizer=False, max_steps=4)
    rows = read_metrics(small / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row["learning_rate"] for row in rows[2:]] == pytest.approx([0.01 * 2 / 4, 0.01 * 1 / 4])


def test_a_run_begins_with_the_adapters_of_anothers_checkpoint(uninterrupted: Path) -> None:
    source, taken = uninterrupted / "checkpoints" / "checkpoint-6", uninterrupted.with_name("taken")
    train(taken, adapters=str(source), max_steps=1, learning_rate=1e-12)
    before, after = (
        load_file(path / "adapter_model.safetensors") for path in (source, taken / "checkpoints/checkpoint-1")
    )
    assert before.keys() == after.keys() and any(abs(weight).max() > 1e-3 for weight in before.values())
    assert all(abs(before[name] - after[name]).max() < 1e-9 for name in before)


def test_evaluating_and_measuring_the_kl_change_nothing_in_the_training(uninterrupted: Path) -> None:
    measured = uninterrupted.with_name("measured")
    train(measured, evaluate=True, kl_interval=2)
    assert_same_training(uninterrupted, measured)
    usual, rows = (
        {row["step"]: row for row in read_metrics(path / "metrics.jsonl")}
        for path in (uninterrupted, measured)
    )
    assert [step for step, row in rows.items() if "heldout/known/reward" in row] == [2, 4]
    assert "loss" in rows[2] and "reward" in rows[2]  # the step's own log is not swallowed
    assert [step for step, row in rows.items() if "kl" in row] == [2, 4, 6]
    assert [step for step, row in usual.items() if "kl" in row] == [6]
    assert rows[2]["kl"] > 0 and rows[6]["kl"] == usual[6]["kl"]


def test_a_signal_during_an_interval_evaluation_stops_the_run_with_the_step_saved(uninterrupted: Path):
    cut, done = uninterrupted.with_name("cut"), []

    def progress(num_done: int, _: int) -> None:
        done.append((checkpoint_step(latest_checkpoint(cut)), num_done))
        if num_done == 1:
            os.kill(os.getpid(), signal.SIGUSR1)

    for _ in range(2):  # in the evaluation of step 2, then in the one that the next attempt makes up
        with pytest.raises(Preempted, match="SIGUSR1"):
            train(cut, evaluate=True, progress=progress, save_steps=100)
        assert [row["step"] for row in read_metrics(cut / "metrics.jsonl")] == [1, 2]  # no further step
        assert checkpoint_step(latest_checkpoint(cut)) == 2
    assert done == [(2, 0), (2, 1)] * 2  # of two batches each time
    train(cut, evaluate=True, save_steps=100)
    assert_same_training(uninterrupted, cut)
    rows = {row["step"]: row for row in read_metrics(cut / "metrics.jsonl")}
    assert [step for step, row in rows.items() if "heldout/known/reward" in row] == [2, 4]


def test_every_metric_of_a_run_stands_in_the_table(uninterrupted: Path) -> None:
    written = {name for row in read_metrics(uninterrupted / "metrics.jsonl") for name in row}
    unknown = {name for name in written - {"step", "time"} if not is_known(name)}
    assert not unknown
    assert {"loss", "reward", "step_time"} <= written & METRICS


def config_with(vllm: VllmParams | None = None, *, seed: int = 1, policy: Policy = CPU_POLICY) -> GRPOConfig:
    training = TrainingParams(gradient_checkpointing=False, max_steps=3)
    return make_config(
        GrpoCodeExecutionParams(training=training, vllm=vllm or VllmParams(), seed=seed), policy
    )


def test_the_prompt_order_uses_every_task_before_any_comes_again_and_no_global_random_state() -> None:
    rows = [{"prompt": name} for name in "abcde"]
    before = random.getstate()
    ordered, again, other = (order_prompts(rows, config_with(seed=seed)) for seed in (3, 3, 4))
    assert len(ordered) == 3 * 8 // 2  # steps, completions of a step, completions of a prompt
    assert all(row in ordered[:5] and row in ordered[5:10] for row in rows)
    assert ordered == again != other
    assert random.getstate() == before
    with pytest.raises(ParamsError, match="tasks: no task "):
        order_prompts([], config_with())


def test_vllm_reaches_trl_only_where_it_is_enabled() -> None:
    assert not config_with(VllmParams()).use_vllm
    config = config_with(VllmParams(enabled=True, gpu_memory_utilization=0.4))
    assert (config.use_vllm, config.vllm_mode, config.vllm_enable_sleep_mode) == (True, "colocate", True)
    assert (config.vllm_gpu_memory_utilization, config.vllm_max_model_length) == (0.4, 2048)
    config = config_with(VllmParams(enabled=True, server_base_url="http://host:8000"))
    assert (config.vllm_mode, config.vllm_server_base_url) == ("server", "http://host:8000")


class Opinionated(trl.GRPOConfig):
    """Fills in and overrides settings as unsloth 2026.10.7 does with the papers' recommendations."""

    def __init__(self, **options: object) -> None:
        if options["loss_type"] == "dapo":
            options = {"mask_truncated_completions": True, "epsilon_high": 0.28, **options}
        if options["loss_type"] == "dr_grpo" and options["scale_rewards"] == "group":
            options["scale_rewards"] = "none"
        super().__init__(**options)


class Patched(GRPOConfig, Opinionated):
    """Ours on top of the patched one."""


def test_what_a_library_would_fill_in_is_asked_for_and_what_it_overrides_is_an_error(monkeypatch) -> None:
    assert (config_with().mask_truncated_completions, config_with().epsilon_high) == (False, 0.2)
    monkeypatch.setattr(recipes, "GRPOConfig", Patched)
    assert (config_with().mask_truncated_completions, config_with().epsilon_high) == (False, 0.2)
    training = TrainingParams(gradient_checkpointing=False, max_steps=3, loss_type="dr_grpo")
    with pytest.raises(ParamsError, match="scale_rewards = 'group' was changed to 'none'"):
        make_config(GrpoCodeExecutionParams(training=training), CPU_POLICY)


def test_what_a_library_overrides_while_the_trainer_is_made_is_an_error(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = GRPOTrainer.__init__

    def patched(self: GRPOTrainer, *models: object, args: GRPOConfig, **options: object) -> None:
        args.num_generations = 4
        make(self, *models, args=args, **options)

    monkeypatch.setattr(GRPOTrainer, "__init__", patched)
    policy = load_tiny(cache_dir)
    config = config_with(policy=policy)
    prompts = Dataset.from_list([{"prompt": "p"}] * 3)
    with pytest.raises(ParamsError, match="num_generations = 2 was changed to 4"):
        AnswerTrainer(policy.model, lower_case, config, prompts, processing_class=policy.tokenizer)


def test_vllm_stops_where_the_policy_does_and_loads_the_files_of_the_model_cache(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to TRL's trainer, which needs a GPU for vLLM and gives it a name that the hub's cache lacks."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    snapshot = tmp_path / "models--someone--small" / "snapshots" / "1a2b"
    shutil.copytree(model_directory("tiny", cache_dir), snapshot)
    reference = tmp_path / "models--someone--small" / "refs" / "main"
    reference.parent.mkdir()
    reference.write_text("1a2b")
    policy = load_tiny(tmp_path, id="someone/small")
    trained = []

    def make(self: GRPOTrainer, model: Any, reward: object, *, args: GRPOConfig, **_: object) -> None:
        self.args = args
        trained.append((model.name_or_path, args.generation_kwargs))

    monkeypatch.setattr(GRPOTrainer, "__init__", make)
    for vllm in (VllmParams(), VllmParams(enabled=True, gpu_memory_utilization=0.4)):
        for prefix in ("", "```python\ndef f(n):\n"):
            prompts = Dataset.from_list([{"prompt": "p", "prefix": prefix}])
            AnswerTrainer(policy.model, lower_case, config_with(vllm, policy=policy), prompts)
    ends, stops = {"stop_token_ids": [2]}, {"stop": ["\n```\n"], "include_stop_str_in_output": True}
    assert trained[:2] == [("someone/small", None)] * 2
    assert trained[2:] == [(str(snapshot), ends), (str(snapshot), ends | stops)]
    save_adapters(policy, tmp_path / "adapters")
    assert read_base(tmp_path / "adapters") == "someone/small"


def test_fp16_trains_float32_weights() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)).to(torch.bfloat16)
    model[0].requires_grad_(False)
    for fp16, dtype in ((False, torch.bfloat16), (True, torch.float32)):
        grpo.prepare_adapters(SimpleNamespace(model=model, args=SimpleNamespace(fp16=fp16)))
        assert [parameter.dtype for parameter in model.parameters()] == [torch.bfloat16] * 2 + [dtype] * 2


def test_no_step_a_loss_and_a_gradient_that_are_no_numbers_end_a_run() -> None:
    state = TrainerState(global_step=2)
    state.log_history = [{"loss": 0.1}, {"loss": float("nan")}]
    for end in (TrainerState(global_step=0), state):
        with pytest.raises(TrainingDiverged):
            grpo.check_trained(end)
    with pytest.raises(TrainingDiverged, match="step 7"):
        grpo.check_gradient(7, {"grad_norm": float("inf")}, fp16=False)
    grpo.check_gradient(7, {"grad_norm": float("inf")}, fp16=True)  # its scaler leaves the step out
    grpo.check_gradient(7, {"grad_norm": 3.0}, fp16=False)


def test_groups_of_equal_rewards_are_tied_whatever_the_others_earn() -> None:
    nan = float("nan")
    assert grpo.tied_share([1, 1, 0, 1, nan, 2.0, nan, nan], num_generations=2) == 0.75


class Scaled(torch.nn.Identity):
    """A model whose log-probabilities say which tokens they are of, with adapters and without."""

    scale = 1.0

    @contextmanager
    def disable_adapter(self):
        self.scale = 1.25
        yield
        self.scale = 1.0


@pytest.mark.parametrize("by_unsloth", [False, True])
def test_the_kl_is_of_the_completions_also_where_unsloth_moves_the_padding(by_unsloth):
    def logprobs(model, ids, mask, width):
        if by_unsloth:  # _get_per_token_logps_and_entropies of unsloth 2026.10.7
            width += int((ids[:, :-width] == 0).sum(1).max())
            ids = ids.gather(1, torch.argsort(ids != 0, dim=1, descending=True, stable=True))
        return -0.1 * model.scale * ids[:, -width:].float(), None, None

    prompts, answers = torch.tensor([[5, 6, 7], [0, 0, 5]]), torch.tensor([[11, 12], [21, 0]])
    accelerator = SimpleNamespace(unwrap_model=lambda model: model, reduce=lambda value, _: value)
    trainer = SimpleNamespace(
        model=Scaled(), accelerator=accelerator, _get_per_token_logps_and_entropies=logprobs
    )
    batch = {"prompt_ids": prompts, "prompt_mask": (prompts != 0).long()}
    batch |= {"completion_ids": answers, "completion_mask": (answers != 0).long()}
    gaps = [-0.025 * token for token in (11, 12, 21)]
    expected = fmean(math.exp(gap) - gap - 1 for gap in gaps)
    assert kl.measure_kl(trainer, batch) == pytest.approx(expected, rel=1e-5)


def test_unsloths_zeros_are_not_averaged_into_the_kl(monkeypatch):
    monkeypatch.setattr(kl, "measure_kl", lambda *_: 0.5)
    monkeypatch.setattr(kl, "INTERVAL_STEPS", 10)
    trainer = SimpleNamespace(_metrics={"train": {"kl": [0.0, 0.0]}}, _buffered_inputs=[{}, {}])
    for step, values in ((9, [0.5, 0.5]), (10, None)):
        callback = kl.MeasureKl(trainer)
        callback.on_pre_optimizer_step(None, SimpleNamespace(global_step=step, max_steps=90), None)
        assert trainer._metrics["train"].get("kl") == values
        trainer._metrics["train"]["kl"] = [0.0]


def test_metrics_after_a_training_are_those_of_the_last_step_that_was_trained(tmp_path):
    """Somebody has stopped it early, or written another number of steps into the recipe's cell."""
    overrides = {"output_dir": str(tmp_path), "training.max_steps": 2, "tracking.wandb": "disabled"}
    params = load_params("grpo_code_execution", profile="tiny", overrides=overrides, environ={})
    for last_step in (4, 1):
        rows = [{"step": step, "time": 0.0, "reward": 0.5} for step in range(last_step + 1)]
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        trainer = SimpleNamespace(state=TrainerState(global_step=last_step))
        grpo.report_after(trainer, params, {"heldout/known/reward": 1.0})
        *earlier, last = read_metrics(tmp_path / "metrics.jsonl")
        assert earlier == rows[:-1] and last["step"] == last_step and last["heldout/known/reward"] == 1.0


def test_each_reward_has_a_column_of_its_own_whatever_its_name(tmp_path):
    def passed(text):
        return 2.0 if text == "a" else -0.5

    rewards = [lambda text: 5.0 * (text == "a"), lambda text: 1.0 * (text == "b"), passed]
    shown = {"outcome": ["ok", "ok"], "reason": ["", ""], "passed": [True, False]}
    logs = {"measure": lambda _: {}, "show": lambda _: shown}
    functions = make_trl_rewards(rewards, lambda texts, **_: texts, is_failed=lambda _: False, **logs)
    table = {"step": [1, 1], "prompt": ["p", "p"], "completion": ["a", "b"]}
    table |= {pay.__name__: pay(completions=["a", "b"]) for pay in functions}
    path = tmp_path / "completions_00001.parquet"
    pandas.DataFrame({**table, **shown, "advantage": [0.0, 0.0]}).to_parquet(path)
    assert read_completions([path])["reward"].tolist() == [7.0, 0.5]


def test_the_base_stays_as_it_is_when_adapters_are_merged_into_it_for_vllm(cache_dir, monkeypatch):
    """TRL merges them before it sends the weights, and out again, which rounds in 16 bits."""
    policy = load_tiny(cache_dir, dtype="bfloat16")
    train_by_hand(policy)
    frozen = {name: p.clone() for name, p in policy.model.named_parameters() if not p.requires_grad}
    sender = SimpleNamespace(
        model=policy.model,
        _dist=SimpleNamespace(gather_params=lambda _: nullcontext(), is_fsdp=False),
        _fix_param_name_to_vllm=lambda name, **_: name,
    )
    sent = {}

    def send(*_: object) -> tuple[list[list[int]], None]:
        sent.update({name: p.clone() for name, p in VLLMGeneration._iter_named_params(sender)})
        return [], None

    monkeypatch.setattr(AnswerTrainer, "is_complete", None)
    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", send)
    trainer = object.__new__(AnswerTrainer)
    trainer.use_vllm, trainer.model_wrapped = True, policy.model
    trainer.accelerator = SimpleNamespace(unwrap_model=lambda model: model)
    trainer.write_completions([])

    def fail(*_: object) -> None:
        policy.model.merge_adapter()
        raise RuntimeError("the server is gone")

    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", fail)
    with pytest.raises(RuntimeError, match="gone"):
        trainer.write_completions([])
    with adapters_off(policy):  # takes out what is still merged
        policy.model(torch.tensor([[1, 2]]))
    now = dict(policy.model.named_parameters())
    assert sent and all(torch.equal(now[name], weight) for name, weight in frozen.items())

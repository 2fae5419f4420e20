"""Health checks: each warns at its limit, once, with the parameter to change; alarms end a run."""

import re
from pathlib import Path

import pytest
import torch

from rlnb.code_execution.params import GrpoCodeExecutionParams
from rlnb.errors import OutOfMemory, TrainingDiverged, see
from rlnb.game_2048.params import GptOss2048Params
from rlnb.machine import Machine, recommend
from rlnb.params import load_params, resolve
from rlnb.params.training import VllmParams
from rlnb.ppo.params import PpoOpenspielParams
from rlnb.run import health
from rlnb.run.health import (
    Health,
    check_alarms,
    count_alarms,
    find_alarms,
    memory_advice,
    save_games_when_diverged,
)  # fmt: skip
from rlnb.spiral.params import SpiralSelfPlayParams

QUIET = {"play/invalid_share": 0.1, "entropy": 0.5, "play/completion_tokens": 100.0}
INVALID, FLAT, SHORT = {"play/invalid_share": 0.75}, {"entropy": 5e-5}, {"play/completion_tokens": 6.0}


def warnings_of(rows: list[dict[str, float]], **options: object) -> list[str]:
    """The lines of a run after that of its first step."""
    health = Health(**{"max_steps": 40, **options})
    return [line for step, row in enumerate(rows, 1) for line in health.after_step(step, row)][1:]


def row(reward: float = 0.0, *, cut: float = 0.0, kl: float = 0.0, tied: float = 0.0) -> dict[str, float]:
    return {"reward": reward, "completions/clipped_ratio": cut, "kl": kl, "frac_reward_zero_std": tied}


def test_the_first_step_is_summarised_in_one_line():
    logs = {"reward": 0.25, "completions/mean_length": 30.2, "frac_reward_zero_std": 0.25}
    health = Health()
    (line,) = health.after_step(1, logs)
    assert line.startswith("step 1: mean reward +0.25, 30 tokens a completion")
    assert health.after_step(2, logs) == []
    (line,) = Health().after_step(1, QUIET | {"reward": 0.0, "advantage/std": 1.0})
    assert line.endswith("100 tokens an answer, 10% of the answers without a legal move")


def test_the_first_step_warns_of_cut_tied_and_invalid_completions():
    logs = row(cut=0.5, tied=1.0) | {"status/no_code_share": 0.4, "status/syntax_error_share": 0.2}
    cut, tied, invalid = Health().after_step(1, logs)[1:]
    assert "50% of the completions were cut; raise training.max_completion_length" in cut
    assert "all groups tied" in tied and "training.num_generations" in tied
    assert "60% of the completions hold no valid code; try tasks.prompt = prefilled" in invalid
    assert "game.form = seeded" in Health().after_step(1, row() | {"game/no_code_share": 0.6})[-1]


def test_the_first_step_of_games_warns_of_invalid_answers_and_of_equal_returns():
    lines = Health().after_step(1, QUIET | INVALID | {"reward": 0.0, "advantage/std": 0.0})[1:]
    assert len(lines) == 2 and "all advantages are 0" in lines[0]
    assert "75% of the answers hold no legal move; write game.acting = constrained" in lines[1]


def test_a_run_that_learns_gets_no_warning():
    assert warnings_of([row(step / 10) for step in range(40)]) == []


def test_all_cut_completions_and_a_large_divergence_are_reported_once():
    (line,) = warnings_of([row(step, cut=1.0) for step in range(3)] + [{"train_runtime": 1.0}, {}] * 20)
    assert line.startswith("warning: step 1: all completions were cut; raise training.max_completion_length")
    (line,) = warnings_of([row(0, kl=0.01), row(1, kl=0.25), row(2, kl=3.0)])
    assert line.startswith("warning: step 2: kl is 0.250, above 0.01")
    assert line.endswith("raise training.beta")


def test_tied_groups_and_cut_completions_are_reported_with_their_share_over_a_window():
    for name, kwargs, text in (
        ("tied", {"tied": 0.75}, "75% of the groups of the last 5 steps were tied"),
        ("cut", {"cut": 0.3}, "30% of the completions of the last 5 steps were cut"),
    ):
        start = row(-1)
        assert warnings_of([start, *(row(step, **kwargs) for step in range(3))]) == [], name
        (line,) = warnings_of([start, *(row(step, **kwargs) for step in range(9))], max_steps=20)
        assert text.replace("75%", "60%").replace("30%", "24%") in line


def test_each_alarm_is_raised_beyond_its_limit_and_not_at_it():
    assert find_alarms(QUIET, first_length=100.0) == {}
    for name, limit, beyond, alarm in [
        ("play/invalid_share", 0.5, 0.51, "invalid"),
        ("entropy", 1e-4, 0.99e-4, "entropy"),
        ("play/completion_tokens", 10.0, 9.9, "length"),
    ]:
        assert find_alarms({**QUIET, name: limit}, first_length=100.0) == {}
        assert set(find_alarms({**QUIET, name: beyond}, first_length=100.0)) == {alarm}


def test_the_run_is_stopped_after_consecutive_updates_with_the_same_alarm(monkeypatch):
    monkeypatch.setattr(health, "ALARM_PATIENCE", 3)
    counts: dict[str, int] = {}
    # Twice, a quiet one, twice with another alarm meanwhile, then the third in a row.
    for changes in [INVALID, INVALID, {}, INVALID, {**INVALID, **FLAT}]:
        counts = count_alarms(counts, QUIET | changes, first_length=100.0)
        check_alarms(counts, QUIET | changes, first_length=100.0)
    assert counts == {"invalid": 2, "entropy": 1}
    counts = count_alarms(counts, QUIET | INVALID, first_length=100.0)
    assert counts == {"invalid": 3}
    with pytest.raises(
        TrainingDiverged, match="^for 3 updates in a row 75% of the answers hold no legal move"
    ):
        check_alarms(counts, QUIET | INVALID, first_length=100.0)


class Game:
    def as_record(self) -> dict[str, object]:
        return {"game": "kuhn_poker"}


def test_a_diverged_update_leaves_its_games_and_names_the_last_checkpoint(tmp_path: Path):
    checkpoint = tmp_path / "checkpoints" / "checkpoint-4"
    checkpoint.mkdir(parents=True)
    (checkpoint / "trainer_state.json").write_text('{"global_step": 4}')
    (checkpoint / "rlnb.json").write_text('{"files": {}}')
    with pytest.raises(TrainingDiverged) as stopped, save_games_when_diverged([Game(), Game()], tmp_path):
        raise TrainingDiverged("the loss became nan; lower training.learning_rate")
    path = tmp_path / "diverged.jsonl"
    assert f"goes on from {checkpoint}. The games of this update are in {path}" in str(stopped.value)
    assert path.read_text() == '{"game": "kuhn_poker"}\n' * 2
    path.unlink()
    with pytest.raises(KeyError), save_games_when_diverged([Game()], tmp_path):
        raise KeyError("player")
    assert not path.exists()


def out_of_memory(params, **options) -> str:
    with pytest.raises(OutOfMemory) as stopped, memory_advice(params, **options):
        raise torch.cuda.OutOfMemoryError("Tried to allocate 2 GiB")
    text = str(stopped.value)
    assert text.startswith("the GPU's memory is used up. ") and text.endswith(see("out-of-memory"))
    return text.removesuffix(see("out-of-memory")).removeprefix("the GPU's memory is used up. ")


def on_a_gpu(notebook: str, profile: str = "default", **sections):
    """The parameters as they are on an A100."""
    params = load_params(notebook, profile=profile, overrides=sections, environ={})
    machine = Machine("a100", "A100", (8, 0), 40.0, 8, "workstation", "unasked")
    return resolve(params, recommend(machine, environ={}), environ={})


def test_lack_of_memory_names_three_settings_in_order_with_their_values():
    training = {"gradient_checkpointing": False, "tokens_per_pass": 4096}
    params = SpiralSelfPlayParams(training=training, model={"load_in_4bit": False})
    assert out_of_memory(params, doing="training") == (
        "Change, in this order: 1. training.tokens_per_pass = 4096: write 2048; "
        "2. training.gradient_checkpointing = false: write true; 3. model.load_in_4bit = false: write true"
    )
    training = {"gradient_checkpointing": True, "gradient_accumulation_steps": 2}
    params = GrpoCodeExecutionParams(training=training, model={"load_in_4bit": True})
    assert out_of_memory(params, doing="training") == (
        "Change, in this order: "
        "1. training.per_device_train_batch_size = 8: write 4, and training.gradient_accumulation_steps = 4; "
        "2. training.max_completion_length = 256: write 128"
    )


@pytest.mark.parametrize(
    ("notebook", "training", "evaluation"),
    [
        (
            "grpo_code_execution",
            ["training.per_device_train_batch_size", "model.load_in_4bit", "training.max_completion_length"],
            ["mbpp.batch_size", "model.load_in_4bit", "training.max_completion_length"],
        ),
        (
            "spiral_self_play",
            ["training.tokens_per_pass", "model.load_in_4bit", "game.batch_size"],
            ["game.batch_size", "mbpp.batch_size", "training.tokens_per_pass"],
        ),
        ("mbpp_eval", [], ["mbpp.batch_size", "model.load_in_4bit", "mbpp.max_completion_length"]),
    ],
)
def test_every_pipeline_is_offered_what_it_reads_in_training_and_in_evaluation(
    notebook, training, evaluation
):
    params = on_a_gpu(notebook)
    for doing, fields in (("training", training), ("evaluation", evaluation)):
        if fields:
            remedies = re.findall(r"\d\. (\S+) = .+?: write ", out_of_memory(params, doing=doing))
            assert remedies == fields, doing


def test_what_has_no_effect_in_this_mode_is_not_offered():
    constrained = out_of_memory(on_a_gpu("ppo_openspiel"), doing="training")
    assert "game.batch_size" not in constrained and "gradient_checkpointing" not in constrained
    assert "game.style = 'full': write compact" in constrained
    free = out_of_memory(on_a_gpu("ppo_openspiel", game={"acting": "free"}), doing="training")
    assert "game.batch_size = 64: write 32" in free and "game.style" not in free
    without_mbpp = on_a_gpu("grpo_code_execution", mbpp={"enabled": False})
    assert "mbpp" not in out_of_memory(without_mbpp)
    server = {"base_url": "http://host:1/v1", "model_id": "m", "batch_size": 8}
    game = on_a_gpu("grpo_code_game", opponent=server)
    assert "opponent.batch_size" not in out_of_memory(game)
    all_weights = on_a_gpu("spiral_self_play", model={"lora_rank": 0, "load_in_4bit": False})
    told = out_of_memory(all_weights, doing="training")  # weights that are all trained cannot be quantized
    assert "load_in_4bit" not in told and "model.lora_rank = 0: write 16" in told


def test_a_smaller_batch_keeps_the_completions_of_a_step():
    training = {"per_device_train_batch_size": 9, "gradient_accumulation_steps": 2, "num_generations": 6}
    told = out_of_memory(on_a_gpu("grpo_code_execution", training=training), doing="training")
    assert "per_device_train_batch_size = 9: write 3, and training.gradient_accumulation_steps = 6" in told


def test_vllm_beside_the_training_is_the_first_to_give_way():
    vllm = VllmParams(enabled=True, gpu_memory_utilization=0.8)
    params = GrpoCodeExecutionParams(vllm=vllm)
    for doing in ("training", "evaluation"):
        told = out_of_memory(params, doing=doing)
        assert "1. vllm.gpu_memory_utilization = 0.8: write 0.4, which leaves more to the rest" in told
    server = GrpoCodeExecutionParams(vllm=vllm.model_copy(update={"server_base_url": "http://host:8000"}))
    assert "vllm" not in out_of_memory(server)


def test_advice_names_no_setting_that_is_made_already():
    invalid = {"reward": 0.0, "status/no_code_share": 0.8}
    prefilled = GrpoCodeExecutionParams(tasks={"prompt": "prefilled"})
    for params, remedy in (
        (GrpoCodeExecutionParams(), "try tasks.prompt = prefilled, or a model made for chat"),
        (prefilled, "try a model made for chat"),
    ):
        (line,) = Health(params=params).after_step(1, invalid)[1:]
        assert remedy in line and ("prefilled" in line) == (params is not prefilled)
    strategies = {"reward": 0.0, "strategy/no_code_share": 0.8}
    params = GptOss2048Params(prompt={"prefilled": True})
    assert "try prompt.preset = api, or a model" in Health(params=params).after_step(1, strategies)[1]
    for params, remedy in (
        (SpiralSelfPlayParams(advantage={"kind": "gae"}), ", or advantage.kind = rae ("),
        (SpiralSelfPlayParams(), "; lower training.learning_rate ("),
        (PpoOpenspielParams(), "; lower training.learning_rate ("),
    ):
        alarms = find_alarms(QUIET | SHORT, first_length=100.0, params=params)
        assert remedy in alarms["length"]

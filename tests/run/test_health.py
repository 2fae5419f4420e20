"""Health checks: each warns at its limit, once, with the parameter to change; alarms end a run."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pytest
import torch

from rlnb.code_execution.params import GrpoCodeExecutionParams
from rlnb.errors import OutOfMemory, ParamsError, TrainingDiverged
from rlnb.mbpp.params import MbppEvalParams
from rlnb.run.health import (
    Health,
    check_alarms,
    check_disk,
    count_alarms,
    find_alarms,
    memory_advice,
    save_games_when_diverged,
)  # fmt: skip
from rlnb.selfplay.params import AlarmParams
from rlnb.spiral.params import SpiralSelfPlayParams

QUIET = {"play/invalid_share": 0.1, "entropy": 0.5, "play/completion_tokens": 100.0}
INVALID, FLAT, SHORT = {"play/invalid_share": 0.75}, {"entropy": 5e-5}, {"play/completion_tokens": 6.0}
MESSAGES = {
    "invalid": "75% of the answers hold no legal move (alarms.invalid_share = 0.5); write game.acting = "
    "constrained, or take a model made for chat",
    "entropy": "the entropy is 5e-05 nats (alarms.entropy = 0.0001): the policy no longer tries anything; "
    "raise training.entropy_coef",
    "length": "answers have shrunk from 100 to 6 tokens (alarms.length_share = 0.1); lower "
    "training.learning_rate; in self-play write advantage.kind = rae",
}


def warnings_of(rows: list[dict[str, float]], **options: object) -> list[str]:
    """The lines of a run after that of its first step."""
    health = Health(**{"max_steps": 40, **options})
    return [line for step, row in enumerate(rows, 1) for line in health.after_step(step, row)][1:]


def row(reward: float = 0.0, *, cut: float = 0.0, kl: float = 0.0, tied: float = 0.0) -> dict[str, float]:
    return {"reward": reward, "completions/clipped_ratio": cut, "kl": kl, "frac_reward_zero_std": tied}


def test_the_first_step_is_summarised_in_one_line():
    logs = {"reward": 0.25, "completions/mean_length": 30.2, "frac_reward_zero_std": 0.25}
    health = Health()
    assert health.after_step(1, logs | {"completions/clipped_ratio": 0.1}) == [
        "step 1: mean reward +0.25, 30 tokens a completion, 10% cut, 25% of the groups tied, "
        "0% without valid code"
    ]
    assert health.after_step(2, logs) == []
    assert Health().after_step(1, QUIET | {"reward": 0.0, "advantage/std": 1.0}) == [
        "step 1: mean reward +0.00, 100 tokens an answer, 10% of the answers without a legal move"
    ]


def test_the_first_step_warns_of_cut_tied_and_invalid_completions():
    logs = row(cut=0.5, tied=1.0) | {"status/no_code_share": 0.4, "status/syntax_error_share": 0.2}
    assert Health().after_step(1, logs)[1:] == [
        "warning: step 1: 50% of the completions were cut; raise training.max_completion_length",
        "warning: step 1: all groups tied, so nothing was learned; "
        "raise training.num_generations or change the reward",
        "warning: step 1: 60% of the completions hold no valid code; try tasks.prompt = prefilled",
    ]
    assert "game.form = seeded" in Health().after_step(1, row() | {"game/no_code_share": 0.6})[-1]


def test_the_first_step_of_games_warns_of_invalid_answers_and_of_equal_returns():
    lines = Health().after_step(1, QUIET | INVALID | {"reward": 0.0, "advantage/std": 0.0})[1:]
    assert len(lines) == 2 and "all advantages are 0" in lines[0]
    assert "75% of the answers hold no legal move; write game.acting = constrained" in lines[1]


def test_a_run_that_learns_gets_no_warning():
    assert warnings_of([row(step / 10) for step in range(40)]) == []


def test_all_cut_completions_and_a_large_divergence_are_reported_once():
    assert warnings_of([row(step, cut=1.0) for step in range(3)] + [{"train_runtime": 1.0}, {}] * 20) == [
        "warning: step 1: all completions were cut; raise training.max_completion_length"
    ]
    (line,) = warnings_of([row(0, kl=0.01), row(1, kl=0.25), row(2, kl=3.0)])
    assert line.startswith("warning: step 2: kl is 0.250, above 0.01")
    assert line.endswith("raise training.beta")
    (line,) = warnings_of([QUIET | row(0), QUIET | row(1, kl=0.25)])
    assert line.endswith("raise training.kl_coef")


def test_tied_groups_and_cut_completions_are_reported_with_their_share_over_a_window():
    for name, kwargs, text in (
        ("tied", {"tied": 0.75}, "75% of the groups of the last 5 steps were tied"),
        ("cut", {"cut": 0.3}, "30% of the completions of the last 5 steps were cut"),
    ):
        start = row(-1)
        assert warnings_of([start, *(row(step, **kwargs) for step in range(3))]) == [], name
        (line,) = warnings_of([start, *(row(step, **kwargs) for step in range(9))], max_steps=20)
        assert text.replace("75%", "60%").replace("30%", "24%") in line


def flat_share(curve: Callable[[float], float], *, max_steps: int, num_completions: int) -> float:
    """Return the share of 40 runs that are called flat; a reward is 1 with probability curve(progress)."""
    num_flat = 0
    for seed in range(40):
        rng, health = random.Random(seed), Health(max_steps=max_steps)
        for step in range(max_steps):
            rewards = [float(rng.random() < curve(step / max_steps)) for _ in range(num_completions)]
            health.after_step(step, {"reward": fmean(rewards)}, rewards=rewards)
        num_flat += "flat" in health.given
    return num_flat / 40


@pytest.mark.parametrize(("max_steps", "num_completions"), [(16, 32), (90, 8), (300, 32)])
def test_a_flat_reward_is_told_from_one_that_rises_steadily(max_steps, num_completions):
    options = {"max_steps": max_steps, "num_completions": num_completions}
    assert flat_share(lambda _: 0.4, **options) >= 0.6
    assert flat_share(lambda progress: 0.2 + 0.6 * progress, **options) <= 0.05


def test_a_flat_reward_is_reported_unless_it_is_flat_by_definition():
    assert warnings_of([row(0.3) for _ in range(9)]) == []
    (line,) = warnings_of([row(0.3) for _ in range(20)])
    assert "the reward has stayed at +0.300 for 10 steps" in line
    assert warnings_of([row(0.3) for _ in range(20)], has_reward_trend=False) == []


def lost_best(rewards: list[list[float]]) -> list[str]:
    health, lines = Health(max_steps=40), []
    for step, earned in enumerate(rewards, 1):
        lines += health.after_step(step, row(step), rewards=earned)
    return [line for line in lines if "earned" in line]


def test_a_best_reward_that_nothing_earns_any_more_is_reported():
    """It happened on a CPU other than the profile was chosen on: silent programs only, from step 8 on."""
    silent, printed = [0.5] * 31, [1.0] * 5 + [0.5] * 27
    (line,) = lost_best([printed, silent, printed, *[silent] * 9])
    assert line == (
        "warning: step 8: no completion has earned +1.00 for 5 steps, the most there was, once earned by "
        "16%: the policy settles for less; lower training.temperature, or raise training.num_generations"
    )
    assert lost_best([printed, *[silent] * 4, printed, *[silent] * 4]) == []
    assert lost_best([[1.0] + silent, *[silent] * 9]) == [], "one in 32 may have been luck"
    scores = [[step / 100] * 20 + [0.0] * 12 for step in range(9, -1, -1)]
    assert lost_best(scores) == [], "a score, which depends on the boards of its step, is no outcome"


def alarms_of(**changes: float) -> set[str]:
    return set(find_alarms({**QUIET, **changes}, AlarmParams(), first_length=100.0))


def test_each_alarm_is_raised_beyond_its_limit_and_not_at_it():
    assert alarms_of() == set()
    for name, limit, beyond, alarm in [
        ("play/invalid_share", 0.5, 0.51, "invalid"),
        ("entropy", 1e-4, 0.99e-4, "entropy"),
        ("play/completion_tokens", 10.0, 9.9, "length"),
    ]:
        assert alarms_of(**{name: limit}) == set()
        assert alarms_of(**{name: beyond}) == {alarm}
    everything = {**QUIET, **INVALID, **FLAT, **SHORT}
    assert find_alarms(everything, AlarmParams(), first_length=100.0) == MESSAGES
    off = AlarmParams(invalid_share=1.0, entropy=0.0, length_share=0.0)
    assert find_alarms(everything | {"entropy": 0.0}, off, first_length=100.0) == {}


def test_the_run_is_stopped_after_patience_consecutive_updates():
    limits, counts = AlarmParams(patience=3), {}
    # Twice, a quiet one, twice with another alarm meanwhile, then the third in a row.
    for changes in [INVALID, INVALID, {}, INVALID, {**INVALID, **FLAT}]:
        counts = count_alarms(counts, QUIET | changes, limits, first_length=100.0)
        check_alarms(counts, QUIET | changes, limits, first_length=100.0)
    assert counts == {"invalid": 2, "entropy": 1}
    counts = count_alarms(counts, QUIET | INVALID, limits, first_length=100.0)
    assert counts == {"invalid": 3}
    with pytest.raises(TrainingDiverged) as stopped:
        check_alarms(counts, QUIET | INVALID, limits, first_length=100.0)
    assert str(stopped.value) == f"for 3 updates in a row {MESSAGES['invalid']}"


class Game:
    def as_record(self) -> dict[str, object]:
        return {"game": "kuhn_poker"}


def test_a_diverged_update_leaves_its_games_and_names_the_last_checkpoint(tmp_path: Path):
    checkpoint = tmp_path / "checkpoints" / "checkpoint-4"
    checkpoint.mkdir(parents=True)
    (checkpoint / "trainer_state.json").write_text('{"global_step": 4}')
    with pytest.raises(TrainingDiverged) as stopped, save_games_when_diverged([Game(), Game()], tmp_path):
        raise TrainingDiverged("the loss became nan; lower training.learning_rate")
    path = tmp_path / "diverged.jsonl"
    assert str(stopped.value) == (
        "the loss became nan; lower training.learning_rate; then run again, which goes on from "
        f"{checkpoint}. The games of this update are in {path}"
    )
    assert path.read_text() == '{"game": "kuhn_poker"}\n' * 2
    path.unlink()
    with pytest.raises(KeyError), save_games_when_diverged([Game()], tmp_path):
        raise KeyError("player")
    assert not path.exists()


def out_of_memory(params) -> str:
    with pytest.raises(OutOfMemory) as stopped, memory_advice(params):
        raise torch.cuda.OutOfMemoryError("Tried to allocate 2 GiB")
    return str(stopped.value)


def test_lack_of_memory_names_three_settings_in_order_with_their_values():
    training = {"gradient_checkpointing": False, "tokens_per_pass": 4096}
    assert out_of_memory(SpiralSelfPlayParams(training=training, model={"load_in_4bit": False})) == (
        "the GPU's memory is used up. Change, in this order: "
        "1. training.tokens_per_pass = 4096: write 2048; "
        "2. training.gradient_checkpointing = False: write true; "
        "3. model.load_in_4bit = False: write true"
    )
    training = {"gradient_checkpointing": True, "gradient_accumulation_steps": 2}
    assert out_of_memory(GrpoCodeExecutionParams(training=training, model={"load_in_4bit": True})) == (
        "the GPU's memory is used up. Change, in this order: "
        "1. training.per_device_train_batch_size = 8: write 4, and training.gradient_accumulation_steps = 4; "
        "2. training.max_completion_length = 256: write 128; 3. mbpp.max_completion_length = 512: write 256"
    )
    assert "mbpp.batch_size = 32: write 16" in out_of_memory(MbppEvalParams(model={"load_in_4bit": True}))


def test_settings_that_are_already_made_are_not_named():
    params = SpiralSelfPlayParams(
        training={"gradient_checkpointing": True}, model={"load_in_4bit": True}, game={"batch_size": 64}
    )
    message = out_of_memory(params)
    assert "gradient_checkpointing" not in message and "load_in_4bit" not in message
    assert "2. game.batch_size = 64: write 32, for free answers; 3. game.max_prompt_tokens = 1024" in message
    full = SpiralSelfPlayParams(model={"lora_rank": 0, "load_in_4bit": False})
    assert "load_in_4bit" not in out_of_memory(full)  # weights that are all trained cannot be quantized


def test_checkpoints_that_would_fill_the_disk_are_refused_beyond_those_that_are_there(tmp_path: Path):
    free = shutil.disk_usage(tmp_path).free
    check_disk(tmp_path / "not" / "there", free // 4, keep=2)
    with pytest.raises(ParamsError) as refused:
        check_disk(tmp_path, free // 2, keep=2)
    message = str(refused.value)
    assert message.startswith(f"output_dir = '{tmp_path}' has ") and "and 3 checkpoints take " in message
    assert message.endswith("write another directory, or less than training.save_total_limit = 2")
    for step in (5, 10):
        (tmp_path / "checkpoints" / f"checkpoint-{step}").mkdir(parents=True)
    check_disk(tmp_path, free // 2, keep=2)

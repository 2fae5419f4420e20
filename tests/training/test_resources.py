"""A run that lacks memory or room says what to change, with the values that it has."""

import shutil

import pytest
import torch
from self_play_run import params_of, parts_of

from rlnb.errors import OutOfMemory, ParamsError
from rlnb.params.spiral_self_play import SpiralSelfPlayParams
from rlnb.training.resources import check_disk, checkpoint_bytes, memory_advice
from rlnb.training.self_play_checkpoints import save_checkpoint
from rlnb.training.spiral import SelfPlayState


def out_of_memory(**sections) -> str:
    with pytest.raises(OutOfMemory) as caught, memory_advice(SpiralSelfPlayParams(**sections)):
        raise torch.cuda.OutOfMemoryError("Tried to allocate 2 GiB")
    return str(caught.value)


def test_three_settings_are_named_in_order_with_their_values():
    found = out_of_memory(
        training={"gradient_checkpointing": False, "tokens_per_pass": 4096}, model={"load_in_4bit": False}
    )
    assert found == (
        "the GPU's memory is used up. Change, in this order: "
        "1. training.tokens_per_pass = 4096: write 2048; "
        "2. training.gradient_checkpointing = False: write true; "
        "3. model.load_in_4bit = False: write true"
    )


def test_what_is_set_already_is_not_asked_for_again():
    found = out_of_memory(
        training={"gradient_checkpointing": True}, model={"load_in_4bit": True}, game={"batch_size": 64}
    )
    assert "gradient_checkpointing" not in found
    assert "load_in_4bit" not in found
    assert "2. game.batch_size = 64: write 32, for free answers; 3. game.max_prompt_tokens = 1024" in found


def test_weights_that_are_all_trained_are_not_to_be_quantized():
    assert "load_in_4bit" not in out_of_memory(model={"lora_rank": 0, "load_in_4bit": False})


def test_other_errors_pass():
    with pytest.raises(ZeroDivisionError), memory_advice(SpiralSelfPlayParams()):
        raise ZeroDivisionError


def test_checkpoints_that_would_fill_the_disk_are_refused(tmp_path):
    free = shutil.disk_usage(tmp_path).free
    check_disk(tmp_path / "not" / "there", free // 4, keep=2)
    with pytest.raises(ParamsError) as caught:
        check_disk(tmp_path / "run", free, keep=2)
    message = str(caught.value)
    assert message.startswith(f"output_dir = '{tmp_path / 'run'}' has ")
    assert message.endswith("write another directory, or less than training.save_total_limit = 2")


def test_a_run_that_goes_on_needs_room_for_new_checkpoints_alone(tmp_path):
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(ParamsError, match="and 3 checkpoints take "):
        check_disk(tmp_path, free // 2, keep=2)
    for step in (5, 10):
        (tmp_path / "checkpoints" / f"checkpoint-{step}").mkdir(parents=True)
    check_disk(tmp_path, free // 2, keep=2)


def test_a_checkpoint_is_about_as_large_as_said(tmp_path):
    params = params_of(tmp_path, training={"magnet_coef": 0.1})
    _, learner, _ = parts_of(params)
    # AdamW has no moments before its first step.
    for parameter in learner.actor.parameters():
        parameter.grad = torch.zeros_like(parameter)
    learner.optimizer.step()
    found = save_checkpoint(tmp_path / "run", learner, SelfPlayState(step=1), params, keep=1)
    written = sum(path.stat().st_size for path in found.iterdir())
    assert 0.9 < checkpoint_bytes(learner) / written < 1.1

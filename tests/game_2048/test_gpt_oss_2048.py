"""The parameters of 2048: the published settings to the letter, deviations with reasons, refusals."""

import pytest
from refusals import refused

from rlnb.game_2048.play import BoardRules
from rlnb.params import load_params


def load(profile="default", **sections):
    return load_params("gpt_oss_2048", profile=profile, overrides=sections, environ={})


def test_the_defaults_are_the_requirement():
    params = load()
    model, training = params.model, params.training
    assert (model.id, model.load_in_4bit, model.offload_embedding) == ("unsloth/gpt-oss-20b", True, True)
    assert (model.lora_rank, model.lora_alpha, model.max_seq_length) == (4, 8, 768)
    assert (training.learning_rate, training.warmup_steps) == (5e-5, 100)
    assert (training.optim, training.max_steps, training.save_steps) == ("adamw_8bit", 1000, 100)
    assert (training.max_completion_length, training.num_generations) == (200, 2)
    assert training.gradient_accumulation_steps == 4
    assert (params.board.kinds, params.board.play_on) == (("6x6/2048",), False)
    assert (params.reward.preset, params.reward.num_boards) == ("requirements", 1)
    assert params.prompt.preset == "board" and params.sandbox.timeout_seconds == 5.0


def test_the_published_rewards_have_one_limit_of_time_whatever_the_profile():
    for profile in ("default", "cpu", "h100"):
        rules = {
            preset: BoardRules.from_params(load(profile, reward={"preset": preset}))
            for preset in ("requirements", "graded")
        }
        published, graded = rules["requirements"], rules["graded"]
        assert published.move_cpu_seconds == published.board_cpu_seconds == published.wall_seconds == 5.0
        assert graded.move_cpu_seconds < graded.board_cpu_seconds < graded.wall_seconds == 5.0
        assert published.standard_library and not graded.standard_library


@pytest.mark.parametrize(
    "section, field, value",
    [
        ("training", "max_completion_length", 768),
        ("save", "formats", ["gguf"]),
        ("board", "kinds", ["4x5/2048"]),
    ],
)
def test_contradictions_are_refused_before_any_model_loads(section, field, value):
    assert f": {section}.{field}" in refused(load, **{section: {field: value}})

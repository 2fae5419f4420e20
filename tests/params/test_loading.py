"""YAML files, environment and overrides become one set of parameters."""

import os
from pathlib import Path

import pytest

import rlnb
from rlnb.params import load_params, parse_set
from rlnb.params.grpo_code_execution import GrpoCodeExecutionParams

NOTEBOOK = "grpo_code_execution"
ROOT = Path(rlnb.__file__).parents[1]


def with_set(*assignments: str) -> GrpoCodeExecutionParams:
    return load_params(NOTEBOOK, profile="default", overrides=parse_set(*assignments), environ={})


def with_environment(**environ: str) -> GrpoCodeExecutionParams:
    return load_params(NOTEBOOK, profile="default", environ=environ)


# What there is


def test_the_default_file_holds_the_published_settings_which_are_the_models_defaults():
    params = load_params(NOTEBOOK, profile="default", environ={})
    assert params == GrpoCodeExecutionParams()
    assert (params.training.learning_rate, params.training.max_steps) == (2e-5, 90)
    assert (params.training.per_device_train_batch_size, params.training.num_generations) == (8, 2)
    assert params.evaluation.model_dump() == {
        "enabled": True,
        "num_questions": 5,
        "num_samples": 1,
        "eval_interval_steps": 20,
        "interval_questions": 5,
        "temperature": 0.2,
        "timeout_seconds": 10.0,
    }
    assert (params.vllm.enabled, params.vllm.gpu_memory_utilization, params.vllm.max_model_len) == (
        False,
        0.85,
        2048,
    )


def test_a_v100_evaluates_on_fewer_tasks_than_the_default_and_larger_gpus_on_more():
    questions = {
        profile: load_params(NOTEBOOK, profile=profile, environ={}).evaluation.num_questions
        for profile in ("v100", "default", "a100", "h100")
    }
    assert questions["v100"] < questions["default"] < questions["a100"] < questions["h100"]


def test_profile_auto_is_the_one_for_this_machine(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    automatic = load_params(NOTEBOOK, environ={"CUDA_VISIBLE_DEVICES": "", "PATH": os.environ["PATH"]})
    assert automatic == load_params(NOTEBOOK, profile="cpu", environ={})


# Which of several wins


def test_the_profile_overrules_the_default_the_environment_the_profile_and_overrides_all(project):
    text = "training: {max_steps: 2, save_steps: 2, warmup_steps: 2}"
    environ = {"RLNB_TRAINING__SAVE_STEPS": "3", "RLNB_TRAINING__WARMUP_STEPS": "3"}
    training = project(text, environ=environ, overrides={"training": {"warmup_steps": 4}}).training
    assert (training.max_steps, training.save_steps, training.warmup_steps) == (2, 3, 4)


def test_empty_sections_and_an_empty_cell_change_nothing(project):
    assert (
        project("training:\nevaluation: {}", overrides={"model": {}, "training": {}})
        == GrpoCodeExecutionParams()
    )


def test_the_older_environment_names_still_work_and_the_newer_ones_overrule_them(tmp_path):
    dataset = tmp_path / "mbpp.jsonl"
    dataset.write_text("")
    params = with_environment(MBPP_EVAL_NUM_QUESTIONS="10", MBPP_DATASET_PATH=str(dataset))
    assert (params.evaluation.num_questions, params.tasks.mbpp_path) == (10, str(dataset))
    both = with_environment(MBPP_EVAL_NUM_QUESTIONS="10", RLNB_EVALUATION__NUM_QUESTIONS="11")
    assert both.evaluation.num_questions == 11


def test_environment_values_have_the_type_of_their_field():
    params = with_environment(
        RLNB_TRACKING__RUN_NAME="2026",
        RLNB_TRAINING__LEARNING_RATE="3e-5",
        RLNB_EVALUATION__ENABLED="false",
        RLNB_TASKS__LEVELS="[1, 2]",
        RLNB_SEED="7",
    )
    assert (params.tracking.run_name, params.training.learning_rate) == ("2026", 3e-5)
    assert (params.evaluation.enabled, params.tasks.levels, params.seed) == (False, (1, 2), 7)


def test_a_variable_of_ours_that_is_no_field_sets_nothing():
    assert with_environment(RLNB_OFFLINE="1") == GrpoCodeExecutionParams()


# Values that YAML 1.1 and Python read differently


@pytest.mark.parametrize("number", ["1e-5", "1.0e-5", "1E-5", "0.00001"])
def test_a_number_needs_no_dot_in_a_file_in_a_cell_or_on_the_command_line(project, number):
    assert project(f"training: {{learning_rate: {number}}}").training.learning_rate == 1e-5
    assert project("", overrides={"training": {"learning_rate": number}}).training.learning_rate == 1e-5
    assert with_set(f"training.learning_rate={number}").training.learning_rate == 1e-5


def test_a_whole_number_may_stand_for_a_real_one(project):
    temperature = project("training: {temperature: 1}").training.temperature
    assert (temperature, type(temperature)) == (1.0, float)


def test_assignments_add_up_and_the_last_of_a_field_counts():
    params = with_set("seed=1", "training.max_steps=2", "training.resume=never", "seed=3")
    assert (params.seed, params.training.max_steps, params.training.resume) == (3, 2, "never")


@pytest.mark.parametrize("name", ["1e5", "010", "true", "2026-01-01", "a: b", ""])
def test_a_text_is_taken_as_it_was_typed(name):
    assert with_set(f"tracking.run_name={name}").tracking.run_name == name


def test_an_assignment_may_hold_colons_and_equal_signs():
    assert parse_set("vllm.server_base_url=http://h:8000/?a=b") == {
        "vllm": {"server_base_url": "http://h:8000/?a=b"}
    }

"""Parameters as a table and as a file."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlnb.errors import ParamsError
from rlnb.params import describe, dump_yaml, load_params
from rlnb.params.grpo_code_execution import GrpoCodeExecutionParams
from rlnb.params.reporting import Row
from rlnb.params.sections import HARMLESS, Section

NOTEBOOK = "grpo_code_execution"


def saved(params: GrpoCodeExecutionParams, folder: Path) -> str:
    path = folder / "params.yaml"
    path.write_text(dump_yaml(params))
    return str(path)


@given(
    seed=st.integers(0, 2**32 - 1),
    learning_rate=st.floats(0, 1, exclude_min=True),
    run_name=st.text(st.characters(exclude_categories=("Cs", "Cc", "Cf"), include_characters=HARMLESS)),
    levels=st.lists(st.sampled_from([1, 2, 3]), unique=True, min_size=1),
    load_in_4bit=st.sampled_from(["auto", True, False]),
)
def test_what_is_saved_is_loaded_again(tmp_path_factory, seed, learning_rate, run_name, levels, load_in_4bit):
    params = GrpoCodeExecutionParams(
        seed=seed,
        model={"load_in_4bit": load_in_4bit},
        tasks={"levels": levels},
        training={"learning_rate": learning_rate},
        tracking={"run_name": run_name},
    )
    path = saved(params, tmp_path_factory.mktemp("run"))
    assert load_params(NOTEBOOK, profile=path, environ={}) == params


def test_a_saved_run_is_not_changed_by_the_environment_but_by_overrides(tmp_path):
    path = saved(GrpoCodeExecutionParams(training={"max_steps": 5}), tmp_path)
    environ = {"RLNB_TRAINING__MAX_STEPS": "7", "MBPP_EVAL_NUM_QUESTIONS": "8"}
    assert load_params(NOTEBOOK, profile=path, environ=environ).training.max_steps == 5
    overrides = {"training": {"max_steps": 6}}
    assert load_params(NOTEBOOK, profile=path, environ=environ, overrides=overrides).training.max_steps == 6


def test_a_file_of_ones_own_lies_over_the_default_and_under_the_environment(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("training: {max_steps: 5, save_steps: 5}")
    params = load_params(NOTEBOOK, profile=str(path), environ={"RLNB_TRAINING__MAX_STEPS": "7"})
    assert (params.training.max_steps, params.training.save_steps) == (7, 5)


def test_the_parameters_of_another_notebook_are_refused(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text("notebook: spiral_self_play\nseed: 3\n")
    with pytest.raises(ParamsError) as refused:
        load_params(NOTEBOOK, profile=str(path), environ={})
    assert str(refused.value) == f"{path}: holds the parameters of spiral_self_play, not those of {NOTEBOOK}"


def test_the_table_names_value_source_and_help_of_every_field(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("\ntraining:\n  learning_rate: 1e-5\n")
    environ = {"MBPP_EVAL_NUM_QUESTIONS": "3"}
    params = load_params(NOTEBOOK, profile=str(path), environ=environ, overrides={"seed": 1})
    rows = {row.field: row for row in describe(params)}
    assert rows["training.learning_rate"] == Row(
        "training.learning_rate", "1.0e-5", f"{path}:3", "Peak learning rate of AdamW"
    )
    assert rows["seed"].source == "parameters cell"
    assert rows["evaluation.num_questions"].source == "environment variable MBPP_EVAL_NUM_QUESTIONS"
    assert rows["evaluation.num_samples"].source == "default"
    assert rows["tasks.levels"].value == "[1, 2, 3]"
    assert rows["evaluation.enabled"].value == "true"


def test_every_field_says_what_it_is_and_a_name_with_a_unit_says_the_unit():
    units = {"_seconds": "(seconds)", "_mib": "(MiB)", "_kib": "(KiB)", "_tokens": "(tokens)"}
    for row in describe(GrpoCodeExecutionParams()):
        assert row.help, row.field
        for ending, unit in units.items():
            assert unit in row.help or not row.field.endswith(ending), row.field


def test_parameters_cannot_be_changed_in_place():
    params = GrpoCodeExecutionParams()
    for part in (params, params.training):
        assert isinstance(part, Section)
        with pytest.raises(ValueError, match="frozen"):
            part.seed = 3

"""YAML files, environment and overrides become one set of parameters, and these a table or a file."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import NOTEBOOK, with_environment, with_set

from rlnb.code_execution.params import GrpoCodeExecutionParams
from rlnb.errors import ParamsError
from rlnb.params import describe_params, dump_yaml, load_params, parse_set
from rlnb.params.loading import MODELS, list_fields, load_model_class
from rlnb.params.reading import find_field
from rlnb.run.tracking import label_run


def saved(params: GrpoCodeExecutionParams, folder: Path) -> str:
    path = folder / "params.yaml"
    path.write_text(dump_yaml(params))
    return str(path)


def test_profile_auto_is_the_one_for_this_machine(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    automatic = load_params(NOTEBOOK, environ={"CUDA_VISIBLE_DEVICES": "", "PATH": os.environ["PATH"]})
    assert automatic == load_params(NOTEBOOK, profile="cpu", environ={})


def test_the_profile_overrules_the_default_the_environment_the_profile_and_overrides_all(project):
    text = "training: {max_steps: 2, save_steps: 2, warmup_steps: 2}"
    environ = {"RLNB_TRAINING__SAVE_STEPS": "3", "RLNB_TRAINING__WARMUP_STEPS": "3"}
    training = project(text, environ=environ, overrides={"training": {"warmup_steps": 4}}).training
    assert (training.max_steps, training.save_steps, training.warmup_steps) == (2, 3, 4)


def test_empty_sections_and_an_empty_cell_change_nothing(project):
    params = project("training:\nevaluation: {}", overrides={"model": {}, "training": {}})
    assert params == with_environment(RLNB_OFFLINE="1") == GrpoCodeExecutionParams()


def test_the_older_environment_names_still_work_and_the_newer_ones_overrule_them(tmp_path):
    dataset = tmp_path / "mbpp.jsonl"
    dataset.write_text("")
    params = with_environment(MBPP_EVAL_NUM_QUESTIONS="10", MBPP_DATASET_PATH=str(dataset))
    assert (params.evaluation.num_questions, params.mbpp.path) == (10, str(dataset))
    both = with_environment(MBPP_EVAL_NUM_QUESTIONS="10", RLNB_EVALUATION__NUM_QUESTIONS="11")
    assert both.evaluation.num_questions == 11
    assert with_environment(MBPP_EVAL_NUM_QUESTIONS="", MBPP_DATASET_PATH="") == with_environment()


def test_environment_values_have_the_type_of_their_field():
    params = with_environment(
        RLNB_TRACKING__PROJECT="010",
        RLNB_TRAINING__LEARNING_RATE="3e-5",
        RLNB_EVALUATION__ENABLED="false",
        RLNB_MODEL__LORA_TARGET_MODULES="[q_proj, v_proj]",
        RLNB_SEED="7",
    )
    assert (params.tracking.project, params.training.learning_rate) == ("010", 3e-5)
    assert (params.evaluation.enabled, params.seed) == (False, 7)
    assert params.model.lora_target_modules == ("q_proj", "v_proj")


def test_assignments_add_up_and_the_last_of_a_field_counts():
    params = with_set("seed=1", "training.max_steps=2", "training.resume=never", "seed=3")
    assert (params.seed, params.training.max_steps, params.training.resume) == (3, 2, "never")
    assert parse_set("vllm.server_base_url=http://h/?a=b") == {"vllm.server_base_url": "http://h/?a=b"}
    assert with_set("training.max_steps=4", "max_steps=2").training.max_steps == 2
    assert with_set("max_steps=2", "training.max_steps=4").training.max_steps == 4
    with pytest.raises(ParamsError, match="is not an assignment"):
        parse_set("training.max_steps")


def test_null_is_none_where_a_field_may_be_none_and_a_text_elsewhere():
    for text, system in (("null", None), ("''", ""), ("", ""), ("Be brief.", "Be brief.")):
        assert with_set(f"model.system={text}").model.system == system
        assert with_environment(RLNB_MODEL__SYSTEM=text).model.system == system
    for text in ("Solve task #3 first", "# Be brief", "# Role\nYou are a coder", "yes", "42"):
        assert with_set(f"model.system={text}").model.system == text
    assert with_set("tracking.project=null").tracking.project == "null"


@given(
    seed=st.integers(0, 2**32 - 1),
    learning_rate=st.floats(0, 1, exclude_min=True),
    project=st.text(st.characters(exclude_categories=("Cs",)), min_size=1),
    modules=st.lists(st.sampled_from(["q_proj", "k_proj", "v_proj"]), unique=True, min_size=1),
    load_in_4bit=st.sampled_from(["auto", True, False]),
)
def test_what_is_saved_is_loaded_again(tmp_path_factory, seed, learning_rate, project, modules, load_in_4bit):
    params = GrpoCodeExecutionParams(
        seed=seed,
        model={"load_in_4bit": load_in_4bit, "lora_target_modules": modules},
        training={"learning_rate": learning_rate},
        tracking={"project": project},
    )
    path = saved(params, tmp_path_factory.mktemp("run"))
    assert load_params(NOTEBOOK, profile=path, environ={}) == params


def test_a_saved_run_is_not_changed_by_the_environment_but_by_overrides(tmp_path):
    path = saved(GrpoCodeExecutionParams(training={"max_steps": 5}), tmp_path)
    given_later = {"environ": {"RLNB_TRAINING__MAX_STEPS": "7", "MBPP_EVAL_NUM_QUESTIONS": "8"}}
    assert load_params(NOTEBOOK, profile=path, **given_later).training.max_steps == 5
    given_later["overrides"] = {"training": {"max_steps": 6}}
    assert load_params(NOTEBOOK, profile=path, **given_later).training.max_steps == 6


def test_a_saved_run_keeps_the_name_of_its_profile(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("seed: 3\n")
    for profile, name in (("tiny", "tiny"), (str(mine), "mine")):
        params = load_params(NOTEBOOK, profile=profile, environ={})
        again = load_params(NOTEBOOK, profile=saved(params, tmp_path), environ={})
        assert label_run(params)["job_type"] == label_run(again)["job_type"] == name


def test_the_table_names_value_source_and_help_of_every_field(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("\ntraining:\n  learning_rate: 1e-5\n  max_steps: 5\n")
    environ = {"MBPP_EVAL_NUM_QUESTIONS": "3", "RLNB_TRAINING__MAX_STEPS": "7"}
    params = load_params(NOTEBOOK, profile=str(path), environ=environ, overrides={"seed": 1})
    rows = {row.field: row for row in describe_params(params)}
    assert rows["training.learning_rate"].value == "1.0e-5"
    assert rows["training.learning_rate"].source == f"{path}:3"
    assert rows["training.max_steps"].value == "7"
    assert rows["seed"].source == "parameters cell"
    assert rows["evaluation.num_questions"].source == "environment variable MBPP_EVAL_NUM_QUESTIONS"
    assert rows["evaluation.num_samples"].source == "default"
    assert all(row.help for row in rows.values())


def test_a_short_name_stands_for_the_only_field_of_that_name_or_for_section_and_field():
    fields = ["seed", "model.id", "opponent.model_id", "training.max_steps", "training.beta", "magnet.beta"]
    short = {
        "id": "model.id",
        "model_id": "model.id",
        "opponent_model_id": "opponent.model_id",
        "max_steps": "training.max_steps",
        "training_max_steps": "training.max_steps",
        "magnet_beta": "magnet.beta",
    }
    assert {name: find_field(name, fields) for name in short} == short
    for name in ("seed", "model.id", "beta", "training", "max_step"):
        assert find_field(name, fields) == name
    for notebook in MODELS:  # each field has a name that stands for it alone
        fields = list(list_fields(load_model_class(notebook)))
        assert [find_field(field.replace(".", "_"), fields) for field in fields] == fields


def test_a_path_without_its_ending_is_no_profile(tmp_path):
    (tmp_path / "mine.yaml").write_text("seed: 3\n")
    with pytest.raises(ParamsError, match="is not in params/"):
        load_params(NOTEBOOK, profile=str(tmp_path / "mine"), environ={})

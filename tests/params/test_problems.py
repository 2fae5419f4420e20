"""What is wrong with parameters is said in one line each: place, field, value, reason, remedy."""

import os
import shutil
import subprocess
import sys
import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from shipped_profiles import FOLDER

from rlnb.errors import ParamsError
from rlnb.machine import installed_version
from rlnb.params import load_params, parse_set
from rlnb.params.grpo_code_execution import GrpoCodeExecutionParams
from rlnb.params.problems import did_you_mean, show_number

NOTEBOOK = "grpo_code_execution"


def message(load, *arguments, **given) -> str:
    with pytest.raises(ParamsError) as refused:
        load(*arguments, **given)
    return str(refused.value)


def with_overrides(*assignments: str, **given) -> GrpoCodeExecutionParams:
    overrides = parse_set(*assignments)
    return load_params(NOTEBOOK, profile="default", overrides=overrides, place="--set", environ={}, **given)


def with_environment(**environ: str) -> GrpoCodeExecutionParams:
    return load_params(NOTEBOOK, profile="default", environ=environ)


# Values and shapes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("learning_rate: 1e-5x", "3: training.learning_rate = '1e-5x' is not a number; write 1.0e-5"),
        (
            "learning_rate: fast",
            "3: training.learning_rate = 'fast' is not a number; write one such as 2.0e-5",
        ),
        ("learning_rate: true", "3: training.learning_rate = true is not a number; write one such as 2.0e-5"),
        ("learning_rate: .nan", "3: training.learning_rate = nan is not a finite number"),
        ("learning_rate: 0", "3: training.learning_rate = 0 must be above 0"),
        ("max_steps: -3", "3: training.max_steps = -3 must be at least 1"),
        ("max_steps: true", "3: training.max_steps = true is not a whole number; write one such as 90"),
        ("max_steps: 3.0", "3: training.max_steps = 3.0 is not a whole number; write 3"),
        ("max_steps: '90'", "3: training.max_steps = '90' is not a whole number; write 90 without quotes"),
        ("max_steps:", "3: training.max_steps = null is not a whole number; write one such as 90"),
        ("max_step: 4", "3: training.max_step is not a field; did you mean max_steps?"),
        (
            "num_questions: 4",
            "3: training.num_questions is not a field; did you mean evaluation.num_questions?",
        ),
        ("top_p: 1.5", "3: training.top_p = 1.5 must be at most 1"),
        (
            "loss_type: dpo",
            "3: training.loss_type = 'dpo' is not one of dapo, grpo, dr_grpo, bnpo; did you mean dapo?",
        ),
        (
            "gradient_checkpointing: 'true'",
            "3: training.gradient_checkpointing = 'true' is not one of auto, true, false; did you mean true?",
        ),
        ("resume: 20", '3: training.resume = 20 is not text; write "20"'),
        ("resume: off", "3: training.resume = false is not text; put it in quotes"),
        ("resume: ''", "3: training.resume = '' must not be empty"),
        ("max_steps: 2\n  max_steps: 3", "4: training.max_steps stands in line 3 already; keep one"),
    ],
)
def test_a_wrong_value_is_named_with_file_line_field_and_remedy(project, text, expected):
    assert message(project, f"# comment\ntraining:\n  {text}\n") == f"params/{NOTEBOOK}/v100.yaml:{expected}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("trainin: {max_steps: 3}", "1: trainin is not a section; did you mean training?"),
        ("max_steps: 3", "1: max_steps is not a field; did you mean training.max_steps?"),
        (
            "temperature: 1",
            "1: temperature is not a field; did you mean training.temperature or evaluation.temperature?",
        ),
        ("training: 3", "1: training = 3 is no section; write its fields below it"),
        ("seed: {a: 1}", "1: seed is a single value, not a section"),
        ("tasks: {levels: 1}", "1: tasks.levels = 1 is not a list; write [1, 2, 3]"),
        ("tasks: {levels: [1, a]}", "1: tasks.levels[1] = 'a' is not a whole number"),
        ("tasks: {levels: [1, 4]}", "1: tasks.levels = [1, 4] may hold 1, 2 and 3 only"),
        ("tasks: {levels: [1, 1]}", "1: tasks.levels = [1, 1] names a level twice; name each once"),
        ("tasks: {levels: []}", "1: tasks.levels = [] must not be empty"),
        ("evaluation: {enabled: 1}", "1: evaluation.enabled = 1 is neither true nor false; write true"),
        ("- training", "1: holds no sections; write them as 'training:' with indented fields below"),
        ("training: [", "1: is not YAML: expected the node content, but found '<stream end>'"),
    ],
)
def test_a_wrong_shape_is_named_with_file_line_and_remedy(project, text, expected):
    assert message(project, text) == f"params/{NOTEBOOK}/v100.yaml:{expected}"


@pytest.mark.parametrize("field", ["training.max_steps", "sandbox.memory_mib", "training.num_threads"])
def test_whole_numbers_that_no_library_takes_are_refused(field):
    assert getattr(with_overrides(f"{field}=2147483647"), field.partition(".")[0])
    assert message(with_overrides, f"{field}=2147483648") == (
        f"--set: {field} = 2147483648 must be at most 2147483647"
    )


def test_a_seed_has_a_bound_of_its_own():
    assert with_overrides("seed=4294967295").seed == 4294967295
    assert message(with_overrides, "seed=4294967296") == "--set: seed = 4294967296 must be below 4294967296"


def test_a_file_nested_too_deeply_is_refused(project):
    assert message(project, "a: " + "[" * 2000) == (
        f"params/{NOTEBOOK}/v100.yaml: is nested too deeply; parameters are sections of fields"
    )


def test_a_tag_that_would_make_an_object_is_refused(project):
    text = "tracking: {run_name: !!python/object/apply:os.system [ls]}"
    assert message(project, text) == (
        f"params/{NOTEBOOK}/v100.yaml:1: is not YAML: could not determine a constructor for the tag "
        "'tag:yaml.org,2002:python/object/apply:os.system'"
    )


def test_all_problems_are_told_at_once(project):
    told = message(project, "training: {max_steps: 0, top_k: 3}", environ={"RLNB_TRAINING__BETA": "-1"})
    assert told.splitlines() == [
        f"params/{NOTEBOOK}/v100.yaml:1: training.top_k is not a field; did you mean top_p?",
        f"params/{NOTEBOOK}/v100.yaml:1: training.max_steps = 0 must be at least 1",
        "environment variable RLNB_TRAINING__BETA: training.beta = -1 must be at least 0",
    ]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("RLNB_TRAINING__MAX_STEPS", "-3", "training.max_steps = -3 must be at least 1"),
        ("RLNB_TRAINING__MAX_STEP", "3", "training.max_step is not a field; did you mean max_steps?"),
        ("RLNB_TRAININ__MAX_STEPS", "3", "trainin is not a section; did you mean training?"),
        (
            "RLNB_TRAINING__MAX_STEPS",
            "",
            "training.max_steps = '' is not a whole number; write one such as 90",
        ),
        (
            "MBPP_EVAL_NUM_QUESTIONS",
            "ten",
            "evaluation.num_questions = 'ten' is not a whole number; write one such as 5",
        ),
    ],
)
def test_a_wrong_environment_variable_is_named(name, value, expected):
    assert message(with_environment, **{name: value}) == f"environment variable {name}: {expected}"


def test_a_wrong_value_in_the_parameters_cell_is_named():
    cell = {"training": {"max_steps": 0}, "seed": -1}
    told = message(load_params, NOTEBOOK, profile="default", overrides=cell, environ={})
    assert told.splitlines() == [
        "parameters cell: seed = -1 must be at least 0",
        "parameters cell: training.max_steps = 0 must be at least 1",
    ]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("RLNB_TRAINING_MAX_STEPS", "did you mean RLNB_TRAINING__MAX_STEPS?"),
        ("RLNB_MAX_STEPS", "did you mean RLNB_TRAINING__MAX_STEPS?"),
        (
            "RLNB_TEMPERATURE",
            "did you mean RLNB_TRAINING__TEMPERATURE or RLNB_EVALUATION__TEMPERATURE?",
        ),
        ("RLNB_OFLINE", "did you mean RLNB_OFFLINE?"),
        ("RLNB_XYZ", "write RLNB_<SECTION>__<FIELD>"),
    ],
)
def test_an_environment_variable_that_sets_nothing_is_refused(name, hint):
    told = message(with_environment, **{name: "5"})
    assert told == f"environment variable {name}: sets nothing; {hint}"


@pytest.mark.parametrize("assignment", ["training.max_steps", "=3", "a.b.c=3", "training.=3"])
def test_an_assignment_without_field_or_value_is_refused(assignment):
    told = message(parse_set, assignment)
    assert told == f"--set {assignment}: is no assignment; write --set section.field=value"


def test_an_unknown_profile_is_answered_with_the_known_ones(tmp_path):
    for name in ("default", "tiny", "v100"):
        copied = tmp_path / "params" / NOTEBOOK / f"{name}.yaml"
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(FOLDER / NOTEBOOK / copied.name, copied)
    told = message(load_params, NOTEBOOK, profile="v10", root=tmp_path, environ={})
    assert told == (
        "profile 'v10' is not in params/grpo_code_execution/; "
        "known: auto, default, tiny, v100; did you mean v100?"
    )


def test_an_unknown_notebook_is_answered_with_the_known_ones(tmp_path):
    (tmp_path / "params" / NOTEBOOK).mkdir(parents=True)
    (tmp_path / "params" / NOTEBOOK / "default.yaml").write_text("")
    told = message(load_params, "grpo_code", root=tmp_path)
    assert told == f"notebook 'grpo_code' is not in params/; known: {NOTEBOOK}; did you mean {NOTEBOOK}?"


def test_a_profile_file_that_is_not_there_is_named():
    told = message(load_params, NOTEBOOK, profile="runs/3/params.yaml", environ={})
    assert told == f"profile 'runs/3/params.yaml' is no file in {os.getcwd()}"


def test_a_wrong_value_fails_in_under_two_seconds_and_before_torch_is_imported():
    program = (
        "import sys\nfrom rlnb.errors import ParamsError\nfrom rlnb.params import load_params\n"
        f"try: load_params({NOTEBOOK!r}, profile='cpu', overrides={{'training': {{'max_steps': 0}}}})\n"
        "except ParamsError as error: print(error, 'torch' in sys.modules, 'transformers' in sys.modules)"
    )
    start = time.monotonic()
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    seconds = time.monotonic() - start
    assert answer.stdout == "parameters cell: training.max_steps = 0 must be at least 1 False False\n"
    assert seconds < 2


# Values that do not go together, or ask for what is not there


def test_the_group_size_divides_the_batch():
    assert message(
        with_overrides, "training.num_generations=3", "training.gradient_accumulation_steps=2"
    ) == (
        "--set: training.num_generations = 3 does not divide the 16 completions of a step, "
        "per_device_train_batch_size 8 x gradient_accumulation_steps 2; use one of 2, 4, 8, 16"
    )


def test_a_conflict_is_laid_to_whichever_value_was_given_last(project):
    told = message(
        project, "training: {num_generations: 4}", environ={"RLNB_TRAINING__PER_DEVICE_TRAIN_BATCH_SIZE": "2"}
    )
    assert told == (
        "environment variable RLNB_TRAINING__PER_DEVICE_TRAIN_BATCH_SIZE: training.num_generations = 4 "
        "does not divide the 2 completions of a step, per_device_train_batch_size 2 x "
        "gradient_accumulation_steps 1; use one of 2"
    )


def test_a_group_needs_two_completions():
    assert message(with_overrides, "training.num_generations=1") == (
        "--set: training.num_generations = 1 must be at least 2: "
        "GRPO learns from differences between completions"
    )


def test_greedy_evaluation_takes_one_sample():
    assert message(with_overrides, "evaluation.temperature=0", "evaluation.num_samples=4") == (
        "--set: evaluation.num_samples = 4 asks for equal samples, since evaluation.temperature = 0; "
        "write 1, or a temperature above 0"
    )


def test_paths_must_exist():
    here = os.getcwd()
    told = message(
        with_overrides,
        "tasks.source=jsonl",
        "tasks.jsonl_path=no.jsonl",
        "tasks.mbpp_path=data",
        "training.resume=gone",
    )
    assert told.splitlines() == [
        f"--set: tasks.jsonl_path = 'no.jsonl' is no file in {here}",
        f"--set: tasks.mbpp_path = 'data' is neither file nor directory in {here}",
        "--set: training.resume = 'gone' is no directory; write auto, latest, never, or a checkpoint's "
        "directory",
    ]


def test_a_source_of_jsonl_needs_a_path(tmp_path):
    assert message(with_overrides, "tasks.source=jsonl") == (
        "--set: tasks.jsonl_path = '' is needed by tasks.source = 'jsonl'; write the file's path"
    )
    (tmp_path / "tasks.jsonl").write_text("")
    assert (
        with_overrides("tasks.source=jsonl", f"tasks.jsonl_path={tmp_path}/tasks.jsonl").tasks.source
        == "jsonl"
    )


def test_vllm_is_refused_in_one_line_where_it_is_not_installed(not_installed):
    not_installed("vllm")
    assert message(with_overrides, "vllm.enabled=true") == (
        "--set: vllm.enabled = true needs vllm, which is not installed; ./setup.sh vllm installs it"
    )


def test_vllm_needs_a_server_and_room_for_the_longest_completion(not_installed):
    not_installed("vllm")
    told = message(with_overrides, "vllm.enabled=true", "vllm.mode=server", "vllm.max_model_len=512")
    assert told.splitlines()[1:] == [
        "--set: vllm.server_base_url = '' is needed by vllm.mode = 'server'; write http://host:port",
        "--set: vllm.max_model_len = 512 is below tasks.max_prompt_tokens + training.max_completion_length; "
        "write at least 768",
    ]


def test_unsloth_is_refused_where_it_is_not_installed(not_installed):
    not_installed("unsloth")
    assert message(with_overrides, "model.engine=unsloth") == (
        "--set: model.engine = 'unsloth' needs unsloth, which is not installed; ./setup.sh cuda installs it, "
        "auto does without"
    )


@pytest.fixture
def not_installed():
    """Skips where the package is installed: what is refused without it cannot be seen there."""

    def check(package: str) -> None:
        if installed_version(package) is not None:
            pytest.skip(f"{package} is installed here")

    return check


# Properties


@given(st.text(), st.lists(st.text(min_size=1), min_size=1))
def test_any_name_gets_a_suggestion(name, known):
    assert did_you_mean(name, known).startswith(("; did you mean ", "; known: "))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_shown_as_yaml_reads_them(number):
    assert yaml.safe_load(show_number(number)) == number


@given(
    st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.dictionaries(st.text(), st.text()))
)
def test_whatever_a_cell_holds_is_accepted_or_refused_in_words(cell):
    try:
        load_params(NOTEBOOK, profile="default", overrides=cell, environ={})
    except ParamsError as refused:
        assert str(refused).startswith("parameters cell: ")


def test_a_fault_inside_of_a_list_is_the_only_one_that_is_told():
    stage = {"name": "a", "games": ["nim"], "threshold": 1.2}
    told = message(load_params, "ppo_openspiel", overrides={"curriculum": {"stages": [stage]}}, environ={})
    assert told == "parameters cell: curriculum.stages[0][threshold] = 1.2 must be at most 1"
    told = message(load_params, "ppo_openspiel", overrides={"curriculum": {"stages": []}}, environ={})
    assert told == "parameters cell: curriculum.stages = [] must not be empty"

"""What is wrong with parameters is said in one line each: place, field, value, reason, remedy."""

import os
import shutil
import subprocess
import sys

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import FILE, NOTEBOOK, refused, table, with_cell, with_environment, with_set
from shipped_profiles import FOLDER

from rlnb.errors import ParamsError
from rlnb.machine import installed_version
from rlnb.params import load_params, parse_set
from rlnb.params.problems import show_number

IN_TRAINING = table("""
learning_rate: 1e-5x => training.learning_rate = '1e-5x' is not a number; write 1.0e-5
learning_rate: fast => training.learning_rate = 'fast' is not a number; write one such as 2.0e-5
learning_rate: true => training.learning_rate = true is not a number; write one such as 2.0e-5
learning_rate: .nan => training.learning_rate = nan is not a finite number
learning_rate: 0 => training.learning_rate = 0 must be above 0
max_steps: -3 => training.max_steps = -3 must be at least 1
max_steps: true => training.max_steps = true is not a whole number; write one such as 90
max_steps: 3.0 => training.max_steps = 3.0 is not a whole number; write 3
max_steps: '90' => training.max_steps = '90' is not a whole number; write 90 without quotes
max_steps: => training.max_steps = null is not a whole number; write one such as 90
max_step: 4 => training.max_step is not a field; did you mean max_steps?
num_questions: 4 => training.num_questions is not a field; did you mean evaluation.num_questions or
  mbpp.num_questions?
loss_type: dpo => training.loss_type = 'dpo' is not one of dapo, grpo, dr_grpo, bnpo; did you mean dapo?
gradient_checkpointing: 'true' => training.gradient_checkpointing = 'true' is not one of auto, true, false;
  did you mean true?
resume: 20 => training.resume = 20 is not text; write "20"
resume: off => training.resume = false is not text; put it in quotes
resume: '' => training.resume = '' must not be empty
""")
SHAPES = table("""
trainin: {max_steps: 3} => trainin is not a section; did you mean training?
max_steps: 3 => max_steps is not a field; did you mean training.max_steps?
temperature: 1 => temperature is not a field; did you mean training.temperature or evaluation.temperature?
training: 3 => training = 3 is not a section; write its fields below it
seed: {a: 1} => seed is a single value, not a section
tasks: {levels: 1} => tasks.levels = 1 is not a list; write [1, 2, 3]
tasks: {levels: [1, a]} => tasks.levels[1] = 'a' is not a whole number
tasks: {levels: [1, 4]} => tasks.levels = [1, 4] may hold 1, 2 and 3 only
tasks: {levels: [1, 1]} => tasks.levels = [1, 1] names a level twice; name each once
tasks: {levels: []} => tasks.levels = [] must not be empty
evaluation: {enabled: 1} => evaluation.enabled = 1 is neither true nor false; write true
- training => holds no sections; write them as 'training:' with indented fields below
training: [ => is not YAML: expected the node content, but found '<stream end>'
tracking: {project: !!python/object/apply:os.system [ls]} => is not YAML:
  could not determine a constructor for the tag 'tag:yaml.org,2002:python/object/apply:os.system'
""")


@pytest.mark.parametrize("text, said", IN_TRAINING)
def test_a_wrong_value_is_named_with_file_line_field_and_remedy(project, text, said):
    assert refused(project, f"# comment\ntraining:\n  {text}\n") == f"{FILE}:3: {said}"


@pytest.mark.parametrize("text, said", SHAPES)
def test_a_wrong_shape_is_named_with_file_line_and_remedy(project, text, said):
    assert refused(project, text) == f"{FILE}:1: {said}"


def test_a_field_set_twice_and_a_file_nested_too_deeply_are_refused(project):
    text = "training:\n  max_steps: 2\n  max_steps: 3"
    assert refused(project, text) == f"{FILE}:3: training.max_steps is already set in line 2; keep one"
    said = f"{FILE}: is nested too deeply; parameters are sections of fields"
    assert refused(project, "a: " + "[" * 2000) == said


def test_all_problems_are_told_at_once(project):
    told = refused(project, "training: {max_steps: 0, betas: 3}", environ={"RLNB_TRAINING__BETA": "-1"})
    assert told.splitlines() == [
        f"{FILE}:1: training.betas is not a field; did you mean beta?",
        f"{FILE}:1: training.max_steps = 0 must be at least 1",
        "environment variable RLNB_TRAINING__BETA: training.beta = -1 must be at least 0",
    ]
    assert refused(with_cell, {"training": {"max_steps": 0}, "seed": -1}).splitlines() == [
        "parameters cell: seed = -1 must be at least 0",
        "parameters cell: training.max_steps = 0 must be at least 1",
    ]


def test_a_fault_inside_of_a_list_is_the_only_one_that_is_told():
    stage = {"name": "a", "games": ["nim"], "threshold": 1.2}
    for stages, said in (
        ([stage], "[0][threshold] = 1.2 must be at most 1"),
        ([], " = [] must not be empty"),
    ):
        told = refused(with_cell, {"curriculum": {"stages": stages}}, "ppo_openspiel")
        assert told == f"parameters cell: curriculum.stages{said}"


@pytest.mark.parametrize(
    "variable, said",
    table("""
RLNB_TRAINING__MAX_STEPS=-3 => training.max_steps = -3 must be at least 1
RLNB_TRAINING__MAX_STEP=3 => training.max_step is not a field; did you mean max_steps?
RLNB_TRAININ__MAX_STEPS=3 => trainin is not a section; did you mean training?
RLNB_TRAINING__MAX_STEPS= => training.max_steps = '' is not a whole number; write one such as 90
MBPP_EVAL_NUM_QUESTIONS=ten => mbpp.num_questions = 'ten' is not a whole number; write one such as 0
RLNB_TRAINING_MAX_STEPS=5 => sets nothing; did you mean RLNB_TRAINING__MAX_STEPS?
RLNB_MAX_STEPS=5 => sets nothing; did you mean RLNB_TRAINING__MAX_STEPS?
RLNB_TEMPERATURE=5 => sets nothing; did you mean RLNB_TRAINING__TEMPERATURE or RLNB_EVALUATION__TEMPERATURE?
RLNB_OFLINE=5 => sets nothing; did you mean RLNB_OFFLINE?
RLNB_XYZ=5 => sets nothing; write RLNB_<SECTION>__<FIELD>
"""),
)
def test_a_wrong_environment_variable_is_named(variable, said):
    name, _, value = variable.partition("=")
    assert refused(with_environment, **{name: value}) == f"environment variable {name}: {said}"


@pytest.mark.parametrize("assignment", ["training.max_steps", "=3", "a.b.c=3", "training.=3"])
def test_an_assignment_without_field_or_value_is_refused(assignment):
    told = refused(parse_set, assignment)
    assert told == f"--set {assignment}: is not an assignment; write --set section.field=value"


def test_what_is_unknown_is_answered_with_what_is_known(tmp_path):
    folder = tmp_path / "params" / NOTEBOOK
    folder.mkdir(parents=True)
    for name in ("default", "tiny", "v100"):
        shutil.copy(FOLDER / NOTEBOOK / f"{name}.yaml", folder)
    assert refused(load_params, NOTEBOOK, profile="v10", root=tmp_path, environ={}) == (
        "profile 'v10' is not in params/grpo_code_execution/; "
        "known: auto, default, tiny, v100; did you mean v100?"
    )
    told = refused(load_params, "grpo_code", root=tmp_path)
    assert told == f"notebook 'grpo_code' is not in params/; known: {NOTEBOOK}; did you mean {NOTEBOOK}?"
    told = refused(load_params, NOTEBOOK, profile="runs/3/params.yaml", environ={})
    assert told == f"profile 'runs/3/params.yaml' is not a file in {os.getcwd()}"


def test_a_wrong_value_fails_before_torch_is_imported():
    program = (
        "import sys\nfrom rlnb.errors import ParamsError\nfrom rlnb.params import load_params\n"
        f"try: load_params({NOTEBOOK!r}, profile='cpu', overrides={{'training': {{'max_steps': 0}}}})\n"
        "except ParamsError as error: print(error, 'torch' in sys.modules, 'transformers' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout == "parameters cell: training.max_steps = 0 must be at least 1 False False\n"


@pytest.mark.parametrize(
    "assignments, said",
    table("""
training.max_steps=2147483648 => training.max_steps = 2147483648 must be at most 2147483647
sandbox.memory_mib=2147483648 => sandbox.memory_mib = 2147483648 must be at most 2147483647
seed=4294967296 => seed = 4294967296 must be below 4294967296
training.num_generations=3 training.gradient_accumulation_steps=2 => training.num_generations = 3 does not
  divide the 16 completions of a step, per_device_train_batch_size 8 x gradient_accumulation_steps 2;
  use one of 2, 4, 8, 16
training.num_generations=1 => training.num_generations = 1 must be at least 2: GRPO learns from differences
  between completions
evaluation.temperature=0 evaluation.num_samples=4 => evaluation.num_samples = 4 asks for equal samples,
  since evaluation.temperature = 0; write 1, or a temperature above 0
tasks.source=jsonl => tasks.jsonl_path = '' is needed by tasks.source = 'jsonl'; write the file's path
tasks.jsonl_path=no.jsonl => tasks.jsonl_path = 'no.jsonl' is not a file in HERE
tasks.mbpp_path=data => tasks.mbpp_path = 'data' is neither file nor directory in HERE
training.resume=gone => training.resume = 'gone' is not a directory; write auto, latest, never, or a
  checkpoint's directory
"""),
)
def test_values_that_do_not_fit_are_refused(assignments, said):
    assert refused(with_set, *assignments.split()) == f"--set: {said}".replace("HERE", os.getcwd())


def test_the_largest_numbers_and_a_path_that_exists_are_taken(tmp_path):
    (tmp_path / "tasks.jsonl").write_text("")
    path = f"tasks.jsonl_path={tmp_path}/tasks.jsonl"
    params = with_set("seed=4294967295", "training.max_steps=2147483647", "tasks.source=jsonl", path)
    assert (params.seed, params.training.max_steps) == (2**32 - 1, 2**31 - 1)


def test_a_conflict_is_laid_to_whichever_value_was_given_last(project):
    name = "RLNB_TRAINING__PER_DEVICE_TRAIN_BATCH_SIZE"
    assert refused(project, "training: {num_generations: 4}", environ={name: "2"}) == (
        f"environment variable {name}: training.num_generations = 4 "
        "does not divide the 2 completions of a step, per_device_train_batch_size 2 x "
        "gradient_accumulation_steps 1; use one of 2"
    )


@pytest.mark.parametrize(
    "assignments, said",
    table("""
vllm.enabled=true => vllm.enabled = true needs vllm, which is not installed; ./setup.sh vllm installs it
vllm.enabled=true vllm.max_model_len=512 => vllm.max_model_len = 512 is below tasks.max_prompt_tokens +
  training.max_completion_length; write at least 768
model.engine=unsloth => model.engine = 'unsloth' needs unsloth, which is not installed; ./setup.sh cuda
  installs it, auto does without
"""),
)
def test_a_package_that_is_not_installed_is_refused_with_how_to_get_it(assignments, said):
    package = "unsloth" if "unsloth" in assignments else "vllm"
    if installed_version(package) is not None:
        pytest.skip(f"{package} is installed here")
    assert f"--set: {said}" in refused(with_set, *assignments.split()).splitlines()


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_shown_as_yaml_reads_them(number):
    assert yaml.safe_load(show_number(number)) == number


@settings(deadline=None)
@given(
    st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.dictionaries(st.text(), st.text()))
)
def test_whatever_a_cell_holds_is_accepted_or_refused_in_words(cell):
    try:
        with_cell(cell)
    except ParamsError as error:
        assert str(error).startswith("parameters cell: ")

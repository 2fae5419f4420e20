"""What can be asked, what an answer means, and the profile that comes of it; no terminal, no browser."""

import os
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from refusals import refused, table
from shipped_profiles import profiles_of

from rlnb.configure.draft import (
    as_typed,
    default_output,
    notebooks,
    profile_text,
    read_answer,
    remarks,
    run_command,
    save_profile,
    start_draft,
)
from rlnb.machine import Machine
from rlnb.params import load_params
from rlnb.params.sections import HARMLESS, Section

ROOT = Path(__file__).parents[2]
CPU = Machine("cpu", "", None, 16.0, 2, "workstation", "unasked")
LETTERS = st.characters(exclude_categories=("Cs", "Cc", "Cf"), include_characters=HARMLESS)
A100 = Machine("a100", "A100", (8, 0), 40.0, 8, "workstation", "unasked")


def draft_of(notebook="ppo_openspiel", profile="tiny", machine=CPU, **options):
    return start_draft(notebook, machine, profile=profile, **{"environ": {}, **options})


def loaded(draft, path):
    path.write_text(profile_text(draft), encoding="utf-8")
    return load_params(draft.notebook, profile=str(path), environ={})


def fields_of(model, prefix=""):
    """Names of all fields, straight from pydantic."""
    for name, info in model.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, Section):
            yield from fields_of(info.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name


@pytest.mark.parametrize("notebook", notebooks())
def test_every_field_of_a_model_can_be_asked_for_with_its_help(notebook):
    draft = draft_of(notebook)
    questions = [one for one in draft.questions() if "[" not in one.field]
    assert [one.field for one in questions] == list(fields_of(type(draft.params)))
    assert all(one.help for one in questions)
    assert set(draft.main_fields()) < {one.field for one in questions}


def test_a_field_has_the_choices_and_the_limits_of_its_model():
    questions = {one.field: one for one in draft_of().questions()}
    assert questions["model.load_in_4bit"].choices == ("auto", "true", "false")
    assert questions["evaluation.enabled"].choices == ("true", "false")
    assert questions["training.games_per_step"].bounds == "at least 2, a multiple of 2"
    assert questions["curriculum.stages[1].threshold"].bounds == "above 0, at most 1"


@pytest.mark.parametrize("notebook", notebooks())
def test_every_value_of_every_profile_can_be_typed_as_it_is_shown(notebook):
    for profile in profiles_of(notebook):
        draft = draft_of(notebook, profile)
        values = draft.params.model_dump(mode="json")
        for question in draft.questions():
            field, value = read_answer(draft.params, question.field, draft.typed(question.field))
            section, _, name = field.rpartition(".")
            assert value == (values[section] if section else values)[name], question.field


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("nim, breakthrough(rows=6,columns=6)", ["nim", "breakthrough(rows=6,columns=6)"]),
        ("[random, mcts:10]", ["random", "mcts:10"]),
        ("'a, b', \"c\"", ["a, b", "c"]),
        ("[]", []),
    ],
)
def test_a_list_is_typed_with_commas(text, items):
    assert read_answer(draft_of().params, "evaluation.opponents", text)[1] == items


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(min_size=1).filter(str.isprintable)))
def test_any_list_of_texts_is_read_back(items):
    params = draft_of().params
    assert read_answer(params, "evaluation.opponents", as_typed(tuple(items)))[1] == items


@pytest.mark.parametrize(
    "answer, said",
    table("""
training.max_steps=many => training.max_steps = 'many' is not a whole number; write one such as 5000
training.max_steps=0 => training.max_steps = 0 must be at least 1
training.learning_rate=1e-5x => training.learning_rate = '1e-5x' is not a number; write 1.0e-5
game.style=compat => game.style = 'compat' is not one of full, compact; did you mean compact?
training.max_step=3 => training.max_step is not a field; did you mean max_steps?
curriculum.stages[0].threshold=2 => curriculum.stages[0][threshold] = 2 must be at most 1
curriculum.stages[9].threshold=1 => curriculum.stages has no item 9; its first is 0
model.load_in_4bit=true => model.lora_rank = 0 trains weights that model.load_in_4bit has quantized; write 16,
  or false there
"""),
)
def test_a_wrong_answer_is_refused_in_the_words_of_the_model(answer, said):
    draft = draft_of()
    field, _, text = answer.partition("=")
    assert draft.refusal({field: text}) == f"your answer: {said}"
    assert draft.params == draft.base


def test_answers_are_given_together_or_for_a_stage_alone_and_the_base_s_own_value_is_no_change():
    draft = draft_of().answer({"model.load_in_4bit": "true", "model.lora_rank": "8"})
    assert (draft.params.model.load_in_4bit, draft.params.model.lora_rank) == (True, 8)
    stages = draft.answer({"curriculum.stages[1].opponents": "random"}).params.curriculum.stages
    assert stages[1].opponents == ("random",)
    assert stages[1].games == draft.params.curriculum.stages[1].games
    assert stages[0] == draft.params.curriculum.stages[0]
    draft = draft_of().answer({"training.max_steps": "7"})
    assert draft.changes() == [("training.max_steps", 3, 7)]
    assert draft.answer({"training.max_steps": "3"}).changes() == []


@pytest.mark.parametrize("notebook", notebooks())
def test_a_profile_holds_what_differs_from_default_and_what_a_changed_value_was(notebook, tmp_path):
    draft = draft_of(notebook).answer({"seed": "7"})
    assert loaded(draft, tmp_path / "mine.yaml") == draft.params
    head = "# By `rlnb configure`, from profile tiny: what differs from default.yaml.\n"
    assert profile_text(draft).startswith(f"{head}seed: 7  # tiny: {draft.base.seed}\n")
    default = draft.default.model_dump(mode="json")
    for name, value in yaml.safe_load(profile_text(draft)).items():
        same = {inner for inner in value if value[inner] == default[name][inner]} if name != "seed" else set()
        assert same == set(), name


@settings(max_examples=25, deadline=None)
@given(name=st.text(LETTERS, min_size=1), modules=st.lists(st.text(LETTERS, min_size=1), min_size=1))
@example(name="\n", modules=["\n"])
@example(name="a\tb: c  # d", modules=["\n \n", "\u2028"])
def test_whatever_text_is_in_a_profile_comes_back(name, modules, tmp_path_factory):
    draft = draft_of().with_values({"tracking.project": name, "model.lora_target_modules": modules}, "test")
    assert loaded(draft, tmp_path_factory.mktemp("texts") / "mine.yaml") == draft.params


@pytest.mark.parametrize(
    "name, overwrite, reason",
    [
        ("there.yaml", False, "exists already; choose another name, or allow it to be overwritten"),
        ("mine", True, "does not end in .yaml, by which profiles are known; add it"),
        ("default.yaml", True, "is what all profiles are read over; choose another name"),
        ("folder.yaml", True, "is a directory; name a file in it"),
    ],
)
def test_a_profile_is_written_where_a_run_will_find_it(name, overwrite, reason, tmp_path):
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "there.yaml").write_text("seed: 1\n")
    said = refused(save_profile, draft_of(), tmp_path / name, overwrite=overwrite)
    assert said == f"{tmp_path / name}: {reason}"
    assert (tmp_path / "there.yaml").read_text() == "seed: 1\n"
    save_profile(draft_of(), tmp_path / "there.yaml", overwrite=True)
    assert (tmp_path / "there.yaml").read_text() == profile_text(draft_of())
    assert sorted(os.listdir(tmp_path)) == ["folder.yaml", "there.yaml"]


def test_the_command_names_notebook_and_profile_from_here(monkeypatch):
    monkeypatch.chdir(ROOT)
    draft = draft_of()
    assert run_command(draft, default_output(draft)) == (
        "rlnb run notebooks/ppo_openspiel.ipynb --profile params/ppo_openspiel/mine.yaml"
    )
    assert [draft_of(profile="auto", machine=machine).profile for machine in (CPU, A100)] == ["cpu", "a100"]


def test_the_environment_is_not_written_into_a_profile_but_mentioned():
    environ = {"RLNB_TRAINING__MAX_STEPS": "9", "RLNB_OFFLINE": "1"}
    draft = draft_of(environ=environ)
    assert draft.params.training.max_steps == 3
    assert remarks(draft, CPU, environ=environ) == [
        "environment variable RLNB_TRAINING__MAX_STEPS wins over the profile here"
    ]


def test_what_this_machine_would_refuse_is_said():
    draft = draft_of("grpo_code_execution", "cpu").answer({"model.dtype": "float16"})
    assert remarks(draft, CPU, environ={}) == [
        "this machine would refuse it: your answer: model.dtype = 'float16' trains on GPUs only; "
        "write float32"
    ]
    assert remarks(draft, A100, environ={}) == []


def test_fields_matter_that_the_default_sets_or_two_other_profiles(tmp_path):
    folder = tmp_path / "params" / "spiral_self_play"
    folder.mkdir(parents=True)
    (folder / "default.yaml").write_text("seed: 1\n")
    for name, text in {"a": "lam: 0.8", "b": "lam: 0.7", "c": "decay: 0.5"}.items():
        (folder / f"{name}.yaml").write_text(f"advantage:\n  {text}\n")
    draft = draft_of("spiral_self_play", "a", root=tmp_path)
    assert draft.main_fields() == ["seed", "advantage.lam"]

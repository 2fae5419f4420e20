"""Parameters as the text of a profile: whatever is written is read back."""

from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from shipped_profiles import profiles_of

from rlnb.configure.profile_text import profile_text
from rlnb.params import load_params
from rlnb.params.loading import MODELS, list_fields

LETTERS = st.characters(exclude_categories=("Cs",))
TEXTS = st.text(LETTERS, min_size=1)


def load(notebook, profile, **overrides):
    return load_params(notebook, profile=str(profile), overrides=overrides, environ={})


def read_back(params, notebook, path: Path, **options):
    path.write_text(profile_text(params, title="a test", **options), encoding="utf-8")
    return load(notebook, path)


@pytest.mark.parametrize("notebook", sorted(MODELS))
def test_every_profile_is_read_back_from_the_text_of_all_its_values_also_an_edited_one(notebook, tmp_path):
    for profile in profiles_of(notebook):
        params = load(notebook, profile)
        assert read_back(params, notebook, tmp_path / "mine.yaml") == params, profile
    path = tmp_path / "mine.yaml"
    path.write_text(
        profile_text(load(notebook, "tiny", seed=7), title="a test").replace("seed: 7", "seed: 8")
    )
    assert load(notebook, path) == load(notebook, "tiny", seed=8)


@pytest.mark.parametrize("notebook", sorted(MODELS))
def test_the_text_has_every_field_below_its_help(notebook):
    params = load(notebook, "tiny")
    lines = profile_text(params, title="a test").splitlines()
    for field, info in list_fields(type(params)).items():
        above, _, name = field.rpartition(".")
        indent = "  " if above else ""
        starts = [i for i, line in enumerate(lines) if line.startswith(f"{indent}{name}:")]
        first_words = " ".join(info.description.split()[:2])
        assert any(first_words in "".join(lines[max(0, i - 4) : i]) for i in starts), field


def test_with_a_default_only_what_differs_from_it_is_written(tmp_path):
    default, params = load("ppo_openspiel", "default"), load("ppo_openspiel", "tiny", seed=7)
    path = tmp_path / "mine.yaml"
    assert read_back(params, "ppo_openspiel", path, default=default) == params
    values, usual = yaml.safe_load(path.read_text()), default.model_dump(mode="json")
    assert values.pop("seed") == 7
    for section, fields in values.items():
        assert all(usual[section][name] != value for name, value in fields.items()), section


@settings(max_examples=25)
@given(project=TEXTS, modules=st.lists(TEXTS, min_size=1))
@example(project="\n", modules=["\n"])
@example(project="a\tb: c  # d", modules=["\n \n", "\u2028"])
def test_whatever_text_is_in_a_profile_comes_back(project, modules, tmp_path_factory):
    params = load("mbpp_eval", "tiny", tracking={"project": project}, model={"lora_target_modules": modules})
    assert read_back(params, "mbpp_eval", tmp_path_factory.mktemp("texts") / "mine.yaml") == params

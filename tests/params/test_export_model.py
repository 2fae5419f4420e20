"""The parameters of exports: which base, and what is refused at once."""

import json

import pytest

from rlnb.errors import ParamsError
from rlnb.params import load_params
from rlnb.params.export_model import base_of, with_own_base


def load(**sections):
    return load_params("export_model", profile="default", overrides=sections, environ={})


def adapters_of(base, directory, note=None):
    directory.mkdir()
    config = {"base_model_name_or_path": base}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    if note is not None:
        (directory / "base_model.json").write_text(json.dumps({"base": note}))
    return str(directory)


@pytest.mark.parametrize("profile", ["cpu", "tiny", "v100", "a100", "h100", "gb10"])
def test_each_profile_is_valid(profile):
    load_params("export_model", profile=profile, environ={})


def test_only_the_trial_exports_untrained_adapters():
    assert not load().export.fresh_adapters
    assert load_params("export_model", profile="tiny", environ={}).export.fresh_adapters


@pytest.mark.parametrize(
    ("saved_with", "base"),
    [
        ("Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-1.5B"),
        ("model_cache/SmolLM2-135M-Instruct", "embedded"),
        ("/somewhere/else/tiny", "tiny"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        (None, ""),
    ],
)
def test_the_base_is_the_one_that_the_adapters_name(saved_with, base, tmp_path):
    assert base_of(adapters_of(saved_with, tmp_path / "adapters")) == base


def test_the_note_of_the_training_comes_before_the_name_for_the_hub(tmp_path):
    adapters = adapters_of(
        "HuggingFaceTB/SmolLM2-135M-Instruct", tmp_path / "a", "cache/SmolLM2-135M-Instruct"
    )
    assert base_of(adapters) == "embedded"


def test_a_base_that_was_given_stays(tmp_path):
    adapters = adapters_of("me/base", tmp_path / "adapters")
    chosen = with_own_base(load(model={"adapters": adapters}))
    assert (chosen.model.id, chosen._sources["model.id"]) == ("me/base", adapters)
    assert with_own_base(load(model={"adapters": adapters, "id": "tiny"})).model.id == "tiny"
    assert with_own_base(load()).model.id == "auto"


def test_a_repository_without_an_owner_is_refused():
    with pytest.raises(ParamsError) as refusal:
        load(export={"repo_id": "model"})
    assert str(refusal.value) == (
        "parameters cell: export.repo_id = 'model' is no repository of the hub; write owner/name"
    )


def test_an_unknown_format_is_refused():
    with pytest.raises(ParamsError) as refusal:
        load(export={"format": "gguf"})
    assert str(refusal.value) == (
        "parameters cell: export.format = 'gguf' is not one of lora, merged_16bit, mxfp4"
    )


def test_a_run_that_trained_all_weights_has_nothing_to_merge(tmp_path):
    (tmp_path / "weights.safetensors").touch()
    with pytest.raises(
        ParamsError, match=r"trained all weights \(model.lora_rank = 0\); write model.id = its "
    ):
        load(model={"adapters": str(tmp_path)})

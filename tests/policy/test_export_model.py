"""The parameters of exports: which base, and what is refused at once."""

import json

import pytest

from rlnb.errors import ParamsError
from rlnb.params import load_params
from rlnb.params.bases import find_base


def load(profile="default", **sections):
    return load_params("export_model", profile=profile, overrides=sections, environ={})


def write_adapters(base, directory):
    directory.mkdir()
    (directory / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    return str(directory)


def test_only_the_trial_exports_untrained_adapters():
    assert not load().export.fresh_adapters
    assert load("tiny").export.fresh_adapters


@pytest.mark.parametrize(
    ("saved_with", "base"),
    [
        ("Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-1.5B"),
        ("model_cache/SmolLM2-135M-Instruct", "embedded"),
        ("/somewhere/else/tiny-2x128", "tiny"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        (None, ""),
    ],
)
def test_the_base_is_the_one_that_the_adapters_name(saved_with, base, tmp_path):
    adapters = write_adapters(saved_with, tmp_path / "adapters")
    assert find_base(adapters) == base
    # The note of the training comes before the name for the hub.
    (tmp_path / "adapters" / "base_model.json").write_text('{"base": "cache/SmolLM2-135M-Instruct"}')
    assert find_base(adapters) == "embedded"


def test_a_base_that_was_given_stays(tmp_path):
    adapters = write_adapters("me/base", tmp_path / "adapters")
    chosen = load(model={"adapters": adapters}).complete()
    assert (chosen.model.id, chosen._sources["model.id"]) == ("me/base", adapters)
    assert load(model={"adapters": adapters, "id": "tiny"}).complete().model.id == "tiny"
    assert load().complete().model.id == "auto"


def test_a_repository_without_an_owner_is_refused():
    with pytest.raises(ParamsError) as refusal:
        load(export={"repo_id": "model"})
    assert str(refusal.value) == (
        "parameters cell: export.repo_id = 'model' is not a repository of the hub; write owner/name"
    )


def test_a_run_that_trained_all_weights_has_nothing_to_merge(tmp_path):
    (tmp_path / "weights.safetensors").touch()
    with pytest.raises(ParamsError, match=r"trained all weights \(model.lora_rank = 0\); write model.id = "):
        load(model={"adapters": str(tmp_path)})

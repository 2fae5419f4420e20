"""Every profile of every notebook: it is valid, it changes something, and it repeats nothing."""

import pytest
import yaml
from shipped_profiles import FOLDER, profiles_of

from rlnb.params import load_params

NOTEBOOKS = sorted(path.parent.name for path in FOLDER.glob("*/default.yaml"))
MACHINES = {"default", "tiny", "cpu", "v100", "a100", "h100", "gb10"}
SPECIAL = {
    "grpo_code_execution": {"cpu_tests", "coder"},
    "ppo_openspiel": {"embedded", "low_vram", "quality", "requirements", "speed"},
    "spiral_self_play": {"embedded", "kuhn", "leduc"},
}
WITHOUT_MACHINES = {"compare_runs"}  # the same on every machine: `auto` is default.yaml
PROFILES = [(notebook, profile) for notebook in NOTEBOOKS for profile in profiles_of(notebook)]


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_every_machine_has_a_profile_and_every_promised_result_one(notebook):
    usual = {"default", "tiny"} if notebook in WITHOUT_MACHINES else MACHINES
    assert set(profiles_of(notebook)) == usual | SPECIAL.get(notebook, set())


@pytest.mark.parametrize("notebook, profile", PROFILES)
def test_a_profile_is_valid_and_says_only_how_it_differs_from_the_default(notebook, profile):
    load_params(notebook, profile=profile, environ={})
    if profile == "default":
        return
    default = load_params(notebook, profile="default", environ={}).model_dump(mode="json")
    given = yaml.safe_load((FOLDER / notebook / f"{profile}.yaml").read_text())
    assert given, "a file that changes nothing: delete it, auto falls back to default.yaml"
    repeated = [
        f"{section}.{field}"
        for section, fields in given.items()
        for field, value in fields.items()
        if default[section][field] == value
    ]
    assert repeated == []

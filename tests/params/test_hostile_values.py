"""Files, variables and options made to crash or to deceive: each ends in a sentence at once."""

import pytest
from refusals import FILE, NOTEBOOK, refused, with_cell, with_environment, with_set

from rlnb.errors import RlnbError
from rlnb.params import load_params


@pytest.mark.parametrize("number", ["0x" + "f" * 5000, "1" * 5000], ids=["hex", "decimal"])
def test_a_number_that_is_too_long_is_refused_wherever_it_is_given(project, number):
    assert refused(project, f"seed: {number}").startswith(f"{FILE}:1: seed = ")
    assert refused(with_set, f"seed={number}").startswith("--set: seed = ")
    said = refused(with_environment, RLNB_SEED=number)
    assert said.startswith("environment variable RLNB_SEED: seed = ") and len(said) < 200
    # papermill reads 0xfff... and puts the number into the parameters cell.
    assert "seed = 0xf" in refused(with_cell, {"seed": 16**5000 - 1})


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("seed: 1\nmodel:\n  id: a\0", "is not YAML"),
        ("a: " + "[" * 2000, "is not YAML"),
        ("evaluation: {enabled: !!bool maybe}", "1: evaluation.enabled"),
        ('seed: 1\n"\\e[31m": 3', "2: \\x1b[31m is not a field"),
        ("seed: !%1b%5b31m 3", "1: seed"),
    ],
    ids=range(5),
)
def test_a_file_is_refused_by_line_without_its_hidden_characters(project, text, place):
    told = refused(project, text)
    assert told.startswith(f"{FILE}:") and place in told and told.replace("\n", "").isprintable()


def test_every_error_shows_what_a_terminal_would_obey():
    assert str(RlnbError("a\x1b[31m\u202e\udcff\r: é 日\n\tb")) == "a\\x1b[31m\\u202e\\udcff\\r: é 日\n\tb"


@pytest.mark.parametrize("url", ["http://user:hunter2@host/v1", "http://h/?key=hunter2", "http://h#hunter2"])
def test_an_address_that_may_hold_a_key_is_refused_and_not_repeated(url):
    for notebook, field in (("mbpp_eval", "writer.base_url"), ("grpo_code_game", "opponent.base_url")):
        said = refused(with_set, f"{field}={url}", notebook=notebook)
        assert said.startswith(f"--set: {field} = ... ") and "hunter2" not in said
    assert "hunter2" not in refused(with_cell, {"vllm": {"server_base_url": [url]}})


def test_a_profile_of_another_notebook_is_named(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text("notebook: spiral_self_play\nseed: 3\n")
    said = refused(load_params, NOTEBOOK, profile=str(path), environ={})
    assert said.startswith(f"{path}: holds the parameters of spiral_self_play")

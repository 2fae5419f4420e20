"""Files, variables and options made to crash or to deceive: each ends in a sentence at once."""

import pytest
from refusals import FILE, NOTEBOOK, refused, with_cell, with_environment, with_set

from rlnb.errors import RlnbError
from rlnb.params import load_params
from rlnb.params.problems import show

HEX = "0x" + "f" * 5000
SEXAGESIMAL = ":".join(["59"] * 5000)


@pytest.mark.parametrize("number", [HEX, "1" * 5000, SEXAGESIMAL], ids=["hex", "decimal", "sexagesimal"])
def test_a_number_that_is_too_long_is_refused_wherever_it_is_given(project, number):
    assert refused(project, f"seed: {number}").startswith(f"{FILE}:1: seed = ")
    assert refused(project, f"model: {{lora_rank: {number}}}").startswith(f"{FILE}:1: model.lora_rank")
    assert refused(with_set, f"seed={number}").startswith("--set: seed = ")
    said = refused(with_environment, RLNB_SEED=number)
    assert said.startswith("environment variable RLNB_SEED: seed = ") and len(said) < 200
    # papermill reads 0xfff... and puts the number into the parameters cell.
    assert "must be below" in refused(with_cell, {"seed": 16**5000 - 1})


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("seed: 1\nmodel:\n  id: a\0", "is not YAML"),
        ("model: {id: \x1b[31m}", "is not YAML"),
        ('model: {id: "\\UFFFFFFFF"}', "is not YAML"),
        ("a: " + "[" * 2000, "is not YAML"),
        ("evaluation: {enabled: !!bool maybe}", "1: evaluation.enabled"),
        ("model: {lora_target_modules: &a [x, *a]}", "1: model.lora_target_modules"),
        ('seed: 1\n"\\e[31m\\nnew: line": 3', "2: '\\x1b[31m\\nnew: line' is not a field"),
        (f"{'x' * 900}: 3", f"1: '{'x' * 55} ... is not a field"),
        ('"\\u202e": 3\n"\\u202e": 3', "2: '\\u202e' is already set"),
        ("seed: !%1b%5b31m 3", "1: seed"),
    ],
    ids=range(10),
)
def test_a_file_is_refused_by_line_without_its_hidden_characters(project, text, place):
    told = refused(project, text)
    assert any(line.startswith(f"{FILE}:") and place in line for line in told.splitlines())
    assert told.replace("\n", "").isprintable()


def test_an_alias_may_save_typing(project):
    assert project("training: {max_steps: &steps 30, save_steps: *steps}").training.save_steps == 30


@pytest.mark.parametrize("value", ["x" * 100, ["xxxxxxxxx"] * 10, {"abc": {"def": list(range(50))}}])
def test_a_value_is_shown_as_far_as_a_message_shows_it(value):
    assert (len(show(value)), show(value)[-4:]) == (60, " ...")


def test_every_error_shows_what_a_terminal_would_obey():
    assert str(RlnbError("a\x1b[31m\u202e\udcff\r: é 日\n\tb")) == "a\\x1b[31m\\u202e\\udcff\\r: é 日\n\tb"


@pytest.mark.parametrize(
    ("notebook", "field"),
    [
        ("mbpp_eval", "writer.base_url"),
        ("grpo_code_game", "opponent.base_url"),
        (NOTEBOOK, "vllm.server_base_url"),
    ],
)
@pytest.mark.parametrize(
    "url",
    [
        "http://user:hunter2@host/v1",
        "user:hunter2@host",
        f"http://{'hunter2' * 20}@host/v1",
        "http://host/v1?api_key=hunter2",
        "http://host/v1#hunter2",
    ],
    ids=range(5),
)
def test_an_address_that_may_hold_a_key_is_refused_and_not_repeated(notebook, field, url):
    said = refused(with_set, f"{field}={url}", notebook=notebook)
    assert said.startswith(f"--set: {field} = ... holds a user") and "hunter2" not in said
    section, name = field.split(".")
    assert "hunter2" not in refused(with_cell, {section: {name: [url]}}, notebook)


@pytest.mark.parametrize(
    "name, shown", [("spiral_self_play", "spiral_self_play"), ("[spiral, 1]", "['spiral', 1]")]
)
def test_a_profile_of_another_notebook_is_named(tmp_path, name, shown):
    path = tmp_path / "params.yaml"
    path.write_text(f"notebook: {name}\nseed: 3\n")
    said = refused(load_params, NOTEBOOK, profile=str(path), environ={})
    assert said.startswith(f"{path}: holds the parameters of {shown}")

"""Files, variables and options made to crash, to hang or to deceive: each ends in a sentence at once."""

import itertools
import time
from pathlib import Path

import pytest

from rlnb.errors import ParamsError, RlnbError
from rlnb.params import load_params, parse_set
from rlnb.params.answers import read_answer
from rlnb.params.problems import show

NOTEBOOK = "grpo_code_execution"
HEX = "0x" + "f" * 5000
SEXAGESIMAL = ":".join(["59"] * 5000)


def refused(load, *arguments, **given) -> str:
    """The message, which must not take a second."""
    started = time.process_time()
    with pytest.raises(ParamsError) as error:
        load(*arguments, **given)
    assert time.process_time() - started < 1
    return str(error.value)


def with_overrides(*assignments: str, notebook: str = NOTEBOOK):
    overrides = parse_set(*assignments)
    return load_params(notebook, profile="default", overrides=overrides, place="--set", environ={})


def bomb(first: str = "&a [x, x, x, x, x, x, x, x, x, x]", form: str = "&{name} [{aliases}]") -> str:
    """Lines a to h, each of ten aliases of the one before: 10**8 values in h."""
    lines = [f"a: {first}"]
    for before, name in itertools.pairwise("abcdefgh"):
        lines.append(f"{name}: " + form.format(name=name, aliases=", ".join([f"*{before}"] * 10)))
    return "\n".join(lines)


# Numbers and characters that no YAML should hold


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seed: 1\nmodel:\n  id: a\0", "3: holds the character U+0000, which YAML forbids; remove it"),
        ("model: {id: \x1b[31m}", "1: holds the character U+001B, which YAML forbids; remove it"),
        (
            f"seed: {HEX}",
            f"1: seed = '0x{'f' * 53} ... is a number of 5002 characters; write at most 100",
        ),
        (
            f"\nseed: {'1' * 5000}",
            f"2: seed = '{'1' * 55} ... is a number of 5000 characters; write at most 100",
        ),
        (
            f"seed: {SEXAGESIMAL}",
            f"1: seed = '{SEXAGESIMAL[:55]} ... is a number of 14999 characters; write at most 100",
        ),
        (
            f"training: {{learning_rate: {SEXAGESIMAL}.5}}",
            f"1: training.learning_rate = '{SEXAGESIMAL[:55]} ... is a number of 15001 characters; "
            "write at most 100",
        ),
        (
            f"tasks: {{levels: [1, {HEX}]}}",
            f"1: tasks.levels = '0x{'f' * 53} ... is a number of 5002 characters; write at most 100",
        ),
        (f"seed: 0x{'f' * 98}", f"1: seed = 0x{'f' * 54} ... must be below 4294967296"),
        (f"model: {{id: 0x{'f' * 98}}}", f"1: model.id = 0x{'f' * 54} ... is not text; put it in quotes"),
        (
            "tracking: {run_name: 2001-99-99}",
            "1: tracking.run_name = '2001-99-99' is not the number, date or switch that it is written as; "
            "put text in quotes",
        ),
        (
            "evaluation: {enabled: !!bool maybe}",
            "1: evaluation.enabled = 'maybe' is not the number, date or switch that it is written as; "
            "put text in quotes",
        ),
        (
            r'model: {id: "\UFFFFFFFF"}',
            "1: is not YAML: Python int too large to convert to C int",
        ),
    ],
    ids=range(12),
)
def test_a_file_is_refused_with_line_field_and_remedy(project, text, expected):
    said = refused(project, text)
    assert said == f"params/{NOTEBOOK}/v100.yaml:{expected}"


@pytest.mark.parametrize("text", [HEX, "1" * 5000, SEXAGESIMAL], ids=["hex", "decimal", "sexagesimal"])
def test_a_number_that_is_too_long_is_refused_wherever_it_is_given(text):
    reason = f"seed = '{text[:55]} ... is not a whole number; write one such as 42"
    assert refused(with_overrides, f"seed={text}") == f"--set: {reason}"
    environ = {"RLNB_SEED": text}
    said = refused(load_params, NOTEBOOK, profile="default", environ=environ)
    assert said == f"environment variable RLNB_SEED: {reason}"
    overrides = {"seed": 16**5000 - 1}  # papermill reads 0xfff... and puts it into the parameters cell
    said = refused(load_params, NOTEBOOK, profile="default", overrides=overrides, environ={})
    assert said == f"parameters cell: seed = 0x{'f' * 54} ... must be below 4294967296"


def test_an_answer_that_is_nested_too_deeply_is_a_text():
    params = load_params("ppo_openspiel", profile="tiny", environ={})
    assert read_answer(params, "curriculum.stages", "[" * 2000) == ("curriculum.stages", "[" * 2000)


# Aliases that multiply


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("seed", "seed: *h"),
        ("model.id", "model: {id: *h}"),
        ("model.dtype", "model: {dtype: *h}"),
        ("tasks.levels", "tasks: {levels: *h}"),
        ("notebook", "notebook: *h"),
    ],
)
def test_a_field_that_holds_too_many_aliases_is_refused(project, field, text):
    last = refused(project, f"{bomb()}\n{text}").splitlines()
    reason = "holds more than 1000 values, aliases (*name) written out; write fewer"
    assert f"params/{NOTEBOOK}/v100.yaml:8: {field} {reason}" in last


def test_maps_merged_into_maps_are_counted_too(project):
    maps = bomb("[&a {x: 1}]", "[&{name} {{<<: [{aliases}]}}]")
    assert "v100.yaml:8: h holds more than 1000 values" in refused(project, maps)


def test_an_alias_may_save_typing(project):
    assert project("training: {max_steps: &steps 30, save_steps: *steps}").training.save_steps == 30


def test_an_alias_of_itself_is_refused(project):
    assert refused(project, "tasks: {levels: &a [1, *a]}") == (
        f"params/{NOTEBOOK}/v100.yaml:1: is not YAML: found unconstructable recursive node"
    )


@pytest.mark.parametrize("wrap", [lambda v: [v] * 10, lambda v: dict.fromkeys("abcdefghij", v)])
def test_a_value_is_shown_as_far_as_a_message_shows_it(wrap):
    value = "x" * 10
    for _ in range(9):
        value = wrap(value)
    started = time.process_time()
    shown = show(value)
    assert time.process_time() - started < 0.1
    assert (len(shown), shown[-4:]) == (60, " ...")


# Characters that a terminal obeys or hides


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        (r"\e[31mred\u202eevil", "\\x1b"),
        (r"red\u202eevil", "\\u202e"),
        (r"a\u2066b", "\\u2066"),
        (r"a\u061cb", "\\u061c"),
        (r"a\u200fb", "\\u200f"),
        (r"a\u200bb", "\\u200b"),
        (r"a\rb", "\\r"),
        (r"a\x9bb", "\\x9b"),
        (r"a\x7fb", "\\x7f"),
        (r"a\0b", "\\x00"),
    ],
)
def test_a_text_that_is_not_shown_as_it_is_is_refused(project, text, letter):
    value = text.replace(r"\e", "\\x1b").replace(r"\0", "\\x00")
    assert refused(project, f'model: {{id: "{text}"}}') == (
        f"params/{NOTEBOOK}/v100.yaml:1: model.id = '{value}' holds '{letter}', "
        "a control or invisible character; remove it"
    )


def test_such_a_text_is_refused_from_every_source_and_in_lists():
    reason = "= 'a\\u202eb' holds '\\u202e', a control or invisible character; remove it"
    assert refused(with_overrides, "model.id=a\u202eb") == f"--set: model.id {reason}"
    environ = {"RLNB_MODEL__ID": "a\u202eb"}
    said = refused(load_params, NOTEBOOK, profile="default", environ=environ)
    assert said == f"environment variable RLNB_MODEL__ID: model.id {reason}"
    assert refused(with_overrides, "model.lora_target_modules=[q, \u202ek]") == (
        "--set: model.lora_target_modules = ['q', '\\u202ek'] holds '\\u202e', "
        "a control or invisible character; remove it"
    )


@pytest.mark.parametrize(
    "text", ["two\nlines\tof it", "\U0001f469\u200d\U0001f680", "می\u200cخواهم", "日本語", "ne\u0301"]
)
def test_texts_of_all_languages_are_taken(text):
    assert with_overrides(f"tracking.run_name={text}").tracking.run_name == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r'"\e[31m\nnew: line": 3', r"1: '\x1b[31m\nnew: line' is not a field; known: output_dir, seed"),
        (
            "seed: !%1b%5b31m 3",
            r"1: is not YAML: could not determine a constructor for the tag '!\x1b[31m'",
        ),
        (f"{'x' * 900}: 3", f"1: '{'x' * 55} ... is not a field; known: output_dir, seed"),
        ('"\\u202e": 3\n"\\u202e": 3', "2: '\\u202e' stands in line 1 already; keep one"),
    ],
)
def test_a_message_never_holds_such_characters_of_the_file(project, text, expected):
    assert f"params/{NOTEBOOK}/v100.yaml:{expected}" in refused(project, text).splitlines()


def test_every_error_shows_what_a_terminal_would_obey():
    assert str(RlnbError("a\x1b[31m\u202e\udcff\r: é 日\n\tb")) == "a\\x1b[31m\\u202e\\udcff\\r: é 日\n\tb"


# Addresses with a password or a key in them

SERVERS = {
    "mbpp_eval": "writer.base_url",
    "grpo_code_game": "opponent.base_url",
}


@pytest.mark.parametrize("notebook", SERVERS)
@pytest.mark.parametrize(
    "url",
    [
        "http://user:hunter2@host/v1",
        "http://hunter2@host/v1",
        "user:hunter2@host",
        f"http://{'hunter2' * 20}@host/v1",
        "http://host/v1?api_key=hunter2",
        "http://host/v1#hunter2",
        "http://us?er:hunter2@host:x/v1",
    ],
    ids=range(7),
)
def test_an_address_that_may_hold_a_key_is_refused_and_not_repeated(notebook, url):
    assert refused(with_overrides, f"{SERVERS[notebook]}={url}", notebook=notebook) == (
        f"--set: {SERVERS[notebook]} = ... holds a user, a password or a query, which would be written to "
        "params.yaml; write http://host:port/v1, and the key into the variable OPENAI_API_KEY"
    )


def test_such_an_address_in_a_list_is_not_repeated_either():
    assert refused(with_overrides, "writer.base_url=[http://u:hunter2@h/v1]", notebook="mbpp_eval").endswith(
        "holds a user, a password or a query, which would be written to params.yaml; write "
        "http://host:port/v1, and the key into the variable OPENAI_API_KEY"
    )
    overrides = {"writer": {"base_url": ["http://u:hunter2@h/v1"]}}
    assert refused(load_params, "mbpp_eval", profile="default", overrides=overrides, environ={}) == (
        "parameters cell: writer.base_url = ... is not text; put it in quotes"
    )


def test_the_generation_server_has_an_address_without_a_key_too():
    assert refused(with_overrides, "vllm.server_base_url=http://u:hunter2@h:8000") == (
        "--set: vllm.server_base_url = ... holds a user, a password or a query, which would be written to "
        "params.yaml; write http://host:port alone"
    )
    assert refused(with_overrides, "vllm.server_base_url=h:8000") == (
        "--set: vllm.server_base_url = 'h:8000' is no address; write http://host:port"
    )
    assert with_overrides("vllm.server_base_url=http://h:8000").vllm.server_base_url == "http://h:8000"


def test_a_profile_of_another_notebook_is_named_in_one_short_line(tmp_path: Path):
    path = tmp_path / "params.yaml"
    path.write_text("notebook: [spiral, 1]\n")
    assert refused(load_params, NOTEBOOK, profile=str(path), environ={}) == (
        f"{path}: holds the parameters of ['spiral', 1], not those of {NOTEBOOK}"
    )

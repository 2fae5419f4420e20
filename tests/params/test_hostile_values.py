"""Files, variables and options made to crash, to hang or to deceive: each ends in a sentence at once."""

import itertools

import pytest
from refusals import FILE, NOTEBOOK, refused, table, with_cell, with_environment, with_set

from rlnb.configure.draft import read_answer
from rlnb.errors import RlnbError
from rlnb.params import load_params
from rlnb.params.problems import show

HEX = "0x" + "f" * 5000
SEXAGESIMAL = ":".join(["59"] * 5000)
INVISIBLE = "a control or invisible character; remove it"
KEY_IN_ADDRESS = (
    "holds a user, a password or a query, which would be written to params.yaml; write http://host:port"
)
OPENAI_KEY = f"{KEY_IN_ADDRESS}/v1, and the key into the variable OPENAI_API_KEY"


def bomb(first: str = "&a [x, x, x, x, x, x, x, x, x, x]", form: str = "&{name} [{aliases}]") -> str:
    """Lines a to h, each of ten aliases of the one before: 10**8 values in h."""
    lines = [f"a: {first}"]
    for before, name in itertools.pairwise("abcdefgh"):
        lines.append(f"{name}: " + form.format(name=name, aliases=", ".join([f"*{before}"] * 10)))
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "field", "number"),
    [
        ("seed: {}", "seed", HEX),
        ("seed: {}", "seed", "1" * 5000),
        ("training: {{learning_rate: {}}}", "training.learning_rate", f"{SEXAGESIMAL}.5"),
        ("tasks: {{levels: [1, {}]}}", "tasks.levels", HEX),
    ],
    ids=["hex", "decimal", "sexagesimal", "in a list"],
)
def test_a_number_that_is_too_long_is_refused(project, text, field, number):
    shown = f"'{number[:55]} ... is a number of {len(number)} characters; write at most 100"
    assert refused(project, text.format(number)) == f"{FILE}:1: {field} = {shown}"


@pytest.mark.parametrize(
    "text, said",
    [
        ("seed: 1\nmodel:\n  id: a\0", "3: holds the character U+0000, which YAML forbids; remove it"),
        ("model: {id: \x1b[31m}", "1: holds the character U+001B, which YAML forbids; remove it"),
        (f"seed: 0x{'f' * 98}", f"1: seed = 0x{'f' * 54} ... must be below 4294967296"),
        (f"model: {{id: 0x{'f' * 98}}}", f"1: model.id = 0x{'f' * 54} ... is not text; put it in quotes"),
        *table("""
tracking: {project: 2001-99-99} => 1: tracking.project = '2001-99-99' is not the number, date or switch
  that it is written as; put text in quotes
evaluation: {enabled: !!bool maybe} => 1: evaluation.enabled = 'maybe' is not the number, date or switch
  that it is written as; put text in quotes
model: {id: "\\UFFFFFFFF"} => 1: is not YAML: Python int too large to convert to C int
tasks: {levels: &a [1, *a]} => 1: is not YAML: found unconstructable recursive node
"\\e[31m\\nnew: line": 3 => 1: '\\x1b[31m\\nnew: line' is not a field; known: output_dir, seed
seed: !%1b%5b31m 3 => 1: is not YAML: could not determine a constructor for the tag '!\\x1b[31m'
"""),
        (f"{'x' * 900}: 3", f"1: '{'x' * 55} ... is not a field; known: output_dir, seed"),
        ('"\\u202e": 3\n"\\u202e": 3', "2: '\\u202e' is already set in line 1; keep one"),
    ],
    ids=range(12),
)
def test_a_file_is_refused_with_line_and_remedy_and_without_its_hidden_characters(project, text, said):
    assert f"{FILE}:{said}" in refused(project, text).splitlines()


@pytest.mark.parametrize("text", [HEX, "1" * 5000, SEXAGESIMAL], ids=["hex", "decimal", "sexagesimal"])
def test_a_number_that_is_too_long_is_refused_wherever_it_is_given(text):
    reason = f"seed = '{text[:55]} ... is not a whole number; write one such as 42"
    assert refused(with_set, f"seed={text}") == f"--set: {reason}"
    assert refused(with_environment, RLNB_SEED=text) == f"environment variable RLNB_SEED: {reason}"
    # papermill reads 0xfff... and puts the number into the parameters cell.
    said = refused(with_cell, {"seed": 16**5000 - 1})
    assert said == f"parameters cell: seed = 0x{'f' * 54} ... must be below 4294967296"


def test_an_answer_that_is_nested_too_deeply_is_a_text():
    params = load_params("ppo_openspiel", profile="tiny", environ={})
    assert read_answer(params, "curriculum.stages", "[" * 2000) == ("curriculum.stages", "[" * 2000)


@pytest.mark.parametrize("text", ["seed: *h", "model: {id: *h}", "tasks: {levels: *h}", "notebook: *h"])
def test_a_field_that_holds_too_many_aliases_is_refused(project, text):
    field = text.replace(": {", ".").partition(":")[0]
    reason = "holds more than 1000 values, aliases (*name) written out; write fewer"
    assert f"{FILE}:8: {field} {reason}" in refused(project, f"{bomb()}\n{text}").splitlines()
    maps = bomb("[&a {x: 1}]", "[&{name} {{<<: [{aliases}]}}]")
    assert f"{FILE}:8: h {reason}" in refused(project, maps).splitlines()


def test_an_alias_may_save_typing(project):
    assert project("training: {max_steps: &steps 30, save_steps: *steps}").training.save_steps == 30


@pytest.mark.parametrize("wrap", [lambda v: [v] * 10, lambda v: dict.fromkeys("abcdefghij", v)])
def test_a_value_is_shown_as_far_as_a_message_shows_it(wrap):
    value = "x" * 10
    for _ in range(9):
        value = wrap(value)
    shown = show(value)
    assert (len(shown), shown[-4:]) == (60, " ...")


@pytest.mark.parametrize(
    "letter",
    ["\x1b", "\0", "\r", "\x7f", "\x9b", "\u061c", "\u200b", "\u200f", "\u202e", "\u2066"],
    ids=ascii,
)
def test_a_text_that_is_not_shown_as_it_is_is_refused_from_every_source(project, letter):
    escaped = repr(letter)[1:-1]
    reason = f"= 'a{escaped}b' holds '{escaped}', {INVISIBLE}"
    assert refused(project, f'model: {{id: "a{escaped}b"}}') == f"{FILE}:1: model.id {reason}"
    assert refused(with_set, f"model.id=a{letter}b") == f"--set: model.id {reason}"
    said = refused(with_environment, RLNB_MODEL__ID=f"a{letter}b")
    assert said == f"environment variable RLNB_MODEL__ID: model.id {reason}"
    said = refused(with_cell, {"model": {"lora_target_modules": ["q", f"{letter}k"]}})
    assert said == (
        f"parameters cell: model.lora_target_modules = ['q', '{escaped}k'] holds '{escaped}', {INVISIBLE}"
    )


def test_every_error_shows_what_a_terminal_would_obey():
    assert str(RlnbError("a\x1b[31m\u202e\udcff\r: é 日\n\tb")) == "a\\x1b[31m\\u202e\\udcff\\r: é 日\n\tb"


@pytest.mark.parametrize(
    "notebook, field", [("mbpp_eval", "writer.base_url"), ("grpo_code_game", "opponent.base_url")]
)
@pytest.mark.parametrize(
    "url",
    [
        "http://user:hunter2@host/v1",
        "user:hunter2@host",
        f"http://{'hunter2' * 20}@host/v1",
        "http://host/v1?api_key=hunter2",
        "http://host/v1#hunter2",
        "http://us?er:hunter2@host:x/v1",
    ],
    ids=range(6),
)
def test_an_address_that_may_hold_a_key_is_refused_and_not_repeated(notebook, field, url):
    said = f"--set: {field} = ... {OPENAI_KEY}"
    assert refused(with_set, f"{field}={url}", notebook=notebook) == said
    section, name = field.split(".")
    assert refused(with_cell, {section: {name: [url]}}, notebook) == (
        f"parameters cell: {field} = ... is not text; put it in quotes"
    )


def test_the_generation_server_has_an_address_without_a_key_too():
    said = refused(with_set, "vllm.server_base_url=http://u:hunter2@h:8000")
    assert said == f"--set: vllm.server_base_url = ... {KEY_IN_ADDRESS} alone"
    assert refused(with_set, "vllm.server_base_url=h:8000") == (
        "--set: vllm.server_base_url = 'h:8000' is not an address; write http://host:port"
    )
    assert with_set("vllm.server_base_url=http://h:8000").vllm.server_base_url == "http://h:8000"


@pytest.mark.parametrize(
    "name, shown", [("spiral_self_play", "spiral_self_play"), ("[spiral, 1]", "['spiral', 1]")]
)
def test_a_profile_of_another_notebook_is_named_in_one_short_line(tmp_path, name, shown):
    path = tmp_path / "params.yaml"
    path.write_text(f"notebook: {name}\nseed: 3\n")
    said = refused(load_params, NOTEBOOK, profile=str(path), environ={})
    assert said == f"{path}: holds the parameters of {shown}, not those of {NOTEBOOK}"

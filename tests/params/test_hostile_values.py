"""Files, variables and options made to crash or to deceive: each ends in a sentence at once."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from papermill.iorw import NoDatesSafeLoader
from refusals import FILE, NOTEBOOK, refused, with_cell, with_environment, with_set

from rlnb.batch.sweeps import load_points
from rlnb.errors import RlnbError
from rlnb.params import load_params
from rlnb.params.loading import dump_yaml
from rlnb.run.papermill_engine import engine  # noqa: F401  # papermill imports it before it reads values


@pytest.mark.parametrize("number", ["0x" + "f" * 5000, "1" * 5000], ids=["hex", "decimal"])
def test_a_number_that_is_too_long_is_refused_wherever_it_is_given(project, number):
    assert refused(project, f"seed: {number}").startswith(f"{FILE}:1: seed = ")
    assert refused(with_set, f"seed={number}").startswith("--set: seed = ")
    said = refused(with_environment, RLNB_SEED=number)
    assert said.startswith("environment variable RLNB_SEED: seed = ") and len(said) < 200
    # papermill reads 0xfff... and puts the number into the parameters cell.
    assert "seed = 0xf" in refused(with_cell, {"seed": 16**5000 - 1})


def every_way(tmp_path_factory):
    """Each way to give a seed as text, as functions that return the seed that a run would have."""
    folder = tmp_path_factory.mktemp("values")
    profile, sweep = folder / "p.yaml", folder / "s.yaml"

    def by_file(text):
        profile.write_text(f"seed: {text}\n")
        return load_params(NOTEBOOK, profile=str(profile), environ={}).seed

    def by_sweep(text):
        sweep.write_text(f"grid: {{seed: [{text}]}}\n")
        return with_set(*load_points(sweep, seeds=None)[0].assignments()).seed

    return {
        "--set": lambda text: with_set(f"seed={text}").seed,
        "environment": lambda text: with_environment(RLNB_SEED=text).seed,
        "profile": by_file,
        "sweep": by_sweep,
        "papermill -y": lambda text: with_cell({"seed": yaml.load(text, NoDatesSafeLoader)}).seed,
    }


@given(st.integers(0, 999), st.integers(0, 4))
def test_a_number_is_read_by_its_digits_whatever_zeros_lead_it(tmp_path_factory, number, zeros):
    text = "0" * zeros + str(number)
    seeds = {way: read(text) for way, read in every_way(tmp_path_factory).items()}
    assert seeds == dict.fromkeys(seeds, number), text  # as papermill's -p, which calls int()
    assert load_points(None, seeds=text)[0].overrides == {"seed": number}


@given(st.from_regex(r"[1-9][0-9]{0,2}(:[0-5][0-9]){1,2}(\.[0-9])?", fullmatch=True))
def test_what_looks_like_minutes_is_no_number(tmp_path_factory, text):
    for read in every_way(tmp_path_factory).values():
        assert f"seed = {text!r} should be a valid integer" in refused(read, text)
    assert text in refused(load_points, None, seeds=text)


def test_texts_that_look_like_numbers_stay_what_they_are(tmp_path):
    for text in ("0x10", "1_000", "0b11"):  # YAML 1.1's
        assert "should be a valid integer" in refused(with_set, f"seed={text}")
    assert yaml.load("1e-5", NoDatesSafeLoader) == 1e-5  # by papermill's -y and -f
    for project in ("010", "08", "1:30", "0_9", "on", "1e-5", "~", "2001-01-01"):
        params = with_set(f"tracking.project={project}")
        (tmp_path / "params.yaml").write_text(dump_yaml(params))
        again = load_params(NOTEBOOK, profile=str(tmp_path / "params.yaml"), environ={})
        assert (params.tracking.project, again) == (project, params)


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

"""What is wrong with parameters is said in one line each: place, field, value, reason, remedy."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from refusals import FILE, MACHINES, NOTEBOOK, refused, with_cell, with_environment, with_set

from rlnb.code_execution.params import GrpoCodeExecutionParams
from rlnb.errors import ParamsError
from rlnb.params import check_machine, load_params
from rlnb.params.problems import show_number

GOLDEN = Path(__file__).with_name("problems.txt").read_text(encoding="utf-8")


def read_golden() -> list[tuple[str, str, str]]:
    """Return rows of the golden file: how it is given, what, and what is said."""
    rows = []
    for group in GOLDEN.split("\n\n")[1:]:
        title, _, lines = group.partition("\n")
        rows += [(title[1:].partition("]")[0], *line.split(" => ")) for line in lines.splitlines()]
    return rows


@pytest.mark.parametrize(("how", "given", "said"), read_golden())
def test_every_kind_of_problem_is_told_as_in_the_golden_file(project, tmp_path, how, given, said):
    if how == "file":
        assert refused(project, given) == f"{FILE}:1: {said}"
    elif how == "environment":
        name, _, value = given.partition("=")
        assert refused(with_environment, **{name: value}) == f"environment variable {name}: {said}"
    elif how == "--set":
        assert refused(with_set, *given.split()) == f"--set: {said}"
    else:
        machine, _, text = given.partition(" ")
        params = GrpoCodeExecutionParams(**yaml.safe_load(text))
        environ = {"NETRC": str(tmp_path / "netrc")}
        told = refused(check_machine, params, MACHINES[machine], environ=environ)
        assert told == f"default: {said}"


def test_the_line_of_a_field_is_told_and_all_problems_at_once(project):
    text = "# comment\ntraining:\n  max_steps: 0\n  top_k: 3\n  save_steps: 2\n  save_steps: 3\n"
    told = refused(project, text, environ={"RLNB_TRAINING__BETA": "-1"}).splitlines()
    assert [line.partition(": ")[0] for line in told] == [
        f"{FILE}:6", f"{FILE}:4", f"{FILE}:3", "environment variable RLNB_TRAINING__BETA"
    ]  # fmt: skip
    told = refused(with_cell, {"training": {"max_steps": 0}, "seed": -1}).splitlines()
    assert [line.split(" = ")[0] for line in told] == [
        "parameters cell: seed", "parameters cell: training.max_steps"
    ]  # fmt: skip


def test_what_is_unknown_is_answered_with_what_is_known(project, tmp_path):
    project("")
    told = refused(load_params, NOTEBOOK, profile="v10", root=tmp_path, environ={})
    assert told.endswith("known: auto, default, v100")
    told = refused(load_params, "grpo_code", root=tmp_path)
    assert told.endswith(f"known: {NOTEBOOK}")
    assert "mine.yaml: cannot be read" in refused(load_params, NOTEBOOK, profile="mine.yaml", environ={})


def test_a_conflict_is_laid_to_whichever_value_was_given_last(project):
    name = "RLNB_TRAINING__PER_DEVICE_TRAIN_BATCH_SIZE"
    told = refused(project, "training: {num_generations: 4}", environ={name: "2"})
    assert told.startswith(f"environment variable {name}: training.num_generations = 4 does not divide")


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_shown_as_yaml_reads_them(number):
    assert yaml.safe_load(show_number(number)) == number


@given(
    st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.dictionaries(st.text(), st.text()))
)
def test_whatever_a_cell_holds_is_accepted_or_refused_in_words(cell):
    try:
        with_cell(cell)
    except ParamsError as error:
        assert str(error).startswith("parameters cell: ")

"""The pages of requirements and faults name tests that exist; tests/test_docs.py checks their links."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "requirements.md").read_text(encoding="utf-8")
FAULTS = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
STATES = ("works", "differs", "not shown here: no GPU", "open")
TEST = re.compile(r"`(tests/[^`]+\.py)::(\w+)`")


def rows(*, num_cells: int) -> list[list[str]]:
    """The cells of the page's table rows that have so many, without heads and rules."""
    lines = [line[2:-2].split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
    return [cells for cells in lines if len(cells) == num_cells and cells[1] != "state"]


@pytest.mark.parametrize(("page", "least"), [(PAGE, 90), (FAULTS, 30)], ids=["requirements", "faults"])
def test_every_test_that_a_page_names_exists(page, least):
    named = set(TEST.findall(page))
    assert len(named) > least
    assert page.count("`tests/") == len(TEST.findall(page)) + len(
        re.findall(r"`tests/(?:slurm/jobs\.py)?`", page)
    )
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not (ROOT / file).is_file()
        or test not in {getattr(node, "name", "") for node in ast.parse((ROOT / file).read_text()).body}
    ]
    assert missing == []


def test_every_row_has_one_of_the_states_and_says_where_it_is():
    requirements = rows(num_cells=4)
    assert len(requirements) > 130
    for requirement, state, where, _ in requirements:
        assert state in STATES, requirement
        assert re.search(r"\]\([^)]+\)", where), requirement


def test_every_row_of_a_findings_table_says_done_or_what_is_left():
    findings = [cells for cells in rows(num_cells=2) if re.match(r"\d+\. ", cells[0])]
    assert len(findings) == 15 + 13
    for finding, state in findings:
        assert re.match(r"(done|open|differs)\b", state), finding


def test_figures_of_memory_are_in_the_table_of_troubleshooting_alone_where_a_test_computes_them():
    rows_with_figures = [line for line in PAGE.splitlines() if re.search(r"\d GiB", line)]
    # What the document asks of a machine is no estimate of ours.
    assert [line for line in rows_with_figures if not line.startswith("| 16 GiB, Python 3.8, ")] == []

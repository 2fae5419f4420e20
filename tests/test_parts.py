"""docs/parts.md: every block runs as it stands, in a process and a folder of its own."""

import re
import tomllib
from collections.abc import Iterable
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from waiting import run_python

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/parts.md").read_text(encoding="utf-8")
BLOCKS = {
    section.partition("\n")[0]: code
    for section in PAGE.split("\n## ")[1:]
    for code in re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
}
SAID = {  # what the page says of results
    "The sandbox": re.compile(r"42\s"),
    "MBPP's checker": re.compile(r"True .*\nFalse .*\n\Z"),
    "Exact NashConv of a policy": re.compile(r"0\.91666"),
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def run_block(code: str, folder: Path, *, missing: Iterable[str] = ()) -> str:
    """Run code in a folder, where imports of the missing modules fail, and return what it printed."""
    environment = {"HOME": str(folder), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    environment["PYTHONPATH"] = str(ROOT)
    before = f"import sys\nsys.modules.update(dict.fromkeys({sorted(missing)!r}))\n"
    done = run_python(before + code, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def packages_of(names: list[str]) -> set[str]:
    """Return distributions with all that they require, extras aside, in lower case."""
    known: set[str] = set()
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in known:
            continue
        known.add(name)
        for line in requires(name) or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return known


def modules_to_miss() -> list[str]:
    """Return the modules installed here that `pip install .` does not bring."""
    brought = packages_of([Requirement(line).name for line in PROJECT["dependencies"]]) | {"rlnb"}
    return [
        module
        for module, distributions in packages_distributions().items()
        if not any(re.sub(r"[-_.]+", "-", name).lower() in brought for name in distributions)
    ]


@pytest.mark.parametrize("title", BLOCKS)
def test_a_part_runs_alone_in_ten_lines_with_what_pip_install_brings_for_it(title: str, tmp_path: Path):
    """Where a part needs no torch, each import of another package than the project's dependencies fails."""
    assert SAID.keys() <= BLOCKS.keys()
    code = BLOCKS[title]
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    printed = run_block(code, tmp_path, missing=() if "trl" in code else modules_to_miss())
    assert SAID.get(title, re.compile("")).match(printed) and printed.strip()

"""docs/parts.md: every block runs as it stands, in a process and a folder of its own."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/parts.md").read_text(encoding="utf-8")
BLOCKS = {
    section.partition("\n")[0]: code
    for section in PAGE.split("\n## ")[1:]
    for code in re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
}
WITHOUT_TORCH = [title for title, code in BLOCKS.items() if "trl" not in code]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def run_block(code: str, folder: Path, *, before: str = "") -> str:
    """Run code in a folder and return what it printed."""
    environment = {
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", before + code], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("title", BLOCKS)
def test_a_part_runs_alone_in_ten_lines(title: str, tmp_path: Path) -> None:
    code = BLOCKS[title]
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    assert run_block(code, tmp_path).strip()


def test_what_the_page_says_of_results_is_so(tmp_path: Path) -> None:
    assert run_block(BLOCKS["The sandbox"], tmp_path).split()[0] == "42"
    assert [line.split()[0] for line in run_block(BLOCKS["MBPP's checker"], tmp_path).splitlines()] == [
        "True", "False",
    ]  # fmt: skip
    assert float(run_block(BLOCKS["Exact NashConv of a policy"], tmp_path)) == pytest.approx(11 / 12)


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


@pytest.mark.parametrize("title", WITHOUT_TORCH)
def test_a_part_without_torch_imports_what_pip_install_brings_and_nothing_more(
    title: str, tmp_path: Path
) -> None:
    """Each import of another package fails, as it does where only the project's dependencies are."""
    brought = packages_of([Requirement(line).name for line in PROJECT["dependencies"]])
    missing = sorted(
        module
        for module, distributions in packages_distributions().items()
        if not any(re.sub(r"[-_.]+", "-", name).lower() in brought | {"rlnb"} for name in distributions)
    )
    before = f"import sys\nsys.modules.update(dict.fromkeys({missing!r}))\n"
    run_block(BLOCKS[title], tmp_path, before=before)

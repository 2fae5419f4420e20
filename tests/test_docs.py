"""The documents name what is there: links, headings, profiles, targets of make, notebooks, tests."""

import ast
import json
import re
from pathlib import Path

from pages import CODE, anchors

from rlnb.errors import TROUBLESHOOTING

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"!?\[([^\]]*)\]\(([^)\s]+)\)")
PAGES = [
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "rlnb/**/*.md",
        "slurm/*.md",
        "notebooks/*.ipynb",
        "docs/**/*.ipynb",
    )
    for path in ROOT.glob(pattern)
]


def prose(page: Path) -> str:
    """Return the text of a page without code; of a notebook its Markdown cells."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return CODE.sub("", text)


def dead_links() -> list[str]:
    """Relative links that lead nowhere, and links [`name`](file.py) to files that define no such name."""
    dead = []
    for page in PAGES:
        for label, target in LINK.findall(prose(page)):
            if re.match(r"[a-z]+:", target):
                continue
            place, _, anchor = target.partition("#")
            file = page.parent / place if place else page
            where = f"{page.relative_to(ROOT)}: {target}"
            if not file.exists():
                dead.append(f"{where} is not there")
            elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text(encoding="utf-8")):
                dead.append(f"{where}: no such heading")
            elif file.suffix == ".py" and re.fullmatch(r"`\w+`", label):
                name = label.strip("`")
                defined = rf"^\s*(?:class |def )?{name}\b\s*[(:=]"
                if not re.search(defined, file.read_text(encoding="utf-8"), re.MULTILINE):
                    dead.append(f"{where} defines no {name}")
    return dead


def test_every_link_leads_somewhere():
    assert dead_links() == []


def test_every_message_leads_to_a_heading_of_the_page_of_troubleshooting():
    sources = [path.read_text(encoding="utf-8") for path in ROOT.glob("rlnb/**/*.py")]
    topics = {topic for source in sources for topic in re.findall(r"\bsee\([\"']([\w-]+)", source)}
    assert len(topics) >= 9
    assert topics <= anchors((ROOT / TROUBLESHOOTING).read_text(encoding="utf-8"))
    assert sum(TROUBLESHOOTING in source for source in sources) == 1  # errors.py


def test_readme_and_contributing_name_targets_of_make_that_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for name in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert set(re.findall(r"(?:^ {4}|`)make ([a-z-]+)", text, re.MULTILINE)) <= targets, name


def test_every_profile_that_a_page_names_exists():
    text = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *ROOT.glob("docs/*.md")))
    profiles = {path.stem for path in ROOT.glob("params/*/*.yaml")} | {"auto"}
    named = set(re.findall(r"--profile ([a-z]\w*)(?![\w.])", text))
    assert named and named <= profiles


def test_every_test_that_a_page_names_exists():
    named = {
        (file, test)
        for page in PAGES
        for file, test in re.findall(r"`(tests/[^`]+\.py)::(\w+)`", page.read_text(encoding="utf-8"))
    }
    assert len(named) >= 20
    missing = [
        f"{file}::{test}"
        for file, test in sorted(named)
        if not (ROOT / file).is_file()
        or test not in {getattr(node, "name", "") for node in ast.parse((ROOT / file).read_text()).body}
    ]
    assert missing == []

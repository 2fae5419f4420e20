"""The page of troubleshooting: messages lead to headings that are there."""

import ast
import re
from pathlib import Path

from pages import anchors

from rlnb.errors import TROUBLESHOOTING, see

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / TROUBLESHOOTING).read_text(encoding="utf-8")


def topics() -> set[str]:
    """The arguments of `see` in the library."""
    calls = [
        node
        for path in (ROOT / "rlnb").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == see.__name__
    ]
    return {ast.literal_eval(call.args[0]) for call in calls}


def test_every_message_leads_to_a_heading_of_the_page_and_no_address_is_a_copy():
    assert len(topics()) >= 9
    assert topics() - anchors(PAGE) == set()
    copies = [path for path in (ROOT / "rlnb").rglob("*.py") if TROUBLESHOOTING in path.read_text()]
    assert copies == [ROOT / "rlnb" / "errors.py"]


def test_every_section_is_in_the_list_of_symptoms():
    listed = set(re.findall(r"\]\(#([\w-]+)\) \|$", PAGE, re.MULTILINE))
    assert listed == anchors(PAGE) - {"troubleshooting-by-symptom"}

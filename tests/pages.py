"""What tests read in the pages of documentation: code, and the anchors of headings."""

import re

CODE = re.compile(r"^ {4}.*$|^```(?:.|\n)*?^```$", re.MULTILINE)


def anchors(text: str) -> set[str]:
    """The anchors that a hosting site makes of the headings."""
    headings = re.findall(r"^#+ +(.+)$", CODE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}

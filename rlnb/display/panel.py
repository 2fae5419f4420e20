"""Buttons in a notebook, and what a saved notebook shows in their place."""

from collections.abc import Sequence
from html import escape

import ipywidgets as widgets


class Panel(widgets.VBox):
    """Widgets below each other; a page on which none can run shows `words` and `picture` (HTML) instead."""

    def __init__(self, children: Sequence[widgets.Widget], words: str, picture: str = "") -> None:
        self.words, self.picture = words, picture
        super().__init__(children)

    def __repr__(self) -> str:
        return self.words

    def _repr_mimebundle_(self, **options: object) -> dict[str, object]:
        html = f"<p>{escape(self.words)}</p>{self.picture}"
        return {**super()._repr_mimebundle_(**options), "text/html": html}

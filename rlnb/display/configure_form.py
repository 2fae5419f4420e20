"""A form for a profile, in JupyterLab: one widget a field, each checked while it is filled in."""

import os
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from rlnb.configure import (
    ROOT,
    default_output,
    profile_text,
    remarks,
    run_command,
    save_profile,
    shown_path,
    start_draft,
)
from rlnb.display.tables import Table
from rlnb.errors import ParamsError
from rlnb.machine import Machine, probe
from rlnb.memory_estimate import Estimate, estimate_memory
from rlnb.params.answers import Question
from rlnb.training.playable import check_games

# JupyterLab's own, which are legible in its dark theme too; elsewhere the second.
RED, GREY = "var(--jp-error-color1, #b3261e)", "var(--jp-ui-font-color2, #6b6b6b)"
ORANGE, GREEN = "var(--jp-warn-color1, #9a5b00)", "var(--jp-success-color1, #1b6e3c)"
COLOURS = {"fits": GREEN, "tight": ORANGE, "does not fit": RED, "unknown": GREY}
# Tabs as wide as their titles; ipywidgets would cut them off.
STYLE = "<style>.rlnb-configure .lm-TabBar .lm-TabBar-tab {flex: 1 0 auto; padding: 0 6px}</style>"
NAME = widgets.Layout(width="13rem", flex="0 0 auto")
ENTRY = widgets.Layout(width="22rem", flex="0 0 auto")
HIDDEN = widgets.Layout(height="0", margin="0")
TALL = widgets.Layout(width="40rem", height="9rem")


class Panel(widgets.VBox):
    """A box whose trace in a saved notebook is a sentence."""

    def __repr__(self) -> str:
        return "A form of all parameters: it needs a running notebook."


class FieldRow:
    """The widgets of one field: its name, what is filled in, its help, and what is wrong with it.

    text: what is filled in, as `Draft.answer` takes it.
    """

    def __init__(self, question: Question, typed: str, *, changed: Callable[[], None]) -> None:
        self.question = question
        self.entry = _entry(question, typed)
        self.error = widgets.HTML()
        self.origin = widgets.HTML()
        name = question.field.rpartition(".")[2]
        label = widgets.HTML(f"<b>{escape(name)}</b>", layout=NAME)
        limits = f" ({question.bounds})" if question.bounds else ""
        help_text = widgets.HTML(_small(question.help + limits, GREY))
        top = widgets.HBox([label, self.entry, self.origin])
        self.box = widgets.VBox([top, help_text, self.error], layout=widgets.Layout(margin="0 0 0.4rem 0"))
        self.entry.observe(lambda _: changed(), names="value")

    @property
    def text(self) -> str:
        value = self.entry.value
        return str(value).lower() if self.question.is_switch else str(value)

    def fill_in(self, text: str) -> None:
        self.entry.value = (text.strip().lower() == "true") if self.question.is_switch else text

    def say(self, problem: str) -> None:
        self.error.value = _small(problem, RED) if problem else ""


def _entry(question: Question, typed: str) -> Any:
    if question.is_switch:
        return widgets.Checkbox(value=typed == "true", indent=False, layout=ENTRY)
    if question.choices:
        return widgets.Dropdown(options=list(question.choices), value=typed, layout=ENTRY)
    if question.is_yaml:
        return widgets.Textarea(value=typed.replace("}, {", "},\n {"), continuous_update=True, layout=TALL)
    return widgets.Text(value=typed, continuous_update=True, layout=ENTRY)


class ConfigureForm:
    """All parameters of a notebook to fill in; display it, change what you like, press Save.

    Every change is checked by the notebook's own model, conflicts between fields included; what is wrong
    stands beneath its field, and nothing is saved before all is right. Memory and profile follow what was
    right last.

    draft: that. rows: {field: FieldRow}. problems: {field: what is wrong}, "" for what belongs to none.
    """

    def __init__(
        self,
        notebook: str,
        profile: str = "auto",
        *,
        output: str | Path | None = None,
        assignments: Sequence[str] = (),
        machine: Machine | None = None,
        environ: Mapping[str, str] = os.environ,
        root: Path = ROOT,
    ) -> None:
        self.machine = probe(ask_hub=False, environ=environ) if machine is None else machine
        self.environ = environ
        self.draft = start_draft(
            notebook, self.machine, profile=profile, assignments=assignments, environ=environ, root=root
        )
        self.problems: dict[str, str] = {}
        # The items of a list of sections are filled in together, as YAML.
        questions = [one for one in self.draft.questions() if "[" not in one.field]
        self.rows = {
            one.field: FieldRow(one, self.draft.typed(one.field), changed=self.check) for one in questions
        }
        path = default_output(self.draft) if output is None else Path(output)
        self.output = widgets.Text(
            value=shown_path(path), description="File", layout=widgets.Layout(width="34rem")
        )
        self.overwrite = widgets.Checkbox(description="overwrite it where it is there already", indent=False)
        self.save_button = widgets.Button(description="Save", button_style="primary")
        self.save_button.on_click(lambda _: self._pressed())
        self.summary, self.memory, self.saved = widgets.HTML(), widgets.HTML(), widgets.HTML()
        body = [self._sections(), self.summary, self.memory, self._bottom()]
        self.widget = Panel([widgets.HTML(STYLE, layout=HIDDEN), *body])
        self.widget.add_class("rlnb-configure")
        self.check()

    def _sections(self) -> Any:
        """One page a section, fields that matter most first and the others behind them."""
        names = list(dict.fromkeys(row.question.section for row in self.rows.values()))
        main_fields = set(self.draft.main_fields())
        pages = []
        for name in names:
            rows = [row for row in self.rows.values() if row.question.section == name]
            first = [row.box for row in rows if row.question.field in main_fields]
            others = [row.box for row in rows if row.question.field not in main_fields]
            more = widgets.Accordion(
                [widgets.VBox(others)], titles=[f"{len(others)} more"], selected_index=None
            )
            pages.append(widgets.VBox(first + ([more] if first and others else others)))
        return widgets.Tab(pages, titles=[name or "run" for name in names])

    def _bottom(self) -> Any:
        return widgets.VBox([widgets.HBox([self.output, self.overwrite, self.save_button]), self.saved])

    def fill_in(self, texts: Mapping[str, str]) -> None:
        """Fill in fields as a person would, one after the other; KeyError for a field that there is not."""
        for field, text in texts.items():
            self.rows[field].fill_in(text)
        self.check()

    def check(self) -> None:
        """Read the form: its problems, and the draft where there are none."""
        blank = self.draft.blank()
        texts = {name: row.text for name, row in self.rows.items() if row.text != blank.typed(name)}
        self.problems, self.saved.value = {}, ""
        try:
            self.draft = blank.answer(texts)
        except ParamsError as error:
            for line in str(error).splitlines():
                problem = line.partition(": ")[2]  # behind the place, which is this form
                name = problem.split(" ", 1)[0].partition("[")[0]
                self.problems[name if name in self.rows else ""] = problem
        for name, row in self.rows.items():
            row.say(self.problems.get(name, ""))
            is_changed = name in self.draft.answers
            origin = self.draft.source(name).rpartition("/")[2]  # of a file its name and line
            was = f"was {blank.typed(name)[:40]}" if is_changed else origin
            row.origin.value = _small(was, ORANGE if is_changed else GREY)
        self.save_button.disabled = bool(self.problems)
        self._summarize()

    def _summarize(self) -> None:
        lines = [_small(problem, RED) for problem in self.problems.values()]
        if not self.problems:
            lines = [_small(f"{len(self.draft.answers)} fields changed from {self.draft.profile}", GREY)]
            notes = remarks(self.draft, self.machine, environ=self.environ)
            lines += [_small(note, ORANGE) for note in notes]
        self.summary.value = "".join(lines)
        try:
            found = self.estimate()
            self.memory.value = _memory_html(found)
        except ParamsError as error:
            self.memory.value = _small(str(error), RED)

    def estimate(self) -> Estimate | None:
        """The memory that the draft will need here."""
        return estimate_memory(self.draft.params, self.machine, environ=self.environ)

    @property
    def profile_text(self) -> str:
        """The profile as it would be saved."""
        return profile_text(self.draft)

    @property
    def command(self) -> str:
        """What runs the notebook with the profile."""
        return run_command(self.draft, self.output.value)

    def save(self) -> Path:
        """Write the profile; raises ParamsError where a field is wrong, or the file is not to be written."""
        if self.problems:
            raise ParamsError("\n".join(self.problems.values()))
        check_games(self.draft.params)
        path = save_profile(self.draft, self.output.value.strip(), overwrite=self.overwrite.value)
        self.saved.value = f"Written. To run it:<pre style='margin:0'>{escape(self.command)}</pre>"
        return path

    def _pressed(self) -> None:
        try:
            self.save()
        except ParamsError as error:
            self.saved.value = _small(str(error), RED)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.widget._repr_mimebundle_(**options)

    def __repr__(self) -> str:
        return repr(self.widget)


def show_memory(found: Estimate | None) -> Table:
    """The parts of an estimate, and what to change where it does not fit."""
    if found is None:
        return Table(["part", "GiB", "from"], [], caption="Not known: the model's name tells no size.")
    rows: list[Sequence[Any]] = [(part.name, f"{part.gib:.2f}", part.why) for part in found.parts]
    rows += [
        (
            f"{change.field} = {change.value}",
            f"{change.total_gib:.2f}",
            f"in all, after this; now {change.now}",
        )
        for change in found.changes
    ]
    return Table(["part", "GiB", "from"], rows, caption=found.lines()[0])


def _memory_html(found: Estimate | None) -> str:
    if found is None:
        return _small("memory: not known: the model's name tells no size", GREY)
    first, *others = found.lines()
    rest = escape("\n".join(others))
    bold = f"<b style='color:{COLOURS[found.verdict]}'>{escape(first)}</b>"
    return f"{bold}<pre style='margin:0;line-height:1.3'>{rest}</pre>"


def _small(text: str, colour: str) -> str:
    return f"<div style='color:{colour};font-size:90%;line-height:1.3'>{escape(text)}</div>"

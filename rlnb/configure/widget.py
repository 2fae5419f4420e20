"""A form for a profile in JupyterLab: one widget per field, each checked while it is filled in."""

import dataclasses
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

import ipywidgets as widgets

from rlnb.configure.draft import (
    Question,
    check_games,
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
from rlnb.run.memory import UNKNOWN_SIZE, MemoryEstimate, describe_memory, estimate_memory

# JupyterLab's own, which are legible in its dark theme too; elsewhere the second.
RED, GREY = "var(--jp-error-color1, #b3261e)", "var(--jp-ui-font-color2, #6b6b6b)"
ORANGE, GREEN = "var(--jp-warn-color1, #9a5b00)", "var(--jp-success-color1, #1b6e3c)"
COLOURS = {"fits": GREEN, "tight": ORANGE, "does not fit": RED}
# Tabs as wide as their titles; ipywidgets would cut them off.
STYLE = "<style>.rlnb-configure .lm-TabBar .lm-TabBar-tab {flex: 1 0 auto; padding: 0 6px}</style>"
NAME = widgets.Layout(width="13rem", flex="0 0 auto")
ENTRY = widgets.Layout(width="22rem", flex="0 0 auto")
HIDDEN = widgets.Layout(height="0", margin="0")
WIDE = widgets.Layout(width="34rem")
TALL = widgets.Layout(width="40rem", height="9rem")


class FieldRow:
    """The widgets of one field: its name, entry and help, and what is wrong with the entry."""

    def __init__(self, question: Question, typed: str, *, changed: Callable[[], None]) -> None:
        self.question = question
        self.entry = _make_entry(question, typed)
        self.error, self.origin = widgets.HTML(), widgets.HTML()
        label = widgets.HTML(f"<b>{escape(question.field.rpartition('.')[2])}</b>", layout=NAME)
        limits = f" ({question.bounds})" if question.bounds else ""
        help_text = widgets.HTML(_small(question.help + limits, GREY))
        top = widgets.HBox([label, self.entry, self.origin])
        self.box = widgets.VBox([top, help_text, self.error], layout=widgets.Layout(margin="0 0 0.4rem 0"))
        self.entry.observe(lambda _: changed(), names="value")

    @property
    def text(self) -> str:
        """The entry as `Draft.answer` takes it."""
        text = str(self.entry.value)
        return text.lower() if self.question.is_switch else text


def _make_entry(question: Question, typed: str) -> widgets.ValueWidget:
    if question.is_switch:
        return widgets.Checkbox(value=typed == "true", indent=False, layout=ENTRY)
    if question.choices:
        return widgets.Dropdown(options=list(question.choices), value=typed, layout=ENTRY)
    if question.is_section_list:
        return widgets.Textarea(value=typed.replace("}, {", "},\n {"), layout=TALL)
    return widgets.Text(value=typed, layout=ENTRY)


class ConfigureForm(widgets.VBox):
    """All parameters of a notebook as a form; display it, change fields, press Save.

    The notebook's own model checks every change, conflicts between fields included; what is wrong appears
    below its field, and nothing is saved until all is right.

    draft: the last valid one. problems: {field: what is wrong}, "" for what belongs to no field.
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
    ) -> None:
        super().__init__()
        self.machine = probe(ask_hub=False, environ=environ) if machine is None else machine
        self.environ = environ
        self.draft = start_draft(
            notebook, self.machine, profile=profile, assignments=assignments, environ=environ
        )
        self.problems: dict[str, str] = {}
        # The items of a list of sections are filled in together, as YAML.
        questions = [question for question in self.draft.questions() if "[" not in question.field]
        self.rows = {
            question.field: FieldRow(question, self.draft.typed(question.field), changed=self.check)
            for question in questions
        }
        path = shown_path(default_output(self.draft) if output is None else Path(output))
        self.output = widgets.Text(value=path, description="File", layout=WIDE)
        self.overwrite = widgets.Checkbox(description="overwrite an existing file", indent=False)
        self.save_button = widgets.Button(description="Save", button_style="primary")
        self.save_button.on_click(lambda _: self._pressed())
        self.summary, self.memory, self.saved = widgets.HTML(), widgets.HTML(), widgets.HTML()
        saving = widgets.HBox([self.output, self.overwrite, self.save_button])
        style = widgets.HTML(STYLE, layout=HIDDEN)
        self.children = [style, self._sections(), self.summary, self.memory, saving, self.saved]
        self.add_class("rlnb-configure")
        self.check()

    def _sections(self) -> widgets.Tab:
        # A page for each section: main fields first, and the others folded below them.
        main_fields = self.draft.main_fields()
        pages = {}
        for name, group in itertools.groupby(self.rows.values(), key=lambda row: row.question.section):
            rows = list(group)
            first = [row.box for row in rows if row.question.field in main_fields]
            others = [row.box for row in rows if row.question.field not in main_fields]
            if first and others:
                folded = widgets.VBox(others)
                others = [widgets.Accordion([folded], titles=[f"{len(others)} more"], selected_index=None)]
            pages[name or "run"] = widgets.VBox(first + others)
        return widgets.Tab(list(pages.values()), titles=list(pages))

    def check(self) -> None:
        """Read the form: update the draft, or the problems if there are any."""
        blank = dataclasses.replace(self.draft, params=self.draft.base, answers={})
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
            problem = self.problems.get(name, "")
            row.error.value = _small(problem, RED) if problem else ""
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
        first, *others = describe_memory(self.draft.params, self.machine, environ=self.environ)
        colour = next((colour for verdict, colour in COLOURS.items() if f": {verdict} (" in first), GREY)
        bold = f"<b style='color:{colour}'>{escape(first)}</b>"
        self.memory.value = (
            f"{bold}<pre style='margin:0;line-height:1.3'>{escape(chr(10).join(others))}</pre>"
        )

    def estimate(self) -> MemoryEstimate | None:
        """Return the memory that the draft needs on this machine."""
        return estimate_memory(self.draft.params, self.machine, environ=self.environ)

    @property
    def profile_text(self) -> str:
        return profile_text(self.draft)

    @property
    def command(self) -> str:
        return run_command(self.draft, self.output.value)

    def save(self) -> Path:
        """Write the profile. Raises ParamsError if a field is wrong or the file may not be written."""
        if self.problems:
            raise ParamsError("\n".join(self.problems.values()))
        warnings = "".join(_small(warning, ORANGE) for warning in check_games(self.draft.params))
        path = save_profile(self.draft, self.output.value.strip(), overwrite=self.overwrite.value)
        self.saved.value = f"Written. To run it:<pre style='margin:0'>{escape(self.command)}</pre>{warnings}"
        return path

    def _pressed(self) -> None:
        try:
            self.save()
        except ParamsError as error:
            self.saved.value = _small(str(error), RED)

    def __repr__(self) -> str:
        return "A form of all parameters: it needs a running notebook."  # what a saved notebook shows


def show_memory(estimate: MemoryEstimate | None) -> Table:
    """Return the parts of an estimate, and what to change if it does not fit."""
    if estimate is None:
        return Table(["part", "GiB", "from"], [], caption=UNKNOWN_SIZE)
    rows = [(part.name, f"{part.gib:.2f}", part.reason) for part in estimate.parts]
    rows += [
        (
            f"{change.field} = {change.value}",
            f"{change.total_gib:.2f}",
            f"in all, after this; now {change.now}",
        )
        for change in estimate.changes
    ]
    return Table(["part", "GiB", "from"], rows, caption=estimate.lines()[0])


def _small(text: str, colour: str) -> str:
    return f"<div style='color:{colour};font-size:90%;line-height:1.3'>{escape(text)}</div>"

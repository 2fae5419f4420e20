"""`rlnb configure`: questions and answers on a terminal, or on standard input, until a profile is written."""

import contextlib
import dataclasses
import difflib
import functools
import itertools
import os
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from rlnb.configure.draft import (
    PLACE,
    Draft,
    Question,
    check_games,
    check_output,
    default_output,
    notebooks,
    remarks,
    run_command,
    save_profile,
    shown_path,
    start_draft,
)
from rlnb.configure.memory import UNKNOWN_SIZE, estimate_memory
from rlnb.errors import ParamsError
from rlnb.machine import Machine, probe
from rlnb.params.loading import ROOT
from rlnb.params.problems import all_and_nearest, show
from rlnb.params.sections import value_of

EXIT_INTERRUPTED = 130  # as shells report Ctrl-C
DEFAULT_NOTEBOOK = "ppo_openspiel"
Answer = TypeVar("Answer")
MAIN, ALL, NONE = "main", "all", "none"
WIDTH = 100
KEYS = """\
Enter keeps the value that is shown, ? explains. Lists are typed with commas; "" is an empty text.
section.field=value sets any field, and several of them set fields that only fit together.
Ctrl-C ends without writing anything.
"""


@dataclasses.dataclass(frozen=True)
class CommandLine:
    """The options of `rlnb configure`; None and () where they were not given."""

    notebook: str | None = None
    profile: str | None = None
    output: str | None = None
    assignments: Sequence[str] = ()
    yes: bool = False


def main(options: CommandLine, *, root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> int:
    """Ask, write a profile and print the command that runs it; return 130 after Ctrl-C, which writes nothing.

    Raises ParamsError for errors in the command line, and where the input ends too early.
    """
    try:
        return _Dialogue(options, probe(ask_hub=False, environ=environ), root, environ).run()
    except KeyboardInterrupt:
        print("\nNothing was written.", file=sys.stderr)
        return EXIT_INTERRUPTED


@dataclasses.dataclass(frozen=True)
class _Dialogue:
    options: CommandLine
    machine: Machine
    root: Path
    environ: Mapping[str, str]

    def run(self) -> int:
        if self.options.output is not None:
            check_output(self.options.output)
        draft = self._start()
        if self.options.yes:
            self._summarize(draft)
            check_games(draft.params)
            path = Path(self.options.output or default_output(draft))
        else:
            print("\n" + KEYS, end="")
            draft = self._ask_fields(draft, _ask_until_valid(lambda: _choose_fields(draft)))
            draft = self._change_until_playable(draft)
            path = _ask_until_valid(lambda: _choose_output(draft, self.options.output))
        save_profile(draft, path, overwrite=True)
        print(f"\nWritten: {shown_path(path)}\nRun it:  {run_command(draft, path)}")
        return 0

    def _start(self) -> Draft:
        """Return the draft of the notebook and profile that the command line names, or that are asked for."""
        names, notebook, profile = notebooks(self.root), self.options.notebook, self.options.profile
        if notebook is None and self.options.yes:
            notebook = DEFAULT_NOTEBOOK
        if notebook is None:
            print(f"Notebooks: {', '.join(names)}")
            notebook = _ask_until_valid(
                lambda: _check_notebook(_ask("Notebook", DEFAULT_NOTEBOOK, names), names)
            )
        else:
            notebook = _check_notebook(Path(notebook).stem, names)
        start = functools.partial(
            start_draft,
            notebook,
            self.machine,
            assignments=self.options.assignments,
            environ=self.environ,
            root=self.root,
        )
        if profile is not None or self.options.yes:
            return start(profile=profile or "auto")
        suitable = start().profile
        profiles = sorted(path.stem for path in (self.root / "params" / notebook).glob("*.yaml"))
        print(f"\nProfiles to start from, or a path of your own; {suitable} suits this machine.")
        print(f"Profiles: {', '.join(profiles)}")
        return _ask_until_valid(lambda: start(profile=_ask("Profile", suitable, profiles)))

    def _change_until_playable(self, draft: Draft) -> Draft:
        """Ask what else to change until the answer is nothing and the games can be played."""
        self._summarize(draft)
        while True:
            text = _ask("\nAnother field or section to change", NONE, what="what else to change")
            questions = []
            try:
                if text == NONE:
                    check_games(draft.params)  # last, since equilibria take seconds
                    return draft
                if assigned := _read_assignments(draft, text):
                    draft = draft.answer(assigned)
                else:
                    questions = _select_questions(draft, text)
            except ParamsError as error:
                _print_wrapped(str(error).replace(f"{PLACE}: ", ""))
                continue
            draft = self._ask_fields(draft, questions)
            self._summarize(draft)

    def _ask_fields(self, draft: Draft, questions: Sequence[Question]) -> Draft:
        """Ask for these fields, section by section, and return the draft with the answers."""
        memory = self._memory_lines(draft)[0] if questions else ""
        for section, group in itertools.groupby(questions, key=lambda question: question.section):
            fields = list(group)
            print(f"\n-- {section or 'the run'}: {len(fields)} field{'s' if len(fields) > 1 else ''}")
            for question in fields:
                if question in draft.questions():  # its list may be shorter now
                    draft = _ask_field(draft, question)
                before, memory = memory, self._memory_lines(draft)[0]
                if memory != before:
                    print("  " + memory)
        return draft

    def _summarize(self, draft: Draft) -> None:
        changes = draft.changes()
        print(f"\n{draft.notebook}, profile {draft.profile}, {'changed:' if changes else 'unchanged'}")
        for field, old, new in changes:
            print(f"  {field} = {_short(show(new))}  (was {_short(show(old))})")
        notes = [f"! {remark}" for remark in remarks(draft, self.machine, environ=self.environ)]
        print(*self._memory_lines(draft), *notes, sep="\n")

    def _memory_lines(self, draft: Draft) -> list[str]:
        try:
            estimate = estimate_memory(draft.params, self.machine, environ=self.environ)
        except ParamsError as error:
            return [f"memory: not known: {error}"]
        return [UNKNOWN_SIZE] if estimate is None else estimate.lines()


def _ask_field(draft: Draft, question: Question) -> Draft:
    """Ask for one field until the answer is valid, and return the draft with it."""
    field = question.field
    allowed = f" One of {', '.join(question.choices)}." if question.choices else ""
    if question.bounds and not allowed:
        allowed = f" {question.bounds.capitalize()}."
    print(f"\n{field} = {_short(draft.typed(field))}  ({draft.source(field)})")
    _print_wrapped(f"{question.help}.{allowed}")
    while True:
        text = _ask(field, _short(draft.typed(field)), question.choices, keep="")
        if text == "":
            return draft
        if text == "?":
            name = field.partition("[")[0]
            base, default = show(value_of(draft.base, name)), show(value_of(draft.default, name))
            meaning = f"{name} is {base} in profile {draft.profile}, {default} in default.yaml."
            _print_wrapped(f"{question.help}.{allowed}\n{meaning}\n{KEYS}")
            continue
        try:
            return draft.answer(_read_assignments(draft, text) or {field: text})
        except ParamsError as error:
            _print_wrapped(str(error).replace(f"{PLACE}: ", ""))


def _choose_fields(draft: Draft) -> list[Question]:
    questions = draft.questions()
    print(
        f"\nFields to ask for: {MAIN}, the {len(draft.main_fields())} that profiles of {draft.notebook} set; "
        f"{ALL}, all {len(questions)}; {NONE};\n"
        f"or names of fields and sections: {', '.join(_sections(draft))}."
    )
    text = _ask("Fields", MAIN, (MAIN, ALL, NONE, *_sections(draft)), what="the fields to ask for")
    return [] if text == NONE else _select_questions(draft, text)


def _sections(draft: Draft) -> list[str]:
    return list(dict.fromkeys(question.section for question in draft.questions() if question.section))


def _select_questions(draft: Draft, text: str) -> list[Question]:
    """Return the questions that a line of names means. Raises ParamsError for an unknown name."""
    questions = draft.questions()
    selected: dict[str, Question] = {}
    for name in text.replace(",", " ").split():
        names = draft.main_fields() if name == MAIN else [name]
        matching = [
            question
            for question in questions
            if name == ALL or question.field in names or question.section == name
        ]
        if not matching:
            fields, sections = [question.field for question in questions], _sections(draft)
            near = [field for field in fields if field.endswith(f".{name}")]
            near = near or difflib.get_close_matches(name, [*fields, *sections], n=1)
            hint = f"did you mean {' or '.join(near)}?" if near else f"sections: {', '.join(sections)}"
            raise ParamsError(f"{name} is neither a field nor a section of {draft.notebook}; {hint}")
        selected |= {question.field: question for question in matching}
    return list(selected.values())


def _read_assignments(draft: Draft, text: str) -> dict[str, str]:
    """Return {field: text} of "model.lora_rank=0 model.load_in_4bit=false", {} for a plain value."""
    names = "|".join(re.escape(question.field) for question in draft.questions())
    parts = re.split(rf"(?:^| )({names})=", text)  # what is before the first, a name, its text, ...
    return dict(zip(parts[1::2], parts[2::2], strict=True)) if not parts[0] else {}


def _choose_output(draft: Draft, given: str | None) -> Path:
    """Return a path that is free or may be overwritten; given: by the command line, taken the first time."""
    while True:
        usual = shown_path(default_output(draft))
        path = check_output(given or _ask("\nFile to write", usual, what="the file to write"))
        if not path.exists():
            return path
        question = f"{shown_path(path)} exists already. Overwrite it? yes or no"
        if _ask(question, "no", ("yes", "no"), what="yes or no").lower() in ("y", "yes"):
            return path
        given = None


def _check_notebook(name: str, known: Sequence[str]) -> str:
    if name not in known:
        raise ParamsError(f"notebook {name!r} is not in params/{all_and_nearest(name, known)}")
    return name


class _InputEnded(ParamsError):
    """The input ended before all questions were answered."""


def _ask_until_valid(question: Callable[[], Answer]) -> Answer:
    while True:
        try:
            return question()
        except _InputEnded:
            raise
        except ParamsError as error:
            print(f"  {error}")


def _ask(
    message: str, default: str, choices: Sequence[str] = (), *, what: str = "", keep: str | None = None
) -> str:
    """Return a line of printable text.

    An empty line means keep, which is the default unless given. what: is asked for, in the error of an input
    that ends early.
    """
    while True:
        try:
            text = _read_line(f"{message} [{default}]: ", choices).strip()
        except EOFError:
            print()
            raise _InputEnded(
                f"configure: the input ended at the question for {what or message.strip()}, and nothing was "
                "written; --yes takes all values as they are"
            ) from None
        except UnicodeDecodeError:
            raise _InputEnded("configure: the input is not UTF-8; nothing was written") from None
        if text.isprintable():
            return text or (default if keep is None else keep)
        print("  holds a character that cannot be shown; type it again")


def _read_line(prompt: str, choices: Sequence[str]) -> str:
    if sys.stdin.isatty():
        import questionary  # line editing and completion, which need a terminal

        with contextlib.redirect_stdout(sys.__stdout__):  # which `rlnb.cli` has replaced
            if choices:
                return str(questionary.autocomplete(prompt, list(choices), qmark="").unsafe_ask())
            return str(questionary.text(prompt, qmark="").unsafe_ask())
    text = input(prompt)
    print(text)  # as a terminal would have shown it
    return text


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:56] + " ..."


def _print_wrapped(text: str) -> None:
    for line in text.splitlines():
        print(*textwrap.wrap(line, WIDTH, initial_indent="  ", subsequent_indent="  "), sep="\n")

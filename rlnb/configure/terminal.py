"""`rlnb configure`: questions and answers on a terminal, or on standard input, until a profile is written."""

import contextlib
import difflib
import itertools
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
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
from rlnb.errors import ParamsError
from rlnb.machine import Machine, probe
from rlnb.params.problems import all_and_nearest, show
from rlnb.params.sections import value_of
from rlnb.run.memory import describe_memory

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


def main(
    *,
    notebook: str | None = None,
    profile: str | None = None,
    output: str | None = None,
    assignments: Sequence[str] = (),
    yes: bool = False,
) -> int:
    """Ask, write a profile and print the command that runs it; return 130 after Ctrl-C, which writes nothing.

    The arguments are the options of the command line, None where they were not given. Raises ParamsError for
    errors in them, and where the input ends too early.
    """
    try:
        if output is not None:
            check_output(output)
        machine = probe(ask_hub=False)
        draft = _start(machine, notebook, profile, assignments, yes=yes)
        if yes:
            _summarize(draft, machine)
            _warn_of_games(draft)
            path = Path(output or default_output(draft))
        else:
            draft = _ask_until_playable(draft, machine)
            path = _choose_output(draft, output)
        save_profile(draft, path, overwrite=True)
    except KeyboardInterrupt:
        print("\nNothing was written.", file=sys.stderr)
        return EXIT_INTERRUPTED
    print(f"\nWritten: {shown_path(path)}\nRun it:  {run_command(draft, path)}")
    return 0


def _start(
    machine: Machine, notebook: str | None, profile: str | None, assignments: Sequence[str], *, yes: bool
) -> Draft:
    """Return the draft of the notebook and profile that the command line names, or that are asked for."""
    names = notebooks()

    def check(name: str) -> str:
        if name not in names:
            raise ParamsError(f"notebook {name!r} is not in params/{all_and_nearest(name, names)}")
        return name

    def start(base: str) -> Draft:
        return start_draft(name, machine, profile=base, assignments=assignments)

    if notebook is None and not yes:
        print(f"Notebooks: {', '.join(names)}")
        name = _ask("Notebook", DEFAULT_NOTEBOOK, check, names)
    else:
        name = check(Path(notebook or DEFAULT_NOTEBOOK).stem)
    if profile is not None or yes:
        return start(profile or "auto")
    draft = start("auto")
    profiles = sorted(path.stem for path in (draft.root / "params" / name).glob("*.yaml"))
    print(f"\nProfiles to start from, or a path of your own; {draft.profile} suits this machine.")
    print(f"Profiles: {', '.join(profiles)}")
    return _ask("Profile", draft.profile, start, profiles)


def _ask_until_playable(draft: Draft, machine: Machine) -> Draft:
    sections = _sections(draft)
    print(
        f"\n{KEYS}\nFields to ask for: {MAIN}, the {len(draft.main_fields())} that profiles of "
        f"{draft.notebook} set; {ALL}, all {len(draft.questions())}; {NONE};\n"
        f"or names of fields and sections: {', '.join(sections)}."
    )

    def select(text: str) -> list[Question]:
        return [] if text == NONE else _select_questions(draft, text)

    def change(text: str) -> tuple[Draft, list[Question]] | None:
        if text == NONE:
            _warn_of_games(draft)  # last, since equilibria take seconds
            return None
        assigned = _read_assignments(draft, text)
        return (draft.answer(assigned), []) if assigned else (draft, _select_questions(draft, text))

    questions = _ask("Fields", MAIN, select, (MAIN, ALL, NONE, *sections), what="the fields to ask for")
    while True:
        draft = _ask_fields(draft, questions, machine)
        _summarize(draft, machine)
        changed = _ask("\nAnother field or section to change", NONE, change, what="what else to change")
        if changed is None:
            return draft
        draft, questions = changed


def _ask_fields(draft: Draft, questions: Sequence[Question], machine: Machine) -> Draft:
    memory = describe_memory(draft.params, machine)[0] if questions else ""
    for section, group in itertools.groupby(questions, key=lambda question: question.section):
        fields = list(group)
        print(f"\n-- {section or 'the run'}: {len(fields)} field{'s' if len(fields) > 1 else ''}")
        for question in fields:
            if question in draft.questions():  # its list may be shorter now
                draft = _ask_field(draft, question)
            before, memory = memory, describe_memory(draft.params, machine)[0]
            if memory != before:
                print("  " + memory)
    return draft


def _ask_field(draft: Draft, question: Question) -> Draft:
    field, name, typed = question.field, question.field.partition("[")[0], _short(draft.typed(question.field))
    allowed = f" {question.bounds.capitalize()}." if question.bounds else ""
    if question.choices:
        allowed = f" One of {', '.join(question.choices)}."
    base, default = show(value_of(draft.base, name)), show(value_of(draft.default, name))
    meaning = f"{name} is {base} in profile {draft.profile}, {default} in default.yaml."

    def read(text: str) -> Draft:
        if text == "?":
            raise ParamsError(f"{question.help}.{allowed}\n{meaning}\n{KEYS}")
        return draft.answer(_read_assignments(draft, text) or {field: text}) if text else draft

    print(f"\n{field} = {typed}  ({draft.source(field)})")
    _print_wrapped(f"{question.help}.{allowed}")
    return _ask(f"{field} [{typed}]", "", read, question.choices, what=field)


def _summarize(draft: Draft, machine: Machine) -> None:
    changes = draft.changes()
    print(f"\n{draft.notebook}, profile {draft.profile}, {'changed:' if changes else 'unchanged'}")
    for field, old, new in changes:
        print(f"  {field} = {_short(show(new))}  (was {_short(show(old))})")
    notes = [f"! {remark}" for remark in remarks(draft, machine)]
    print(*describe_memory(draft.params, machine), *notes, sep="\n")


def _warn_of_games(draft: Draft) -> None:
    for warning in check_games(draft.params):
        print(f"! {warning}")


def _sections(draft: Draft) -> list[str]:
    return list(dict.fromkeys(question.section for question in draft.questions() if question.section))


def _select_questions(draft: Draft, text: str) -> list[Question]:
    """Return the questions that a line of names means. Raises ParamsError for an unknown name."""
    questions = draft.questions()
    selected: dict[str, Question] = {}
    for name in text.replace(",", " ").split():
        names = draft.main_fields() if name == MAIN else [name]
        matching = {
            question.field: question
            for question in questions
            if name == ALL or question.field in names or question.section == name
        }
        if not matching:
            fields, sections = [question.field for question in questions], _sections(draft)
            near = [field for field in fields if field.endswith(f".{name}")]
            near = near or difflib.get_close_matches(name, [*fields, *sections], n=1)
            hint = f"did you mean {' or '.join(near)}?" if near else f"sections: {', '.join(sections)}"
            raise ParamsError(f"{name} is neither a field nor a section of {draft.notebook}; {hint}")
        selected |= matching
    return list(selected.values())


def _read_assignments(draft: Draft, text: str) -> dict[str, str]:
    """Return {field: text} of "model.lora_rank=0 model.load_in_4bit=false", {} for a plain value."""
    names = "|".join(re.escape(question.field) for question in draft.questions())
    parts = re.split(rf"(?:^| )({names})=", text)  # what is before the first, a name, its text, ...
    return dict(zip(parts[1::2], parts[2::2], strict=True)) if not parts[0] else {}


def _choose_output(draft: Draft, given: str | None) -> Path:
    """Return a path that is free or may be overwritten; given: by the command line, taken the first time."""
    usual = shown_path(default_output(draft))
    path = Path(given) if given else None
    while True:
        path = path or _ask("\nFile to write", usual, check_output, what="the file to write")
        question = f"{shown_path(path)} exists already. Overwrite it? yes or no"
        if not path.exists() or _ask(question, "no", str.lower, ("yes", "no")) in ("y", "yes"):
            return path
        path = None


def _ask(
    message: str, default: str, read: Callable[[str], Answer], choices: Sequence[str] = (), *, what: str = ""
) -> Answer:
    """Return what `read` makes of a line, asking again after a ParamsError; an empty line is the default.

    what: is asked for, in the error of an input that ends early.
    """
    prompt = f"{message} [{default}]: " if default else f"{message}: "
    while True:
        try:
            text = _read_line(prompt, choices).strip()
        except EOFError:
            print()
            raise ParamsError(
                f"configure: the input ended at the question for {what or message.strip()}, and nothing was "
                "written; --yes takes all values as they are"
            ) from None
        except UnicodeDecodeError:
            raise ParamsError("configure: the input is not UTF-8; nothing was written") from None
        if not text.isprintable():
            print("  holds a character that cannot be shown; type it again")
            continue
        try:
            return read(text or default)
        except ParamsError as error:
            _print_wrapped(str(error).replace(f"{PLACE}: ", ""))


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

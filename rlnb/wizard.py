"""`rlnb configure`: questions and answers on a terminal, or on standard input, until a profile is written."""

import dataclasses
import difflib
import os
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlnb.configure import (
    ROOT,
    Draft,
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
from rlnb.memory_estimate import estimate_memory
from rlnb.params.answers import ANSWER, Question
from rlnb.params.problems import all_and_nearest, show
from rlnb.params.sections import value_of

EXIT_INTERRUPTED = 130  # as a shell says it of Ctrl-C
DEFAULT_NOTEBOOK = "ppo_openspiel"
MAIN, ALL = "main", "all"
WIDTH = 100
KEYS = """\
Enter keeps the value that is shown. ? explains, < goes back, > goes to the next section, >> to the end.
A list is typed with commas; "" is an empty text. section.field=value sets that field, and several of them set
fields that only fit together. Ctrl-C ends without writing anything.
"""


class GoBack(Exception):
    """The answer was <."""


@dataclasses.dataclass(frozen=True)
class Asked:
    """What the command line said; None and () where it did not."""

    notebook: str | None = None
    profile: str | None = None
    output: str | None = None
    assignments: Sequence[str] = ()
    yes: bool = False


def main(asked: Asked, *, root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> int:
    """Ask, write a profile and print the command that runs it; 130 after Ctrl-C, which writes nothing.

    Raises ParamsError for what the command line got wrong, and where the answers end too early.
    """
    try:
        return _configure(asked, probe(ask_hub=False, environ=environ), root, environ)
    except KeyboardInterrupt:
        print("\nNothing was written.", file=sys.stderr)
        return EXIT_INTERRUPTED


def _configure(asked: Asked, machine: Machine, root: Path, environ: Mapping[str, str]) -> int:
    if asked.output is not None:
        check_output(asked.output)
    draft = _start(asked, machine, root, environ)
    if not asked.yes:
        print("\n" + KEYS, end="")
        draft = _ask_fields(draft, _chosen_fields(draft), machine, environ)
    _summarize(draft, machine, environ)
    while not asked.yes:
        before = draft
        draft, more = _more(draft)
        draft = _ask_fields(draft, more, machine, environ)
        if not more and draft == before:
            problem = _unplayable(draft)
            if not problem:
                break
            _print_wrapped(problem)
            continue
        _summarize(draft, machine, environ)
    if asked.yes and (problem := _unplayable(draft)):
        raise ParamsError(problem)
    path, overwrite = _output(draft, asked)
    save_profile(draft, path, overwrite=overwrite)
    print(f"\nWritten: {shown_path(path)}\nRun it:  {run_command(draft, path)}")
    return 0


def _unplayable(draft: Draft) -> str:
    """Why the games of such a run could not be played, or ""; asked once, since equilibria take seconds."""
    from rlnb.training.playable import check_games  # torch, which no other question needs

    try:
        check_games(draft.params)
    except ParamsError as error:
        return str(error)
    return ""


def _start(asked: Asked, machine: Machine, root: Path, environ: Mapping[str, str]) -> Draft:
    """The draft to ask about: what the command line left open is asked first."""
    names = notebooks(root)
    notebook = None if asked.notebook is None else Path(asked.notebook).stem
    if notebook is not None and notebook not in names:
        raise ParamsError(f"notebook {notebook!r} is not in params/{all_and_nearest(notebook, names)}")
    if notebook is None:
        usual = DEFAULT_NOTEBOOK if DEFAULT_NOTEBOOK in names else names[0]
        notebook = usual if asked.yes else _choose("Notebook", names, usual)

    def start(profile: str) -> Draft:
        options: dict[str, Any] = {"environ": environ, "root": root}
        return start_draft(notebook, machine, profile=profile, assignments=asked.assignments, **options)

    if asked.profile is not None or asked.yes:
        return start(asked.profile or "auto")
    here = start("auto").profile
    profiles = sorted(path.stem for path in (root / "params" / notebook).glob("*.yaml"))
    print(f"\nProfiles to start from, or a path of your own; {here} suits this machine.")
    while True:
        try:
            return start(_choose("Profile", profiles, here, others=lambda text: text.endswith(".yaml")))
        except ParamsError as error:
            print(f"  {error}")


def _choose(
    what: str, names: Sequence[str], usual: str, *, others: Callable[[str], bool] = lambda text: False
) -> str:
    """One of these names, or what `others` accepts; asked again until it is."""
    print(f"{what}s: {', '.join(names)}")
    while True:
        try:
            text = _read_line(f"{what} [{usual}]: ", what) or usual
        except GoBack:
            text = "<"
        if text in names or others(text):
            return text
        if text != "?":
            print(f"  {what.lower()} {text!r} is not there{all_and_nearest(text, names)}")


def _chosen_fields(draft: Draft) -> list[Question]:
    main_fields, all_fields = draft.main_fields(), draft.questions()
    print(
        f"\nFields to ask for: {MAIN}, the {len(main_fields)} that profiles of {draft.notebook} set; {ALL}, "
        f"all {len(all_fields)}; none;\nor names of fields and sections: {', '.join(_sections(draft))}."
    )
    while True:
        try:
            text = _read_line(f"Fields [{MAIN}]: ", "the fields to ask for") or MAIN
            return [] if text == "none" else _named(draft, text)
        except ParamsError as error:
            print(f"  {error}")
        except GoBack:
            print("  this is the first question about fields")


def _sections(draft: Draft) -> list[str]:
    return list(dict.fromkeys(one.section for one in draft.questions() if one.section))


def _named(draft: Draft, text: str) -> list[Question]:
    """The questions that a line of names means; raises ParamsError for a name that means none."""
    questions, found = draft.questions(), []
    for name in text.replace(",", " ").split():
        if name == MAIN:
            main_fields = draft.main_fields()
            matching = [one for one in questions if one.field in main_fields]
        else:
            matching = [one for one in questions if name in (ALL, one.field, one.section)]
        if not matching:
            fields, sections = [one.field for one in questions], _sections(draft)
            near = [field for field in fields if field.endswith(f".{name}")]
            near = near or difflib.get_close_matches(name, [*fields, *sections], n=1)
            hint = f"did you mean {' or '.join(near)}?" if near else f"sections: {', '.join(sections)}"
            raise ParamsError(f"{name} is neither field nor section of {draft.notebook}; {hint}")
        found += [one for one in matching if one not in found]
    return found


def _more(draft: Draft) -> tuple[Draft, list[Question]]:
    """The draft, with what was assigned at once, and the fields that are to be asked still."""
    while True:
        try:
            text = _read_line("\nAnother field or section to change [none]: ", "what else to change")
            if text in ("", "none", ">", ">>"):
                return draft, []
            assigned = _assignments(draft, text)
            if not assigned:
                return draft, _named(draft, text)
            return draft.answer(assigned), []
        except ParamsError as error:
            _print_wrapped(str(error).replace(f"{ANSWER}: ", ""))
        except GoBack:
            return draft, _named(draft, MAIN)


def _ask_fields(
    draft: Draft, questions: Sequence[Question], machine: Machine, environ: Mapping[str, str]
) -> Draft:
    """Ask these fields, section by section, forwards and backwards; returns the draft with the answers."""
    at, shown_for = 0, None
    memory = _memory_lines(draft, machine, environ)[:1]
    while at < len(questions):
        question = questions[at]
        if question.field not in {one.field for one in draft.questions()}:
            at += 1  # of a list that has become shorter
            continue
        if question.section != shown_for:
            shown_for = question.section
            members = [one for one in questions if one.section == shown_for]
            print(f"\n-- {shown_for or 'the run'}: {len(members)} field{'s' if len(members) > 1 else ''}")
        try:
            draft, step = _ask(draft, question)
        except GoBack:
            if at == 0:
                print("  this is the first of these fields")
            at = max(0, at - 1)
            continue
        at += 1
        if step == ">>":
            at = len(questions)
        while step == ">" and at < len(questions) and questions[at].section == question.section:
            at += 1
        is_over = at == len(questions) or questions[at].section != question.section
        now = _memory_lines(draft, machine, environ)[:1]
        if is_over and now != memory:
            print("  " + now[0])
            memory = now
    return draft


def _ask(draft: Draft, question: Question) -> tuple[Draft, str]:
    """One field until its answer is valid: the draft, and where to go, "" for the next; GoBack for <."""
    field = question.field
    print(f"\n{field} = {_short(draft.typed(field))}  ({draft.source(field)})")
    _print_wrapped(question.help + "." + _allowed(question))
    while True:
        text = _read_line(f"{field} [{_short(draft.typed(field))}]: ", field)
        if text in ("", ">", ">>"):
            return draft, text
        if text == "?":
            _explain(draft, question)
            continue
        try:
            return draft.answer(_assignments(draft, text) or {field: text}), ""
        except ParamsError as error:
            _print_wrapped(str(error).replace(f"{ANSWER}: ", ""))


def _assignments(draft: Draft, text: str) -> dict[str, str]:
    """{field: text} of "model.lora_rank=0 model.load_in_4bit=false"; {} where the answer is a plain value."""
    known = {one.field for one in draft.questions()}
    found: dict[str, str] = {}
    name = ""
    for word in text.split(" "):
        start, equals, value = word.partition("=")
        if equals and start in known:
            name, found[start] = start, value
        elif not name:
            return {}
        else:
            found[name] += f" {word}"
    return found


def _explain(draft: Draft, question: Question) -> None:
    field = question.field
    _print_wrapped(question.help + "." + _allowed(question))
    own = field.partition("[")[0]
    base, default = value_of(draft.base, own), value_of(draft.default, own)
    _print_wrapped(f"Now {draft.typed(field)}, from {draft.source(field)}.")
    _print_wrapped(f"{own} is {show(base)} in profile {draft.profile}, {show(default)} in default.yaml.")
    print(textwrap.indent(KEYS, "  "), end="")


def _allowed(question: Question) -> str:
    if question.choices:
        return f" One of {', '.join(question.choices)}."
    if question.bounds:
        return f" {question.bounds.capitalize()}."
    return ""


def _summarize(draft: Draft, machine: Machine, environ: Mapping[str, str]) -> None:
    changes = draft.changes()
    print(f"\n{draft.notebook}, profile {draft.profile}" + (", changed:" if changes else ", unchanged"))
    for field, old, new in changes:
        print(f"  {field} = {_short(show(new))}  (was {_short(show(old))})")
    lines = _memory_lines(draft, machine, environ)
    lines += [f"! {remark}" for remark in remarks(draft, machine, environ=environ)]
    print(*lines, sep="\n")


def _memory_lines(draft: Draft, machine: Machine, environ: Mapping[str, str]) -> list[str]:
    try:
        found = estimate_memory(draft.params, machine, environ=environ)
    except ParamsError as error:
        return [f"memory: not known, since {error}"]
    return ["memory: not known: the model's name tells no size"] if found is None else found.lines()


def _output(draft: Draft, asked: Asked) -> tuple[Path, bool]:
    """Where to write, and whether a file that is there may go."""
    usual = shown_path(default_output(draft))
    if asked.yes:
        return Path(asked.output or usual), True
    given = asked.output
    while True:
        try:
            text = given or _read_line(f"\nFile to write [{usual}]: ", "the file to write") or usual
            path = check_output(text)
            if not path.exists():
                return path, False
            answer = _read_line(
                f"{shown_path(path)} is there already. Overwrite it? yes or no [no]: ", "yes or no"
            )
            if answer.lower() in ("y", "yes"):
                return path, True
        except GoBack:
            pass
        except ParamsError as error:
            print(f"  {error}")
        given = None


def _read_line(prompt: str, what: str) -> str:
    """One line without what surrounds it; GoBack for <, ParamsError where the input has ended.

    what: is asked for, as the message names it.
    """
    while True:
        try:
            text = input(prompt).strip()
        except EOFError:
            print()
            raise ParamsError(
                f"configure: the input ended where {what} was asked, and nothing was written; --yes takes "
                "all values as they are"
            ) from None
        except UnicodeDecodeError:
            raise ParamsError("configure: the input is not UTF-8; nothing was written") from None
        if not sys.stdin.isatty():
            print(text)  # what a terminal would have shown
        if text == "<":
            raise GoBack
        if text.isprintable():
            return text
        print("  holds a character that cannot be shown; type it again")


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:56] + " ..."


def _print_wrapped(text: str) -> None:
    for line in text.splitlines():
        print(*textwrap.wrap(line, WIDTH, initial_indent="  ", subsequent_indent="  "), sep="\n")

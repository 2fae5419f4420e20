"""Questions and answers on a terminal, or on standard input, until a profile is written."""

import contextlib
import functools
import os
import shlex
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar, get_args, get_origin

from rlnb.configure.profile_text import profile_text
from rlnb.errors import ParamsError
from rlnb.machine import Machine, probe, recommend
from rlnb.params import check_machine, load_params, parse_set, resolve
from rlnb.params.loading import ROOT, choose_profile, list_fields
from rlnb.params.problems import did_you_mean, show
from rlnb.params.reading import read_yaml
from rlnb.params.sections import NotebookParams, value_of
from rlnb.run.directory import PROGRAM
from rlnb.run.memory import describe_memory

KEYS = """
Enter keeps the value in brackets. Lists are typed as [a, b]; "" is an empty text. Ctrl-C writes nothing.
Fields to change: main, those that default.yaml sets; all; none; or names of fields and sections.
Fields that only fit together are set by --set section.field=value."""
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Draft:
    """A valid set of parameters: a profile, and the answers over it as `--set` takes them."""

    notebook: str
    profile: str
    params: NotebookParams
    answers: tuple[str, ...] = ()

    def answer(self, assignment: str) -> "Draft":
        """Return the draft with this answer as well. Raises ParamsError with every problem."""
        answers = (*self.answers, assignment)
        return replace(self, params=_load(self.notebook, self.profile, answers), answers=answers)


def main(
    *, notebook: str, profile: str | None, output: str | None, assignments: Sequence[str], show_all: bool
) -> int:
    """Ask, write a profile and print the command that runs it; return 130 after Ctrl-C, which writes nothing.

    The arguments are the options of the command line, None where they were not given. show_all: print every
    field of the profile instead. Raises ParamsError, also where the input ends too early.
    """
    machine, name = probe(ask_hub=False), Path(notebook).stem
    chosen = profile or choose_profile(name, recommend(machine).profile)
    draft = Draft(name, chosen, _load(name, chosen, assignments), tuple(assignments))
    if show_all:
        print(profile_text(draft.params, title=f"All parameters of {name}, profile {chosen}."), end="")
        return 0
    try:
        if output is not None:
            _check_output(output)
        draft = _ask_for_fields(draft, machine)
        default = load_params(draft.notebook, profile="default", environ={})
        title = f"By `rlnb configure`, from profile {draft.profile}: what differs from default.yaml."
        write = functools.partial(_write, profile_text(draft.params, title=title, default=default))
        question = "\nFile to write", f"params/{draft.notebook}/mine.yaml"
        path = _ask(*question, write) if output is None else write(output)
    except KeyboardInterrupt:
        print("\nNothing was written.", file=sys.stderr)
        return 130  # as shells report Ctrl-C
    print(f"\nWritten: {path}\nRun it:  {_command(draft.notebook, str(path))}")
    return 0


def _load(notebook: str, profile: str, assignments: Sequence[str]) -> NotebookParams:
    """Return the parameters of a profile without the environment's values, which do not belong in a file."""
    overrides = parse_set(*assignments)
    return load_params(notebook, profile=profile, overrides=overrides, place="your answer", environ={})


def _command(notebook: str, profile: str) -> str:
    path = os.path.relpath(ROOT / "notebooks" / f"{notebook}.ipynb")
    return shlex.join([str(PROGRAM), "run", path, "--profile", profile])


def _ask_for_fields(draft: Draft, machine: Machine) -> Draft:
    """Ask which fields to change, and for their values."""
    sections = dict.fromkeys(
        field.partition(".")[0] for field in list_fields(type(draft.params)) if "." in field
    )
    print(f"{KEYS}\nSections: {', '.join(sections)}.")
    fields = _ask("\nFields to change", "main", functools.partial(_select_fields, draft))
    for field in fields:
        draft = _ask_for_field(draft, field)
    _summarize(draft, machine)
    return draft


def _select_fields(draft: Draft, text: str) -> list[str]:
    """Return the fields that a line of names means. Raises ParamsError for an unknown name."""
    fields = list(list_fields(type(draft.params)))
    default_yaml = ROOT / "params" / draft.notebook / "default.yaml"
    main_fields = {entry.field for entry in read_yaml(default_yaml, default_yaml.name)[0]}
    selected: list[str] = []
    for name in text.replace(",", " ").split():
        groups = {"main": main_fields, "all": set(fields), "none": set()}
        wanted = groups.get(name, {field for field in fields if name in (field, field.partition(".")[0])})
        if not wanted and name != "none":
            raise ParamsError(f"{name} is neither a field nor a section{did_you_mean(name, fields)}")
        selected += [field for field in fields if field in wanted and field not in selected]
    return selected


def _ask_for_field(draft: Draft, field: str) -> Draft:
    info = list_fields(type(draft.params))[field]
    choices = get_args(info.annotation) if get_origin(info.annotation) is Literal else ()
    allowed = f" One of {', '.join(map(show, choices))}." if choices else ""
    print(f"\n{field}, set by {draft.params._sources.get(field, 'the default')}")
    print(textwrap.indent(f"{info.description}.{allowed}", "  "))

    def read(text: str) -> Draft:
        empty = text in ("''", '""')
        return draft.answer(f"{field}={'' if empty else text}") if text else draft

    return _ask(f"{field} [{show(value_of(draft.params, field))}]", "", read)


def _summarize(draft: Draft, machine: Machine) -> None:
    """Show the memory that the run needs, and what this machine would refuse; it may be meant for another."""
    print("", *describe_memory(draft.params, machine), sep="\n")
    try:
        check_machine(resolve(draft.params, recommend(machine)), machine)
    except ParamsError as error:
        print(*(f"! this machine would refuse it: {line}" for line in str(error).splitlines()), sep="\n")


def _check_output(text: str) -> Path:
    """Return the path if a profile may be written to it. Raises ParamsError with the reason otherwise."""
    path = Path(os.path.expanduser(text))
    if path.suffix != ".yaml" or path.name == "default.yaml":
        raise ParamsError(f"{path}: cannot be a profile; write a name that ends in .yaml, but default.yaml")
    if os.path.exists(path):  # unlike Path.exists it takes any name
        raise ParamsError(f"{path}: exists already; write another name")
    return path


def _write(content: str, name: str) -> Path:
    """Write a profile and return its path. Raises ParamsError with the reason where it cannot be written."""
    path = _check_output(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise ParamsError(f"{path}: cannot be written ({error.strerror}); write another name") from None
    return path


def _ask(question: str, default: str, read: Callable[[str], Answer]) -> Answer:
    """Return what `read` makes of a line, asking again after a ParamsError; an empty line is the default."""
    prompt = f"{question} [{default}]: " if default else f"{question}: "
    while True:
        try:
            return read(_read_line(prompt).strip() or default)
        except EOFError:
            reason = "and nothing was written; --print takes all values as they are"
            raise ParamsError(f"configure: the input ended at {question.strip()!r} {reason}") from None
        except ParamsError as error:
            print(textwrap.indent(str(error).replace("your answer: ", ""), "  "))


def _read_line(prompt: str) -> str:
    if not sys.stdin.isatty():
        text = input(prompt)
        print(text)  # as a terminal would have shown it
        return text
    import readline  # noqa: F401  # with it, input() edits lines

    with contextlib.redirect_stdout(sys.__stdout__):  # which `rlnb.cli` has replaced
        return input(prompt)

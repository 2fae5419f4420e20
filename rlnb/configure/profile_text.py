"""Parameters as the text of a profile: YAML with each field's help above it."""

import textwrap

import yaml

from rlnb.params.loading import list_fields
from rlnb.params.reading import Dumper
from rlnb.params.sections import NotebookParams, value_of

WIDTH = 100


def profile_text(params: NotebookParams, *, title: str, default: NotebookParams | None = None) -> str:
    """Return the parameters as YAML that `load_params` reads as a profile.

    title: the comment in the first line. default: leave out the fields that have the same value there.
    """
    lines, values, section = [f"# {title}"], params.model_dump(mode="json"), ""
    for field, info in list_fields(type(params)).items():
        above, _, name = field.rpartition(".")
        indent = "  " if above else ""
        if default is not None and value_of(params, field) == value_of(default, field):
            continue
        if above and above != section:
            section = above
            lines += ["", f"{section}:"]
        comment = f"{indent}# "
        lines += textwrap.wrap(
            info.description or "", WIDTH, initial_indent=comment, subsequent_indent=comment
        )
        value = values[above][name] if above else values[name]
        flow = None if isinstance(value, list) else False  # short lists on one line
        text = yaml.dump({name: value}, Dumper=Dumper, sort_keys=False, default_flow_style=flow, width=10**6)
        lines += textwrap.indent(text, indent).splitlines()
    return "\n".join(lines) + "\n"

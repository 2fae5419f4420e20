"""Parameters as the text of a profile: YAML with each field's help above it."""

import textwrap

import yaml

from rlnb.params.loading import list_fields
from rlnb.params.sections import NotebookParams, value_of

WIDTH = 100


def profile_text(params: NotebookParams, *, title: str, default: NotebookParams | None = None) -> str:
    """Return the parameters as YAML that `load_params` reads as a profile.

    title: the comment in the first line. default: leave out the fields that have the same value there.
    """
    lines, values, section = [f"# {title}"], params.model_dump(mode="json"), ""
    for path, info in list_fields(type(params)).items():
        field, indent = ".".join(path), "  " * (len(path) - 1)
        if default is not None and value_of(params, field) == value_of(default, field):
            continue
        if indent and path[0] != section:
            section = path[0]
            lines += ["", f"{section}:"]
        comment = f"{indent}# "
        lines += textwrap.wrap(
            info.description or "", WIDTH, initial_indent=comment, subsequent_indent=comment
        )
        value = values[section][path[1]] if indent else values[field]
        lines += textwrap.indent(_yaml(path[-1], value), indent).splitlines()
    return "\n".join(lines) + "\n"


def _yaml(name: str, value: object) -> str:
    """Return `name: value`, short lists on one line."""
    text: str = yaml.safe_dump(
        {name: value},
        sort_keys=False,
        default_flow_style=None if isinstance(value, list) else False,
        width=10**6,
    )
    return text

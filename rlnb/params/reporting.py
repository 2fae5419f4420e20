"""Parameters as a table for readers and as a file for the next run."""

from typing import NamedTuple

import yaml

from rlnb.params.problems import show
from rlnb.params.sections import NotebookParams, Section


class Row(NamedTuple):
    """A field, its value as YAML shows it, the place that set it ("default" where none did), its help."""

    field: str
    value: str
    source: str
    help: str


def describe(params: NotebookParams) -> list[Row]:
    """One row a field, in the order of the model: what the notebook's table of parameters shows."""
    rows = []
    for name, info in type(params).model_fields.items():
        value = getattr(params, name)
        owners = type(value).model_fields if isinstance(value, Section) else {}
        for inner, inner_info in owners.items():
            rows.append((f"{name}.{inner}", getattr(value, inner), inner_info))
        if not owners:
            rows.append((name, value, info))
    return [
        Row(field, show(value), params._sources.get(field, "default"), info.description or "")
        for field, value, info in rows
    ]


def dump_yaml(params: NotebookParams) -> str:
    """Every value as YAML; `load_params(notebook, profile="path/of/it.yaml")` gives equal parameters back."""
    notebook = type(params).__module__.rsplit(".", 1)[-1]
    values = {"notebook": notebook, **params.model_dump(mode="json")}
    text: str = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, default_flow_style=False)
    head = "# All values of one run, written by rlnb. Overrides change them, environment variables do not.\n"
    return head + text

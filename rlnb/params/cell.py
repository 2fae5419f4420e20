"""The parameters cell of a notebook: what it assigns, by its source and in a running notebook."""

import ast
import json
import os
from collections.abc import Mapping
from pathlib import Path

from rlnb.errors import ParamsError

COMPUTED = object()  # of a name to which no literal is assigned
INJECTED = "# Parameters\n"  # first line of the cell that papermill adds


def read_parameters_cell(notebook: Path) -> dict[str, object]:
    """Return the names and literals that the cell tagged `parameters` assigns, as `read_assignments`.

    Raises ParamsError where a run could not set profile and output_dir. The notebook is read as JSON, since
    importing papermill or nbformat takes longer than all other checks.
    """
    if not notebook.is_file():
        known = ", ".join(sorted(map(str, Path("notebooks").glob("*.ipynb")))) or "none"
        raise ParamsError(f"{notebook}: no such notebook in {os.getcwd()}; known: {known}")
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        tagged = [
            "".join(cell["source"]) for cell in cells if "parameters" in cell["metadata"].get("tags", [])
        ]
    except OSError as error:
        raise ParamsError(f"{notebook}: cannot be read: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ParamsError(f"{notebook}: is not a notebook in the format that Jupyter writes") from None
    values = read_assignments(tagged[0] if tagged else "")
    for name in ("profile", "output_dir"):
        if name not in values:
            raise ParamsError(f"{notebook}: add {name}: str = 'auto' to the cell tagged 'parameters'")
    return values


def read_assignments(source: str) -> dict[str, object]:
    """Return the names that a cell assigns at its top level, with their literals or COMPUTED.

    It is {} where the cell is not Python.
    """
    values: dict[str, object] = {}
    try:
        statements = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError):
        return {}
    for statement in statements:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    values[target.id] = _literal(statement.value)
    return values


def _literal(node: ast.expr | None) -> object:
    try:
        return None if node is None else ast.literal_eval(node)
    except (ValueError, TypeError):
        return COMPUTED


def find_given_values(namespace: Mapping[str, object]) -> dict[str, object]:
    """Return the values in a running notebook of the names that its parameters cell, or papermill's, assigns.

    namespace: the notebook's `globals()`. IPython keeps the cells in `In` as Python, magics as calls; where
    there are none, the annotated names count. Raises ParamsError for a name that a later cell has changed to
    something else.
    """
    executed = namespace.get("In")
    sources = executed if isinstance(executed, list) else []
    injected = [source for source in sources if source.startswith(INJECTED)]
    others = (source for source in sources if source not in injected)
    written = [source for source in others if "profile" in read_assignments(source)]
    sources = written[-1:] + injected[-1:]
    names = dict.fromkeys(name for source in sources for name in read_assignments(source))
    if not names:
        annotations = namespace.get("__annotations__")
        if annotations is None and callable(annotate := namespace.get("__annotate__")):  # from Python 3.14 on
            annotations = annotate(1)  # annotationlib.Format.VALUE
        names = dict.fromkeys(annotations) if isinstance(annotations, dict) else {}
    values = {name: namespace[name] for name in names if name in namespace}
    if "profile" not in values:
        raise ParamsError(
            'parameters cell: no cell assigns profile. Run that cell, or write one: profile: str = "auto"'
        )
    for name, value in values.items():
        if not isinstance(value, str | int | float | dict | list | tuple | None):
            raise ParamsError(
                f"parameters cell: {name} is now a {type(value).__name__} that a later cell made; "
                "run the parameters cell again"
            )
    return values

"""Headless runs of notebooks: papermill's engine `rlnb` (engine.py), and `rlnb run` by it (execution.py)."""

import sys

# nbformat imports jsonschema, and that this checker of international addresses, if JupyterLab has brought it.
# rfc3987-syntax 1.1 then compiles its grammar for a second, and no notebook has a field that it would check.
GRAMMAR = "rfc3987_syntax"
is_held_back = GRAMMAR not in sys.modules
if is_held_back:
    sys.modules[GRAMMAR] = None  # type: ignore[assignment]  # an import of it is an ImportError

# Import papermill first: while it is imported it loads its engines, ours among them. If engine.py imported
# papermill, papermill would load engine.py before that is complete.
import papermill.engines  # noqa: E402, F401

if is_held_back:
    sys.modules.pop(GRAMMAR, None)

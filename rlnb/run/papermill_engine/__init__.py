"""Headless runs of notebooks: papermill's engine `rlnb` (engine.py), and `rlnb run` by it (execution.py)."""

# Import papermill first: while it is imported it loads its engines, ours among them. If engine.py imported
# papermill, papermill would load engine.py before that is complete.
import papermill.engines  # noqa: F401

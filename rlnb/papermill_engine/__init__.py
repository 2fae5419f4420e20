"""Headless runs of notebooks: papermill's engine `rlnb` (engine.py), and `rlnb run` by it (execution.py)."""

# papermill first: in the middle of its own import it asks for its engines, ours among them. Were engine.py
# the one that imports papermill, it would be asked for while it is half read itself.
import papermill.engines  # noqa: F401

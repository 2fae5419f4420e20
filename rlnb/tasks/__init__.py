"""Programming tasks: where they come from, how they are asked, how code is read from an answer."""

from rlnb.tasks.extraction import extract_code
from rlnb.tasks.programming import Task, Test, split_tasks

__all__ = ["Task", "Test", "extract_code", "split_tasks"]

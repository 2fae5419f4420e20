"""Parameters of notebooks/compare_runs.ipynb."""

from typing import Annotated

from pydantic import Field

from rlnb.params.sections import Names, NotebookParams, Section, described, each_once


class CompareParams(Section):
    directories: Annotated[Names, each_once("folder")] = ()
    """Folders of sweeps, or of runs; empty = the sweep under outputs/ that was started last"""
    metrics: Annotated[Names, each_once("metric")] = ()
    """Metrics whose curves are drawn, a picture each; empty = those that judge such runs"""
    by: Annotated[Names, each_once("field")] = ()
    """Fields by which runs are grouped; empty = all in which they differ but the seed"""
    rank: Annotated[Names, each_once("measure")] = ()
    """Measures whose mean ranks the groups, also of comparisons; empty = the first metric drawn"""
    lowest_first: bool = described(False, "Rank the lowest first, as for losses")
    gains: bool = described(True, "Show before, after and difference of each group, with their intervals")
    max_pictures: int = Field(default=4, ge=1)
    """Most metrics that are drawn where compare.metrics is empty"""


class CompareRunsParams(NotebookParams):
    """A comparison of runs; the seed is every notebook's, and nothing is drawn by it."""

    output_dir: str = described("outputs/compare_runs", "Directory for the tables as CSV", min_length=1)
    compare: CompareParams = CompareParams()

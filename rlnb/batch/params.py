"""Parameters of notebooks/compare_runs.ipynb."""

from rlnb.params.sections import DifferentNames, NotebookParams, Section, described


class CompareParams(Section):
    directories: DifferentNames = ()
    """Folders of sweeps, or of runs; empty = the sweep under outputs/ that was started last"""
    metrics: DifferentNames = ()
    """Metrics whose curves are drawn, a picture each; empty = those that judge such runs"""


class CompareRunsParams(NotebookParams):
    """A comparison of runs; the seed is every notebook's, and nothing is drawn by it."""

    output_dir: str = described("outputs/compare_runs", "Directory for the table as CSV", min_length=1)
    compare: CompareParams = CompareParams()

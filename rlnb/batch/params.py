"""Parameters of notebooks/compare_runs.ipynb."""

from rlnb.params.sections import Names, NotebookParams, Section, described


class CompareParams(Section):
    directories: Names = ()
    """Folders of sweeps, or of runs; empty = the sweep under outputs/ that was started last, else the runs of
    the notebook that trained last"""
    metrics: Names = ()
    """Metrics whose curves are drawn, a picture each; empty = those that judge such runs"""


class CompareRunsParams(NotebookParams):
    """A comparison of runs; the seed is every notebook's, and nothing is drawn by it."""

    output_dir: str = described("outputs/compare_runs", "Directory for the table as CSV", min_length=1)
    compare: CompareParams = CompareParams()

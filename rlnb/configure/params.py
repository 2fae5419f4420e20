"""Parameters of notebooks/configure.ipynb."""

from pydantic import Field

from rlnb.params.sections import Names, NotebookParams, Section, described


class FormParams(Section):
    notebook: str = described("ppo_openspiel", "Notebook to configure, by its name", min_length=1)
    base: str = Field(default="auto", min_length=1)
    """Profile to start from, by its name or a path; auto = by this machine"""
    file: str = ""
    """File to write; empty = params/<notebook>/mine.yaml, with save = <notebook>.yaml in output_dir"""
    answers: Names = described((), "Filled in to begin with: training.max_steps=100, as --set takes it")
    save: bool = described(False, "Write the file at the end of the notebook, for runs without a browser")


class ConfigureParams(NotebookParams):
    """A form of another notebook's parameters."""

    output_dir: str = Field(default="outputs/configure", min_length=1)
    """Directory of a profile written without a browser"""
    form: FormParams = FormParams()

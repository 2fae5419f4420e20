"""`rlnb export` as a terminal sees it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tiny_policy import load_tiny, train_by_hand

from rlnb.policy import save_adapters


def export(*arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "rlnb.cli", "export", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environ, timeout=600, cwd=cwd)


@pytest.fixture
def adapters(cache_dir: Path, tmp_path: Path) -> str:
    """Adapters of the tiny model that do something."""
    policy = load_tiny(cache_dir)
    train_by_hand(policy, std=0.2)
    return str(save_adapters(policy, tmp_path / "adapters"))


def test_adapters_are_merged_into_the_base_that_they_name(adapters, cache_dir, tmp_path):
    """The whole way: what the model card, the figures and the terminal say of it."""
    done = export("--adapters", adapters, "--out", "out", "--cache-dir", str(cache_dir), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    merged, changed = map(float, re.findall(r"differ by at most ([^,]+),", done.stdout))
    assert 0 < merged < 0.1 < changed / 5
    assert (tmp_path / "out" / "model.safetensors").is_file()
    front = yaml.safe_load((tmp_path / "out" / "README.md").read_text().split("---\n")[1])
    assert front["library_name"] == "transformers" and "base_model" not in front

"""`rlnb export` as a terminal sees it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from rlnb import cli
from rlnb.params.sections import ModelParams
from rlnb.policy import load_policy, save_adapters


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def write_adapters(directory: Path) -> None:
    """Adapters of the tiny model that do something."""
    policy = load_policy(
        ModelParams(id="tiny", engine="transformers", dtype="float32", attention="sdpa", load_in_4bit=False)
    )
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2, generator=torch.Generator().manual_seed(0))
    save_adapters(policy, directory)


def test_an_export_of_nothing_is_refused(capsys):
    assert cli.main(["export"]) == 2
    assert capsys.readouterr().err == (
        "rlnb: --adapters: is missing; name a run's adapters/ or a checkpoint of it\n"
    )


def test_a_directory_without_adapters_is_refused(capsys):
    assert cli.main(["export", "--adapters", "none", "--repo-id", "me"]) == 2
    assert capsys.readouterr().err == (
        "rlnb: --set: model.adapters = 'none' is no directory; write a run's adapters or "
        "checkpoints/checkpoint-N\n"
        "--set: export.repo_id = 'me' is not a repository of the hub; write owner/name\n"
    )


def test_adapters_are_merged_into_the_base_that_they_name(tmp_path):
    """The whole way, by a real kernel: what the model card and the figures say of it."""
    write_adapters(tmp_path / "adapters")
    options = "--adapters adapters --profile cpu --set export.max_new_tokens=4 --out out"
    command = [sys.executable, "-m", "rlnb.cli", "export", *options.split()]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(Path("out/results.json").read_text())
    merged, changed = figures["exported against trained"], figures["adapters against none"]
    assert 0 < merged["largest"] < 0.1 < changed["largest"] / 5
    assert f"{merged['largest']:.3g}" in Path("out/attempt-01.ipynb").read_text()
    assert (Path("out/merged_16bit") / "model.safetensors").is_file()
    front = yaml.safe_load(Path("out/merged_16bit/README.md").read_text().split("---\n")[1])
    assert front["library_name"] == "transformers" and "base_model" not in front
    assert yaml.safe_load(Path("out/params.yaml").read_text())["model"]["id"] == "auto"

"""On a node without a network a run takes everything from the model cache, and does not even try."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import make_hub, rlnb, running_hub

NODE = Path(__file__).with_name("no_network")
MODEL = ("--set", "model.id=lab/tiny")
RUNS = {
    "mbpp_eval": ("--set", "mbpp.source=hub", "--set", "tracking.wandb=offline"),
    "grpo_code_execution": ("--set", "tasks.source=mbpp", "--set", "tracking.wandb=offline"),
    "spiral_self_play": ("--set", "mbpp.source=hub"),
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a model cache filled by `rlnb prefetch`; its hub is gone when the tests use it."""
    root, cache = tmp_path_factory.mktemp("hub"), tmp_path_factory.mktemp("cache")
    make_hub(root, "lab/tiny")
    with running_hub(root) as hub:
        options = ("--profile", "tiny", *MODEL, "--set", f"model.cache_dir={cache}", *RUNS["mbpp_eval"])
        process = rlnb("prefetch", "notebooks/mbpp_eval.ipynb", *options, HF_ENDPOINT=hub.address)
        out, err = process.communicate(timeout=180)
        assert process.returncode == 0, out + err
    return cache


@pytest.fixture
def offline_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Start commands in a network namespace without a route; return the log of attempts to leave it."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rn", "true"], check=False).returncode:
        pytest.skip("network namespaces take unshare and the right to make them")
    log = tmp_path / "network.log"
    monkeypatch.setenv("NETWORK_LOG", str(log))
    monkeypatch.setenv("PYTHONPATH", str(NODE))
    return log


def run_on_node(notebook: str, cache: Path, out: Path, *options: str, loopback: str) -> tuple[int, str]:
    """Run a notebook at its tiny profile without a network; loopback: up or down."""
    words = ("run", f"notebooks/{notebook}.ipynb", "--profile", "tiny", *MODEL, "--out", str(out))
    settings = (*RUNS[notebook], "--set", f"model.cache_dir={cache}", *options)
    up = ["ip", "link", "set", "lo", "up"] if loopback == "up" else ["true"]
    process = rlnb(*words, *settings, RLNB_OFFLINE="1", before=["unshare", "-rn", "sh", "-c", SCRIPT, *up])
    text, _ = process.communicate(timeout=540)
    return process.returncode, text

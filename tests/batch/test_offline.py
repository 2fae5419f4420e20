"""On a node without a network a run takes everything from the model cache, and does not even try."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import make_hub, rlnb, running_hub
from wandb_files import read_wandb_file

from rlnb.run.tracking import read_metrics

NODE = Path(__file__).with_name("no_network")
MODEL = ("--set", "model.id=lab/tiny")
KEYS = {
    "HF_TOKEN": "hf_madeUpForTests",
    "WANDB_API_KEY": "0badc0de" * 5,
    "OPENAI_API_KEY": "sk-madeUpForTests",
}
RUNS = {
    "mbpp_eval": ("--set", "mbpp.source=hub", "--set", "tracking.wandb=offline"),
    "grpo_code_execution": ("--set", "tasks.source=mbpp", "--set", "tracking.wandb=offline"),
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, whole_mbpp_folder: str) -> Iterator[Path]:
    """Return a model cache filled by `rlnb prefetch`; its hub is gone when the tests use it."""
    root, cache = tmp_path_factory.mktemp("hub"), tmp_path_factory.mktemp("cache")
    make_hub(root, "lab/tiny", mbpp=whole_mbpp_folder)
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


def run_on_node(notebook: str, cache: Path, out: Path) -> tuple[int, str, str]:
    """Run a notebook at its tiny profile without a network; return the exit code, the log and the errors."""
    words = ("run", f"notebooks/{notebook}.ipynb", "--profile", "tiny", *MODEL, "--out", str(out))
    settings = (*RUNS[notebook], "--set", f"model.cache_dir={cache}")
    process = rlnb(*words, *settings, before=["unshare", "-rn"], RLNB_OFFLINE="1", **KEYS)
    out_text, errors = process.communicate(timeout=540)
    return process.returncode, out_text, errors


def test_a_check_of_this_machine_asks_for_the_hub_as_a_run_does(tmp_path):
    words = ("run", "notebooks/mbpp_eval.ipynb", "--profile", "tiny", "--set", "model.id=lab/tiny", "--check")
    process = rlnb(*words, "--set", f"model.cache_dir={tmp_path}", HF_ENDPOINT="http://127.0.0.1:9")
    said, errors = process.communicate(timeout=180)
    assert process.returncode == 2 and "model.id = 'lab/tiny' lacks" in errors, said + errors


@pytest.mark.parametrize(
    "notebook", ["mbpp_eval", pytest.param("grpo_code_execution", marks=pytest.mark.slow)]
)
def test_a_run_needs_no_network_does_not_try_it_and_writes_no_key(cache, offline_node, tmp_path, notebook):
    code, said, errors = run_on_node(notebook, cache, tmp_path / "run")
    assert code == 0, said + errors
    assert not offline_node.exists(), offline_node.read_text()
    assert "\x1b[" not in said + errors, "codes of a terminal"
    (metrics,) = tmp_path.glob("run/metrics.jsonl")
    (file,) = tmp_path.glob("run/wandb/offline-run-*/*.wandb")
    rows, run = read_wandb_file(file)
    name = run.display_name.rpartition(" ")[2]
    assert (run.run_group, run.job_type, name) == (notebook, "tiny", "run")
    shown: dict[float, dict[str, float]] = {}  # a step may be in several rows
    for row in rows:
        shown.setdefault(row["train/global_step"], {}).update(row)
    reported = read_metrics(metrics)
    assert list(shown) == [row["step"] for row in reported]
    for row in reported:
        numbers = {name: row[name] for name in row if row[name] is not None and name not in ("step", "time")}
        assert numbers and numbers.items() <= shown[row["step"]].items()
    texts = {path: path.read_bytes() for path in tmp_path.glob("run/**/*") if path.is_file()}
    texts[Path("output")] = (said + errors).encode()
    assert [path for path, text in texts.items() if any(key.encode() in text for key in KEYS.values())] == []

"""For all tests."""

import json
import os
import signal
from importlib.metadata import version
from pathlib import Path

# A fixed number, so that runs repeat bit for bit. Under pytest-xdist every core has a worker: more threads
# would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1" if "PYTEST_XDIST_WORKER" in os.environ else str(os.cpu_count()))

# TRL 1.15 (volta.txt, unsloth.txt) computes GRPO's loss by kernels of Triton: on a GPU, or interpreted.
if version("trl").startswith("1.15.") and not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
from hypothesis import settings

# On a busy machine an example takes as long as it takes. The tests take the same examples each time, since a
# red one must have its cause in the change; `--hypothesis-profile=search` looks for new ones.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=2000, print_blob=True)
settings.load_profile("repeatable")
pytest.register_assert_rewrite("recorded_runs")
# MBPP's files, or their folder. No longer in the environment: most tests choose their own data.
MBPP = Path(os.environ.pop("MBPP_DATASET_PATH", "") or Path(__file__).parents[2] / "shared" / "data")


@pytest.fixture(scope="module")
def sandbox(request: pytest.FixtureRequest):
    """With two workers and the usual limits, unless the module's SANDBOX has other options."""
    from rlnb.sandbox import Sandbox

    with Sandbox(**{"num_workers": 2, **getattr(request.module, "SANDBOX", {})}) as opened:
        yield opened


@pytest.fixture(scope="module")
def reruns():
    """Varied interpreters, in which a program has a second."""
    from rlnb.sandbox import Limits, Reruns

    with Reruns(Limits(cpu_seconds=1.0), num_workers=2) as opened:
        yield opened


@pytest.fixture(autouse=True, scope="session")
def signals_are_heard():
    """Under nohup, or in the background of a script, this process and its children would ignore some."""
    before = {
        signal.SIGHUP: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
    }
    yield
    for name, handler in before.items():
        signal.signal(name, handler)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that writes a shell script, which takes the place of the command of its name."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=":")

    def write(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return write


@pytest.fixture
def write_lines(tmp_path: Path):
    """Return a function that writes records as lines of JSON, and texts as they are, and returns the path."""

    def write(*lines: object) -> str:
        path = tmp_path / "mbpp.jsonl"
        path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
        return str(path)

    return write


@pytest.fixture(scope="session")
def mbpp_folder() -> str:
    """Return the folder with MBPP's mbpp.jsonl."""
    folder = MBPP.parent if MBPP.is_file() else MBPP
    if not (folder / "mbpp.jsonl").exists():
        pytest.skip(f"MBPP is not at hand: {folder}/mbpp.jsonl is missing; set MBPP_DATASET_PATH")
    return str(folder)


@pytest.fixture(scope="session")
def whole_mbpp_folder(mbpp_folder: str) -> str:
    """Return the same, with sanitized-mbpp.json in it."""
    if not Path(mbpp_folder, "sanitized-mbpp.json").exists():
        pytest.skip(f"a part of MBPP is not at hand: {mbpp_folder}/sanitized-mbpp.json is missing")
    return mbpp_folder


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory in which the tiny model is built once."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def chat(cache_dir: Path):
    """Return the tiny model's tokenizer, whose tokens are bytes, with a plain template."""
    from transformers import AutoTokenizer

    from rlnb.policy import model_directory
    from rlnb.policy.prompts import Chat

    tokenizer = AutoTokenizer.from_pretrained(model_directory("tiny", cache_dir))
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    return Chat(tokenizer)

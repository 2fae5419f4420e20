"""`rlnb prefetch` against a hub on this machine, by the real huggingface_hub."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import REVISION, Hub, make_hub, rlnb, running_hub

from rlnb.params.model_cache import MBPP_REVISION, find_missing

MODEL, MBPP = "models--Qwen--Qwen2.5-1.5B", "datasets--google-research-datasets--mbpp"
QWEN = "Qwen/Qwen2.5-1.5B"
NOTEBOOK = "notebooks/grpo_code_execution.ipynb"
READ = {
    "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
    "tokenizer_config.json",
}  # fmt: skip


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    root = tmp_path_factory.mktemp("hub")
    make_hub(root, QWEN, f"{QWEN}-bnb-4bit")
    with running_hub(root) as hub:
        yield hub


def prefetch(hub: Hub, cache: Path, *options: str, **environ: str) -> tuple[int, str]:
    """Return the exit code and the errors; hub.downloads holds what was sent."""
    hub.downloads.clear()
    arguments = ("prefetch", NOTEBOOK, "--profile", "v100", "--set", f"model.cache_dir={cache}", *options)
    process = rlnb(*arguments, **{"HF_ENDPOINT": hub.address, **environ})
    _, errors = process.communicate(timeout=180)
    return process.returncode, errors


def files_of(cache: Path, folder: str, revision: str = REVISION) -> set[str]:
    snapshot = cache / folder / "snapshots" / revision
    return {str(path.relative_to(snapshot)) for path in snapshot.rglob("*") if path.is_file()}


def test_a_training_in_4_bits_that_merges_at_its_end_fetches_the_model_in_16_bits_as_well(hub, tmp_path):
    options = ["--set", f"model.cache_dir={tmp_path}", "--set", f"model.id={QWEN}-bnb-4bit"]
    process = rlnb(
        "prefetch", "notebooks/gpt_oss_2048.ipynb", "--profile", "a100", *options,
        "--set", "save.formats=[lora,merged_16bit]", HF_ENDPOINT=hub.address,
    )  # fmt: skip
    _, errors = process.communicate(timeout=180)
    assert process.returncode == 0, errors
    assert find_missing(tmp_path, f"{QWEN}-bnb-4bit") == find_missing(tmp_path, QWEN) == []


def test_a_download_that_was_cut_off_is_refused_and_goes_on_with_the_files_that_were_whole(hub, tmp_path):
    hub.downloads.clear()
    hub.stall = "model.safetensors"
    arguments = ("prefetch", NOTEBOOK, "--profile", "v100", "--set", f"model.cache_dir={tmp_path}")
    process = rlnb(*arguments, HF_ENDPOINT=hub.address)
    try:
        assert hub.stalled.wait(120)
        while files_of(tmp_path, MODEL) < READ - {"model.safetensors"}:
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        process.kill()
        process.communicate()
        hub.stall = ""
        hub.released.set()
    assert find_missing(tmp_path, QWEN) == ["weights"]
    submit = rlnb("submit", *arguments[1:], "--dry-run", RLNB_OFFLINE="1")
    _, errors = submit.communicate(timeout=180)
    assert submit.returncode == 2 and f"model.id = {QWEN!r} lacks weights" in errors
    code, errors = prefetch(hub, tmp_path)
    assert code == 0, errors
    assert set(hub.downloads) & READ == {"model.safetensors"}
    assert files_of(tmp_path, MODEL) == READ  # and nothing else
    assert len(files_of(tmp_path, MBPP, MBPP_REVISION)) == 8
    assert find_missing(tmp_path, QWEN) == []
    assert (prefetch(hub, tmp_path)[0], hub.downloads) == (0, [])


@pytest.mark.parametrize(("model", "endpoint"), [("me/nothing", ""), (QWEN, "http://127.0.0.1:9")])
def test_a_model_that_is_not_to_be_had_is_one_error(hub, tmp_path, model, endpoint):
    address = {"HF_ENDPOINT": endpoint or hub.address}
    code, errors = prefetch(hub, tmp_path, "--set", f"model.id={model}", **address)
    message = re.sub(r"\x1b.*|Fetching.*", "", errors).strip()
    assert code == 2 and len(message.splitlines()) == 1
    assert message.startswith(f"rlnb: --set: model.id = {model!r} ")


def test_a_model_that_is_built_where_it_runs_needs_nothing(hub, tmp_path):
    options = ("--set", "model.id=tiny", "--set", "tasks.source=builtin")
    code, errors = prefetch(hub, tmp_path, *options)
    assert (code, hub.downloads) == (0, []), errors

"""`rlnb prefetch` against a hub on this machine, by the real huggingface_hub."""

import hashlib
import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import REVISION, Hub, make_hub, rlnb, running_hub

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
    make_hub(root, QWEN)
    with running_hub(root) as hub:
        yield hub


@pytest.fixture(scope="module")
def cache(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model cache that was filled for a V100, on this machine, which has no GPU."""
    cache = tmp_path_factory.mktemp("prefetched")
    code, said, errors = prefetch(hub, cache)
    assert (code, said[-1]) == (
        0,
        f"then: .venv/bin/rlnb submit {NOTEBOOK} --profile v100 --set model.cache_dir={cache}",
    ), errors
    assert said[0] == f"grpo_code_execution, profile v100, for v100, 16 GiB, into {cache}:"
    return cache


def prefetch(hub: Hub, cache: Path, *options: str, **environ: str) -> tuple[int, list[str], str]:
    """Return the exit code, the lines and the errors; hub.downloads holds what was sent."""
    hub.downloads.clear()
    arguments = ("prefetch", NOTEBOOK, "--profile", "v100", "--set", f"model.cache_dir={cache}", *options)
    process = rlnb(*arguments, **{"HF_ENDPOINT": hub.address, **environ})
    out, err = process.communicate(timeout=180)
    return process.returncode, out.splitlines(), err


def test_the_manifest_has_what_a_run_reads_and_nothing_else_is_fetched(cache, hub):
    for folder, expected in ((MODEL, READ), (MBPP, 8)):
        manifest = json.loads((cache / "manifests" / f"{folder}.json").read_text())
        assert manifest["revision"] == REVISION
        snapshot = cache / folder / "snapshots" / REVISION
        files = {str(path.relative_to(snapshot)) for path in snapshot.rglob("*") if path.is_file()}
        assert files == set(manifest["files"])
        assert files == expected if isinstance(expected, set) else len(files) == expected
        for name, file in manifest["files"].items():
            data = (snapshot / name).read_bytes()
            assert file == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def test_what_is_there_is_not_fetched_again_and_what_is_damaged_is(cache, hub):
    code, said, _ = prefetch(hub, cache)
    assert (code, hub.downloads) == (0, [])
    weights = cache / MODEL / "snapshots" / REVISION / "model.safetensors"
    sound = weights.read_bytes()
    weights.resolve().write_bytes(sound[:-1] + b"\0")
    code, said, _ = prefetch(hub, cache, "--verify", HF_ENDPOINT="http://127.0.0.1:9")  # without a network
    assert code == 1
    assert said[1:] == [
        f"  {MODEL}: model.safetensors is damaged: its SHA-256 differs from the manifest's",
        f"  {MBPP}: 8 files, {mbpp_size(cache)} MB, all as fetched",
        "The same command without --verify fetches these anew.",
    ]
    code, said, _ = prefetch(hub, cache)
    assert (code, hub.downloads) == (0, ["model.safetensors"])
    assert said[1].endswith(": 1 fetched, 1 of them damaged before, 5 were there")
    assert weights.read_bytes() == sound
    assert prefetch(hub, cache, "--verify")[0] == 0


def mbpp_size(cache: Path) -> str:
    files = json.loads((cache / "manifests" / f"{MBPP}.json").read_text())["files"]
    return f"{sum(file['size'] for file in files.values()) / 1e6:,.1f}"


def test_after_a_kill_the_files_that_were_whole_stay(hub, tmp_path):
    hub.downloads.clear()
    hub.stall = "model.safetensors"
    arguments = ("prefetch", NOTEBOOK, "--profile", "v100", "--set", f"model.cache_dir={tmp_path}")
    process = rlnb(*arguments, HF_ENDPOINT=hub.address)
    snapshot = tmp_path / MODEL / "snapshots" / REVISION
    try:
        assert hub.stalled.wait(120)
        while {path.name for path in snapshot.glob("*")} < READ - {"model.safetensors"}:
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        process.kill()
        process.communicate()
        hub.stall = ""
        hub.released.set()
    code, said, errors = prefetch(hub, tmp_path)
    assert code == 0, errors
    assert set(hub.downloads) & READ == {"model.safetensors"}
    assert said[1].endswith("1 fetched, 5 were there")


@pytest.mark.parametrize(
    ("model", "gated", "said"),
    [
        ("me/nothing", "", "is not on {hub}, or is private; correct the name, or put HF_TOKEN=... into .env"),
        (QWEN, QWEN, "is gated: accept its terms on {hub}/Qwen/Qwen2.5-1.5B, and put HF_TOKEN=... into .env"),
        ("not a name", "", "is neither a directory here nor a name on the hub, which is OWNER/NAME"),
    ],
    ids=["wrong", "gated", "malformed"],
)
def test_a_model_that_is_not_to_be_had_is_one_error(hub, tmp_path, model, gated, said):
    hub.gated = {gated}
    try:
        code, _, errors = prefetch(hub, tmp_path, "--set", f"model.id={model}")
    finally:
        hub.gated = set()
    message = re.sub(r"\x1b.*|Fetching.*", "", errors).strip()
    assert code == 2
    assert message.startswith(f"rlnb: --set: model.id = {model!r} ")
    assert said.format(hub=hub.address) in message
    assert len(message.splitlines()) == 1


def test_without_a_network_the_remedy_is_the_same_command(hub, tmp_path):
    code, _, errors = prefetch(hub, tmp_path, HF_ENDPOINT="http://127.0.0.1:9")
    assert code == 2
    assert "the same command again goes on with the files that are missing" in errors
    assert len(errors.splitlines()) == 1


def test_a_model_that_is_built_here_is_built_and_verified_too(hub, tmp_path):
    options = ("--set", "model.id=tiny", "--set", "tasks.source=builtin")
    code, said, errors = prefetch(hub, tmp_path, *options)
    assert (code, said[1], hub.downloads) == (0, f"  tiny: built in {tmp_path / 'tiny-2x128'}", []), errors
    assert prefetch(hub, tmp_path, *options)[1][1] == "  tiny: is there and verifies"
    shutil.rmtree(tmp_path / "tiny-2x128")
    assert prefetch(hub, tmp_path, *options, "--verify")[0] == 1


def test_a_card_with_more_memory_gets_the_larger_model(hub, tmp_path):
    code, _, errors = prefetch(hub, tmp_path, "--gpu-memory", "32")
    assert code == 2
    assert "model.id = 'Qwen/Qwen2.5-3B' is not on" in errors

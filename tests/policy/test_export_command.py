"""`rlnb export`: the model card, what is refused before a model is loaded, and the way to the hub."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml
from huggingface_hub import constants
from refusals import refused
from tiny_policy import load_tiny, tiny_params, train_by_hand
from transformers import AutoConfig

from rlnb.params.bases import read_base
from rlnb.policy import load_policy, save_adapters
from rlnb.policy.adapters import hash_trained
from rlnb.policy.export import ExportFailed, LogitDifference, save_and_reload
from rlnb.policy.export_command import check_difference, check_request, export, find_misfit, make_card

EMBEDDED = {
    "base_model": "HuggingFaceTB/SmolLM2-135M-Instruct", "base_model_relation": "finetune",
    "library_name": "transformers", "license": "apache-2.0",
}  # fmt: skip


@pytest.mark.parametrize(
    ("base", "form", "front"),
    [
        ("model_cache/SmolLM2-135M-Instruct", "merged_16bit", EMBEDDED),
        (str(Path(__file__).parent), "lora", {"library_name": "peft"}),  # the hub refuses a local path
    ],
)
def test_a_card_says_in_the_hubs_words_what_the_model_is(base, form, front):
    gap = LogitDifference(0.0123, 0.001, 0.995, 200)
    _, head, text = str(make_card("me/it", form, base=base, license="", difference=gap)).split("---\n", 2)
    metadata = yaml.safe_load(head)
    assert metadata.pop("tags")[:2] == ["rlnb", "reinforcement-learning"]
    assert metadata == {"pipeline_tag": "text-generation", **front}
    assert str(gap) in text and str(Path(__file__).parent) not in text


@pytest.fixture
def adapters(tmp_path: Path) -> Path:
    directory = tmp_path / "adapters"
    directory.mkdir()
    (directory / "adapter_config.json").write_text("{}")
    (directory / "adapter_model.safetensors").touch()
    return directory


def test_what_cannot_be_exported_is_refused_by_its_option(adapters, tmp_path):
    given = {"base": "tiny", "out": tmp_path / "new"}
    check_request(adapters, **given)
    assert refused(check_request, tmp_path / "none", **given).startswith("--adapters ")
    assert refused(check_request, adapters, **given | {"base": ""}).startswith("--base: ")
    assert refused(check_request, adapters, **given | {"out": tmp_path}).startswith("--out ")
    for base, reason in (("./nowhere", "is not there"), ("qwen2.5:7b", "neither a path")):
        said = refused(check_request, adapters, **given | {"base": base})
        assert said.startswith(f"--base {base}: ") and reason in said


class UploadHandler(BaseHTTPRequestHandler):
    """As much of the hub's API as an upload of small files asks for."""

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        address = f"http://{self.headers['Host']}/me/model"
        self.server.requests.append((self.path, body))
        answer = {"url": address, "commitUrl": f"{address}/commit/1", "commitOid": "1", "success": True}
        if "/preupload/" in self.path:
            files = json.loads(body)["files"]
            answer = {"files": [{**file, "uploadMode": "regular", "shouldIgnore": False} for file in files]}
        text = json.dumps(answer).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture
def hub(monkeypatch):
    """A hub on this machine, and a key."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), UploadHandler)
    server.requests, server.status = [], 200
    Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_nobody")
    yield server
    server.shutdown()
    server.server_close()


def export_tiny(policy, tmp_path, cache_dir, **given: object) -> Path:
    """Export a policy's adapters; return the folder."""
    out = tmp_path / "out"
    given = {"form": "merged_16bit", "dtype": "float32", "license": "", "repo_id": "", "base": ""} | given
    adapters = save_adapters(policy, tmp_path / "adapters")
    export(adapters, out=out, cache_dir=str(cache_dir), public=False, **given)
    return out


def test_adapters_are_merged_into_the_base_that_they_name(cache_dir, tmp_path):
    """The whole way, as a terminal sees it: what the model card, the figures and the command say."""
    policy = load_tiny(cache_dir)
    train_by_hand(policy, std=0.2)
    adapters = save_adapters(policy, tmp_path / "adapters")
    options = ["--adapters", adapters, "--out", "out", "--cache-dir", cache_dir]
    command = [sys.executable, "-m", "rlnb.cli", "export", *map(str, options)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=600, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    merged, changed = map(float, re.findall(r"differ by at most ([^,]+),", done.stdout))
    assert 0 < merged < 0.1 < changed / 5
    assert (tmp_path / "out" / "model.safetensors").is_file()
    front = yaml.safe_load((tmp_path / "out" / "README.md").read_text().split("---\n")[1])
    assert front["library_name"] == "transformers" and "base_model" not in front


def test_adapters_are_put_on_another_base_and_uploaded_into_a_private_repository(
    hub, cache_dir, tmp_path, capsys
):
    policy, base = load_tiny(cache_dir), tmp_path / "other"
    train_by_hand(policy)
    shutil.copytree(policy.source, base)
    given = {"form": "lora", "license": "mit", "base": str(base), "repo_id": "me/model"}
    out = export_tiny(policy, tmp_path, cache_dir, **given)
    assert read_base(out) == str(base)
    assert "exported against trained: differ by at most 0, " in capsys.readouterr().out
    created = json.loads(next(body for path, body in hub.requests if path.endswith("/create")))
    assert (created["organization"], created["name"]) == ("me", "model")
    assert created.get("private") or created.get("visibility") == "private"
    commit = next(body for path, body in hub.requests if "/commit/" in path)
    lines = [json.loads(line)["value"] for line in commit.splitlines()]
    assert {line["path"] for line in lines[1:]} == {path.name for path in out.iterdir()}


@pytest.mark.parametrize("size", [{"num_hidden_layers": 1}, {"hidden_size": 64}], ids=str)
def test_adapters_of_a_model_with_other_layers_are_refused_before_one_is_loaded(
    cache_dir, tmp_path, monkeypatch, size
):
    policy, base = load_tiny(cache_dir), tmp_path / "one layer"
    shutil.copytree(policy.source, base)
    AutoConfig.from_pretrained(base, **size).save_pretrained(base)
    monkeypatch.setattr("rlnb.policy.export_command.load_policy", None)
    said = refused(export_tiny, policy, tmp_path, cache_dir, form="lora", base=str(base))
    assert said.startswith(f"--base {base}: ") and not (tmp_path / "out").exists()


def test_a_hub_that_refuses_or_cannot_be_reached_is_an_error_before_a_model_is_loaded(
    hub, adapters, tmp_path
):
    def ask(repo_id):
        with pytest.raises(ExportFailed, match=f"^--repo-id {repo_id}: "):
            export(
                adapters, base="tiny", form="lora", out=tmp_path / "out", cache_dir=str(tmp_path / "none"),
                dtype="float32", repo_id=repo_id, public=False, license="",
            )  # fmt: skip

    hub.status = 403
    ask("me/model")
    ask("a/b/c")
    hub.shutdown()
    hub.server_close()
    ask("me/model")
    assert [path.name for path in tmp_path.iterdir()] == ["adapters"]


def test_an_export_farther_than_the_base_fails_before_any_upload(hub, cache_dir, tmp_path, capsys):
    policy = load_tiny(cache_dir)
    train_by_hand(policy, std=1e-4)
    export_tiny(policy, tmp_path / "rounded", cache_dir)
    assert "warning: the export differs" in capsys.readouterr().out
    train_by_hand(policy, std=1e-5)
    with pytest.raises(ExportFailed, match="out: removed, .*merged_32bit"):
        export_tiny(policy, tmp_path, cache_dir, repo_id="me/model")
    assert not (tmp_path / "out").exists()
    assert not any("/commit/" in path for path, _ in hub.requests)
    out = export_tiny(policy, tmp_path, cache_dir, form="merged_32bit")
    assert (out / "config.json").is_file() and "warning" not in capsys.readouterr().out


@pytest.mark.parametrize("share", [0.0, 0.25, 0.26, 0.99, 1.0, 30.0, math.nan])
def test_the_share_of_rounding_decides_between_nothing_a_warning_and_an_error(share, tmp_path):
    gaps = [LogitDifference(1.0, mean, 1.0, 10) for mean in (share * 0.01, 0.01)]
    (out := tmp_path / "out").mkdir()
    if not share < 1:
        with pytest.raises(ExportFailed, match=f"{share:.0%}"):
            check_difference(*gaps, "merged_16bit", out)
    else:
        assert bool(check_difference(*gaps, "merged_16bit", out)) == (share > 0.25)
    assert out.exists() == (share < 1)


def test_adapters_are_tried_again_on_the_base_that_is_loaded(cache_dir, tmp_path):
    base = shutil.copytree(load_tiny(cache_dir).source, tmp_path / "base")
    params = tiny_params(cache_dir, id=str(base))
    policy = load_policy(params)
    train_by_hand(policy)
    trained = hash_trained(policy)
    (base / "model.safetensors").unlink()
    said = save_and_reload(policy, tmp_path / "lora", "lora", params, prompt="def f(n):")
    assert "reloaded, and continues" in said and " by 0 on average" in said
    assert hash_trained(policy) == trained and list(policy.model.peft_config) == ["default"]


def test_a_notebook_that_saves_says_how_much_of_the_training_rounding_took(cache_dir, tmp_path):
    policy = load_tiny(cache_dir)
    train_by_hand(policy, std=1e-5)
    params = tiny_params(cache_dir)
    gaps = {}
    for form in ("lora", "merged_16bit"):
        said = save_and_reload(policy, tmp_path / form, form, params, prompt="def f(n):")
        gaps[form] = [float(gap) for gap in re.findall(r" by (\S+)", said)]
    assert gaps["lora"][0] < gaps["lora"][1] == gaps["merged_16bit"][1] < gaps["merged_16bit"][0]


def test_damaged_adapters_are_refused_before_a_model_is_loaded(cache_dir, tmp_path):
    adapters = save_adapters(load_tiny(cache_dir), tmp_path / "adapters")
    (adapters / "adapter_model.safetensors").write_bytes(b"torn")
    assert "is damaged" in refused(find_misfit, adapters, "tiny", str(cache_dir))

"""`rlnb export`: what is refused before a model is loaded, and how a directory gets to the hub."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from huggingface_hub import constants

from rlnb.errors import ParamsError
from rlnb.policy.export import ExportFailed
from rlnb.policy.export_command import check_request, upload


@pytest.fixture
def adapters(tmp_path: Path) -> Path:
    directory = tmp_path / "adapters"
    directory.mkdir()
    (directory / "adapter_config.json").write_text("{}")
    return directory


def refused(adapters: Path, **options: object) -> str:
    with pytest.raises((ParamsError, ExportFailed)) as refusal:
        check_request(adapters, **{"base": "tiny", "out": adapters / "new", "repo_id": "", **options})
    return str(refusal.value)


def test_what_cannot_be_exported_is_refused_by_its_option(adapters, tmp_path):
    check_request(adapters, base="tiny", out=tmp_path / "new", repo_id="")
    assert refused(tmp_path / "none").startswith("--adapters ")
    assert refused(adapters, base="").startswith("--base: ")
    assert refused(adapters, out=tmp_path).startswith("--out ")
    assert refused(adapters, repo_id="a/b/c").startswith("--repo-id a/b/c: ")


# The way to the hub.


class UploadHandler(BaseHTTPRequestHandler):
    """As much of the hub's API as an upload of small files asks for."""

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        server, address = self.server, f"http://{self.headers['Host']}"
        server.requests.append((self.path, body))
        status, answer = 200, {}
        if self.path.endswith("/create"):
            status, answer = server.creates, {"url": f"{address}/me/model"}
        elif "/preupload/" in self.path:
            files = json.loads(body)["files"]
            answer = {"files": [{**file, "uploadMode": "regular", "shouldIgnore": False} for file in files]}
        elif "/commit/" in self.path:
            answer = {"commitUrl": f"{address}/me/model/commit/1", "commitOid": "1", "success": True}
        elif self.path.endswith("/whoami-v2"):
            answer = {"name": "me"}
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self) -> None:
        if self.path.endswith("/whoami-v2"):
            self.do_POST()
        else:
            self.send_error(404)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub on this machine, and a key."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), UploadHandler)
    server.requests, server.creates = [], 200
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.setenv("HF_TOKEN", "hf_nobody")
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_directory_is_uploaded_into_a_private_repository(hub, adapters):
    (adapters / "README.md").write_text("---\nlicense: mit\n---\n")
    assert upload(adapters, "me/model", private=True) == f"{constants.ENDPOINT}/me/model"
    created = json.loads(next(body for path, body in hub.requests if path.endswith("/create")))
    assert (created["organization"], created["name"]) == ("me", "model")
    assert created.get("private") or created.get("visibility") == "private"
    commit = next(body for path, body in hub.requests if "/commit/" in path)
    lines = [json.loads(line)["value"] for line in commit.splitlines()]
    assert {line["path"] for line in lines[1:]} == {"README.md", "adapter_config.json"}


def test_an_upload_that_the_hub_refuses_says_so_and_what_is_left(hub, adapters):
    hub.creates = 403
    with pytest.raises(ExportFailed) as refusal:
        upload(adapters, "me/model", private=True)
    assert "403" in str(refusal.value) and f"{adapters} is whole" in str(refusal.value)


def test_an_upload_without_a_key_or_a_network_is_refused(hub, adapters, monkeypatch):
    check_request(adapters, base="tiny", out=adapters / "new", repo_id="me/model")
    assert [path for path, _ in hub.requests] == ["/api/whoami-v2"]
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    assert refused(adapters, repo_id="me/model").startswith("--repo-id me/model: ")
    monkeypatch.setenv("HF_TOKEN", "hf_nobody")
    hub.shutdown()
    hub.server_close()
    assert refused(adapters, repo_id="me/model").startswith("--repo-id me/model: ")

"""A hub on this machine: as much of huggingface.co's API as huggingface_hub asks for when it downloads."""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

REVISION = "0123456789abcdef0123456789abcdef01234567"
ADDRESS = re.compile(r"/(?P<dataset>datasets/)?(?P<id>[^/]+/[^/]+)/resolve/[^/]+/(?P<file>.+)")
API = re.compile(r"/api/(?P<kind>models|datasets)/(?P<id>[^/?]+/[^/?]+)(?:/(?P<rest>[^?]*))?(?:\?.*)?")
LARGE = 10_000  # bytes from which a file is in LFS, and so known by its SHA-256


class Hub(ThreadingHTTPServer):
    """Serves the folders below `root`: models/OWNER/NAME and datasets/OWNER/NAME.

    gated: ids that need terms to be accepted. stall: name of a file of which half is sent, and no more.
    downloads: the files sent so far.
    """

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.root = root
        self.gated: set[str] = set()
        self.stall = ""
        self.stalled = threading.Event()
        self.released = threading.Event()
        self.downloads: list[str] = []

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that were killed."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class HubHandler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(has_body=False)

    def do_GET(self) -> None:
        self.answer(has_body=True)

    def answer(self, *, has_body: bool) -> None:
        if match := API.fullmatch(self.path):
            folder = self.server.root / match["kind"] / match["id"]
            if self.refuses(folder, match["id"]):
                return
            self.send(200, json.dumps(self.describe(folder, match["id"], match["rest"] or "")).encode(), {})
        elif match := ADDRESS.fullmatch(self.path):
            kind = "datasets" if match["dataset"] else "models"
            folder = self.server.root / kind / match["id"]
            if self.refuses(folder, match["id"]):
                return
            self.send_file(folder / match["file"], match["file"], has_body=has_body)
        else:
            self.send(200 if self.path == "/" else 404, b"", {})

    def refuses(self, folder: Path, repository: str) -> bool:
        if not folder.is_dir():
            self.send(401, b"", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        elif repository in self.server.gated:
            self.send(403, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
        else:
            return False
        return True

    def describe(self, folder: Path, repository: str, rest: str) -> object:
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        if rest.startswith("tree/"):
            return [{"type": "file", "path": str(f.relative_to(folder)), **file_facts(f)} for f in files]
        siblings = [{"rfilename": str(f.relative_to(folder)), **file_facts(f)} for f in files]
        return {"id": repository, "sha": REVISION, "siblings": siblings, "private": False, "tags": []}

    def send_file(self, path: Path, name: str, *, has_body: bool) -> None:
        if not path.is_file():
            self.send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": REVISION})
            return
        facts, data = file_facts(path), path.read_bytes()
        etag = str(facts["lfs"]["oid"] if "lfs" in facts else facts["oid"])
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": REVISION, "Accept-Ranges": "bytes"}
        if has_body:
            self.server.downloads.append(name)
        if has_body and name == self.server.stall:
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self.server.stalled.set()
            self.server.released.wait(30)
            self.close_connection = True
            return
        self.send(200, data, headers, has_body=has_body)

    def send(self, status: int, body: bytes, headers: dict[str, str], *, has_body: bool = True) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if has_body and self.command != "HEAD":
            self.wfile.write(body)


def file_facts(path: Path) -> dict[str, object]:
    data = path.read_bytes()
    git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    facts: dict[str, object] = {"size": len(data), "blobId": git, "oid": git}
    if len(data) >= LARGE:
        sha256 = hashlib.sha256(data).hexdigest()
        facts["lfs"] = {"sha256": sha256, "oid": sha256, "size": len(data), "pointerSize": 134}
    return facts


def make_hub(root: Path, *models: str) -> None:
    """Write repositories for a hub: the tiny model under each id, and MBPP with rlnb's built-in problems."""
    import pyarrow
    from pyarrow import parquet

    from rlnb.mbpp.problems import BUILTIN
    from rlnb.policy.builtin import build_tiny

    for model in models:
        folder = root / "models" / model
        folder.mkdir(parents=True)
        build_tiny(folder)
        (folder / "README.md").write_text("not read by a run")
        (folder / "pytorch_model.bin").write_bytes(b"the same weights once more")
        (folder / "original").mkdir()
        (folder / "original" / "model.safetensors").write_bytes(b"and again")
    problems = [json.loads(line) for line in BUILTIN.read_text(encoding="utf-8").splitlines()]
    # MBPP tells its splits by task_id, and rlnb too.
    splits = {"prompt": (0, 10, 1), "test": (10, 30, 11), "validation": (30, 35, 511), "train": (35, 50, 601)}
    for subset in ("full", "sanitized"):
        folder = root / "datasets" / "google-research-datasets" / "mbpp" / subset
        folder.mkdir(parents=True)
        for split, (first, last, task_id) in splits.items():
            rows = [
                problem | {"task_id": task_id + index} for index, problem in enumerate(problems[first:last])
            ]
            parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{split}-00000-of-00001.parquet")


def rlnb(*arguments: object, before: Sequence[str] = (), **environ: str) -> "subprocess.Popen[str]":
    """Start a command of rlnb as a user does, with these variables and none that say offline.

    before: a command that starts it.
    """
    kept = {key: value for key, value in os.environ.items() if "OFFLINE" not in key and key != "HF_ENDPOINT"}
    return subprocess.Popen(
        [*before, sys.executable, "-m", "rlnb.cli", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=kept | environ,
        cwd=Path(__file__).parents[1],
    )  # fmt: skip


@contextmanager
def running_hub(root: Path) -> Iterator[Hub]:
    """Serve `root` until the block ends."""
    hub = Hub(root)
    thread = threading.Thread(target=hub.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.released.set()
        hub.shutdown()
        hub.server_close()
        thread.join()

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

from rlnb.json_records import read_records

REVISION = "0123456789abcdef0123456789abcdef01234567"  # of "main"; of another revision that one
FILE = re.compile(r"/((?P<kind>datasets)/)?(?P<id>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")
API = re.compile(
    r"/api/(?P<kind>models|datasets)/(?P<id>[^/?]+/[^/?]+)(/(revision|tree)/(?P<revision>\w+))?.*"
)


class Hub(ThreadingHTTPServer):
    """Serves the folders below `root`: models/OWNER/NAME and datasets/OWNER/NAME.

    stall: name of a file of which half is sent, and no more. downloads: the files sent so far.
    """

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.root, self.address = root, f"http://127.0.0.1:{self.server_address[1]}"
        self.stall, self.stalled, self.released = "", threading.Event(), threading.Event()
        self.downloads: list[str] = []


class HubHandler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        match = API.fullmatch(self.path) or FILE.fullmatch(self.path)
        if match is None:
            self.send(200 if self.path == "/" else 404, b"")
            return
        folder = self.server.root / (match["kind"] or "models") / match["id"]
        name = match.groupdict().get("file", "")
        self.revision = REVISION if match["revision"] in (None, "main") else match["revision"]
        if not folder.is_dir():
            self.send(401, b"", **{"X-Error-Code": "RepoNotFound"})
        elif not name:
            names = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]
            tree = [{"type": "file", "path": name, "size": 1, "oid": name} for name in names]
            siblings = [{"rfilename": name} for name in names]
            information = {"id": match["id"], "sha": self.revision, "siblings": siblings}
            self.send(200, json.dumps(tree if "/tree/" in self.path else information).encode())
        elif not (folder / name).is_file():
            self.send(404, b"", **{"X-Error-Code": "EntryNotFound", "X-Repo-Commit": self.revision})
        else:
            self.send_file(name, (folder / name).read_bytes())

    do_HEAD = do_GET

    def send_file(self, name: str, data: bytes) -> None:
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": self.revision}
        if self.command == "GET":
            self.server.downloads.append(name)
        if self.command == "HEAD" or name != self.server.stall:
            self.send(200, data, **headers)
            return
        self.send(200, data, num_sent=len(data) // 2, **headers)
        self.server.stalled.set()
        self.server.released.wait(30)
        self.close_connection = True

    def send(self, status: int, body: bytes, *, num_sent: int | None = None, **headers: str) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:num_sent])


def make_hub(root: Path, *models: str, mbpp: str = "") -> None:
    """Write repositories for a hub: the tiny model under each id, and MBPP.

    mbpp: the folder with its files; without it, problems that are not the published ones stand in.
    """
    from rlnb.mbpp.problems import BUILTIN, FILES
    from rlnb.policy.builtin import build_tiny

    for model in models:
        folder = root / "models" / model
        folder.mkdir(parents=True)
        build_tiny(folder)
        (folder / "original").mkdir()
        for name in ("README.md", "pytorch_model.bin", "original/model.safetensors"):
            (folder / name).write_text("not read by a run")
    for subset, name in FILES.items():
        records = [record for _, record in read_records(Path(mbpp, name) if mbpp else BUILTIN)]
        ids = [*range(1, 11), *range(11, 31), *range(511, 516), *range(601, 616)]
        if not mbpp:
            records = [record | {"task_id": n} for n, record in zip(ids, records, strict=True)]
        write_mbpp(root / "datasets" / "google-research-datasets" / "mbpp" / subset, records)


def write_mbpp(folder: Path, records: Sequence[dict[str, object]]) -> None:
    """Write records of MBPP into a folder as the hub has them: a file of each split."""
    import pyarrow
    from pyarrow import parquet

    from rlnb.mbpp.problems import SPLITS

    folder.mkdir(parents=True)
    for split, ids in SPLITS.items():
        rows = [record for record in records if record["task_id"] in ids]
        parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{split}-00000-of-00001.parquet")


def rlnb(*arguments: object, before: Sequence[str] = (), **environ: str) -> "subprocess.Popen[str]":
    """Start a command of rlnb as a user does, with these variables and none that say offline."""
    kept = {key: value for key, value in os.environ.items() if "OFFLINE" not in key and key != "HF_ENDPOINT"}
    return subprocess.Popen(
        [*before, sys.executable, "-m", "rlnb.cli", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=kept | environ,
        cwd=Path(__file__).parents[1],
    )  # fmt: skip


@contextmanager
def running_hub(root: Path) -> Iterator[Hub]:
    """Serve `root` until the block ends."""
    with Hub(root) as hub:
        threading.Thread(target=hub.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield hub
        finally:
            hub.released.set()
            hub.shutdown()

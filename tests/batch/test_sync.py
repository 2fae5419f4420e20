"""`rlnb sync` calls wandb's own upload on the offline folders of runs, and says what was done."""

import gzip
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import wandb

from rlnb.run.tracking import open_tracker


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of two attempts each that W&B tracked offline."""
    root = tmp_path_factory.mktemp("runs")
    for name in ("one", "two"):
        for step in (0, 1):
            with open_tracker(
                root / name, config={}, wandb="offline", tensorboard=False, resume_step=step
            ) as tracker:
                tracker.report(step + 1, {"reward/avg_batch_reward": 0.5})
    wandb.teardown()  # waits until all is on the disk
    return root


def sync(*arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    return subprocess.run(
        [sys.executable, "-m", "rlnb.cli", "sync", *map(str, arguments)],
        capture_output=True, text=True, timeout=120, env={**kept, "NETRC": os.devnull, **environ},
    )  # fmt: skip


def test_without_a_key_nothing_is_tried(runs):
    done = sync(runs)
    assert done.returncode == 2
    assert done.stdout == f"{runs / 'one'}: to upload\n{runs / 'two'}: to upload\n"
    assert done.stderr == (
        "rlnb: WANDB_API_KEY: is not set; put it into .env, or run `wandb login` "
        "(docs/troubleshooting.md#wb-logs-nothing)\n"
    )


def test_what_was_uploaded_and_has_not_changed_is_left_out(runs):
    marks = [file.with_suffix(".wandb.synced") for file in runs.glob("*/wandb/offline-run-*/*.wandb")]
    assert len(marks) == 2
    for mark in marks:
        mark.touch()
    try:
        done = sync(runs)
        assert (done.returncode, done.stderr) == (0, "")
        os.utime(next((runs / "two").glob("wandb/offline-run-*/*.wandb")))  # the run has gone on since
        assert f"{runs / 'two'}: to upload" in sync(runs).stdout
    finally:
        for mark in marks:
            mark.unlink()


def test_a_server_that_does_not_answer_is_refused(runs):
    with socket.socket() as closed:  # an address that nobody answers
        closed.bind(("127.0.0.1", 0))
        server = f"http://127.0.0.1:{closed.getsockname()[1]}"
        done = sync(runs / "one", WANDB_API_KEY="0" * 40, WANDB_BASE_URL=server)
    assert done.returncode == 2
    assert done.stderr == (
        f"rlnb: {server}: does not answer; run the same command on a machine with a network\n"
    )


def test_each_step_of_all_attempts_arrives_once_and_what_does_not_arrive_is_said(runs):
    with running_server(refused_run=(runs / "two" / "wandb_run_id.txt").read_text()) as server:
        key = {"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": server.address, "WANDB_MODE": "disabled"}
        done = sync(runs, **key)
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1] == f"{runs / 'two'}: not uploaded; run the same command again"
        assert done.stdout.splitlines()[-1] == "1 of 2 runs uploaded"
        assert [row["train/global_step"] for row in server.history] == [1, 2]
        server.refused_run = ""
        done = sync(runs, **key)
    assert (done.returncode, done.stdout.splitlines()[0]) == (
        0,
        f"{runs / 'one'}: uploaded before, unchanged",
    )
    assert [row["train/global_step"] for row in server.history] == [1, 2, 1, 2]


class Server(http.server.ThreadingHTTPServer):
    """As much of W&B as `wandb sync` needs. history: the rows that arrived. refused_run: an id."""

    daemon_threads = True
    refused_run = ""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.history: list[dict[str, float]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.reply({})

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.reply({})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        body = gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
        if self.path.endswith("/file_stream"):
            for file in json.loads(body).get("files", {}).values():
                rows = [json.loads(line) for line in file["content"] if file["offset"] == 0]
                self.server.history += [row for row in rows if "_step" in row and "_wandb" not in row]
            self.reply({})
        elif self.path == "/graphql":
            query = json.loads(body)
            self.reply(self.answer(query["query"], query["variables"]))
        else:
            self.reply({})

    def answer(self, query: str, variables: dict[str, object]) -> object:
        if "UpsertBucket" in query:
            if variables["name"] == self.server.refused_run:
                return {"errors": [{"message": "not this one"}]}
            project = {"id": "p", "name": "rlnb", "entity": {"id": "e", "name": "me"}}
            bucket = {"id": "b", "name": variables["name"], "displayName": "run", "project": project}
            return {"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}}
        if "CreateRunFiles" in query:
            files = [
                {"name": name, "uploadUrl": f"{self.server.address}/{name}"} for name in variables["files"]
            ]
            return {"data": {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}}
        return {"data": {}}

    def reply(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def running_server(*, refused_run: str) -> Iterator[Server]:
    server = Server()
    server.refused_run = refused_run
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def test_a_folder_without_offline_runs_is_refused(tmp_path):
    said = sync(tmp_path).stderr
    assert said == f"rlnb: {tmp_path}: no run here was tracked offline; set tracking.wandb = offline\n"
    assert "no such directory" in sync(tmp_path / "nothing").stderr

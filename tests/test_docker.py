"""The Dockerfile, as far as it can be tried without Docker: its user, packages and command."""

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BIN = Path(sys.prefix) / "bin"


def instructions(text: str) -> list[tuple[str, str]]:
    """(keyword, rest) of each instruction, comments dropped and continued lines joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [(keyword.upper(), rest.strip()) for keyword, rest in (line.split(None, 1) for line in joined)]


DOCKERFILE = instructions((ROOT / "Dockerfile").read_text(encoding="utf-8"))


def the(keyword: str, containing: str = "") -> str:
    """The one instruction of this kind that contains a text."""
    (found,) = (rest for name, rest in DOCKERFILE if name == keyword and containing in rest)
    return found


def test_the_command_is_a_users():
    assert the("USER") == "$USER_ID" and int(the("ARG", "USER_ID=").partition("=")[2]) > 0
    assert "allow-root" not in the("CMD")


def test_the_image_has_what_triton_compiles_with_and_changes_none_of_its_variables():
    """Nothing of CUDA: wheels bring its libraries and ptxas."""
    installed = the("RUN", "apt-get install").split()
    assert {"gcc", "python3-dev", "python3-venv", "ca-certificates"} <= set(installed)
    assert the("FROM") == "ubuntu:24.04"
    assert "PTXAS" not in str(DOCKERFILE) and "LD_LIBRARY_PATH" not in str(DOCKERFILE)


def test_signals_of_docker_reach_the_command_itself():
    """Neither a shell nor an entrypoint stands between them."""
    assert "ENTRYPOINT" not in [keyword for keyword, _ in DOCKERFILE]
    assert isinstance(json.loads(the("CMD")), list)


def answer(port: int, path: str, token: str | None = None) -> tuple[int, str]:
    """(status, where it redirects to) of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=90)
    connection.request("GET", path, headers={"Authorization": f"token {token}"} if token else {})
    response = connection.getresponse()
    return response.status, response.getheader("Location", "")


@pytest.mark.parametrize("given", ["from-the-environment", ""])
def test_jupyterlab_answers_nobody_without_the_token(given, tmp_path):
    """The container's command itself; an empty JUPYTER_TOKEN must not mean an open door."""
    assert the("EXPOSE") == "8888"
    words = json.loads(the("CMD"))
    assert {"--ip=0.0.0.0", "--port=8888"} < set(words)
    words = [word.replace("--port=8888", "--port=0") for word in words]
    if os.geteuid() == 0:
        words.append("--allow-root")  # these tests are root's, the container is not
    environ = {"PATH": f"{BIN}:/usr/bin:/bin", "HOME": str(tmp_path), "JUPYTER_TOKEN": given}
    environ["JUPYTER_RUNTIME_DIR"] = str(tmp_path / "runtime")
    with (tmp_path / "log").open("w") as file:
        server = subprocess.Popen(words, cwd=tmp_path, env=environ, stdout=file, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 90
        while True:  # it says its port before it listens there
            log = (tmp_path / "log").read_text()
            assert server.poll() is None and time.monotonic() < deadline, log
            with contextlib.suppress(OSError, StopIteration, json.JSONDecodeError):
                runtime = next((tmp_path / "runtime").glob("jpserver-*.json"))
                port = json.loads(runtime.read_text())["port"]
                status, place = answer(port, "/lab")
                break
            time.sleep(0.2)
        token = given or re.findall(r"\?token=(\w+)", (tmp_path / "log").read_text())[0]
        assert len(token) >= 16
        assert status == 302 and place.startswith("/login")
        for path in ("/api/contents", "/api/kernels"):
            assert [answer(port, path, offered)[0] for offered in (None, "wrong", token)] == [403, 403, 200]
        assert answer(port, "/lab", token)[0] == 200
        server.terminate()
        assert server.wait(timeout=30) in (0, -15)
    finally:
        server.kill()
        server.wait()

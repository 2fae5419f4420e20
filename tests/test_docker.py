"""The Dockerfile, as far as it can be tried without Docker: read, linted, and its commands run one by one."""

import http.client
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
BIN = Path(sys.prefix) / "bin"
OTHER_USER = 4242  # one without a name, as `docker run --user` brings
NVIDIA_SCRIPT = "/opt/nvidia/nvidia_entrypoint.sh"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="users are made by root alone")


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


def default_of(argument: str) -> str:
    return the("ARG", argument + "=").partition("=")[2]


def command(containing: str) -> str:
    """What the shell gets of a RUN instruction."""
    return re.sub(r"--mount=\S+\s+", "", the("RUN", containing))


def environment() -> dict[str, str]:
    """All that ENV sets."""
    words = [word for name, rest in DOCKERFILE if name == "ENV" for word in shlex.split(rest)]
    return dict(word.split("=", 1) for word in words)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter, unlike pytest's."""
    with tempfile.TemporaryDirectory(prefix="rlnb-docker-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


def run(*words: str | Path, **options: Any) -> subprocess.CompletedProcess:
    return subprocess.run(words, capture_output=True, text=True, **options)


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_user_runs_the_command_without_a_shell_or_a_key_on_a_base_of_choice():
    assert the("USER") == "$USER_ID" and int(default_of("USER_ID")) > 0
    assert the("FROM") == "${BASE}"
    assert re.fullmatch(r"nvcr\.io/nvidia/pytorch:\d\d\.\d\d-py3", default_of("BASE"))
    for keyword in ("ENTRYPOINT", "CMD"):
        words = json.loads(the(keyword))
        assert words and not {"sh", "bash", "-c"} & set(words)
    text = " ".join(f"{name} {rest}" for name, rest in DOCKERFILE)
    assert re.findall(r"\S*(?:token|passw|secret|api_?key|allow-root)\S*", text, re.IGNORECASE) == []
    assert "TRITON_PTXAS_PATH" not in environment()  # rlnb/machine/choices.py decides


def test_every_mount_that_is_shown_leads_to_a_folder_that_any_user_may_fill():
    folders = {word for word in command("install -d").split() if word.startswith("/")}
    pages = [(ROOT / name).read_text(encoding="utf-8") for name in ("Dockerfile", "docs/docker.md")]
    mounts = {mount for page in pages for mount in re.findall(r'-v "?[^\s:"]+:(/[\w/.]+)(?!\S*:ro)', page)}
    assert {"/rlnb/outputs", "/rlnb/model_cache", "/home/rlnb/.cache/huggingface"} <= mounts
    assert mounts - folders == {"/rlnb/notebooks"}  # yours, with your number


def test_hadolint_has_nothing_to_say():
    if not (BIN / "hadolint").exists():
        pytest.skip("hadolint is not installed: ./setup.sh")
    done = run(BIN / "hadolint", ROOT / "Dockerfile")
    assert (done.returncode, done.stdout) == (0, "")


def make_user(root: Path, user_id: str) -> subprocess.CompletedProcess:
    """The command that makes the user and the folders, in a small root of Ubuntu's shape."""
    for name, line in {
        "passwd": "ubuntu:x:1000:1000:Ubuntu:/home/ubuntu:/bin/bash",
        "group": "ubuntu:x:1000:",
        "shadow": "ubuntu:!::0:99999:7:::",
        "gshadow": "ubuntu:!::",
    }.items():
        path = root / "etc" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(("root:x:0:0:root:/root:/bin/sh\n" if name == "passwd" else "") + line + "\n")
    (root / "home" / "ubuntu").mkdir(parents=True)
    os.chown(root / "home" / "ubuntu", 1000, 1000)
    for program in ("useradd", "userdel"):
        found = shutil.which(program) or pytest.skip(f"no {program} here")
        script(root / "bin" / program, f'exec {found} --prefix {root} "$@"')
    line = re.sub(r"(?<=\s)/(home|rlnb)\b", rf"{root}/\1", command("useradd"))
    return run("sh", "-c", line, env={"PATH": f"{root}/bin:/usr/sbin:/usr/bin:/bin", "USER_ID": user_id})


@as_root
@pytest.mark.parametrize("user_id", [default_of("USER_ID"), "1234567890"])
def test_the_user_is_made_and_other_users_can_fill_the_folders(user_id, open_folder):
    done = make_user(open_folder, user_id)
    assert done.returncode == 0, done.stderr
    users = [line.split(":") for line in (open_folder / "etc" / "passwd").read_text().splitlines()]
    assert [(name, number) for name, _, number, *_ in users] == [("root", "0"), ("rlnb", user_id)]
    assert [(open_folder / name).stat().st_uid for name in ("rlnb", "home/rlnb")] == [int(user_id)] * 2
    for folder in ("rlnb/outputs", "rlnb/model_cache", "home/rlnb", "home/rlnb/.cache/huggingface"):
        for writer in (int(user_id), OTHER_USER):
            subprocess.run(["mkdir", open_folder / folder / str(writer)], user=writer, check=True)


@as_root
def test_root_is_refused_as_the_user(open_folder):
    done = make_user(open_folder, "0")
    assert done.returncode != 0 and "UID 0 is not unique" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("name", ["unsloth", "cuda", "vllm"])
def test_every_pin_has_a_wheel_for_the_base(name, machine, tmp_path):
    """The base: Ubuntu 24.04, glibc 2.39, Python 3.12."""
    uv = shutil.which("uv") or pytest.skip("no uv here")
    options = ["--dry-run", "--no-deps", "--only-binary", ":all:", "--target", tmp_path / "packages"]
    platform = ["--python-platform", f"{machine}-manylinux_2_39", "--python-version", "3.12"]
    files = [word for file in (name, "dev", "embedded") for word in ("-r", f"requirements/{file}.txt")]
    environ = {key: value for key, value in os.environ.items() if not key.startswith("UV_")}
    done = run(uv, "pip", "install", "--quiet", *options, *platform, *files, cwd=ROOT, env=environ)
    if "Failed to fetch" in done.stderr:
        pytest.skip("PyPI does not answer")
    assert done.returncode == 0, done.stderr


def test_the_entrypoint_becomes_the_command(tmp_path):
    """Signals of `docker stop` reach the process that the entrypoint has become."""
    stand_in = script(tmp_path / "nvidia_entrypoint.sh", 'exec "$@"')
    words = json.loads(the("ENTRYPOINT"))
    assert words[-1] == NVIDIA_SCRIPT
    show = "import os; print(os.getpid(), os.environ.get('TRITON_PTXAS_PATH'), os.environ['KEPT'])"
    process = subprocess.Popen(
        [*words[:-1], str(stand_in), sys.executable, "-c", show],
        env={"PATH": "/usr/bin:/bin", "TRITON_PTXAS_PATH": "/usr/local/cuda/bin/ptxas", "KEPT": "yes"},
        stdout=subprocess.PIPE,
        text=True,
    )
    said, _ = process.communicate(timeout=30)
    assert said == f"{process.pid} None yes\n"


def answer(port: int, path: str, token: str | None = None) -> tuple[int, str]:
    """(status, where it redirects to) of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers={"Authorization": f"token {token}"} if token else {})
    response = connection.getresponse()
    return response.status, response.getheader("Location", "")


@pytest.mark.parametrize("given", ["from-the-environment", ""])
def test_jupyterlab_answers_nobody_without_the_token(given, tmp_path):
    """The container's command itself; an empty JUPYTER_TOKEN must not mean an open door."""
    assert the("EXPOSE") == "8888"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [word.replace("--port=8888", f"--port={port}") for word in json.loads(the("CMD"))]
    assert f"--port={port}" in words and "--ip=0.0.0.0" in words
    if os.geteuid() == 0:
        words.append("--allow-root")  # these tests are root's, the container is not
    environ = {"PATH": f"{BIN}:/usr/bin:/bin", "HOME": str(tmp_path), "JUPYTER_TOKEN": given}
    log = tmp_path / "log"
    (tmp_path / "notebook.ipynb").write_text("{}")
    with log.open("w") as file:
        server = subprocess.Popen(words, cwd=tmp_path, env=environ, stdout=file, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 90
        while "Use Control-C to stop" not in log.read_text():
            assert server.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        token = given or re.findall(r"\?token=(\w+)", log.read_text())[0]
        assert len(token) >= 16
        port = int(re.findall(r"http://[^/]*:(\d+)/lab", log.read_text())[0])  # the next one, if it was taken
        status, place = answer(port, "/lab")
        assert status == 302 and place.startswith("/login")
        for path in ("/api/contents", "/api/kernels"):
            assert [answer(port, path, offered)[0] for offered in (None, "wrong", token)] == [403, 403, 200]
        assert answer(port, "/lab", token)[0] == 200
        server.terminate()
        assert server.wait(timeout=30) in (0, -15)
    finally:
        server.kill()
        server.wait()

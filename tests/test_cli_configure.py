"""`rlnb configure` by lines on its standard input, and on a terminal: a file at the end, or all values."""

import contextlib
import io
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rlnb import cli
from rlnb.params import load_params

COMMAND = [sys.executable, "-m", "rlnb.cli", "configure", "ppo_openspiel", "--profile", "tiny"]


@pytest.fixture
def configure(tmp_path, monkeypatch, capsys):
    """A function that answers `rlnb configure ARGUMENTS` line by line, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def ask(*arguments: str, answers: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(answers))
        return cli.main(["configure", *arguments]), *capsys.readouterr()

    return ask


def test_a_dialogue_ends_in_a_profile_and_the_command_that_runs_it(configure):
    """Wrong names and values are explained and asked again; two fields that only fit together are taken."""
    answers = (
        "spiral\nspiral_self_play\nhuge\ntiny\nmax_step\ntraining.max_steps\nmany\n9\n"
        "model.load_in_4bit=true\nmodel.load_in_4bit=true model.lora_rank=8\n\nx.txt\nnew/mine.yaml\n"
    )
    code, out, err = configure(answers=answers)
    assert (code, err) == (0, "")
    for refused in (
        "'spiral'",
        "'huge'",
        "max_step is",
        "training.max_steps = 'many'",
        "model.lora_rank = 0",
        "x.txt",
    ):
        assert f"\n  {refused}" in out or f"notebook {refused}" in out or f"profile {refused}" in out, refused
    command = shlex.split(out.splitlines()[-1].removeprefix("Run it:  "))
    assert command[:2] == ["rlnb", "run"] and Path(command[2]).is_file()
    changed = {"training": {"max_steps": 9}, "model": {"load_in_4bit": True, "lora_rank": 8}}
    assert command[3:] == ["--profile", "new/mine.yaml"]
    assert load_params("spiral_self_play", profile="new/mine.yaml", environ={}) == load_params(
        "spiral_self_play", profile="tiny", overrides=changed, environ={}
    )


@pytest.mark.parametrize("answers", ["", "main\n\n", "none\n"])
def test_input_that_ends_too_early_is_refused_and_leaves_nothing(configure, answers, tmp_path):
    code, _, err = configure(*COMMAND[4:], answers=answers)
    assert (code, err.startswith("rlnb: configure: the input ended")) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_never_overwritten(configure):
    Path("mine.yaml").write_text("seed: 1\n")
    assert configure(*COMMAND[4:], "--output", "mine.yaml", answers="none\n")[0] == 2
    assert configure(*COMMAND[4:], answers="none\nmine.yaml\nother.yaml\n")[0] == 0
    assert Path("mine.yaml").read_text() == "seed: 1\n" and Path("other.yaml").exists()


def test_print_asks_nothing_and_takes_set(configure):
    code, out, err = configure("mbpp_eval", "--profile", "tiny", "--print", "--set", "seed=3")
    Path("mine.yaml").write_text(out)
    assert (code, err) == (0, "")
    expected = load_params("mbpp_eval", profile="tiny", overrides={"seed": 3}, environ={})
    assert load_params("mbpp_eval", profile="mine.yaml", environ={}) == expected
    assert configure("mbpp_eval", "--print", "--set", "seed=x")[0] == configure("--print")[0] == 2


def test_ctrl_c_writes_nothing(tmp_path):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(COMMAND, cwd=tmp_path, text=True, **pipes) as process:
        printed = ""
        while not printed.endswith("Fields to change [main]: "):
            letter = process.stdout.read(1)
            assert letter, process.stderr.read()
            printed += letter
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=100)
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []


def test_on_a_terminal_lines_can_be_edited(tmp_path):
    """^H deletes the letter before it."""
    ours, theirs = pty.openpty()
    answers = {"change [main": "seed", "seed [": "78\b9", "change [none": "", "write [": "mine.yaml"}
    with subprocess.Popen(COMMAND, stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path) as process:
        os.close(theirs)
        for question, answer in answers.items():
            printed = b""
            while question.encode() not in printed:
                ready, _, _ = select.select([ours], [], [], 200)
                assert ready, printed
                printed += os.read(ours, 1000)
            os.write(ours, f"{answer}\r".encode())
        with contextlib.suppress(OSError):  # closed at the other end
            while os.read(ours, 1000):
                pass
    assert process.returncode == 0
    assert yaml.safe_load((tmp_path / "mine.yaml").read_text())["seed"] == 79

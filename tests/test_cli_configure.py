"""`rlnb configure` by lines on its standard input: a file at the end, or all values."""

import io
import shlex
import sys
from pathlib import Path

import pytest

from rlnb import cli
from rlnb.params import load_params

START = ("ppo_openspiel", "--profile", "tiny")


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
    """Wrong names and values are explained and asked again; fields that only fit together go by --set."""
    answers = "max_step\nseed, training.max_steps\n\nmany\n9\nx.txt\nnew/mine.yaml\n"
    together = ("--set", "model.load_in_4bit=true", "--set", "model.lora_rank=8")
    code, out, err = configure("spiral_self_play", "--profile", "tiny", *together, answers=answers)
    assert (code, err) == (0, "")
    for refused in ("max_step", "training.max_steps = 'many'", "x.txt"):
        assert refused in out, refused
    command = shlex.split(out.splitlines()[-1].removeprefix("Run it:  "))
    assert command[1] == "run" and Path(command[0]).is_file() and Path(command[2]).is_file()
    changed = {"training": {"max_steps": 9}, "model": {"load_in_4bit": True, "lora_rank": 8}}
    assert command[3:] == ["--profile", "new/mine.yaml"]
    assert load_params("spiral_self_play", profile="new/mine.yaml", environ={}) == load_params(
        "spiral_self_play", profile="tiny", overrides=changed, environ={}
    )


@pytest.mark.parametrize("answers", ["", "main\n\n", "none\n"])
def test_input_that_ends_too_early_is_refused_and_leaves_nothing(configure, answers, tmp_path):
    code, _, err = configure(*START, answers=answers)
    assert (code, err.startswith("rlnb: configure: the input ended")) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_never_overwritten(configure):
    Path("mine.yaml").write_text("seed: 1\n")
    assert configure(*START, "--output", "mine.yaml", answers="none\n")[0] == 2
    assert configure(*START, answers="none\nmine.yaml\nother.yaml\n")[0] == 0
    assert Path("mine.yaml").read_text() == "seed: 1\n" and Path("other.yaml").exists()


def test_print_asks_nothing_and_takes_set(configure):
    code, out, err = configure("mbpp_eval", "--profile", "tiny", "--print", "--set", "seed=3")
    Path("mine.yaml").write_text(out)
    assert (code, err) == (0, "")
    expected = load_params("mbpp_eval", profile="tiny", overrides={"seed": 3}, environ={})
    assert load_params("mbpp_eval", profile="mine.yaml", environ={}) == expected
    assert configure("mbpp_eval", "--print", "--set", "seed=x")[0] == configure("spiral", "--print")[0] == 2


def test_ctrl_c_writes_nothing(configure, monkeypatch, tmp_path):
    monkeypatch.setattr("builtins.input", lambda prompt="": exec("raise KeyboardInterrupt"))
    assert configure(*START)[0] == 130
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_asked_again_and_one_in_the_home_is_there(
    configure, monkeypatch, tmp_path
):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    answers = f"none\n/dev/null/x.yaml\n{'x' * 300}.yaml\n~/mine.yaml\n"
    assert configure(*START, answers=answers)[0] == 0
    assert Path("home/mine.yaml").is_file() and not Path("~").exists()

"""`rlnb configure` as a terminal meets it: a process, lines on its standard input, a file at the end."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from rlnb.params import load_params


@pytest.fixture
def environ():
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RLNB_", "MBPP_"))}
    return {**kept, "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def configure(tmp_path, environ):
    """A function that answers `rlnb configure ARGUMENTS` line by line, in an empty directory."""

    def ask(*arguments: str, answers: str = "") -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "rlnb.cli", "configure", *arguments]
        return subprocess.run(
            command, input=answers, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300
        )

    return ask


def test_a_dialogue_ends_in_a_profile_and_the_command_that_runs_it(configure, tmp_path):
    done = configure(
        answers="spiral_self_play\ntiny\n"
        "training.max_steps training.learning_rate\n9\n2e-4\n\nnew/mine.yaml\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
    path = tmp_path / "new" / "mine.yaml"
    written = yaml.safe_load(path.read_text())
    assert (written["training"]["learning_rate"], written["training"]["max_steps"]) == (2e-4, 9)
    command = shlex.split(done.stdout.splitlines()[-1].removeprefix("Run it:  "))
    assert command[:2] == ["rlnb", "run"] and Path(command[2]).is_file()
    assert command[3:] == ["--profile", "new/mine.yaml"]
    params = load_params("spiral_self_play", profile=str(path), environ={})
    assert params == load_params(
        "spiral_self_play",
        profile="tiny",
        overrides={"training": {"max_steps": 9, "learning_rate": 2e-4}},
        environ={},
    )


def test_a_wrong_answer_is_told_why_and_asked_again(configure):
    done = configure(
        *("ppo_openspiel", "--profile", "tiny", "--output", "mine.yaml"),
        answers="model.load_in_4bit training.max_steps\nperhaps\ntrue\n\nmany\n5\n\n",
    )
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    at = [number for number, line in enumerate(lines) if line.startswith("model.load_in_4bit [false]: ")]
    assert lines[at[0] + 1] == "  model.load_in_4bit = 'perhaps' is not one of auto, true, false"
    assert " ".join(line.strip() for line in lines[at[1] + 1 : at[2]]) == (
        "model.lora_rank = 0 trains weights that model.load_in_4bit has quantized; write 16, or false there"
    )
    assert "  training.max_steps = 'many' is not a whole number; write one such as 5000" in lines
    assert "  training.max_steps = 5  (was 3)" in lines
    assert "  model.load_in_4bit = true  (was false)" not in lines


def test_one_can_go_back_skip_ahead_ask_what_is_meant_and_answer_two_at_once(configure, tmp_path):
    done = configure(
        *("ppo_openspiel", "--profile", "tiny", "--output", "mine.yaml"),
        answers="seed output_dir model training.clip\n1\n<\n2\n\n?\n>\n0.1\n"
        "model.lora_rank=8 model.load_in_4bit=auto\n\n",
    )
    assert (done.returncode, done.stderr) == (0, "")
    written = yaml.safe_load((tmp_path / "mine.yaml").read_text())
    assert written["seed"] == 2
    assert written["training"]["clip"] == 0.1
    assert (written["model"]["lora_rank"], written["model"]["load_in_4bit"]) == (8, "auto")
    assert "  model.id is 'tiny' in profile tiny, 'Qwen/Qwen3-4B' in default.yaml.\n" in done.stdout
    assert "model.cache_dir [" not in done.stdout
    assert "-- training: 1 field\n" in done.stdout


def test_input_that_ends_too_early_is_refused_and_leaves_nothing(configure, tmp_path):
    done = configure("ppo_openspiel", "--profile", "tiny", answers="main\n\n")
    assert done.returncode == 2
    assert done.stderr == (
        "rlnb: configure: the input ended where output_dir was asked, and nothing was written; --yes takes "
        "all values as they are\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_writes_nothing(environ, tmp_path):
    command = [sys.executable, "-m", "rlnb.cli", "configure", "ppo_openspiel", "--profile", "tiny"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, env=environ, text=True, **pipes) as process:
        said = ""
        deadline = time.monotonic() + 200
        while not said.endswith("Fields [main]: "):
            assert time.monotonic() < deadline
            said += process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=100)
    assert (process.returncode, error) == (130, "\nNothing was written.\n")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_overwritten_after_a_yes_alone(configure, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("seed: 1\n")
    arguments = ("ppo_openspiel", "--profile", "tiny", "--output", "mine.yaml", "--set", "seed=5")
    done = configure(*arguments, answers="none\n\nno\nother.yaml\n")
    assert done.returncode == 0 and path.read_text() == "seed: 1\n"
    assert "mine.yaml is there already. Overwrite it? yes or no [no]: no\n" in done.stdout
    assert yaml.safe_load((tmp_path / "other.yaml").read_text())["seed"] == 5
    assert configure(*arguments, answers="none\n\nyes\n").returncode == 0
    assert yaml.safe_load(path.read_text())["seed"] == 5


def test_yes_asks_nothing(configure, tmp_path):
    done = configure("mbpp_eval", "--profile", "tiny", "--output", "mine.yaml", "--yes", "--set", "seed=3")
    assert (done.returncode, done.stderr) == (0, "")
    assert yaml.safe_load((tmp_path / "mine.yaml").read_text())["seed"] == 3
    assert "[" not in done.stdout.partition("memory:")[0]


STAGE = "curriculum.stages=[{{name: a, games: [{}], threshold: {}}}]"


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        (STAGE.format("chess_nonsense", 0.7), "curriculum.stages = 'chess_nonsense' "),
        (STAGE.format("kuhn_poker", 0.9), "curriculum.stages: stage 'a': threshold = 0.9 is above 0.6875, "),
        ("evaluation.opponents=[bogus]", "evaluation.opponents = 'bogus'"),
    ],
)
def test_games_that_a_run_would_refuse_are_not_written(configure, tmp_path, assignment, message):
    asked = ("ppo_openspiel", "--profile", "tiny", "--output", "mine.yaml")
    done = configure(*asked, "--yes", "--set", assignment)
    assert done.returncode == 2 and done.stderr.startswith(f"rlnb: {message}")
    assert not (tmp_path / "mine.yaml").exists()


def test_a_game_that_a_run_would_refuse_is_told_and_can_be_mended(configure, tmp_path):
    mended = f"none\nnone\n{STAGE.format('nim', 0.5)}\nnone\n"
    asked = ("ppo_openspiel", "--profile", "tiny", "--output", "mine.yaml")
    done = configure(*asked, "--set", STAGE.format("kuhn_poker", 0.9), answers=f">>\n{mended}")
    assert done.returncode == 0, done.stderr
    assert "threshold = 0.9 is above 0.6875, " in " ".join(done.stdout.split())
    assert "nim" in (tmp_path / "mine.yaml").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ppo_openspeil", "--yes"), "notebook 'ppo_openspeil' is not in params/; known: "),
        (("ppo_openspiel", "--output", "x.txt"), "x.txt: does not end in .yaml, by which profiles are known"),
        (("ppo_openspiel", "--yes", "--set", "seed=x"), "--set: seed = 'x' is not a whole number; write one"),
    ],
)
def test_what_the_command_line_got_wrong_is_refused_before_anything_is_asked(configure, arguments, message):
    done = configure(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"rlnb: {message}")

"""`rlnb configure` by lines on its standard input, and on a terminal: a file at the end."""

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
from typing import NamedTuple

import pytest
import yaml

from rlnb import cli
from rlnb.params import load_params

STAGE = "curriculum.stages=[{{name: a, games: [{}], threshold: {}}}]"
TINY_PPO = ("ppo_openspiel", "--profile", "tiny", "--output", "mine.yaml")


COMMAND = [sys.executable, "-m", "rlnb.cli", "configure", "ppo_openspiel", "--profile", "tiny"]


class Finished(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """All that was printed, without line breaks."""
        return " ".join(self.out.split())


@pytest.fixture
def configure(tmp_path, monkeypatch, capsys):
    """A function that answers `rlnb configure ARGUMENTS` line by line, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for name in [name for name in os.environ if name.startswith(("RLNB_", "MBPP_"))]:
        monkeypatch.delenv(name)

    def ask(*arguments: str, answers: str = "") -> Finished:
        monkeypatch.setattr(sys, "stdin", io.StringIO(answers))
        return Finished(cli.main(["configure", *arguments]), *capsys.readouterr())

    return ask


def read_profile() -> dict:
    return yaml.safe_load(Path("mine.yaml").read_text())


def test_a_dialogue_ends_in_a_profile_and_the_command_that_runs_it(configure):
    asked = "training.max_steps training.learning_rate\n9\n2e-4\n\n"
    finished = configure(answers=f"spiral_self_play\ntiny\n{asked}new/mine.yaml\n")
    assert (finished.code, finished.err) == (0, "")
    command = shlex.split(finished.out.splitlines()[-1].removeprefix("Run it:  "))
    assert command[:2] == ["rlnb", "run"] and Path(command[2]).is_file()
    assert command[3:] == ["--profile", "new/mine.yaml"]
    changed = {"training": {"max_steps": 9, "learning_rate": 2e-4}}
    assert load_params("spiral_self_play", profile="new/mine.yaml", environ={}) == load_params(
        "spiral_self_play", profile="tiny", overrides=changed, environ={}
    )


@pytest.mark.parametrize(
    ("arguments", "answers", "explanations", "written"),
    [
        (
            TINY_PPO,
            "model.load_in_4bit training.max_steps\nperhaps\ntrue\n\nmany\n5\n\n",
            (
                "model.load_in_4bit = 'perhaps' is not one of auto, true, false",
                "model.load_in_4bit [false]: true model.lora_rank = 0 trains weights that model.load_in_4bit "
                "has quantized; write 16, or false there model.load_in_4bit [false]:",
                "training.max_steps = 'many' is not a whole number; write one such as 5000",
                "profile tiny, changed: training.max_steps = 5 (was 3) memory:",
            ),
            "max_steps: 5",
        ),
        (
            (),
            "spiral\nspiral_self_play\nhuge\ntiny\nmax_steps\nnone\nnone\nx.txt\nmine.yaml\n",
            (
                "notebook 'spiral' is not in params/; known: arena_eval, ",
                "profile 'huge' is not in params/spiral_self_play/; known: ",
                "max_steps is neither a field nor a section of spiral_self_play; did you mean "
                "training.max_steps",
                "x.txt: does not end in .yaml, by which profiles are known; add it",
            ),
            "from profile tiny",
        ),
        (
            (*TINY_PPO, "--set", STAGE.format("kuhn_poker", 0.9)),
            f"none\nnone\n{STAGE.format('nim', 0.5)}\nnone\n",
            ("threshold = 0.9 is above 0.6875, ",),
            "nim",
        ),
    ],
    ids=["values", "names", "games"],
)
def test_a_wrong_answer_is_explained_and_asked_again(configure, arguments, answers, explanations, written):
    finished = configure(*arguments, answers=answers)
    assert finished.code == 0, finished.err
    for explanation in explanations:
        assert explanation in finished.words
    assert written in Path("mine.yaml").read_text()


def test_a_question_explains_itself_and_takes_several_fields_at_once(configure):
    fields, several = "seed model.id training.clip", "model.lora_rank=8 model.load_in_4bit=auto"
    finished = configure(*TINY_PPO, answers=f"{fields}\nnothing\nseed=2\n?\n\n0.1\n{several}\n\n")
    assert (finished.code, finished.err) == (0, "")
    written = read_profile()
    assert (written["seed"], written["training"]["clip"]) == (2, 0.1)
    assert (written["model"]["lora_rank"], written["model"]["load_in_4bit"]) == (8, "auto")
    assert "model.id is 'tiny' in profile tiny, 'Qwen/Qwen3-4B' in default.yaml." in finished.words
    assert "-- training: 1 field\n" in finished.out


@pytest.mark.parametrize(
    ("answers", "question"),
    [("", "the fields to ask for"), ("main\n\n", "output_dir"), ("none\n", "what else to change")],
)
def test_input_that_ends_too_early_is_refused_and_leaves_nothing(configure, answers, question, tmp_path):
    finished = configure(*TINY_PPO, answers=answers)
    assert finished.code == 2
    assert finished.err == (
        f"rlnb: configure: the input ended at the question for {question}, and nothing was written; --yes "
        "takes all values as they are\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_overwritten_after_a_yes_alone(configure):
    Path("mine.yaml").write_text("seed: 1\n")
    finished = configure(*TINY_PPO, "--set", "seed=5", answers="none\n\nno\nother.yaml\n")
    assert finished.code == 0 and read_profile() == {"seed": 1}
    assert "mine.yaml exists already. Overwrite it? yes or no [no]: no\n" in finished.out
    assert yaml.safe_load(Path("other.yaml").read_text())["seed"] == 5
    assert configure(*TINY_PPO, "--set", "seed=5", answers="none\n\nyes\n").code == 0
    assert read_profile()["seed"] == 5


def test_yes_asks_nothing(configure):
    finished = configure("ppo_openspeil", "--yes")
    assert (finished.code, finished.out) == (2, "")
    assert finished.err.startswith("rlnb: notebook 'ppo_openspeil' is not in params/; known: ")
    finished = configure("mbpp_eval", *TINY_PPO[1:], "--yes", "--set", "seed=3")
    assert (finished.code, finished.err, read_profile()["seed"]) == (0, "", 3)
    assert "[" not in finished.out.partition("memory:")[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--yes", "--set", STAGE.format("chess_nonsense", 0.7)), "curriculum.stages = 'chess_nonsense'"),
        (
            ("--yes", "--set", STAGE.format("kuhn_poker", 0.9)),
            "curriculum.stages: stage 'a': threshold = 0.9 is above 0.6875, ",
        ),
        (("--yes", "--set", "evaluation.opponents=[bogus]"), "--set: evaluation.opponents = ['bogus'] holds"),
        (("--yes", "--set", "seed=x"), "--set: seed = 'x' is not a whole number; write one"),
        (("--output", "x.txt"), "x.txt: does not end in .yaml, by which profiles are known"),
    ],
)
def test_what_a_run_would_refuse_and_errors_in_the_command_line_are_refused(configure, arguments, said):
    finished = configure(*TINY_PPO, *arguments)
    assert finished.code == 2 and finished.err.startswith(f"rlnb: {said}")
    assert "Fields [" not in finished.out
    assert not Path("mine.yaml").exists()


def test_ctrl_c_writes_nothing(tmp_path):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(COMMAND, cwd=tmp_path, text=True, **pipes) as process:
        printed = ""
        while not printed.endswith("Fields [main]: "):
            letter = process.stdout.read(1)
            assert letter, process.stderr.read()
            printed += letter
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=100)
    assert (process.returncode, error) == (130, "\nNothing was written.\n")
    assert list(tmp_path.iterdir()) == []


def test_on_a_terminal_lines_can_be_edited(tmp_path):
    """Questionary needs a terminal, so this runs in one; ^H deletes the letter before it."""
    ours, theirs = pty.openpty()
    answers = {"Fields [": "seed", "seed [": "78\b9", "change [": "", "write [": "mine.yaml"}
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

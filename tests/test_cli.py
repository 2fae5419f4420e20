"""`rlnb run` as a user meets it: directories, parameters, exit codes, resume; real kernels, no training."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from notebook_files import PARAMETERS, TRAINS_UNTIL_SIGTERM, write_notebook
from waiting import wait_for

from rlnb import cli
from rlnb.errors import DiskFull
from rlnb.params import load_params

NOTEBOOK = Path("grpo_code_execution.ipynb")
GO_ON = ["run", "grpo_code_execution.ipynb", "--out", "here", "--set"]


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("RLNB_", "MBPP_"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def start_run():
    """A function that starts `rlnb run` as a process of its own; what is left at the end is killed."""
    started = []

    def start(*arguments: str, stdout: int = subprocess.PIPE, **environment: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "rlnb.cli", "run", "grpo_code_execution.ipynb", "--profile", "tiny"]
        pipes = {"stdout": stdout, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen([*command, *arguments], env=os.environ | environment, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def run(*arguments: str) -> int:
    return cli.main(["run", "grpo_code_execution.ipynb", "--profile", "tiny", *arguments])


def status_of(directory: str) -> tuple[str, int, int]:
    status = json.loads(Path(directory, "status.json").read_text())
    return status["state"], status["exit"], status["attempt"]


def test_a_run_leaves_notebook_parameters_versions_and_status(capsys):
    write_notebook(
        NOTEBOOK,
        "# Train\n\nWatch the reward.",
        "import sys\nprint(profile, seed, training)\nprint('careful', file=sys.stderr)",
    )
    assert run("--set", "training.max_steps=1", "--set", "seed=7", "--out", "here") == 0
    left = {".lock", "attempt-01.ipynb", "params.yaml", "status.json", "versions.json"}
    assert {path.name for path in Path("here").iterdir()} == left
    assert status_of("here") == ("done", 0, 1)
    params = load_params("grpo_code_execution", profile="here/params.yaml")
    assert (params.output_dir, params.seed, params.training.max_steps) == ("here", 7, 1)
    versions = json.loads(Path("here/versions.json").read_text())
    assert versions["packages"]["papermill"] and versions["machine"]["cpu_count"] >= 1
    printed = capsys.readouterr()
    assert "here/params.yaml 7 {}" in printed.out.splitlines() and "[3/3] Train" in printed.out
    assert printed.err == "careful\n"


def test_a_preempted_run_goes_on_when_run_again(start_run):
    write_notebook(NOTEBOOK, TRAINS_UNTIL_SIGTERM)
    process = start_run()
    directory = "outputs/grpo_code_execution/tiny-001"
    wait_for(Path(directory, "training").exists)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 85
    assert "stopped at step 1 of 90" in err
    assert status_of(directory) == ("preempted", 85, 1)

    again = start_run()
    out, err = again.communicate(timeout=200)
    assert (again.returncode, err) == (0, "")
    assert "going on\n" in out
    assert status_of(directory) == ("done", 0, 2)


def test_a_second_run_is_refused_and_a_closed_terminal_lets_the_first_save(start_run):
    write_notebook(NOTEBOOK, TRAINS_UNTIL_SIGTERM)
    process = start_run("--out", "here")
    wait_for(Path("here/training").exists)
    assert run("--out", "here") == 2
    process.stdout.close()
    process.stderr.close()
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=200) == 85
    assert Path("here/checkpoint").exists()
    assert status_of("here") == ("preempted", 85, 1)


def test_a_run_goes_on_when_nobody_reads_what_it_prints_and_needs_no_terminal(start_run):
    write_notebook(NOTEBOOK, "print('ran')")
    read, write = os.pipe()
    os.close(read)
    process = start_run("--out", "here", stdout=write)
    os.close(write)
    command = f"exec {sys.executable} -m rlnb.cli run grpo_code_execution.ipynb --profile tiny --out there"
    assert subprocess.run(f"{command} <&- >&- 2>&-", shell=True).returncode == 0
    _, err = process.communicate(timeout=200)
    assert (process.returncode, err) == (0, "")
    assert status_of("here") == status_of("there") == ("done", 0, 1)


def test_a_hostile_value_or_a_wrong_notebook_is_one_message_and_leaves_nothing(capsys):
    for parameters, options in ((PARAMETERS, ("--profile", "mine.yaml")), ('profile: str = "auto"', ())):
        write_notebook(NOTEBOOK, parameters=parameters)
        Path("mine.yaml").write_text("seed: 1\0")
        before = set(Path().iterdir())
        assert run(*options) == cli.main(["run", "missing.ipynb"]) == 2
        assert capsys.readouterr().err.replace("\n", "").isprintable()
        assert set(Path().iterdir()) == before


def test_a_finished_run_is_not_run_again_and_an_unfinished_one_not_with_other_parameters(capsys):
    write_notebook(NOTEBOOK, "print('ran')")
    assert run("--out", "here") == 0
    capsys.readouterr()
    assert cli.main(["run", "grpo_code_execution.ipynb", "--out", "here"]) == 0
    assert "finished by attempt 1" in capsys.readouterr().out
    assert cli.main([*GO_ON, "tracking.project=another"]) == 0
    assert cli.main([*GO_ON, "training.learning_rate=1e-4"]) == 2
    assert "training.learning_rate" in capsys.readouterr().err
    write_notebook(NOTEBOOK, "1 / 0")
    assert run("--out", "there", "--set", "training.max_steps=2") == 1
    for change in ("reward.preset=tests", "training.resume=never"):
        assert run("--out", "there", "--set", change) == 2
        assert f"there/params.yaml: {change.partition('=')[0]}" in capsys.readouterr().err


def test_a_run_goes_on_with_other_settings_also_beyond_its_last_step(capsys):
    write_notebook(NOTEBOOK, "print('ran')")
    assert run("--out", "here", "--set", "training.max_steps=2") == 0
    checkpoint = Path("here/checkpoints/checkpoint-2")
    checkpoint.mkdir(parents=True)
    (checkpoint / "trainer_state.json").write_text('{"global_step": 2}')
    (checkpoint / "rlnb.json").write_text('{"files": {}}')
    before = Path("here/params.yaml").read_text()
    assert cli.main([*GO_ON, "training.save_steps=9"]) == 0
    assert "finished by attempt 1" in capsys.readouterr().out
    assert Path("here/params.yaml").read_text() == before
    assert cli.main([*GO_ON, "training.max_steps=3", "--set", "training.learning_rate=1e-4"]) == 0
    assert "here/attempt-02.ipynb" in capsys.readouterr().out
    assert "max_steps: 3" in Path("here/params.yaml").read_text()


def test_a_disk_that_does_not_hold_what_is_printed_is_told():
    command = [sys.executable, "-m", "rlnb.cli", "configure", "mbpp_eval", "--print"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == DiskFull.exit_code and done.stderr.startswith("rlnb: no room is left")


def test_what_is_no_notebook_or_is_missing_is_refused(capsys):
    Path("notebooks").mkdir()
    Path("notebooks", "mine.ipynb").touch()
    assert cli.main(["run", "mine"]) == 2
    assert "notebooks/mine.ipynb" in capsys.readouterr().err


def test_a_refusal_does_not_wait_for_papermill_or_torch_and_a_run_for_no_grammar_of_addresses():
    write_notebook(NOTEBOOK)
    refusal = "['run', 'grpo_code_execution.ipynb', '--profile', 'tiny', '--set', 'training.max_step=3']"
    for program, imported in (
        ("", []),
        (f"assert rlnb.cli.main({refusal}) == 2", ["pydantic"]),
        ("import rlnb.run.papermill_engine.execution", ["nbformat", "papermill", "pydantic"]),
    ):
        looked_for = {"papermill", "nbformat", "torch", "pydantic", "rfc3987_syntax"}
        code = f"import sys, rlnb.cli\n{program}\nprint(sorted({looked_for!r} & set(sys.modules)))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == str(imported)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_after_the_end_leaves_the_exit_code(number):
    script = f"import signal, sys; from rlnb import cli; code = cli.main(); signal.raise_signal({number:d})"
    command = [sys.executable, "-c", f"{script}; sys.exit(code)", "run", "none.ipynb"]
    assert subprocess.run(command, capture_output=True).returncode == 2


@pytest.mark.parametrize("out", ["run{seed}", "{a}", "{}"])
def test_braces_in_a_path_are_letters(out):
    write_notebook(NOTEBOOK, "print('ran')")
    assert cli.main(["run", str(NOTEBOOK), "--profile", "tiny", "--out", out]) == 0
    assert Path(out, "attempt-01.ipynb").exists() and Path(out, "params.yaml").exists()

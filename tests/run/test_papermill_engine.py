"""Real kernels under `papermill --engine rlnb`: signals, deaths, status, sockets, outputs."""

import errno
import io
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import nbformat
import papermill
import pytest
from nbformat.v4 import new_notebook
from notebook_files import write_notebook
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NotebookExecutionManager
from waiting import is_running, status_of, wait_for

from rlnb.errors import DiskFull
from rlnb.run import directory as runs
from rlnb.run.papermill_engine.engine import ForwardingClient, KernelDied, KernelNotStarted, RlnbEngine
from rlnb.run.papermill_engine.execution import execute

SAVES = """
import signal, time, pathlib
from rlnb.errors import Preempted
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
print("step 1", flush=True)
pathlib.Path("training").touch()
while not stop:
    time.sleep(0.02)
print("checkpoint saved")
raise Preempted("stopped at step 1 of 90")
"""
SURVIVES, SAVED = SAVES.partition("raise")[0], "step 1\ncheckpoint saved\n"
SLEEPS = """
import pathlib, time
print("step 1", flush=True)
pathlib.Path("training").touch()
time.sleep(60)
"""


@pytest.fixture
def start_papermill(tmp_path):
    """A function that starts papermill and waits for its training cell; what is left is killed."""
    started = []

    def start(*sources: str) -> subprocess.Popen:
        write_notebook(tmp_path / "in.ipynb", *sources, parameters="")
        command = [sys.executable, "-m", "papermill", "--engine", "rlnb", "--autosave-cell-every", "1"]
        command.append("--log-output")
        with (tmp_path / "printed").open("wb") as file:
            pipes = {"stdout": file, "stderr": subprocess.STDOUT}
            started.append(subprocess.Popen([*command, "in.ipynb", "out.ipynb"], cwd=tmp_path, **pipes))
        if any("training" in source for source in sources):
            wait_for((tmp_path / "training").exists)
            # What a cell printed may be on its way for a while.
            wait_for(lambda: "step 1" in (tmp_path / "printed").read_text())
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_an_evaluation_that_keeps_answers_makes_progress_without_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    for restarts in range(runs.MOST_IDLE_ATTEMPTS + 2):
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
        run_here(tmp_path, "print(1, file=open('completions.jsonl', 'a'))", cwd=tmp_path)
        runs.write_status(tmp_path, replace(runs.read_status(tmp_path), state="preempted", ran_to_limit=True))
    assert runs.read_status(tmp_path).idle_attempts == 0


def run_here(directory: Path, *sources: str, **options) -> nbformat.NotebookNode:
    """Run these cells from this process."""
    notebook = write_notebook(directory / "in.ipynb", *sources, parameters="")
    options = {"engine_name": "rlnb", "progress_bar": False, **options}
    return papermill.execute_notebook(notebook, directory / "out.ipynb", **options)


def outcome_of(directory: Path) -> tuple:
    status = status_of(directory)
    return tuple(status[key] for key in ("state", "exit", "signal", "reason"))


def text_of(path: Path) -> str:
    cells = nbformat.read(path, as_version=4).cells
    return "".join(
        out.text for cell in cells for out in cell.get("outputs", []) if out.output_type == "stream"
    )


@pytest.fixture
def temporary_files(tmp_path, monkeypatch):
    """A temporary directory of our own, short enough for sockets, so that what is left in it can be seen."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as directory:
        monkeypatch.setenv("TMPDIR", directory)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield Path(directory)


@pytest.mark.parametrize(
    ("sources", "sent", "where", "printed"),
    [
        ((SAVES, "print('never')"), signal.SIGTERM, "in cell 1 of 2: stopped at step 1 of 90", SAVED),
        ((SLEEPS,), signal.SIGUSR1, "in cell 1 of 1: the kernel did not handle it", "step 1\n"),
        ((SURVIVES, "# Then", "print('never')"), signal.SIGTERM, "before cell 3 of 3", SAVED),
    ],
    ids=["saves and stops", "dies of it", "survives it"],
)
def test_a_signal_reaches_the_training_cell_and_no_cell_starts_after_it(
    tmp_path, temporary_files, start_papermill, sources, sent, where, printed
):
    process = start_papermill(*sources)
    assert status_of(tmp_path)["state"] == "running"
    process.send_signal(sent)
    process.send_signal(sent)
    assert process.wait(timeout=60) == 1, "papermill's own exit code; `rlnb run` has 85"
    assert outcome_of(tmp_path) == ("preempted", 85, sent.name, f"stopped by {sent.name} {where}")
    assert text_of(tmp_path / "out.ipynb") == printed
    assert list(temporary_files.glob("rlnb-*")) == []


def test_work_that_is_done_twice_shows_its_progress_twice(tmp_path):
    """As the evaluations before and after training, whose bars have one label."""
    work = "show = progress_bar('games')\nshow(0, 3)\nshow(3, 3)"
    terminal = io.StringIO()
    run_here(tmp_path, "from rlnb.display.progress import progress_bar", work, work, stdout_file=terminal)
    assert terminal.getvalue().count("games 3/3\n") == 2


def test_a_signal_that_is_ignored_at_the_start_is_left_alone():
    """SIGHUP is under nohup; slurm/run.sbatch sends SIGUSR1 again when there is a kernel."""
    for ignored, handling in (
        (signal.SIGHUP, runs.handling_signals(lambda *_: None)),
        (signal.SIGUSR1, runs.stopping_early()),
    ):
        before = signal.signal(ignored, signal.SIG_IGN)
        try:
            with handling:
                assert signal.getsignal(ignored) == signal.SIG_IGN
                assert callable(signal.getsignal(signal.SIGTERM))
        finally:
            signal.signal(ignored, before)


def test_a_signal_before_there_is_a_kernel_is_a_preemption(tmp_path, monkeypatch):
    monkeypatch.setattr(
        RlnbEngine, "execute_managed_notebook", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM)
    )
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(runs.StoppedEarly), runs.stopping_early():
        run_here(tmp_path, "x = 1")
    assert signal.getsignal(signal.SIGTERM) == before
    assert outcome_of(tmp_path)[:3] == ("preempted", 85, "SIGTERM")


def test_a_second_ctrl_c_kills_a_kernel_that_does_not_listen(tmp_path, start_papermill):
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    process = start_papermill(deaf + SLEEPS)
    process.send_signal(signal.SIGINT)
    # Two signals at once would be one.
    wait_for(lambda: "SIGINT: passed on to the kernel" in (tmp_path / "printed").read_text())
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)
    assert "SIGINT: killing the kernel" in (tmp_path / "printed").read_text()
    assert status_of(tmp_path)["state"] == "preempted"


@pytest.mark.parametrize(
    ("source", "error", "outcome"),
    [
        ("1 / 0", papermill.PapermillExecutionError, ("failed", 1, "")),
        ("import os\nos.kill(os.getpid(), 9)", KernelDied, ("killed", 138, "SIGKILL")),
    ],
)
def test_a_cell_that_raises_or_kills_its_kernel_is_told_apart(tmp_path, source, error, outcome):
    with pytest.raises(error):
        run_here(tmp_path, "print('step 1', flush=True)", source)
    assert outcome_of(tmp_path)[:3] == outcome and "cell 2 of 2" in outcome_of(tmp_path)[3]
    assert text_of(tmp_path / "out.ipynb") == "step 1\n"


@pytest.mark.parametrize(
    ("kernel", "umask", "exit_code", "reason"),
    [
        ("", 0o777, 1, "Permissions assignment failed"),
        ("raise SystemExit(3)", 0o022, 1, "its process ended by itself, exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", 0o022, 138, "the kernel was killed by SIGKILL in its start"),
    ],
)
def test_a_kernel_that_does_not_start_is_a_failure_unless_it_was_killed(
    tmp_path, monkeypatch, capsys, kernel, umask, exit_code, reason
):
    if kernel:
        (tmp_path / "ipykernel_launcher.py").write_text(kernel)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    notebook = write_notebook(tmp_path / "in.ipynb", "x = 1", parameters="")
    before = os.umask(umask)
    try:
        assert execute(notebook, tmp_path / "out.ipynb", parameters={}) == exit_code
    finally:
        os.umask(before)
    said = capsys.readouterr().err
    assert reason in said and reason in outcome_of(tmp_path)[3]
    assert said.startswith("failed: the kernel did not start: ") == (exit_code == 1)
    assert ("#out-of-memory" in said) == (exit_code == 138)


def test_a_full_temporary_directory_and_an_unknown_kernel_are_told(tmp_path):
    with pytest.raises(KernelNotStarted, match="the kernel did not start: No such kernel named nosuch"):
        run_here(tmp_path, "x = 1", kernel_name="nosuch", language="python")
    client = ForwardingClient(NotebookExecutionManager(new_notebook()))
    client.socket_directory = tmp_path
    error = client._not_started(OSError(errno.ENOSPC, "No space left on device"))
    assert isinstance(error, DiskFull)
    assert str(error).startswith(f"the kernel did not start: {tmp_path}: no room")


def test_a_kernel_that_is_killed_while_it_saves_was_killed(tmp_path, start_papermill):
    process = start_papermill(SURVIVES + "import os\nos.kill(os.getpid(), 9)")
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=60)
    assert outcome_of(tmp_path)[:3] == ("killed", 138, "SIGKILL")


def test_a_killed_run_leaves_no_kernel_and_can_be_run_again(tmp_path, start_papermill):
    process = start_papermill(SLEEPS)
    (kernel,) = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
    process.kill()
    process.wait()
    wait_for(lambda: not is_running(kernel))
    assert runs.read_status(tmp_path).state == "killed"
    run_here(tmp_path, "print('again')")
    assert (status_of(tmp_path)["state"], status_of(tmp_path)["attempt"]) == ("done", 2)


def test_the_kernel_is_this_interpreter_on_private_sockets(tmp_path, temporary_files):
    shows = "import sys, ipykernel.connect as connect\nprint(sys.executable, connect.get_connection_info())"
    run_here(tmp_path, shows)
    executable, connection = text_of(tmp_path / "out.ipynb").split(" ", 1)
    assert executable == sys.executable
    assert '"transport": "ipc"' in connection and f'"ip": "{temporary_files}/' in connection


def test_the_paths_of_sockets_are_short_also_where_the_temporary_directory_is_deep(monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/tmp/" + "d" * 100)
    with runs.socket_directory() as directory:
        assert len(f"{directory}/kernel-ipc-99") <= runs.SOCKET_PATH_BYTES


def test_text_is_one_output_and_figures_keep_their_place(tmp_path):
    prints = (
        "import sys\nfor step in range(3):\n    print('step', step, flush=True)\n"
        "    print(f'\\r{step}/3', end='', file=sys.stderr, flush=True)\n"
        "handle = display('figure', display_id=True)\nprint('after', flush=True)"
    )
    nb = run_here(tmp_path, prints, "handle.update('new figure')")
    outputs = [out.get("text") or out.data["text/plain"] for out in nb.cells[0].outputs]
    assert sorted(outputs[:2]) == ["2/3", "step 0\nstep 1\nstep 2\n"]
    assert outputs[2:] == ["'new figure'", "after\n"]


def test_the_notebook_is_saved_while_a_cell_runs(tmp_path, start_papermill):
    start_papermill("import time\nfor step in range(100):\n    print(step)\n    time.sleep(.1)")
    out = tmp_path / "out.ipynb"
    wait_for(lambda: out.exists() and '"1\\n"' in out.read_text())


def test_an_error_of_the_disk_that_passes_ends_no_run(monkeypatch):
    stale = OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    monkeypatch.setattr(PapermillNotebookClient, "process_message", Mock(side_effect=stale))
    client = ForwardingClient.__new__(ForwardingClient)
    client.stdout_file, client.signals, client.sent = None, [], []
    assert client.process_message({"content": {}}, None, 0) is None
    client.process, client.note_signal = Mock(poll=lambda: None), Mock(side_effect=stale)
    client.forward(signal.SIGUSR1, None)
    assert client.sent == [signal.SIGUSR1]

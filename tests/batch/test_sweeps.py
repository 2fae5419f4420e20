"""Sweeps: which points a file and seeds make, what is refused before any run, and the runs on one machine."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from notebook_files import TRAINS_UNTIL_SIGTERM, write_notebook
from waiting import is_running, wait_for

from rlnb import cli
from rlnb.batch.overview import find_runs
from rlnb.batch.sweeps import load_points, prepare_sweep, read_sweep
from rlnb.batch.sweeps import write_sweep as write_points
from rlnb.errors import ParamsError
from rlnb.params import dump_yaml, load_params
from rlnb.run import directory as runs
from rlnb.run.headless import plan_run

NOTEBOOK = Path("ppo_openspiel.ipynb")
FAILS_AT_SEED_2 = """
import pathlib
if seed == 2 and pathlib.Path("broken").exists():
    raise RuntimeError("seed 2 cannot learn")
print("trained", seed)
"""


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_notebook(NOTEBOOK, "print(output_dir)")


def write_sweep(text: str) -> Path:
    Path("x.yaml").write_text(text)
    return Path("x.yaml")


def sweep(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=300)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "rlnb.cli", "sweep", str(NOTEBOOK), "--profile", "tiny", *arguments]


def states(folder: str) -> dict[str, tuple[str, int]]:
    """Return {name of a point: state and number of attempts} of the points that have started."""
    return {
        path.parent.name: (status.state, status.attempt)
        for path in sorted(Path(folder).glob("*/status.json"))
        if (status := runs.read_status(path.parent))
    }


def test_a_grid_makes_every_combination_with_every_seed():
    path = write_sweep(
        "set: {training.max_steps: 4}\n"
        "grid:\n  training.learning_rate: [1e-5, 2.0e-5]\n  game.style: [compact, full]\n"
    )
    points = load_points(path, seeds="1,3")
    assert [point.name for point in points][:3] == [
        "learning_rate=1e-05_style=compact_seed=1",
        "learning_rate=1e-05_style=compact_seed=3",
        "learning_rate=1e-05_style=full_seed=1",
    ]
    assert len(points) == 8 and points[0].overrides == {
        "training.max_steps": 4, "training.learning_rate": 1e-5, "game.style": "compact", "seed": 1,
    }  # fmt: skip


def test_a_list_makes_its_points_and_seeds_alone_make_points_too():
    path = write_sweep("list:\n- {}\n- {model.lora_rank: 4}\n- {evaluation.opponents: [random, 'mcts:2']}\n")
    names = [point.name for point in load_points(path, seeds=None)]
    assert names == ["unchanged", "lora_rank=4", "opponents=-random-mcts-2"]


def test_what_is_the_same_in_all_points_is_said_to_be_better_off_under_set(capsys):
    constant = "game.style: [compact]"
    load_points(write_sweep(f"grid: {{model.lora_rank: [4, 8], {constant}}}"), seeds="1-2")
    assert capsys.readouterr().err.startswith("x.yaml: game.style is the same in all points")
    load_points(write_sweep(f"grid: {{{constant}}}"), seeds="1-2")
    load_points(
        write_sweep("list: [{game.style: compact, model.lora_rank: 4}, {model.lora_rank: 8}]"), seeds=None
    )
    assert capsys.readouterr().err == ""


def test_names_that_would_be_equal_or_long_are_told_apart():
    path = write_sweep(
        "list:\n- {tracking.project: a/b}\n- {tracking.project: a b}\n"
        f"- {{tracking.project: {'x' * 300}}}\n- {{model.system: {'答' * 120}}}\n"
    )
    names = [point.name for point in load_points(path, seeds=None)]
    assert len(set(names)) == 4 and max(map(len, names)) < 130 and not any("/" in name for name in names)
    for name in names:
        Path(name).mkdir()  # of a length in bytes that a file system takes


@pytest.mark.parametrize(
    ("text", "options", "parts"),
    [
        ("grid: {training.learning_rat: [1.0]}", "", ["training.learning_rat", "point 0"]),
        ("grid: {training.learning_rate: [1.0e-3, -1], seed: [1, 2]}", "", ["= -1", "point 2, "]),
        ("list: [{seed: 1}, {}, {seed: 42}]", "", ["same run as point 1", "point 2, seed=42"]),
        ("grid: {training.max_steps: [1, 2]}", "--seeds 1-501", ["x.yaml: makes 1002 points"]),
        ("grid: {seed: [1]}", "--set seed=2", ["seed: is set"]),
        ("set: {seed: 3}", "", ["x.yaml: needs either grid: or list:"]),
        ("list: [{output_dir: here}]", "", ["x.yaml: output_dir", "point 0"]),
        (None, "", ["--sweep or --seeds"]),
        (None, "--seeds 1-3 --jobs 0", ["--jobs 0"]),
    ],
)
def test_all_points_are_checked_before_one_is_started(capsys, text, options, parts):
    file = [] if text is None else ["--sweep", str(write_sweep(text))]
    assert cli.main(["sweep", str(NOTEBOOK), "--profile", "tiny", *file, *options.split()]) == 2
    message = capsys.readouterr().err
    assert message.startswith("rlnb: ") and all(part in message for part in parts)
    assert not Path("outputs").exists()


def prepare(text: str | None = None, **options) -> "list[str]":
    """Prepare a sweep, and return the names of its points with a star at those that are selected."""
    file = None if text is None else write_sweep(text)
    made = prepare_sweep(NOTEBOOK, profile="tiny", sweep=file, **{"seeds": None, **options})
    write_points(made)
    assert read_sweep(made.directory).points == made.points
    return [point.name + "*" * (index in made.params) for index, point in enumerate(made.points)]


def test_a_sweep_that_grew_keeps_its_points_where_they_are_and_adds_the_new_ones():
    assert prepare(seeds="2-3") == ["seed=2*", "seed=3*"]
    assert prepare(seeds="1-2") == ["seed=2*", "seed=3", "seed=1*"]


def test_a_folder_where_another_sweep_runs_or_waits_in_the_queue_is_left_alone(capsys, monkeypatch):
    arguments = ["sweep", str(NOTEBOOK), "--profile", "tiny", "--seeds", "1-3"]
    points = Path("outputs/ppo_openspiel/seeds-tiny/points.json")
    prepare(seeds="1-2")
    before = points.read_text()
    with runs.locked(points.parent):
        assert cli.main(arguments) == 2
    monkeypatch.setattr("rlnb.batch.overview.jobs_in_queue", lambda jobs: {"31_0": "PENDING"})
    assert cli.main(arguments) == 2
    assert points.read_text() == before


def test_points_run_with_what_was_checked_whatever_the_profile_or_the_environment_says_later(monkeypatch):
    profile = Path("mine.yaml")
    text = "model: {id: tiny, load_in_4bit: false}\nmbpp: {enabled: false}\ntraining: {max_steps: 3}\n"
    profile.write_text(text)
    monkeypatch.setenv("RLNB_TRAINING__LEARNING_RATE", "1e-5")
    made = prepare_sweep(NOTEBOOK, profile="mine.yaml", sweep=None, seeds="1-2", out=Path("s"))
    write_points(made)
    profile.write_text(text.replace("3", "9"))
    monkeypatch.setenv("RLNB_TRAINING__LEARNING_RATE", "0.5")
    for index, directory in enumerate(("s/seed=1", "s/seed=2")):
        options = cli.make_parser().parse_args(read_sweep(made.directory).run_arguments(index))
        plan = plan_run(options.notebook, profile=options.profile, out=Path(options.out))
        assert plan.params == made.params[index].model_copy(update={"output_dir": directory})
        assert not Path(directory, "params.yaml").exists()  # what a run was trained with, once it has begun
        assert (plan.params.training.max_steps, plan.params.training.learning_rate) == (3, 1e-5)
    Path("s/seed=2/point.yaml").unlink()
    with pytest.raises(
        ParamsError, match="seed=2/point.yaml: is missing; run the command that made the sweep"
    ):
        read_sweep(made.directory).run_arguments(1)


def test_a_point_that_has_started_may_change_only_what_its_run_may():
    prepare(seeds="1")
    directory = Path("outputs/ppo_openspiel/seeds-tiny/seed=1")
    prepare(seeds="1", assignments=["model.lora_rank=4"])  # has not begun
    overrides = {"seed": 1, "output_dir": str(directory)}
    params = load_params("ppo_openspiel", profile="tiny", overrides=overrides, environ={})
    (directory / "params.yaml").write_text(dump_yaml(params))
    prepare(seeds="1", assignments=["training.save_steps=2"])
    with pytest.raises(ParamsError, match=r"seed=1/params.yaml: .*lora_rank"):
        prepare(seeds="1", assignments=["model.lora_rank=8"])
    with pytest.raises(ParamsError, match="points.json: was made with"):
        prepare_sweep(NOTEBOOK, profile="cpu", sweep=None, seeds="1", out=directory.parent)


def test_a_task_of_an_array_runs_its_point_alone_by_the_values_of_the_folder():
    write_notebook(NOTEBOOK, "print(seed, training)")
    prepare(seeds="5-6")
    folder = "outputs/ppo_openspiel/seeds-tiny"
    assert cli.main(["sweep", "--point", "1", folder]) == 0
    assert states(folder) == {"seed=6": ("done", 1)}
    assert "seed: 6\n" in Path(folder, "seed=6", "params.yaml").read_text()
    assert cli.main(["sweep", "--point", "2", folder]) == 2


@pytest.mark.parametrize(
    "name", ["../outside", "/tmp/outside", "seed=1/../..", "..", ".", "", "a\\b", "a\nb"]
)
def test_no_point_runs_outside_of_its_sweeps_folder(capsys, name):
    prepare(seeds="1")
    points = Path("outputs/ppo_openspiel/seeds-tiny/points.json")
    points.write_text(points.read_text().replace('"seed=1"', json.dumps(name)))
    assert cli.main(["sweep", "--point", "0", str(points.parent)]) == 2
    assert capsys.readouterr().err.startswith(f"rlnb: {points}: is damaged")
    assert not any(run.is_point for run in find_runs(points.parent))


def test_a_failing_point_ends_no_other_and_the_same_command_tries_it_again():
    write_notebook(NOTEBOOK, FAILS_AT_SEED_2)
    Path("broken").touch()
    finished = sweep("--seeds", "1-2", "--jobs", "2")
    assert finished.returncode == 1
    folder = "outputs/ppo_openspiel/seeds-tiny"
    assert states(folder) == {"seed=1": ("done", 1), "seed=2": ("failed", 1)}
    assert "seed=2 FAILED (exit code 1): cell 3 of 3: RuntimeError: seed 2 cannot" in finished.stdout
    assert "trained 1" in Path(folder, "seed=1", "run.log").read_text()
    Path("broken").unlink()
    again = sweep("--seeds", "1-2")
    assert again.returncode == 0, again.stderr
    assert states(folder) == {"seed=1": ("done", 1), "seed=2": ("done", 2)}


def test_a_signal_reaches_every_point_and_the_same_command_goes_on():
    write_notebook(NOTEBOOK, TRAINS_UNTIL_SIGTERM.replace("SIGTERM", "SIGUSR1"))
    folder = Path("outputs/ppo_openspiel/seeds-tiny")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command("--seeds", "1-3", "--jobs", "2"), **pipes) as running:
        wait_for(lambda: len(list(folder.glob("*/training"))) == 2, seconds=200)
        running.send_signal(signal.SIGUSR1)
        out, err = running.communicate(timeout=200)
    assert running.returncode == 85, out + err
    assert states(str(folder)) == {"seed=1": ("preempted", 1), "seed=2": ("preempted", 1)}
    (folder / "seed=3").mkdir(exist_ok=True)
    (folder / "seed=3" / "checkpoint").touch()
    assert sweep("--seeds", "1-3", "--jobs", "2").returncode == 0
    assert states(str(folder)) == {"seed=1": ("done", 2), "seed=2": ("done", 2), "seed=3": ("done", 1)}


def test_points_save_and_end_with_a_sweep_that_is_killed_and_none_starts_twice():
    write_notebook(NOTEBOOK, TRAINS_UNTIL_SIGTERM)
    folder = Path("outputs/ppo_openspiel/seeds-tiny")
    with subprocess.Popen(command("--seeds", "1-2", "--jobs", "2")) as running:
        wait_for(lambda: len(list(folder.glob("*/training"))) == 2, seconds=200)
        numbers = [runs.read_status(folder / name).pid for name in ("seed=1", "seed=2")]
        try:
            running.kill()
            running.wait()
            wait_for(lambda: {state for state, _ in states(str(folder)).values()} == {"preempted"})
        finally:
            for number in filter(is_running, numbers):
                os.kill(number, signal.SIGKILL)


def test_a_point_that_runs_already_is_named_and_no_other_is_started(capsys):
    prepare(seeds="1-2")
    folder = Path("outputs/ppo_openspiel/seeds-tiny")
    with runs.locked(folder / "seed=2"):
        assert cli.main(["sweep", str(NOTEBOOK), "--profile", "tiny", "--seeds", "1-2"]) == 2
    assert f"rlnb: {folder / 'seed=2'}: process {os.getpid()} on " in capsys.readouterr().err
    assert states(str(folder)) == {}


@pytest.mark.parametrize("given", [["max_steps=2"], ["max_steps=7", "training.max_steps=9", "max_steps=2"]])
def test_set_wins_over_the_files_values_and_of_repeated_ones_the_last_by_whatever_name(given):
    path = write_sweep("set: {training.max_steps: 4}\ngrid: {model.lora_rank: [4, 8]}\n")
    made = prepare_sweep(NOTEBOOK, profile="tiny", sweep=path, seeds=None, assignments=given)
    assert {each.training.max_steps for each in made.params.values()} == {2}


def test_paths_in_the_home_are_those_of_the_home(monkeypatch, tmp_path):
    """Shells leave the ~ of --out=~/s as it is."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    write_notebook(NOTEBOOK, "print(seed)")
    Path("home").mkdir()
    Path("home/mine.yaml").write_text(dump_yaml(load_params("ppo_openspiel", profile="tiny", environ={})))
    write_sweep("grid: {seed: [1]}\n").rename("home/x.yaml")
    done = sweep("--profile=~/mine.yaml", "--sweep=~/x.yaml", "--out=~/s")
    assert done.returncode == 0, done.stderr
    assert Path("home/s/points.json").exists() and Path("home/s/seed=1/attempt-01.ipynb").exists()
    assert not Path("~").exists()


def test_a_field_of_the_grid_is_not_set_for_all_by_another_of_its_names():
    path = write_sweep("grid: {training.max_steps: [1, 2]}\n")
    for assignment in ("max_steps=3", "training_max_steps=3", "training.max_steps=3"):
        with pytest.raises(ParamsError, match="is set by the points, and for all"):
            load_points(path, seeds=None, assignments=[assignment])
    assert len(load_points(path, seeds=None, assignments=["evaluation.max_steps=3"])) == 2

"""`rlnb submit` with a stand-in for SLURM: checks, scripts, arrays, directories."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from notebook_files import write_notebook
from waiting import small_disk

from rlnb import cli
from rlnb.batch.machines import job_machine
from rlnb.batch.submit import count_gpus
from rlnb.errors import ParamsError
from rlnb.machine import Machine, recommend
from rlnb.machine.facts import Gpu
from rlnb.machine.table import MACHINES
from rlnb.params import load_dotenv
from rlnb.run import directory as runs
from rlnb.run.memory import NEEDED
from rlnb.sandbox import Sandbox

NOTEBOOK = "grpo_code_execution.ipynb"


@pytest.fixture(autouse=True)
def login_node(tmp_path, monkeypatch, stand_in) -> Path:
    """A folder with a notebook; sbatch notes its arguments and submits job 31, squeue prints the queue."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(load_dotenv.__kwdefaults__, "project", tmp_path)
    for name in ("CUDA_VISIBLE_DEVICES", "WANDB_API_KEY", "SLURM_JOB_ID", "RLNB_OFFLINE"):
        monkeypatch.setenv(name, "")
    write_notebook(Path(NOTEBOOK))
    Path("model").mkdir()
    Path("model", "config.json").write_text(json.dumps(dict.fromkeys(NEEDED, 64)))
    for name in ("tokenizer.json", "model.safetensors"):
        Path("model", name).touch()
    refuses = 'case "$1" in "$(cat refuses-at)") cat refuses >&2; exit 1; esac'
    stand_in("sbatch", f'cat >/dev/null\necho "$1" >> submitted\n{refuses}\necho 31')
    stand_in("squeue", "cat queue")
    for name in ("queue", "refuses-at"):
        (tmp_path / name).touch()
    return tmp_path


def submit(*arguments: str, sbatch: str = "") -> int:
    return cli.main(["submit", NOTEBOOK, "--profile", "tiny", *arguments, "--", *sbatch.split()])


def header_of(script: Path) -> dict[str, str]:
    lines = [line.removeprefix("#SBATCH --") for line in script.read_text().splitlines() if "#SBATCH" in line]
    return dict(line.partition("=")[::2] for line in lines)


def test_a_run_is_submitted_with_its_script_and_log_in_its_directory(capsys, tmp_path):
    assert submit(sbatch="--time=00:40:00 --cpus-per-task=2 --qos=long --exclusive") == 0
    folder = Path("outputs/grpo_code_execution/tiny-001")
    script = folder / "job.sbatch"
    subprocess.run(["bash", "-n", script], check=True)
    header, name = header_of(script), "grpo_code_execution-tiny-001"
    assert header["output"] == str(tmp_path / folder / f"{name}-%j.log")
    assert [header[key] for key in ("time", "cpus-per-task", "qos")] == ["00:40:00", "2", "long"]
    assert header["signal"] == "B:USR1@300"
    assert "gres" not in header  # the profile is for no GPU
    assert "#SBATCH --exclusive\n" in script.read_text()
    assert f"project={tmp_path}\n" in script.read_text()
    assert f"/rlnb run {NOTEBOOK} --out {folder})\n" in script.read_text()
    assert Path("submitted").read_text().split() == ["--test-only", "--parsable"]
    assert f"tail -F {folder}/{name}-31.log" in capsys.readouterr().out
    assert json.loads((folder / "job.json").read_text())["job"] == "31"


def test_options_of_sbatch_replace_those_of_the_script():
    sbatch = "--time=1-00:00:00 --signal=B:USR1@900 --gres=gpu:volta:2"
    Path("spiral_self_play.ipynb").write_text(Path(NOTEBOOK).read_text())
    command = ["submit", "spiral_self_play.ipynb", "--profile", "v100", "--set", "model.id=tiny"]
    assert cli.main([*command, "--out", "run", "--", *sbatch.split()]) == 0
    header = header_of(Path("run/job.sbatch"))
    assert [header[key] for key in ("time", "signal", "gres")] == ["1-00:00:00", "B:USR1@900", "gpu:volta:2"]
    assert " --nproc 2)\n" in Path("run/job.sbatch").read_text()


def test_the_same_command_goes_on_where_the_job_was_and_waits_for_one_that_is_in_the_queue(capsys):
    first = Path("outputs/grpo_code_execution/tiny-001")
    assert submit() == 0
    Path("queue").write_text("31 PENDING\n")
    assert submit() == 2
    assert f"rlnb: {first}: its job 31 is pending already" in capsys.readouterr().err
    assert submit("--set", "seed=2") == 0  # another run
    Path("queue").write_text("")
    runs.end_attempt(first, runs.start_attempt(first, notebook=""), state="failed")
    assert submit() == 0
    assert sorted(path.name for path in first.parent.iterdir()) == ["tiny-001", "tiny-002"]


@pytest.mark.parametrize("points", [(), ("--seeds", "1-2")])
def test_a_job_that_waits_for_the_one_in_the_queue_is_its_continuation(capsys, points):
    assert submit(*points, "--out", "run") == 0
    Path("queue").write_text("31 RUNNING\n")
    with runs.locked(Path("run")):  # as the run that is running does
        for dependency in ("afterany:31", "afterok:7:31", "singleton"):
            assert submit(*points, "--out", "run", sbatch=f"--dependency={dependency}") == 0
            assert f"#SBATCH --dependency={dependency}\n" in Path("run/job.sbatch").read_text()
        capsys.readouterr()
        for dependency in ("afterany:3", "after:31", "afterany:310", "afterany:7"):
            assert submit(*points, "--out", "run", sbatch=f"--dependency={dependency}") == 2
            assert "-- --dependency=afterany:31" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sbatch", "reason"),
    [
        (("--set", "model.dtype=bfloat16", "--machine", "v100"), "", "model.dtype"),
        (("--set", "training.max_stepz=1"), "", "training.max_stepz"),
        ((), "--gres=gpu:2", "--gres"),
        (("--seeds", "1-2"), "--nodes=2", "--nodes"),
        (("--gpu-memory", "40"), "", "--gpu-memory 40"),
        ((), "--gpus-per-socket=2", "--gpus-per-socket=2: ask"),
        (("--machine", "v100"), "--gpus=3 --nodes=2", "--gpus=3: is not"),
        ((), "--nodes=1-2", "--nodes=1-2: is not a number"),
        ((), "--nodes=0", "--nodes=0: is not a number"),
        ((), "--cpus-per-task=all", "--cpus-per-task=all: is not a number"),
        (("--machine", "v100"), "--gpus-per-node=many", "--gpus-per-node=many: is not"),
        (("--set", "model.id=./model"), "--mem=450M", "of 0.4 GiB: does not fit"),
        (("--set", "model.id=./model"), "--mem-per-cpu=50 --cpus-per-task=4", "of 0.2 GiB: does not fit"),
        ((), "--array=0-9", "--array=0-9: is computed"),
        (("--machine", "h100"), "--nodes=2 --gres=gpu:8 --cpus-per-task=4", "--cpus-per-task=4: write"),
        (("--profile", "auto"), "", "--profile: "),
    ],
)
def test_what_the_job_would_refuse_is_refused_and_nothing_is_submitted(capsys, arguments, sbatch, reason):
    assert submit(*arguments, sbatch=sbatch) == 2
    assert reason in capsys.readouterr().err
    assert not Path("submitted").exists() and not Path("outputs").exists()


def test_ranks_are_as_many_as_the_gpus_that_are_asked_for():
    counts = {
        "gpu:volta:2,tmp:10G": 2, "gpu:4": 4, "gpu": 1, "gpu:volta": 1, "tmp:10G": 0, "gpu:A100:2": 2,
        "gpu:a100-sxm4-80gb:2": 2, "gpu:3090:2": 2, "gres/gpu:2": 2, "gpu:2(S:0-1)": 2, "gpu:a:1,gpu:b:2": 3,
    }  # fmt: skip
    assert {gres: count_gpus({"gres": gres}) for gres in counts} == counts


@pytest.mark.parametrize(
    ("sbatch", "gres"),
    [
        ("--gpus-per-node=volta:2", "gpu:volta:2"),
        ("--gpus-per-task=2", "gpu:2"),
        ("--gpus-per-task=1 --ntasks-per-node=2", "gpu:2"),
        ("--gpus=volta:2", "gpu:volta:2"),
        ("--gpus=4 --nodes=2", "gpu:2"),
        ("--gres=tmp:10G --gpus-per-node=2", "gpu:2,tmp:10G"),
        ("--gres=gpu:volta:1,tmp:10G --gpus-per-node=2", "gpu:2,tmp:10G"),
    ],
)
def test_gpus_of_any_spelling_are_asked_for_once(capsys, sbatch, gres):
    command = ["submit", NOTEBOOK, "--profile", "v100", "--set", "model.id=tiny", "--dry-run"]
    assert cli.main([*command, "--set", "tasks.source=builtin", "--", *sbatch.split()]) == 0
    script = capsys.readouterr().out
    assert f"#SBATCH --gres={gres}\n" in script and "#SBATCH --gpus" not in script
    assert "--nproc 2)" in script or "--ntasks=4 " in script


def test_a_job_asks_for_the_memory_that_its_run_needs_unless_it_is_told(capsys):
    run = ("--set", "model.id=./model", "--dry-run")
    for arguments in (run, (*run, "--seeds", "1-2")):
        assert submit(*arguments, sbatch="--cpus-per-task=1") == 0
        one = capsys.readouterr()
        assert submit(*arguments, sbatch="--cpus-per-task=9") == 0
        nine = capsys.readouterr()
        asked = [int(re.search(r"^#SBATCH --mem=(\d+)G$", each.out, re.M)[1]) for each in (one, nine)]
        needed = float(re.match(r"memory: ([\d.]+) GiB\n", one.err)[1])
        assert 1.5 * needed <= asked[0] < 1.5 * needed + 2
        assert asked[1] - asked[0] == 6  # 1.5 times the 512 MiB of each of eight more programs
        for told in ("--mem=8G", "--mem=0", "--mem-per-cpu=8G", "--mem-per-gpu=8G"):
            assert submit(*arguments, sbatch=told) == 0
            assert re.findall(r"--mem.*", capsys.readouterr().out) == [told]


def test_a_job_chooses_as_was_checked_whatever_memory_its_gpu_has(capsys):
    command = ["submit", NOTEBOOK, "--profile", "v100", "--set", "tasks.source=builtin", "--dry-run"]
    for options, memory in (([], 16), (["--gpu-memory", "32"], 32), (["--seeds", "1-2"], 16)):
        assert cli.main([*command, *options]) == 0
        assert f"\nexport RLNB_GPU_MEMORY={memory}\ncommand=(" in capsys.readouterr().out
    gpu = Machine("v100", "V100", (7, 0), 31.7, 8, "slurm", "offline")
    assert recommend(gpu, environ={}).model_id == "Qwen/Qwen2.5-3B"
    assert recommend(gpu, environ={"RLNB_GPU_MEMORY": "16"}).model_id == "Qwen/Qwen2.5-1.5B"
    assert recommend(gpu, environ={"RLNB_GPU_MEMORY": "80"}).model_id == "Qwen/Qwen2.5-3B"


def test_a_kind_of_machine_stands_for_a_profile_and_the_env_file_counts(capsys):
    command = ["submit", NOTEBOOK, "--set", "model.id=tiny", "--dry-run", "--machine", "v100"]
    assert cli.main(command) == 0
    assert "#SBATCH --gres=gpu:1\n" in capsys.readouterr().out
    assert cli.main([*command, "--seeds", "1-2"]) == 0
    assert "/seeds-v100/" in capsys.readouterr().out  # not this machine's profile
    Path(".env").write_text("RLNB_OFFLINE=1\n")
    assert cli.main(command) == 2
    assert "tasks.source = 'mbpp' is not in" in capsys.readouterr().err


def test_a_job_that_may_lack_a_network_is_warned_of_what_it_would_have_to_download(capsys):
    wanted = ("submit", NOTEBOOK, "--profile", "v100", "--set", "model.id=lab/new", "--dry-run")
    assert cli.main([*wanted, "--set", "model.cache_dir=cache"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("#!")  # a script that is printed stays whole
    assert "warning: a node without a network will refuse this" in printed.err
    assert "model.id = 'lab/new' lacks" in printed.err and "rlnb prefetch" in printed.err
    Path("models.yaml").write_text("grid: {model.id: [tiny, lab/new]}\n")
    words = ("submit", NOTEBOOK, "--profile", "v100", "--sweep", "models.yaml", "--dry-run")
    assert cli.main([*words, "--set", "model.cache_dir=cache"]) == 0
    assert "model.id = 'lab/new' lacks" in capsys.readouterr().err  # of the second point


@pytest.mark.parametrize("row", MACHINES, ids=lambda row: row.name)
def test_a_kind_of_machine_counts_as_its_smallest_gpu_or_asks_for_the_memory(row, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr("rlnb.machine.facts.list_gpus", lambda: (Gpu("GPU-1", "V100", (7, 0), 32.0),))
    many_sizes, smallest = ("ampere", "ada", "rtx_blackwell"), {"v100": 16, "t4": 15, "a100": 40, "h100": 80}
    if row.name in many_sizes:
        with pytest.raises(ParamsError, match="--gpu-memory: is missing; GPUs of the kind"):
            job_machine(None, row.name, None)
        assert job_machine(None, row.name, 22.0).memory_gib == 22.0
    elif row.name == "newer":
        with pytest.raises(ParamsError, match="--machine newer: is none of"):
            job_machine(None, row.name, None)
    elif row.capabilities:
        assert job_machine(None, row.name, None).memory_gib <= smallest.get(row.name, 180)
    else:  # also where this machine has a GPU
        assert job_machine(None, row.name, None).capability is None
        assert job_machine(None, None, None).capability == (7, 0)


@pytest.mark.parametrize("command", ["submit", "sweep"])
def test_a_full_disk_is_one_sentence(command, capsys, tmp_path):
    with small_disk(tmp_path / "small", 2**16):
        with pytest.raises(OSError), (tmp_path / "small" / "filling").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(2**10))
        words = (command, NOTEBOOK, "--profile", "tiny", "--seeds", "1-40", "--out", "small/sweep")
        assert cli.main(words) == 2
    assert "no room is left on its disk" in capsys.readouterr().err


def test_a_profile_by_its_path_is_for_the_machine_that_it_is_named_after():
    assert job_machine("mine/v100.yaml", None, None).name == job_machine("v100", None, None).name == "v100"


def test_a_sweep_and_a_run_do_not_share_a_folder():
    assert submit("--seeds", "1-2", "--out", "sweep") == submit("--out", "run") == 0
    assert submit("--out", "sweep") == submit("--seeds", "1-2", "--out", "run") == 2


@pytest.mark.parametrize("refuses_at", ["--test-only", "--parsable"])
def test_what_slurm_refuses_is_told_in_its_words_with_what_was_asked_and_leaves_nothing(capsys, refuses_at):
    Path("refuses-at").write_text(refuses_at)
    Path("refuses").write_text(
        "sbatch: error: invalid account\nsbatch: error: Batch job submission failed: Invalid account"
    )
    for more in ((), ("--seeds", "1-2")):
        assert submit(*more, sbatch="--account=nobody") == 2
        message = capsys.readouterr().err.splitlines()[-1]
        assert message.startswith(
            "rlnb: sbatch: invalid account; Batch job submission failed: Invalid account."
        )
        assert "--account=nobody" in message and "--account=NAME" in message
        assert [path for path in Path("outputs").rglob("*") if path.is_file()] == []
    assert cli.main(["runs", "."]) == 0
    assert "no runs" in capsys.readouterr().out


def test_the_points_of_a_sweep_are_an_array_without_those_that_are_done(capsys):
    Path("lr.yaml").write_text("grid: {training.learning_rate: [1.0e-5, 2.0e-5]}\n")
    arguments = ("--sweep", "lr.yaml", "--seeds", "1-2")
    assert submit(*arguments, sbatch="--array=%2") == 0
    folder = Path("outputs/grpo_code_execution/lr-tiny")
    script = folder / "job.sbatch"
    assert header_of(script)["array"] == "0-3%2"
    assert header_of(script)["output"].endswith("/lr-tiny/grpo_code_execution-lr-tiny-%A_%a.log")
    assert f'/rlnb sweep {folder} --point "$SLURM_ARRAY_TASK_ID")\n' in script.read_text()
    points = [point["name"] for point in json.loads((folder / "points.json").read_text())["points"]]
    done = runs.start_attempt(folder / points[1], notebook="")
    runs.end_attempt(folder / points[1], done, state="done")
    assert submit(*arguments) == 0
    assert header_of(script)["array"] == "0,2-3"
    assert json.loads((folder / "job.json").read_text())["points"] == [0, 2, 3]


def test_many_points_start_one_sandbox_and_say_how_far_the_checks_are(capsys, monkeypatch):
    started = []
    from_params = Sandbox.from_params
    monkeypatch.setattr(Sandbox, "from_params", lambda given: started.append(given) or from_params(given))
    timeout = ("--set", "sandbox.timeout_seconds=1.25")  # a section that no other test has checked
    assert submit("--seeds", "1-250", "--dry-run", *timeout) == 0
    printed = capsys.readouterr()
    assert "#SBATCH --array=0-249\n" in printed.out
    assert "200 of 250 points checked" in printed.err
    assert len(started) == 1


def test_points_that_wait_in_the_queue_stay_as_they_were_submitted():
    assert submit("--seeds", "1-2") == 0
    folder = Path("outputs/grpo_code_execution/seeds-tiny")
    before = {path: path.read_text() for path in folder.glob("*.*")}
    Path("queue").write_text("31_0 PENDING\n")
    assert submit("--seeds", "1-3", "--set", "training.learning_rate=0.5") == 2
    assert {path: path.read_text() for path in folder.glob("*.*")} == before


def test_a_dry_run_prints_the_script_and_writes_nothing(capsys):
    for options in (("--seeds", "1-2", "--out", "sweep"), ("--out", "run"), ()):
        assert submit(*options, "--dry-run") == 0
        assert capsys.readouterr().out.startswith("#!/bin/bash\n")
    assert not any(Path(name).exists() for name in ("sweep", "run", "outputs", "submitted"))


def test_ranks_on_several_nodes_meet_at_the_first(capsys):
    assert submit("--dry-run", sbatch="--nodes=2 --time=60") == 0
    script = capsys.readouterr().out
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n" in script
    assert "tasks=(--ntasks=2 " in script and "--nproc" not in script
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)

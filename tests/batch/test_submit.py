"""`rlnb submit` and `rlnb run --check` with a stand-in for SLURM: checks, scripts, arrays, directories."""

import json
import os
import re
import shlex
import socket
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest
from transformers import HfArgumentParser
from trl.scripts.vllm_serve import ScriptArguments

from rlnb import cli
from rlnb.machine import Machine, recommend
from rlnb.params import load_dotenv
from rlnb.run import directory as runs

PARAMETERS = 'profile: str = "auto"\noutput_dir: str = "outputs"\nseed: int = 42\ntraining: dict = {}\n'
NOTEBOOK = "grpo_code_execution.ipynb"


@pytest.fixture(autouse=True)
def login_node(tmp_path, monkeypatch) -> Path:
    """A folder with a notebook; sbatch notes its arguments and submits job 31, squeue prints the queue."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(load_dotenv.__kwdefaults__, "project", tmp_path)
    for name in ("CUDA_VISIBLE_DEVICES", "WANDB_API_KEY", "SLURM_JOB_ID", "RLNB_OFFLINE"):
        monkeypatch.setenv(name, "")
    cell = {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": PARAMETERS}
    cells = [{**cell, "outputs": [], "execution_count": None}]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    Path(NOTEBOOK).write_text(json.dumps(notebook))
    refuses = "[ ! -e refuses ] || { cat refuses >&2; exit 1; }"
    commands = {
        "sbatch": f'#!/bin/sh\necho "$1" >> submitted\n{refuses}\necho 31\n',
        "squeue": "#!/bin/sh\ncat queue\n",
    }
    (tmp_path / "bin").mkdir()
    for name, text in commands.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "queue").touch()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path


def submit(*arguments: str) -> int:
    return cli.main(["submit", NOTEBOOK, "--profile", "tiny", *arguments])


def header_of(script: Path) -> dict[str, str]:
    lines = [line.removeprefix("#SBATCH --") for line in script.read_text().splitlines() if "#SBATCH" in line]
    return dict(line.partition("=")[::2] for line in lines)


def test_a_run_is_submitted_with_its_script_and_log_in_its_directory(capsys, tmp_path):
    assert submit("--time", "00:40:00", "--cpus-per-task", "2", "--sbatch-option", "qos=long") == 0
    folder = Path("outputs/grpo_code_execution/tiny-001")
    script = folder / "job.sbatch"
    subprocess.run(["bash", "-n", script], check=True)
    header, name = header_of(script), "grpo_code_execution-tiny-001"
    assert header["job-name"] == name
    assert header["output"] == str(tmp_path / folder / f"{name}-%j.log")
    assert [header[key] for key in ("time", "cpus-per-task", "qos")] == ["00:40:00", "2", "long"]
    assert header["signal"] == "B:USR1@300"
    assert "gres" not in header  # the profile is for no GPU
    assert f"project={tmp_path}\n" in script.read_text()
    assert f"/rlnb run {NOTEBOOK} --out {folder})\n" in script.read_text()
    assert Path("submitted").read_text().split() == ["--test-only", "--parsable"]
    printed = capsys.readouterr().out
    assert f"submitted job 31: {folder}\n" in printed
    assert f"tail -F {folder}/{name}-31.log" in printed
    assert json.loads((folder / "job.json").read_text())["job"] == "31"


def test_the_same_command_goes_on_where_the_job_was_and_waits_for_one_that_is_in_the_queue(capsys):
    first = Path("outputs/grpo_code_execution/tiny-001")
    assert submit() == 0
    Path("queue").write_text("31 PENDING\n")
    assert submit() == 2
    expected = f"rlnb: {first}: its job 31 is pending already. Give another --out, or scancel 31.\n"
    assert capsys.readouterr().err.endswith(expected)
    assert submit("--set", "seed=2") == 0  # another run
    Path("queue").write_text("")
    runs.end_attempt(first, runs.start_attempt(first, notebook=""), state="failed")
    assert submit() == 0
    assert sorted(path.name for path in first.parent.iterdir()) == ["tiny-001", "tiny-002"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--set", "model.dtype=bfloat16", "--machine", "v100"), "is not computed by V100; write float16"),
        (("--set", "training.max_stepz=1"), "training.max_stepz is not a field"),
        (
            ("--warning-seconds", "600", "--time", "10"),
            "--warning-seconds 600: is all of --time 10; write less",
        ),
        (("--time", "soon"), "--time soon: is not a time of SLURM; write 08:00:00, or 2-00:00:00"),
        (("--gpus", "2"), "profile tiny does not tell which GPU that is"),
        (("--seeds", "1-2", "--nodes", "2"), "a point of a sweep has one node and one GPU; write 1"),
        (("--gpu-memory", "40"), "--gpu-memory 40: profile tiny does not tell which GPU that is"),
        (("--gpu-memory", "-3", "--machine", "v100"), "--gpu-memory -3: is not the memory of a GPU"),
        (("--array-parallel", "2"), "--array-parallel 2: is for a sweep; give --sweep or --seeds"),
        (("--sbatch-option", "time=1"), "--sbatch-option time=1: is computed from --time; write that"),
        (("--sbatch-option", "a b"), "write NAME=VALUE, as in --sbatch-option qos=long"),
    ],
)
def test_what_the_job_would_refuse_is_refused_and_nothing_is_submitted(capsys, arguments, reason):
    assert submit(*arguments) == 2
    assert reason in capsys.readouterr().err
    assert not Path("submitted").exists()


def test_a_job_chooses_as_was_checked_whatever_memory_its_gpu_has(capsys):
    command = ["submit", NOTEBOOK, "--profile", "v100", "--set", "tasks.source=builtin"]
    folder = Path("outputs/grpo_code_execution/v100-001")
    for options, memory, model in (([], 16, "Qwen2.5-1.5B"), (["--gpu-memory", "32"], 32, "Qwen2.5-3B")):
        assert cli.main([*command, *options]) == 0
        assert f"Qwen/{model}" in capsys.readouterr().err  # what a node without a network would lack
        assert f"\nexport RLNB_GPU_MEMORY={memory}\ncommand=(" in (folder / "job.sbatch").read_text()
    assert [path.name for path in folder.parent.iterdir()] == ["v100-001"]  # both are the same run
    gpu = Machine("v100", "V100", (7, 0), 31.7, 8, "slurm", "offline")
    assert recommend(gpu, environ={}).model_id == "Qwen/Qwen2.5-3B"
    assert recommend(gpu, environ={"RLNB_GPU_MEMORY": "16"}).model_id == "Qwen/Qwen2.5-1.5B"
    assert recommend(gpu, environ={"RLNB_GPU_MEMORY": "80"}).model_id == "Qwen/Qwen2.5-3B"
    assert cli.main([*command, "--seeds", "1-2"]) == 0
    script = Path("outputs/grpo_code_execution/seeds-v100/job.sbatch").read_text()
    assert "\nexport RLNB_GPU_MEMORY=16\ncommand=(" in script


def test_what_stands_in_the_env_file_is_read_before_the_job_is_checked(capsys, monkeypatch):
    monkeypatch.setenv("RLNB_MODEL__ID", "")  # so that it is taken back
    Path(".env").write_text("RLNB_MODEL__ID=tiny\nRLNB_OFFLINE=1\n")
    assert cli.main(["submit", NOTEBOOK, "--profile", "v100", "--dry-run"]) == 2
    refusal = capsys.readouterr().err
    assert "tasks.source = 'mbpp' is not in" in refusal and "model.id" not in refusal


def test_adapters_are_checked_with_the_base_that_they_name(capsys, monkeypatch):
    Path("adapters").mkdir()
    base = {"base_model_name_or_path": "Qwen/Qwen2.5-0.5B", "r": 16}
    Path("adapters/adapter_config.json").write_text(json.dumps(base))
    Path("export_model.ipynb").write_text(Path(NOTEBOOK).read_text())
    monkeypatch.setenv("RLNB_OFFLINE", "1")
    options = ("--profile", "v100", "--set", "model.adapters=adapters", "--check")
    assert cli.main(["run", "export_model.ipynb", *options]) == 2
    assert "model.id = 'Qwen/Qwen2.5-0.5B' lacks all files" in capsys.readouterr().err


def test_a_profile_that_names_no_machine_is_refused(capsys):
    assert cli.main(["submit", NOTEBOOK, "--profile", "v100", "--set", "model.id=tiny", "--dry-run"]) == 0
    again = ["submit", NOTEBOOK, "--out", "outputs/grpo_code_execution/v100-001", "--dry-run"]
    for more in ([], ["--profile", "auto"], ["--seeds", "1-2"]):
        assert cli.main([*again, *more]) == 2
        assert "which does not tell what machine the job will get" in capsys.readouterr().err
    assert cli.main([*again, "--machine", "v100"]) == 0
    assert "#SBATCH --gres=gpu:1\n" in capsys.readouterr().out
    sweep = ["submit", NOTEBOOK, "--machine", "v100", "--seeds", "1-2", "--dry-run"]
    assert cli.main(sweep) == 0
    assert Path("outputs/grpo_code_execution/seeds-v100/points.json").exists()  # not this machine's profile


def test_ranks_that_cannot_share_the_work_are_refused(capsys):
    for name in ("spiral_self_play", "mbpp_eval"):
        Path(f"{name}.ipynb").write_text(Path(NOTEBOOK).read_text())
    tiny = ["spiral_self_play.ipynb", "--profile", "tiny"]
    for command in (["submit", *tiny, "--nodes", "3"], ["run", *tiny, "--nproc", "3", "--check"]):
        assert cli.main(command) == 2
        assert "games_per_step = 8 cannot be shared by 3 ranks" in capsys.readouterr().err
    assert cli.main(["submit", "mbpp_eval.ipynb", "--profile", "a100", "--gpus", "2"]) == 2
    assert "trains nothing, which several ranks could share" in capsys.readouterr().err


STAGES = '[{"name": "one", "games": ["kuhn_poker"], "opponents": ["perfect"], "threshold": 0.5}]'


@pytest.mark.parametrize(
    ("notebook", "setting", "refusal"),
    [
        (
            "spiral_self_play",
            "game.name=kuhn_poker",
            "evaluation.opponents = 'perfect' cannot play kuhn_poker: only tic_tac_toe is solved.",
        ),
        (
            "ppo_openspiel",
            f"curriculum.stages={STAGES}",
            "curriculum.stages: stage 'one': none of its opponents can play kuhn_poker: 'perfect': only",
        ),
    ],
)
def test_opponents_that_cannot_play_are_refused_before_the_job_waits(notebook, setting, refusal, capsys):
    Path(f"{notebook}.ipynb").write_text(Path(NOTEBOOK).read_text())
    assert cli.main(["submit", f"{notebook}.ipynb", "--profile", "tiny", "--set", setting]) == 2
    assert refusal in capsys.readouterr().err


def test_the_wrong_torch_for_the_job_is_told(capsys):
    command = ["submit", NOTEBOOK, "--set", "model.id=tiny", "--dry-run", "--profile"]
    for profile, kind in (("v100", "volta"), ("h100", "cuda")):
        assert cli.main([*command, profile]) == 0
        told = f"warning: torch here is a CPU's; ./setup.sh {kind} installs the job's\n"
        assert (told in capsys.readouterr().err) == version("torch").endswith("+cpu")
    assert cli.main([*command, "tiny"]) == 0
    assert "torch" not in capsys.readouterr().err


def test_a_folder_of_other_runs_is_no_directory_of_a_run(capsys):
    first = Path("outputs/grpo_code_execution/tiny-001")
    assert submit() == 0
    runs.end_attempt(first, runs.start_attempt(first, notebook=""), state="failed")
    for folder in ("outputs", "outputs/grpo_code_execution"):
        assert cli.main(["run", NOTEBOOK, "--profile", "tiny", "--check", "--out", folder]) == 2
        assert f"--out {folder}: holds other runs; name a folder of its own" in capsys.readouterr().err


def test_a_sweep_and_a_run_do_not_share_a_folder(capsys):
    assert submit("--seeds", "1-2", "--out", "sweep", "--dry-run") == 0
    assert submit("--out", "sweep") == 2
    assert "--out sweep: is the folder of a sweep; name another" in capsys.readouterr().err
    assert submit("--out", "run", "--dry-run") == 0
    assert submit("--seeds", "1-2", "--out", "run") == 2
    assert "--out run: is the directory of a run; name another" in capsys.readouterr().err


def test_what_slurm_refuses_is_told_in_its_words(capsys):
    Path("refuses").write_text("allocation failure: Requested node configuration is not available")
    assert submit() == 2
    refusal = "rlnb: sbatch: allocation failure: Requested node configuration is not available. Ask for what "
    assert refusal in capsys.readouterr().err
    assert Path("submitted").read_text() == "--test-only\n"


def test_the_points_of_a_sweep_are_an_array_without_those_that_are_done(capsys):
    Path("lr.yaml").write_text("grid: {training.learning_rate: [1.0e-5, 2.0e-5]}\n")
    arguments = ("--sweep", "lr.yaml", "--seeds", "1-2", "--array-parallel", "2")
    assert submit(*arguments) == 0
    folder = Path("outputs/grpo_code_execution/lr-tiny")
    script = folder / "job.sbatch"
    assert header_of(script)["array"] == "0-3%2"
    assert header_of(script)["output"].endswith("/lr-tiny/grpo_code_execution-lr-tiny-%A_%a.log")
    assert f'/rlnb sweep {folder} --point "$SLURM_ARRAY_TASK_ID")\n' in script.read_text()
    points = [point["name"] for point in json.loads((folder / "points.json").read_text())["points"]]
    (folder / points[1]).mkdir()
    done = runs.start_attempt(folder / points[1], notebook="")
    runs.end_attempt(folder / points[1], done, state="done")
    assert submit(*arguments) == 0
    assert header_of(script)["array"] == "0,2-3%2"
    assert json.loads((folder / "job.json").read_text())["points"] == [0, 2, 3]


def test_points_that_wait_in_the_queue_stay_as_they_were_submitted(capsys):
    assert submit("--seeds", "1-2") == 0
    folder = Path("outputs/grpo_code_execution/seeds-tiny")
    before = {path: path.read_text() for path in folder.glob("*.*")}
    Path("queue").write_text("31_0 PENDING\n")
    for dry in ((), ("--dry-run",)):
        assert submit("--seeds", "1-3", "--set", "training.learning_rate=0.5", *dry) == 2
        assert "its job 31 is pending already" in capsys.readouterr().err
    assert {path: path.read_text() for path in folder.glob("*.*")} == before


def test_a_dry_run_changes_no_settings_of_a_run_or_a_sweep_that_is_there(capsys):
    for options in (("--seeds", "1-2", "--out", "sweep"), ("--out", "run")):
        assert submit(*options, "--dry-run") == 0
        folder = Path(options[-1])
        assert (
            f"by hand, of which a second submit does not know: sbatch {folder}/job.sbatch"
            in capsys.readouterr().err
        )
        before = {path: path.read_text() for path in folder.glob("*.*")}
        assert submit(*options, "--set", "training.max_steps=9", "--dry-run") == 0
        printed = capsys.readouterr()
        assert printed.out.startswith("#!/bin/bash\n")
        assert f"{folder} keeps its settings, which are others" in printed.err
        assert {path: path.read_text() for path in folder.glob("*.*")} == before
    assert not Path("submitted").exists()


def test_a_job_without_a_limit_of_its_own_is_submitted():
    assert submit("--time", "0", "--out", "run") == 0
    header = header_of(Path("run/job.sbatch"))
    assert (header["time"], header["signal"]) == ("0", "B:USR1@300")


def test_ranks_on_several_nodes_meet_at_the_first(capsys):
    assert submit("--nodes", "2", "--dry-run", "--time", "60") == 0
    script = capsys.readouterr().out
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n" in script
    assert 'master=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):' in script
    assert '--nnodes 2 --node-rank "$SLURM_PROCID" --master "$0"' in script
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert not Path("submitted").exists()


def test_a_check_says_what_another_machine_would_refuse_and_leaves_nothing(capsys):
    def check(*arguments: str) -> int:
        return cli.main(["run", NOTEBOOK, "--profile", "v100", "--check", *arguments])

    assert check("--set", "model.id=tiny") == 0
    printed = capsys.readouterr().out
    assert printed.startswith(
        "outputs/grpo_code_execution/v100-001: grpo_code_execution.ipynb, profile v100, for v100"
    )
    assert "On a node without a network this would be refused:\n" in printed  # MBPP
    assert check("--set", "model.dtype=bfloat16") == 2
    assert check("--gpu-memory", "2", "--set", "model.load_in_4bit=false") == 2
    assert "V100 has 2.0" in capsys.readouterr().err
    assert not Path("outputs").exists()


def test_a_cluster_without_a_network_refuses_what_would_have_to_be_downloaded(capsys, monkeypatch):
    monkeypatch.setenv("RLNB_OFFLINE", "1")
    assert cli.main(["submit", NOTEBOOK, "--profile", "v100"]) == 2
    assert "tasks.source = 'mbpp' is not in ./model_cache" in capsys.readouterr().err


TRAINING = 'echo "training at $VLLM_NODE"'


def run_until_the_training(
    script: str, *, scontrol: str, srun: str, folder: Path, before: str = "", training: str = TRAINING
) -> str:
    """Run a script's lines up to its command with stand-ins for SLURM, and return what they print.

    before: lines before them. training: in place of the command.
    """
    for name, text in (("scontrol", scontrol), ("srun", srun)):
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / "bin" / name).chmod(0o755)
    lines = script[script.index("export VLLM_NODE") : script.index("command=(")]
    finish = 'finish() { echo "exit $1"; exit "$1"; }\n'
    shell = ["bash", "-c", f"set -u\nrun= warned=\n{finish}{before}\n{lines}{training}"]
    environment = {**os.environ, "SLURM_JOB_NODELIST": "nodes", "SLURM_CPUS_PER_TASK": "8"}
    return subprocess.run(shell, env=environment, capture_output=True, text=True, timeout=60).stdout


@pytest.fixture
def vllm_script(capsys, monkeypatch) -> str:
    """The script of a run with a node for vLLM, which is said to be installed."""
    monkeypatch.setattr("rlnb.params.training.installed_version", lambda _: "0.20")
    assert submit("--vllm-node", "--dry-run", "--set", "model.id=tiny") == 0
    return capsys.readouterr().out


def test_a_vllm_server_gets_a_node_of_its_own_and_an_address_that_stays(vllm_script):
    assert "#SBATCH --nodes=2\n" in vllm_script
    served = re.search(r"trl vllm-serve (.*) >(\S+) 2>&1 &", vllm_script)
    words = shlex.split(served[1])
    (arguments,) = HfArgumentParser(ScriptArguments).parse_args_into_dataclasses(words)
    assert (arguments.port, arguments.tensor_parallel_size) == (8000, 1)
    assert arguments.max_model_len == 2048
    params = Path("outputs/grpo_code_execution/tiny-001/params.yaml").read_text()
    assert "server_base_url: http://$VLLM_NODE:8000" in params
    assert submit("--vllm-node", "--dry-run", "--set", "model.id=tiny") == 0  # goes on in the same directory
    assert not Path("outputs/grpo_code_execution/tiny-002").exists()


def test_ranks_of_several_nodes_leave_the_last_one_to_vllm(vllm_script, capsys):
    assert submit("--vllm-node", "--nodes", "2", "--dry-run", "--set", "model.id=tiny") == 0
    script = capsys.readouterr().out
    assert "#SBATCH --nodes=3\n" in script
    assert "tasks=(--nodes=2 --ntasks=2 --kill-on-bad-exit=0 " in script


@pytest.fixture
def server(tmp_path) -> tuple[str, str]:
    """The port and the command of a server that answers as vLLM does when it is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "health").write_text("")
    return str(port), f"python3 -m http.server --directory {tmp_path} --bind 127.0.0.1 {port}"


def test_the_training_waits_until_the_server_answers_and_is_told_where_it_is(vllm_script, tmp_path, server):
    port, serve = server
    script = vllm_script.replace(":8000/health", f":{port}/health")
    assert '--cpus-per-task="$SLURM_CPUS_PER_TASK"' in script
    printed = run_until_the_training(
        script, scontrol="echo first; echo 127.0.0.1", srun=f"sleep 1; exec {serve}", folder=tmp_path
    )
    assert printed == "waiting for vLLM on 127.0.0.1\ntraining at 127.0.0.1\n"


def test_a_server_that_cannot_start_ends_the_job_with_its_reason(vllm_script, tmp_path):
    script = vllm_script.replace(":8000/health", ":9/health")
    printed = run_until_the_training(
        script, scontrol="echo 127.0.0.1", srun="echo CUDA out of memory; exit 1", folder=tmp_path
    )
    assert printed.endswith("vLLM has ended before it was ready: CUDA out of memory\nexit 1\n")


@pytest.mark.parametrize(
    ("before", "srun", "end"),
    [
        ("warned=yes", "", "the time limit is near and vLLM is not ready: loading\nexit 1\n"),
        ("SECONDS=7200", "", "vLLM is not ready after 3600 seconds: loading\nexit 1\n"),
        ("", "kill $PPID;", "stopped before vLLM was ready: loading\nexit 85\n"),
    ],
)
def test_a_server_that_is_not_ready_in_time_ends_the_job_with_the_reason(
    vllm_script, tmp_path, before, srun, end
):
    check = '[ -z "$warned" ]'
    wait = "touch waiting; until [ -e loading ]; do sleep 0.1; done"
    loading = "until [ -e waiting ]; do sleep 0.1; done; echo loading; touch loading"
    printed = run_until_the_training(
        vllm_script.replace(":8000/health", ":9/health").replace(check, f"{wait}\n{check}"),
        scontrol="echo 127.0.0.1",
        srun=f"{loading}; {srun} exec sleep 60",
        folder=tmp_path,
        before=before,
    )
    assert printed.endswith(end)


def test_the_end_of_a_server_is_told_whatever_the_folder_is_called(capsys, monkeypatch, tmp_path, server):
    monkeypatch.setattr("rlnb.params.training.installed_version", lambda _: "0.20")
    assert submit("--vllm-node", "--dry-run", "--set", "model.id=tiny", "--out", "it's a run") == 0
    port, serve = server
    printed = run_until_the_training(
        capsys.readouterr().out.replace(":8000/health", f":{port}/health"),
        scontrol="echo 127.0.0.1",
        srun=f"{serve} & until [ -e training ]; do sleep 0.1; done; kill $!; echo CUDA error",
        folder=tmp_path,
        training="touch training; stop() { exit; }; run=yes; while true; do sleep 0.1; done",
    )
    assert printed.endswith("vLLM has ended: CUDA error\n")


def test_a_server_that_ends_during_the_training_tells_the_run_to_save(vllm_script, tmp_path, server):
    port, serve = server
    printed = run_until_the_training(
        vllm_script.replace(":8000/health", f":{port}/health"),
        scontrol="echo 127.0.0.1",
        srun=f"{serve} & until [ -e training ]; do sleep 0.1; done; kill $!; echo CUDA error",
        folder=tmp_path,
        training="stop() { echo saving; exit; }; run=1; touch training; for _ in {1..90}; do sleep 0.5; done",
    )
    assert printed.endswith("vLLM has ended: CUDA error\nsaving\n")

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rlnb.doctor import Finding, render, report
from rlnb.machine import Machine

LAPTOP = Machine("cpu", "", None, 24.0, 2, "workstation", "reachable")
V100 = Machine("v100", "Tesla V100-SXM2-32GB", (7, 0), 31.7, 8, "supercloud", "offline")
SPARK = Machine("gb10", "NVIDIA GB10", (12, 1), 119.7, 20, "workstation", "reachable")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose only pin is an installed package, set up for a CPU."""
    (tmp_path / "requirements").mkdir()
    for name in ("cpu", "unsloth", "volta"):
        (tmp_path / "requirements" / f"{name}.txt").write_text(f"pytest=={pytest.__version__}  # via dev\n")
    (tmp_path / "rlnb-set").write_text("cpu\n")
    return tmp_path


def findings_of(machine: Machine, project: Path, **environ: str) -> dict[str, Finding]:
    environ = {"NETRC": str(project / "netrc"), **environ}
    return {
        finding.topic: finding
        for finding in report(machine, root=project, environ=environ, prefix=str(project))
    }


def test_a_cpu_machine_needs_neither_gpu_nor_bitsandbytes(project):
    findings = findings_of(LAPTOP, project)
    assert findings["GPU"] == Finding("GPU", "none; 2 cores, 24 GiB of memory")
    assert findings["quantization"].state.endswith("(not needed on a CPU)")
    assert findings["quantization"].remedy == ""
    assert "limits on" in findings["sandbox"].state  # tried for real
    hub = findings_of(replace(LAPTOP, hub="unreachable"), project)["model hub"]
    assert hub.state == "unreachable, runs are offline"
    assert hub.remedy.startswith("did not answer within 3 s. The embedded model and the built-in tasks")
    assert findings_of(V100, project)["GPU"].state == "Tesla V100-SXM2-32GB, capability 7.0, 32 GiB"


@pytest.mark.parametrize(
    ("machine", "name", "remedy"),
    [
        (V100, "volta", ""),
        (V100, "unsloth", "the packages of set unsloth do not serve it: ./setup.sh volta"),
        (SPARK, "unsloth", ""),
        (LAPTOP, "unsloth", "set unsloth needs a GPU and none is visible (normal on a login node)"),
    ],
)
def test_a_set_that_does_not_serve_the_machine_is_named_with_the_one_that_does(
    project, machine, name, remedy
):
    (project / "rlnb-set").write_text(f"{name}\n")
    assert findings_of(machine, project)["GPU"].remedy == remedy


def test_packages_are_compared_with_their_pins_for_this_platform(project):
    (project / "requirements" / "cpu.txt").write_text("pytest==1.0\nno-such-package==2.0\n")
    assert findings_of(LAPTOP, project)["package set"] == Finding(
        "package set",
        "cpu: 0 of 2 packages as pinned",
        f"pytest {pytest.__version__}, pinned 1.0; no-such-package missing, pinned 2.0: "
        "run ./setup.sh to put them back",
    )
    (project / "requirements" / "cpu.txt").write_text("pywinpty==3.1.2 ; os_name == 'nt'  # via terminado\n")
    assert findings_of(LAPTOP, project)["package set"].state == "cpu: 0 of 0 packages as pinned"
    (project / "rlnb-set").unlink()
    assert findings_of(LAPTOP, project)["package set"].remedy == (
        "this Python was not set up to the end: run ./setup.sh"
    )


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (".env", "export WANDB_API_KEY='s3cret' # caf\xe9\n"),
        ("netrc", "machine api.wandb.ai password s3cret\n"),
    ],
)
def test_a_key_is_reported_by_its_place_and_never_printed(project, place, text):
    (project / place).write_text(text, encoding="latin-1")
    findings = findings_of(LAPTOP, project)
    assert findings["W&B key"].state.endswith(place)
    in_environment = findings_of(LAPTOP, project, WANDB_API_KEY="s3cret")
    assert in_environment["W&B key"].state == "in WANDB_API_KEY"
    assert "s3cret" not in render([*findings.values(), *in_environment.values()])


def test_a_token_of_the_hub_is_reported_by_its_place(project):
    assert findings_of(LAPTOP, project, HF_HOME=str(project))["hub token"].state.startswith("none: public")
    (project / "token").write_text("s3cret")
    by_login = findings_of(LAPTOP, project, HF_HOME=str(project))["hub token"].state
    assert by_login.endswith("token") and "s3cret" not in by_login
    assert findings_of(LAPTOP, project, HF_TOKEN="s3cret")["hub token"].state == "in HF_TOKEN"


def test_a_user_without_a_home_has_no_login_and_no_error(project, monkeypatch):
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    with pytest.raises(RuntimeError):
        Path.home()
    assert findings_of(LAPTOP, project, NETRC="")["W&B key"].state.startswith("none")


def test_the_table_marks_shortfalls_and_says_what_to_do_about_each():
    findings = [Finding("GPU", "none"), Finding("disk", "1 GiB free", "free some")]
    findings.append(Finding("torch", "-", "get it", fatal=True))
    assert render(findings).splitlines() == [
        "  GPU     none",
        "! disk    1 GiB free",
        "x torch   -",
        "",
        "What to do:",
        "! disk: free some",
        "x torch: get it",
    ]
    long = Finding("long", "word " * 60, "do this " * 40, fatal=True)
    assert max(map(len, render([*findings, long]).splitlines())) <= 80


def test_the_command_answers_without_torch():
    program = "import sys; from rlnb.doctor import main; code = main(); print('torch' in sys.modules, code)"
    environ = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environ, timeout=200
    )
    assert done.stdout.splitlines()[-1] == "False 0"
    assert "training stack" in done.stdout

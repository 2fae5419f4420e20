import os
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest
from waiting import run_python

from rlnb.doctor import Finding, find_compiler, render, report
from rlnb.machine import Machine
from rlnb.machine.table import MACHINES

LAPTOP = Machine("cpu", "", None, 24.0, 2, "workstation", "reachable")
V100 = Machine("v100", "Tesla V100-SXM2-32GB", (7, 0), 31.7, 8, "supercloud", "offline")
SPARK = Machine("gb10", "NVIDIA GB10", (12, 1), 95.8, 20, "workstation", "reachable")


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
    assert "bitsandbytes" not in findings["engine"].state and "compiler" not in findings
    assert "limits on" in findings["sandbox"].state  # tried for real
    hub = findings_of(replace(LAPTOP, hub="unreachable"), project)["model hub"]
    assert hub.state == "unreachable, runs are offline" and hub.remedy


@pytest.mark.parametrize("row", MACHINES, ids=lambda row: row.name)
def test_every_gpu_that_computes_needs_what_triton_compiles_with(row, tmp_path, monkeypatch):
    (capability, *_) = (*row.capabilities, {"newer": (13, 0)}.get(row.name))
    machine = Machine(row.name, "", capability, 24.0, 8, "workstation", "not asked")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))

    def remedies() -> list[str]:
        return [finding.remedy for finding in find_compiler(machine)]

    if row.profile == "cpu":
        assert remedies() == []
        return
    assert "a C compiler and Python.h" in remedies()[0]
    (tmp_path / "Python.h").touch()
    assert "needs a C compiler:" in remedies()[0]
    (tmp_path / "gcc").touch(mode=0o755)
    assert remedies() == [""]


def test_a_set_that_does_not_serve_the_machine_is_named_with_the_one_that_does(project):
    said = {}
    for machine, name in ((V100, "volta"), (V100, "unsloth"), (SPARK, "unsloth"), (LAPTOP, "unsloth")):
        (project / "rlnb-set").write_text(f"{name}\n")
        said[machine.name, name] = findings_of(machine, project)["GPU"].remedy
    assert (said["v100", "volta"], said["gb10", "unsloth"]) == ("", "")
    assert "./setup.sh volta" in said["v100", "unsloth"] and "needs a GPU" in said["cpu", "unsloth"]


def test_packages_are_compared_with_their_pins_for_this_platform(project):
    (project / "requirements" / "cpu.txt").write_text("pytest==1.0\nno-such-package==2.0\n")
    finding = findings_of(LAPTOP, project)["package set"]
    assert finding.state == "cpu: 0 of 2 packages as pinned"
    assert f"pytest {pytest.__version__}, pinned ==1.0; no-such-package missing, " in finding.remedy
    (project / "requirements" / "cpu.txt").write_text("pywinpty==3.1.2 ; os_name == 'nt'  # via terminado\n")
    assert findings_of(LAPTOP, project)["package set"].state == "cpu: 0 of 0 packages as pinned"
    (project / "rlnb-set").unlink()
    assert "./setup.sh" in findings_of(LAPTOP, project)["package set"].remedy


def test_a_key_is_found_in_a_login_in_env_and_in_the_environment_and_never_printed(project):
    assert findings_of(LAPTOP, project)["W&B key"].state.startswith("none: ")
    netrc, dotenv = project / "netrc", project / ".env"
    netrc.write_text("machine api.wandb.ai login user password s3cret\n")
    by_login = findings_of(LAPTOP, project)
    netrc.unlink()
    dotenv.write_text("export WANDB_API_KEY='s3cret' # caf\xe9\n", encoding="latin-1")
    in_dotenv = findings_of(LAPTOP, project)
    assert by_login["W&B key"].state == in_dotenv["W&B key"].state == "there"
    assert "s3cret" not in render([*by_login.values(), *in_dotenv.values()])
    assert findings_of(LAPTOP, project, HF_HOME=str(project))["hub token"].state.startswith("none: ")
    (project / "token").write_text("s3cret")
    assert findings_of(LAPTOP, project, HF_HOME=str(project))["hub token"].state == "there"


def test_the_command_answers_without_torch():
    program = "import sys; from rlnb.doctor import main; code = main(); print('torch' in sys.modules, code)"
    done = run_python(program, env={**os.environ, "HF_HUB_OFFLINE": "1"}, timeout=200)
    assert done.stdout.splitlines()[-1] == "False 0"
    assert "training stack" in done.stdout
    said = render([Finding("GPU", "none"), Finding("disk", "1 GiB free", "free some", fatal=True)])
    assert said.splitlines() == [
        "  GPU    none",
        "x disk   1 GiB free",
        "",
        "What to do:",
        "x disk: free some",
    ]

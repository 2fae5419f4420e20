"""What setup.sh and requirements/ promise, as far as can be seen without installing."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from jupyterlab_server.settings_utils import get_settings
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
SETS = ("cpu", "cuda", "vllm", "unsloth", "volta")
PIN = re.compile(r"^([a-z0-9][a-z0-9._-]*)==(\S+)", re.MULTILINE)


def pins(name: str) -> dict[str, str]:
    return dict(PIN.findall((ROOT / "requirements" / f"{name}.txt").read_text()))


@pytest.mark.parametrize("path", sorted((ROOT / "requirements").glob("*.txt")), ids=lambda path: path.name)
def test_requirement_files_name_no_host_and_no_path(path):
    for line in path.read_text().splitlines():
        requirement = line.split("#")[0]
        assert not re.search(r"https?:|file:|://|@|/|^-|\+", requirement), line


def test_the_cpu_set_brings_no_cuda():
    # nvidia-ml-py is a few modules in Python that ask a driver, if there is one.
    cuda = r"nvidia-(?!ml-py$)|cuda-|triton|bitsandbytes|xformers|unsloth"
    assert [name for name in pins("cpu") if re.match(cuda, name)] == []


@pytest.mark.parametrize("name", SETS)
def test_the_tools_move_no_package_of_a_set(name):
    assert {tool: pin for tool, pin in pins("dev").items() if pins(name).get(tool, pin) != pin} == {}


@pytest.mark.parametrize("script", ["setup.sh", "requirements/compile.sh", "slurm/run.sbatch", ".ci/run"])
def test_shell_scripts_parse(script):
    subprocess.run(["bash", "-n", ROOT / script], check=True)


def test_jupyterlab_saves_widgets_by_the_settings_that_setup_installs(tmp_path):
    shutil.copy(ROOT / "requirements" / "jupyterlab.json", tmp_path / "overrides.json")
    name = "@jupyter-widgets/jupyterlab-manager:plugin"
    extensions = Path(sys.prefix, "share", "jupyter", "labextensions")
    folders = {"app_settings_dir": tmp_path, "schemas_dir": tmp_path, "settings_dir": tmp_path}
    found, _ = get_settings(**folders, labextensions_path=[str(extensions)], schema_name=name)
    assert found["schema"]["properties"]["saveState"]["default"] is True


def test_a_notebook_that_was_only_run_is_not_changed_for_git_and_an_edited_one_is(tmp_path):
    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout

    path = tmp_path / "notebooks" / "00_start.ipynb"
    for source in (".gitattributes", ".gitconfig", "notebooks/00_start.ipynb"):
        (tmp_path / source).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / source, tmp_path / source)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "nbstripout").symlink_to(Path(sys.executable).with_name("nbstripout"))
    git("init", "--quiet")
    git("add", ".gitattributes", "notebooks")  # as they are: git does not know the filter yet
    git("config", "include.path", "../.gitconfig")
    notebook = nbformat.read(path, as_version=4)
    place = {"metadata": {"path": str(ROOT)}}
    NotebookClient(notebook, kernel_name="python3", allow_errors=True, resources=place).execute()
    notebook.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    nbformat.write(notebook, path)
    assert '"execution_count": 1' in path.read_text() and git("diff", "--stat") == ""
    notebook.cells[-1].source += "\nedited"
    nbformat.write(notebook, path)
    assert "1 file changed, 2 insertions(+), 1 deletion(-)" in git("diff", "--stat")
    (tmp_path / ".venv").rename(tmp_path / "none")  # without it git takes notebooks as they are
    git("add", "notebooks")
    assert '"execution_count": 1' in git("show", ":notebooks/00_start.ipynb")


def test_setup_refuses_an_unknown_kind_and_touches_nothing():
    done = subprocess.run([ROOT / "setup.sh", "toaster"], capture_output=True, text=True, cwd="/")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'toaster'" in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("kind", "command", "prints"), [("volta", "uname", "aarch64"), ("vllm", "getconf", "glibc 2.28")]
)
def test_setup_refuses_a_set_that_has_no_wheels_for_this_machine(kind, command, prints, tmp_path):
    shutil.copy(ROOT / "setup.sh", tmp_path)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": "/nowhere/python"}
    (tmp_path / command).write_text(f"#!/bin/sh\necho '{prints}'\n")
    (tmp_path / command).chmod(0o755)
    done = subprocess.run([tmp_path / "setup.sh", kind], capture_output=True, text=True, env=environ)
    assert done.returncode == 2 and done.stderr.startswith(f"setup.sh: {kind}: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["setup.sh", command])


def test_a_machine_that_was_told_of_no_wheels_takes_torchs_build_for_cpus(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text("#!/bin/sh\necho cp311\n")
    (tmp_path / "bin" / "python").chmod(0o755)
    chosen = re.search(r"^choose_torch_backend\(\) \{.*?^\}", (ROOT / "setup.sh").read_text(), re.M | re.S)[0]
    script = f"set -euo pipefail\nset=cpu\nvenv={tmp_path}\n{chosen}\nchoose_torch_backend\n"
    command = ["bash", "-c", f"{script}echo $UV_TORCH_BACKEND"]
    done = subprocess.run(command, cwd=ROOT, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "cpu\n"), done.stderr


def test_a_models_folder_may_have_a_blank_in_its_name():
    command = ["make", "-n", "coder", "MODEL=/data/my models/x"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--set 'model.id=/data/my models/x'" in done.stdout


def test_a_gpu_machine_tries_unsloth_also_where_a_test_without_it_fails(tmp_path):
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\ncase "$*" in *" -m gpu "*) exit 1 ;; esac\n'
    )
    python.chmod(0o755)
    command = ["make", "-o", ".venv/rlnb-set", "test-gpu", f"BIN={tmp_path}", f"READY={tmp_path}/python"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    first, _, second = (tmp_path / "calls").read_text().splitlines()
    assert "tests/gpu " in first and "unsloth_paths.py" in second and done.returncode != 0

"""Load, resolve and check the parameters of a run, for the commands and for a notebook's first cell."""

import functools
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from rlnb.errors import ParamsError
from rlnb.machine import Machine, Recommendation, installed_version, probe, recommend, world_size
from rlnb.params import asks_network, check_machine, check_servers, load_dotenv, load_params, resolve
from rlnb.params.loading import choose_profile
from rlnb.params.reading import CELL
from rlnb.params.resolving import warn_of_downloads
from rlnb.params.sections import NotebookParams, SandboxParams
from rlnb.run.launcher import check_ranks
from rlnb.run.memory import check_memory, check_positions
from rlnb.sandbox import Sandbox


class Values(NamedTuple):
    """What a run is asked for, as `load_params` takes it."""

    profile: str = "auto"
    cell: Mapping[str, object] = {}
    overrides: Mapping[str, object] = {}
    place: str = CELL


class Prepared(NamedTuple):
    """The parameters of a run on a machine.

    saved: as params.yaml has them, "auto" where the machine decides. params: without. lines: the estimate of
    memory, and a warning of texts that are long for the model.
    """

    saved: NotebookParams
    params: NotebookParams
    machine: Machine
    advice: Recommendation
    lines: tuple[str, ...] = ()


def prepare(notebook: str, values: Values, *, machine: Machine | None = None, num_ranks: int = 1) -> Prepared:
    """Return the parameters of a run, checked for its machine before anything large is loaded.

    notebook: its name. machine, num_ranks: that it is for, and that it starts there; None is this machine,
    whose servers are asked as well. Raises ParamsError or SandboxUnavailable.
    """
    prepared = load(notebook, values, machine=machine)
    params = prepared.params
    if machine is None and hasattr(params, "model"):
        check_gpu(prepared.machine, os.environ, torch=installed_version("torch") or "")
    if machine is None and num_ranks != 1:
        check_ranks(num_ranks, os.environ, prepared.machine)
    if max(num_ranks, world_size()) > 1 and "training" not in type(params).model_fields:
        raise ParamsError(f"{notebook}.ipynb trains nothing that several ranks could share; run it on one")
    ranks = {"WORLD_SIZE": str(num_ranks)} if num_ranks > 1 else {}
    check_machine(params, prepared.machine, environ={**os.environ, **ranks})
    params.check_files()
    if machine is None:
        check_servers(params)
    lines = [check_positions(params), check_memory(params, prepared.machine)]
    if machine is not None:
        lines.append(warn_of_downloads(params, machine))
    if isinstance(sandbox := getattr(params, "sandbox", None), SandboxParams):
        _check_sandbox(sandbox)
    return prepared._replace(lines=tuple(filter(None, lines)))


def check_gpu(machine: Machine, environ: Mapping[str, str], *, torch: str) -> None:
    """Raise ParamsError in a job of SLURM for a GPU that would compute on the CPU, without a word, for days.

    RLNB_GPU_MEMORY is set by `rlnb submit`; SLURM tells the GPUs of other jobs. torch: its version.
    """
    is_given = environ.get("SLURM_JOB_GPUS") and environ.get("CUDA_VISIBLE_DEVICES") != ""
    if not is_given and not environ.get("RLNB_GPU_MEMORY"):
        return
    if torch.endswith("+cpu"):
        kind = "volta" if machine.name == "v100" else "cuda"
        raise ParamsError(
            f"torch {torch}: does not see this job's GPU; ./setup.sh {kind} installs one that does"
        )
    if machine.name == "older":
        raise ParamsError(
            f"{machine.accelerator}: is older than Volta, so the CPU would compute; ask for another GPU, "
            "or a job without one"
        )
    if machine.capability is None:
        raise ParamsError(
            f"this job is for a GPU, and {socket.gethostname()} shows it none. Ask for one (--gres=gpu:1), "
            "or see what nvidia-smi says there; a run on a CPU needs a CPU's profile and a job without a GPU"
        )


def load(notebook: str, values: Values, *, machine: Machine | None = None) -> Prepared:
    """Return the parameters of a run without the checks of `prepare`; .env goes into the environment."""
    load_dotenv(Path.cwd())
    here, profile = machine or probe(ask_hub=False), values.profile
    if profile == "auto":
        profile = choose_profile(notebook, recommend(here).profile)
    saved = load_params(notebook, **values._replace(profile=profile)._asdict())
    if machine is None and asks_network(saved):
        here = probe()
    advice = recommend(here)
    return Prepared(saved, resolve(saved, advice), here, advice)


@functools.cache
def _check_sandbox(sandbox: SandboxParams) -> None:
    """Start a sandbox and end it, once for all points of a sweep. Raises SandboxUnavailable."""
    Sandbox.from_params(sandbox).close()

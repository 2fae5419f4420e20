"""The set-up cell of every notebook, and access to the cells that readers are meant to edit."""

import ast
import json
import os
import platform
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import TracebackType

from IPython import get_ipython
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display
from matplotlib.figure import Figure
from matplotlib_inline.config import InlineBackend
from safetensors import SafetensorError

import rlnb
from rlnb.display.plots import as_png
from rlnb.display.tables import Table, fold, show_facts
from rlnb.errors import DiskFull, OutOfMemory
from rlnb.machine import (
    Machine,
    Recommendation,
    apply_environment,
    check_python,
    installed_version,
    world_size,
)
from rlnb.machine.threads import set_threads
from rlnb.params import describe_params, load_params
from rlnb.params.cell import find_given_values
from rlnb.params.resolving import loaded_id
from rlnb.params.sections import ModelParams, NotebookParams, Section, value_of
from rlnb.run.disk import telling_full_disk
from rlnb.run.interactive import HELD, begin, end, is_run_by_parent
from rlnb.run.memory import memory_advice
from rlnb.run.prepare import Values, prepare

ROOT = Path(rlnb.__file__).resolve().parents[1]
PACKAGES = ("torch", "transformers", "trl", "peft", "open_spiel")


def start(notebook: str, cell: Mapping[str, object]) -> tuple[NotebookParams, Machine]:
    """Return the checked parameters of a run and the facts of this machine, and show both.

    cell: `globals()` of the notebook, of which the names that the parameters cell assigns are read. In
    JupyterLab it moves to the project's directory and begins the run, or goes on with it. Reads .env, and
    sets what has to be set before torch is imported. Raises ParamsError for parameters that are wrong, or
    that this machine or the run's directory cannot serve or hold, before anything large is loaded.
    """
    check_python()
    given = find_given_values(cell)
    output_dir = given.get("output_dir", "auto")
    is_by_parent = output_dir != "auto" and is_run_by_parent(str(output_dir))
    if not is_by_parent and ROOT in Path.cwd().parents:  # the notebook's folder, in JupyterLab
        os.chdir(ROOT)
    prepared = prepare(notebook, Values(profile=str(given.pop("profile", "auto")), cell=given))
    _, params, machine, advice, lines = prepared
    if not is_by_parent:
        params = begin(notebook, prepared, None if output_dir == "auto" else Path(params.output_dir))
    apply_environment(advice)
    model = getattr(params, "model", None)
    if model is not None and model.engine == "unsloth":
        os.environ.setdefault("UNSLOTH_COMPILE_LOCATION", str(compile_folder(model)))
        # It reads some config.json without cache_dir. huggingface_hub, imported below, keeps the variable.
        os.environ["HF_HUB_CACHE"] = str(Path(model.cache_dir).resolve())
        import unsloth  # noqa: F401  # patches transformers and trl, so it is imported before them
    if hasattr(params, "model"):
        hide_bars_of_weights()
    num_threads = max(getattr(section, "num_threads", 0) for _, section in params)
    set_threads(num_threads)
    join_ranks(machine)
    shell = get_ipython()
    if shell is not None:
        advise_on_memory_and_disk(shell, params)
        show_figures(shell, notebook, params)
    for line in (*advice.warnings, *lines):
        print(line)
    display(*_show_parameters(notebook, params))
    display(show_facts(_facts(params, machine, advice, num_threads)))
    return params, machine


def finish(params: NotebookParams) -> dict[str, str]:
    """Record that the run is done, let others into its directory, and return its files, the model first."""
    directory = Path(params.output_dir)
    end(directory, "done")
    HELD.close()
    paths = {path.name: str(path) for path in sorted(directory.glob("[!.]*"))}
    trained = paths.pop("adapters", None)
    return ({"adapters, the trained model": trained} if trained else {}) | paths


def compile_folder(model: ModelParams) -> Path:
    """Return where unsloth keeps the code that it has compiled: a folder for its version and the model.

    Runs share it, so only the first one of a model compiles for minutes; unsloth locks the files.
    """
    name = re.sub(r"[^\w.-]+", "--", loaded_id(model))
    return Path(model.cache_dir, "unsloth_cache", f"{installed_version('unsloth')}-{name}").resolve()


def join_ranks(machine: Machine) -> None:
    """Let the ranks of a run find each other, before anything asks how many there are.

    accelerate counts ranks on CPUs only where its first caller says `cpu`; otherwise each would train alone.
    """
    if world_size() > 1:
        from accelerate import PartialState

        PartialState(cpu=machine.capability is None)


def hide_bars_of_weights() -> None:
    """Switch off transformers' bars, broken widgets in a saved notebook; those of downloads stay."""
    from huggingface_hub.utils import are_progress_bars_disabled, enable_progress_bars
    from transformers.utils.logging import disable_progress_bar

    downloads_have_bars = not are_progress_bars_disabled()
    disable_progress_bar()  # and the hub's
    if downloads_have_bars:
        enable_progress_bars()


def advise_on_memory_and_disk(shell: InteractiveShell, params: NotebookParams) -> None:
    """Let CUDA's out-of-memory error and that of a full disk, in any cell, say what to do."""

    def explain(
        shell: InteractiveShell, kind: type, error: Exception, traceback: TracebackType, **_: object
    ) -> None:
        try:
            with telling_full_disk(params.output_dir), memory_advice(params):
                raise error
        except (DiskFull, OutOfMemory):
            shell.showtraceback()
        except Exception:
            shell.showtraceback((kind, error, traceback), running_compiled_code=True)

    # torch raises RuntimeError for a full disk, and CUDA's error is one, too.
    shell.set_custom_exc((OSError, RuntimeError, SafetensorError), explain)


def show_figures(shell: InteractiveShell, notebook: str, params: NotebookParams) -> None:
    """Let figures be pictures with an alternative text, stamped where a run is as short as profile tiny's."""
    length = "training.max_steps"
    tiny = load_params(notebook, profile="tiny", environ={})
    is_tiny = hasattr(params, "training") and value_of(params, length) <= value_of(tiny, length)
    stamp = "tiny: shows that the cells run, not what is learned" if is_tiny else ""
    InlineBackend.instance(parent=shell).figure_formats = set()  # its own pictures would be preferred
    shell.display_formatter.mimebundle_formatter.for_type(Figure, partial(as_png, stamp=stamp))


def load_cell(notebook: str, tag: str, namespace: dict[str, object] | None = None) -> dict[str, object]:
    """Execute a tagged code cell of a notebook, without what it shows, and return its namespace.

    namespace: the names that the cell uses, such as params. Raises LookupError unless exactly one cell has
    the tag.
    """
    path = ROOT / "notebooks" / f"{notebook}.ipynb"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    sources = ["".join(cell["source"]) for cell in code if tag in cell["metadata"].get("tags", [])]
    if len(sources) != 1:
        raise LookupError(f"{path}: {len(sources)} code cells are tagged {tag!r}; tag exactly one")
    namespace = {} if namespace is None else namespace
    tree = ast.parse(sources[0])
    tree.body = [statement for statement in tree.body if not isinstance(statement, ast.Expr)]
    exec(compile(tree, f"{path.name}:{tag}", "exec"), namespace)
    return namespace


def _show_parameters(notebook: str, params: NotebookParams) -> tuple[Table, object]:
    """Return the parameters that differ from default.yaml, and all of them folded."""
    default = load_params(notebook, profile="default", environ={})
    rows = describe_params(params)
    changed = [
        row[:3]
        for row in rows
        if row.field != "output_dir" and value_of(params, row.field) != value_of(default, row.field)
    ]
    headers = ["parameter", "value", "set by", "meaning"]
    caption = f"Profile {params._profile}. {len(changed)} of {len(rows)} parameters differ from default.yaml."
    return Table(headers[:3], changed, caption=caption), fold(
        f"All {len(rows)} parameters", Table(headers, rows)
    )


def _facts(
    params: NotebookParams, machine: Machine, recommendation: Recommendation, num_threads: int
) -> dict[str, str]:
    capability = "" if machine.capability is None else " (capability {}.{})".format(*machine.capability)
    memory = f"{machine.memory_gib:.1f} GiB" if machine.memory_gib else "memory not known"
    threads = f", torch threads: {num_threads}" if num_threads else ""
    versions = {name: installed_version(name) for name in PACKAGES}
    model: Section | None = getattr(params, "model", None)
    return {
        "machine": f"{machine.name}, {machine.environment}, {machine.accelerator or 'no GPU'}{capability}",
        "memory": f"{memory}, {machine.cpu_count} cores{threads}",
        "computing": ", ".join(str(getattr(model or recommendation, name)) for name in ("engine", "dtype")),
        "network": f"hub {machine.hub}{', offline' if recommendation.offline else ''}",
        "software": f"Python {platform.python_version()}, "
        + ", ".join(f"{name} {version}" for name, version in versions.items() if version),
    }

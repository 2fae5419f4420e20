"""The values that "auto" stands for on this machine, and refusals of what this machine cannot do."""

import netrc
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from rlnb.errors import ParamsError, see
from rlnb.machine import Machine, Recommendation, world_size
from rlnb.machine.facts import WANDB_HOSTS
from rlnb.machine.table import MACHINES
from rlnb.params.bases import BUILT_DIRECTORIES
from rlnb.params.model_cache import find_mbpp, find_missing
from rlnb.params.problems import show
from rlnb.params.sections import (
    Conflict,
    MbppParams,
    ModelParams,
    NotebookParams,
    Section,
    TasksParams,
    TrackingParams,
    value_of,
)
from rlnb.params.training import TrainingParams, VllmParams

PREFETCH = "run `rlnb prefetch` with this notebook, --profile and --set on a machine with a network"
OFFLINE = see("no-network")
SomeParams = TypeVar("SomeParams", bound=NotebookParams)
SomeSection = TypeVar("SomeSection", bound=Section)


def asks_network(params: NotebookParams, *, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether a run may download a model or data, upload, or report to W&B."""
    tracking = _section(params, "tracking", TrackingParams)
    reports = tracking is not None and tracking.wandb == "auto" and has_wandb_key(environ)
    loads = any(name not in BUILT_DIRECTORIES for name in model_names(params).values())
    return reports or loads or bool(mbpp_downloads(params))


def _section(params: object, name: str, kind: type[SomeSection]) -> SomeSection | None:
    section = getattr(params, name, None)
    return section if isinstance(section, kind) else None


def loaded_model(params: NotebookParams) -> ModelParams | None:
    """Return the section model, None where completions come from elsewhere."""
    writer = getattr(params, "writer", None)
    is_loaded = writer is None or writer.kind == "policy"
    return _section(params, "model", ModelParams) if is_loaded else None


def cache_directory(params: NotebookParams) -> str:
    """Return the directory that models and MBPP are downloaded to."""
    model = _section(params, "model", ModelParams)
    return (model or ModelParams()).cache_dir


def is_mxfp4(model_id: str) -> bool:
    """Return whether a model is stored in MXFP4: by config.json in a directory, by its name on the hub."""
    config = Path(model_id, "config.json")
    if config.is_file():
        return re.search(r'"quant_method":\s*"mxfp4"', config.read_text(encoding="utf-8")) is not None
    return re.fullmatch(r"(openai|unsloth)/gpt-oss-\d+b", model_id, re.IGNORECASE) is not None


def model_names(params: NotebookParams) -> dict[str, str]:
    """Return {field: hub id or directory} of the models that a run loads."""
    model = loaded_model(params)
    return {} if model is None else {"model.id": model.id}


def mbpp_downloads(params: NotebookParams) -> list[str]:
    """Return the field that asks for MBPP from the hub: that of the tasks, else that of the evaluation."""
    tasks, mbpp = _section(params, "tasks", TasksParams), resolve_mbpp(params)
    if tasks is not None and tasks.source == "mbpp" and not (mbpp and mbpp.path):
        return ["tasks.source"]
    sections = (mbpp, getattr(params, "evaluation", None))
    is_measured = all(getattr(section, "enabled", True) for section in sections)
    is_download = mbpp is not None and mbpp.source == "hub" and not mbpp.path and mbpp.split != "plus"
    return ["mbpp.source"] if is_measured and is_download else []


def resolve_mbpp(params: object) -> MbppParams | None:
    """Return the section mbpp without "auto": the same problems as the tasks, the hub's without tasks."""
    mbpp, tasks = _section(params, "mbpp", MbppParams), _section(params, "tasks", TasksParams)
    if mbpp is not None and mbpp.split == "auto":
        has_plus = bool(getattr(getattr(params, "evaluation", None), "plus_path", ""))
        mbpp = mbpp.model_copy(update={"split": "plus" if has_plus else "test"})
    if mbpp is None or mbpp.source != "auto":
        return mbpp
    if tasks is None:
        return mbpp.model_copy(update={"source": "hub"})
    if tasks.source != "mbpp":
        return mbpp.model_copy(update={"source": "builtin"})
    return mbpp.model_copy(update={"source": "hub"})


def resolve(
    params: SomeParams, recommendation: Recommendation, *, environ: Mapping[str, str] = os.environ
) -> SomeParams:
    """Return the parameters with each "auto" replaced by what is recommended; given values stay.

    training.resume keeps its "auto", since only the run's directory tells which checkpoint that is.
    """
    model_section, dtype = _section(params, "model", ModelParams), recommendation.dtype
    choices: dict[tuple[str, str], object] = {
        ("model", "id"): recommendation.model_id,
        ("model", "engine"): recommendation.engine,
        ("model", "dtype"): model_section.trained_dtype(dtype) if model_section else dtype,
        ("model", "attention"): recommendation.attention,
        ("model", "load_in_4bit"): recommendation.load_in_4bit,
        ("training", "gradient_checkpointing"): recommendation.gradient_checkpointing,
        ("tracking", "wandb"): _wandb_mode(recommendation, environ),
    }
    sources, resolved = dict(params._sources), params
    for (name, field), choice in choices.items():
        section = _section(resolved, name, Section)
        if section is not None and getattr(section, field, None) == "auto":
            resolved = resolved.model_copy(update={name: section.model_copy(update={field: choice})})
            sources[f"{name}.{field}"] = "auto"
    mbpp, given = resolve_mbpp(resolved), _section(params, "mbpp", MbppParams)
    if mbpp is not None and given is not None:
        resolved = resolved.model_copy(update={"mbpp": mbpp})
        changed = [name for name in ("source", "split") if getattr(mbpp, name) != getattr(given, name)]
        sources |= {f"mbpp.{name}": "auto" for name in changed}
    resolved = resolved.model_copy()  # private attributes are set in place
    resolved._sources = sources
    return resolved


def check_machine(
    params: NotebookParams, machine: Machine, *, environ: Mapping[str, str] = os.environ
) -> None:
    """Raise ParamsError for values that this machine, or so many ranks, cannot serve; never for "auto"."""
    conflicts = list(_machine_conflicts(params, machine))
    conflicts += params.rank_conflicts(world_size(environ))
    if machine.hub in ("offline", "unreachable"):
        conflicts += _offline_conflicts(params)
    tracking = _section(params, "tracking", TrackingParams)
    if tracking is not None and tracking.wandb == "online" and not has_wandb_key(environ):
        # wandb would ask for the key at a prompt, which a batch job cannot answer.
        reason = (
            f"needs a key; set WANDB_API_KEY, in .env for instance, or write offline{see('wb-logs-nothing')}"
        )
        conflicts.append(Conflict("tracking.wandb", reason))
    if conflicts:
        lines = [
            f"{params._sources.get(field, 'default')}: {field} = {show(value_of(params, field))} {reason}"
            for field, reason, _ in conflicts
        ]
        raise ParamsError("\n".join(lines))


def _machine_conflicts(params: NotebookParams, machine: Machine) -> Iterator[Conflict]:
    """Yield what this machine's device, or a package that it lacks, does not do."""
    device, capability = machine.accelerator or "a CPU", machine.capability or (0, 0)
    on_cpu, is_ampere, is_gb10 = machine.capability is None, capability >= (8, 0), machine.name == "gb10"
    model, vllm = loaded_model(params), _section(params, "vllm", VllmParams)
    training = _section(params, "training", TrainingParams)
    has_unsloth = any(row.unsloth for row in MACHINES if row.name == machine.name)
    if model is not None:
        if on_cpu and model.dtype == "float16":
            yield Conflict("model.dtype", "trains on GPUs only; write float32")
        if model.load_in_4bit is True and on_cpu:
            yield Conflict("model.load_in_4bit", "needs a CUDA GPU; write false")
        elif model.load_in_4bit is True and model.engine == "transformers" and is_mxfp4(model.id):
            unsloth = "" if not has_unsloth else ", or install unsloth (./setup.sh cuda)"
            reason = (
                f"is for unsloth alone: {model.id} is stored in MXFP4, which bitsandbytes does not quantize "
                "again; write false, which unpacks it to 16 bits (39 GiB of weights for gpt-oss-20b), or "
                f"model.id = auto, a smaller model{unsloth}"
            )
            yield Conflict("model.load_in_4bit", reason)
        if on_cpu and model.engine == "unsloth":
            yield Conflict("model.engine", "needs a CUDA GPU; write transformers")
        if not on_cpu and not is_ampere and model.dtype == "bfloat16":
            yield Conflict("model.dtype", f"is not computed by {device}; write float16")
        if model.attention == "flash_attention_2" and (not is_ampere or is_gb10):
            yield Conflict("model.attention", f"does not work on {device}; write sdpa")
    if vllm is not None and vllm.runs_here:
        if capability < (7, 5):
            yield Conflict("vllm.enabled", f"does not work on {device}; write false, or vllm.server_base_url")
        elif is_gb10 and getattr(getattr(params, "model", None), "engine", "") == "unsloth":
            reason = f"is switched off by unsloth on {device}; write false, or model.engine = transformers"
            yield Conflict("vllm.enabled", reason)
    if training is not None and training.optim.endswith("8bit") and on_cpu:
        yield Conflict("training.optim", "needs a CUDA GPU; write adamw_torch_fused")


def _offline_conflicts(params: NotebookParams) -> Iterator[Conflict]:
    """Yield what would have to be downloaded."""
    model = loaded_model(params)
    if model is not None and model.engine != "unsloth":  # which loads copies under other names
        for field, name in model_names(params).items():
            if name in BUILT_DIRECTORIES or os.path.isdir(name):
                continue
            if missing := find_missing(model.cache_dir, name):
                reason = f"lacks {', '.join(missing[:2])} in {model.cache_dir} and the hub cannot be reached"
                yield Conflict(field, f"{reason}; {PREFETCH}, or write embedded{OFFLINE}")
    subset = getattr(resolve_mbpp(params), "subset", "full")
    for field in mbpp_downloads(params):
        if not find_mbpp(cache_directory(params), subset if field == "mbpp.source" else "full"):
            reason = f"is not in {cache_directory(params)} and the hub cannot be reached"
            yield Conflict(field, f"{reason}; {PREFETCH}, set mbpp.path to a copy, or write builtin{OFFLINE}")


def _wandb_mode(recommendation: Recommendation, environ: Mapping[str, str]) -> str:
    mode = environ.get("WANDB_MODE", "")
    if mode in ("online", "offline", "disabled"):
        return mode
    return "online" if has_wandb_key(environ) and not recommendation.offline else "disabled"


def has_wandb_key(environ: Mapping[str, str]) -> bool:
    """Return whether there is a key in the environment, or where `wandb login` leaves it."""
    if environ.get("WANDB_API_KEY"):
        return True
    own_server = urlsplit(environ.get("WANDB_BASE_URL", "")).hostname
    hosts = (own_server,) if own_server else WANDB_HOSTS
    try:
        saved = netrc.netrc(environ.get("NETRC"))
        return any(saved.authenticators(host) is not None for host in hosts)
    except (OSError, netrc.NetrcParseError):
        return False

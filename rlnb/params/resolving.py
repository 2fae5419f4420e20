"""What "auto" becomes on this machine, and what this machine cannot do."""

import netrc
import os
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

from rlnb.errors import ParamsError
from rlnb.machine import Machine, Recommendation, installed_version
from rlnb.params.grpo_code_game import GameEvaluationParams, OpponentParams
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

WANDB = "https://api.wandb.ai"
WITHOUT_HUB = ("embedded", "tiny")  # models that come with a package, or are made here
SomeParams = TypeVar("SomeParams", bound=NotebookParams)


def asks_network(params: NotebookParams, *, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a run may download a model or data, or report to W&B: is the hub worth asking for?"""
    tracking = getattr(params, "tracking", None)
    return (
        any(name not in WITHOUT_HUB for name in _names_of_models(params).values())
        or bool(_downloads_of_mbpp(params))
        or (isinstance(tracking, TrackingParams) and tracking.wandb == "auto" and _has_wandb_key(environ))
    )


def _model_to_load(params: NotebookParams) -> ModelParams | None:
    """The section model, None where completions come from elsewhere."""
    model, writer = getattr(params, "model", None), getattr(params, "writer", None)
    is_needed = writer is None or writer.kind == "policy"
    return model if is_needed and isinstance(model, ModelParams) else None


def _names_of_models(params: NotebookParams) -> dict[str, str]:
    """{field: hub id or directory} of the models that a run loads."""
    model, opponent = _model_to_load(params), getattr(params, "opponent", None)
    evaluation = getattr(params, "evaluation", None)
    names = {} if model is None else {"model.id": model.id}
    if isinstance(opponent, OpponentParams) and opponent.kind == "model":
        names["opponent.model_id"] = opponent.model_id
    if isinstance(evaluation, GameEvaluationParams) and evaluation.names_model:
        names["evaluation.second_judge"] = evaluation.second_judge
    return names


def _downloads_of_mbpp(params: NotebookParams) -> list[str]:
    """The field that asks for MBPP from the hub, the tasks' first: the evaluation follows it."""
    tasks, mbpp = getattr(params, "tasks", None), _with_source(params)
    fields = []
    if isinstance(tasks, TasksParams) and tasks.source == "mbpp" and not tasks.mbpp_path:
        fields.append("tasks.source")
    is_measured = all(
        getattr(section, "enabled", True) for section in (mbpp, getattr(params, "evaluation", None))
    )
    if not fields and is_measured and mbpp is not None and mbpp.source == "hub" and not mbpp.path:
        fields.append("mbpp.source")
    return fields


def _with_source(params: NotebookParams) -> MbppParams | None:
    """The section mbpp with its "auto" settled: the same problems as the tasks, the hub's without tasks."""
    mbpp, tasks = getattr(params, "mbpp", None), getattr(params, "tasks", None)
    if not isinstance(mbpp, MbppParams) or mbpp.source != "auto":
        return mbpp
    if not isinstance(tasks, TasksParams):
        return mbpp.model_copy(update={"source": "hub"})
    if tasks.source != "mbpp":
        return mbpp.model_copy(update={"source": "builtin"})
    return mbpp.model_copy(update={"source": "hub", "path": mbpp.path or tasks.mbpp_path})


def resolve(
    params: SomeParams, recommendation: Recommendation, *, environ: Mapping[str, str] = os.environ
) -> SomeParams:
    """The same parameters with every "auto" replaced by what is recommended; a value that was given stays.

    training.resume keeps its "auto": which checkpoint that is, only the run's directory tells.
    """
    choices: dict[tuple[str, str], Any] = {
        ("model", "id"): recommendation.model_id,
        ("model", "engine"): recommendation.engine,
        ("model", "dtype"): recommendation.dtype,
        ("model", "attention"): recommendation.attention,
        ("model", "load_in_4bit"): recommendation.load_in_4bit,
        ("training", "gradient_checkpointing"): recommendation.gradient_checkpointing,
        ("tracking", "wandb"): _wandb_mode(recommendation, environ),
    }
    sources = dict(params._sources)
    resolved = params.model_copy()
    for (name, field), choice in choices.items():
        section = getattr(resolved, name, None)
        if isinstance(section, Section) and getattr(section, field, None) == "auto":
            resolved = resolved.model_copy(update={name: section.model_copy(update={field: choice})})
            sources[f"{name}.{field}"] = "auto"
    mbpp = _with_source(resolved)
    if mbpp is not None and mbpp != getattr(params, "mbpp", None):
        resolved = resolved.model_copy(update={"mbpp": mbpp})
        sources["mbpp.source"] = "auto"
    resolved._sources = sources
    return resolved


def check_machine(
    params: NotebookParams, machine: Machine, *, environ: Mapping[str, str] = os.environ
) -> None:
    """Raise ParamsError for what was asked and this machine cannot do; "auto" is never refused."""
    conflicts = [*_model_conflicts(params, machine), *_vllm_conflicts(params, machine)]
    conflicts += _optimizer_conflicts(params, machine)
    if machine.hub in ("offline", "unreachable"):
        conflicts += _offline_conflicts(params, environ)
    tracking = getattr(params, "tracking", None)
    if isinstance(tracking, TrackingParams) and tracking.wandb == "online" and not _has_wandb_key(environ):
        # wandb would ask for the key at a prompt, where nobody may be.
        reason = "needs a key; set WANDB_API_KEY, in .env for instance, or write offline"
        conflicts.append(Conflict("tracking.wandb", reason))
    problems = [
        f"{params._sources.get(field, 'default')}: {field} = {show(value_of(params, field))} {reason}"
        for field, reason, _ in conflicts
    ]
    if problems:
        raise ParamsError("\n".join(problems))


def _model_conflicts(params: NotebookParams, machine: Machine) -> Iterator[Conflict]:
    model, device = _model_to_load(params), machine.accelerator or "a CPU"
    if model is None:
        return
    if machine.capability is None:
        if model.dtype == "float16":
            yield Conflict("model.dtype", "trains on GPUs only; write float32")
        if model.load_in_4bit is True:
            yield Conflict("model.load_in_4bit", "needs a CUDA GPU; write false")
        if model.engine == "unsloth":
            yield Conflict("model.engine", "needs a CUDA GPU; write transformers")
    elif model.load_in_4bit is True and installed_version("bitsandbytes") is None:
        yield Conflict(
            "model.load_in_4bit", "needs bitsandbytes, which is not installed; run ./setup.sh cuda"
        )
    if machine.capability and machine.capability < (8, 0) and model.dtype == "bfloat16":
        yield Conflict("model.dtype", f"is not computed by {device}; write float16")
    has_flash_attention = machine.capability and machine.capability >= (8, 0) and machine.name != "gb10"
    if model.attention == "flash_attention_2" and not has_flash_attention:
        yield Conflict("model.attention", f"does not work on {device}; write sdpa")


def _optimizer_conflicts(params: NotebookParams, machine: Machine) -> Iterator[Conflict]:
    training = getattr(params, "training", None)
    if not isinstance(training, TrainingParams) or not training.optim.endswith("8bit"):
        return
    if machine.capability is None:
        yield Conflict("training.optim", "needs a CUDA GPU; write adamw_torch_fused")
    elif installed_version("bitsandbytes") is None:
        yield Conflict("training.optim", "needs bitsandbytes, which is not installed; run ./setup.sh cuda")


def _offline_conflicts(params: NotebookParams, environ: Mapping[str, str]) -> Iterator[Conflict]:
    """What would have to be downloaded, as far as folders tell; loading it says the rest."""
    model = _model_to_load(params)
    if model is not None and model.engine != "unsloth":  # which loads copies under other names
        for field, name in _names_of_models(params).items():
            cached = os.path.join(model.cache_dir, "models--" + name.replace("/", "--"))
            if name not in WITHOUT_HUB and not os.path.isdir(name) and not os.path.isdir(cached):
                reason = (
                    f"is not in {model.cache_dir} and the hub cannot be reached; "
                    "copy it there or write embedded"
                )
                yield Conflict(field, reason)
    home = environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface")
    cache = environ.get("HF_DATASETS_CACHE") or os.path.join(home, "datasets")
    if not os.path.isdir(os.path.join(cache, "google-research-datasets___mbpp")):
        for field in _downloads_of_mbpp(params):
            path = "tasks.mbpp_path" if field == "tasks.source" else "mbpp.path"
            yield Conflict(
                field, f"cannot be had: the hub cannot be reached; set {path} to a copy, or write builtin"
            )


def _vllm_conflicts(params: NotebookParams, machine: Machine) -> Iterator[Conflict]:
    vllm, device = getattr(params, "vllm", None), machine.accelerator or "a CPU"
    if not isinstance(vllm, VllmParams) or not vllm.enabled or vllm.mode == "server":
        return
    if machine.capability is None or machine.capability < (7, 5):
        yield Conflict("vllm.enabled", f"does not work on {device}; write false, or vllm.mode = server")
    elif machine.name == "gb10" and getattr(getattr(params, "model", None), "engine", "") == "unsloth":
        reason = f"is switched off by unsloth on {device}; write false, or model.engine = transformers"
        yield Conflict("vllm.enabled", reason)


def _wandb_mode(recommendation: Recommendation, environ: Mapping[str, str]) -> str:
    asked = environ.get("WANDB_MODE", "")
    if asked in ("online", "offline", "disabled"):
        return asked
    return "online" if _has_wandb_key(environ) and not recommendation.offline else "disabled"


def _has_wandb_key(environ: Mapping[str, str]) -> bool:
    """In the environment, or where `wandb login` leaves it."""
    if environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(environ.get("WANDB_BASE_URL") or WANDB).hostname or ""
    try:
        return netrc.netrc(environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False

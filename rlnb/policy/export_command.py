"""The command `rlnb export`: write trained adapters as a model that others load, check it, upload it."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from httpx import HTTPError
from huggingface_hub import HfApi, ModelCard, ModelCardData
from huggingface_hub.errors import HfHubHTTPError
from safetensors import SafetensorError, safe_open

import rlnb
from rlnb.errors import ParamsError
from rlnb.params.bases import find_adapter_fault, find_base
from rlnb.params.model_cache import find_id_fault
from rlnb.params.sections import ModelParams
from rlnb.policy.adapters import ADAPTERS
from rlnb.policy.export import (
    EMBEDDED_ON_HUB,
    ExportFailed,
    Form,
    LogitDifference,
    compare_logits,
    compute_logits,
    hub_name,
    reload,
    return_memory,
    save_in_format,
)
from rlnb.policy.generation import generate
from rlnb.policy.loading import attach_adapters, load_policy
from rlnb.run.memory import load_model_sizes

QUESTIONS = (
    "Write a Python function that returns the sum of the squares of a list of numbers.",
    "What is a prime number? Answer in one sentence.",
    "Write a haiku about a machine that learns.",
)
MUCH_ROUNDED = 0.25  # of what training changed: an angle of 14 degrees between the two changes of the logits
CARD = """\
---
{{ card_data }}
---

# {{ name }}

{{ description }}, made with rlnb {{ version }}. Compared with the model as it was trained, the logits
{{ difference }} tokens.
"""


def export(
    adapters: Path,
    *,
    base: str,
    form: Form,
    out: Path,
    cache_dir: str,
    dtype: str,
    repo_id: str,
    public: bool,
    license: str,
) -> None:
    """Write adapters in one form, load what was written, and compare both; upload it where repo_id says so.

    base: a model to put them on, "" for the one that they name. dtype: what this machine computes in. Raises
    ParamsError and ExportFailed, before a model is loaded for what is known then, and PolicyUnavailable.
    """
    adapters, out = adapters.expanduser(), out.expanduser()
    base = os.path.expanduser(base) or find_base(adapters)
    check_request(adapters, base=base, out=out)
    if fault := find_misfit(adapters, base, cache_dir):
        raise ParamsError(f"--base {base}: {fault}; write the one that they were trained on")
    if repo_id:  # before a model is loaded; a repository that exists keeps its visibility
        with explain_hub_errors(repo_id, out):
            HfApi().create_repo(repo_id, private=not public, exist_ok=True)
    fixed = {"engine": "transformers", "load_in_4bit": False}
    dtype = "float32" if form == "merged_32bit" else dtype
    given = {"id": base, "adapters": str(adapters), "cache_dir": cache_dir, "dtype": dtype}
    params = ModelParams.model_validate(fixed | given)
    bare = load_policy(params.model_copy(update={"adapters": ""}), is_trained=False)
    policy = replace(bare, model=attach_adapters(bare.model, params, is_trained=False))
    source = policy.source
    prompts = list(map(policy.chat.ask, QUESTIONS)) if policy.tokenizer.chat_template else list(QUESTIONS)
    trained_logits = compute_logits(policy, prompts)
    change = compare_logits(trained_logits, compute_logits(policy, prompts, reference=True))
    save_in_format(policy, out, form, params, is_last=True)
    del policy, bare
    return_memory()
    exported = reload(out, form, params)
    difference = compare_logits(trained_logits, compute_logits(exported, prompts))
    rounded = check_difference(difference, change, form, out)
    card = make_card(repo_id or out.name, form, base=source, license=license, difference=difference)
    card.save(out / "README.md")
    print(f"{QUESTIONS[0]}\n{generate(exported, prompts[:1], max_new_tokens=48, temperature=0)[0].text}")
    print(f"logits, exported against trained: {difference}")
    print(f"logits, adapters against none: {change}{rounded}")
    size = sum(path.stat().st_size for path in out.iterdir()) / 2**20
    print(f"{out}: {form} of {source}, {size:.1f} MiB")
    if repo_id:
        with explain_hub_errors(repo_id, out):
            print(f"uploaded: {HfApi().upload_folder(repo_id=repo_id, folder_path=out)}")


def check_request(adapters: Path, *, base: str, out: Path) -> None:
    """Raise ParamsError for what would fail later, when a large model has been loaded."""
    if fault := find_adapter_fault(adapters):
        raise ParamsError(f"--adapters {adapters}: {fault}")
    if not base:
        raise ParamsError(f"--base: is missing, and {adapters} do not name the model they were trained on")
    if fault := find_id_fault(base):
        raise ParamsError(f"--base {base}: {fault}")
    if out.exists():
        raise ParamsError(f"--out {out}: exists; remove it, or name another directory")


def find_misfit(adapters: Path, base: str, cache_dir: str) -> str:
    """Return why adapters do not fit a base by its config.json, "" where they do or it is not here."""
    if not (sizes := load_model_sizes(base, cache_dir)):
        return ""
    try:
        with safe_open(adapters / ADAPTERS, "pt") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ParamsError(f"--adapters {adapters / ADAPTERS}: is damaged ({error}); copy it again") from None
    for name, shape in shapes.items():
        layer = re.search(r"\.layers\.(\d+)\.", name)
        if layer and int(layer[1]) >= sizes.layers:
            return f"has {sizes.layers} layers, and the adapters are of one more"
        if name.endswith(".q_proj.lora_A.weight") and shape[1] != sizes.width:
            return f"is {sizes.width} wide, and the adapters are {shape[1]}"
    return ""


def check_difference(difference: LogitDifference, change: LogitDifference, form: Form, out: Path) -> str:
    """Return a warning where rounding took much of what training changed, else "".

    difference: of the exported model from the trained one; change: of the trained one from its base. Raises
    ExportFailed, and removes what was written, where the base would be nearer to the trained model.
    """
    if difference.mean <= change.mean * MUCH_ROUNDED:
        return ""
    share = f"{difference.mean / change.mean:.0%}" if change.mean else "more than all"
    reason = f"the export differs from the trained model by {share} of what training changed"
    remedy = "write --format merged_32bit, or --format lora"
    if not difference.mean < change.mean:  # also where one is NaN
        shutil.rmtree(out)
        raise ExportFailed(f"{out}: removed, for {reason} ({difference}); {remedy}")
    return f"\nwarning: {reason}, mostly by rounding to 16 bits; {remedy}"


def make_card(name: str, form: Form, *, base: str, license: str, difference: LogitDifference) -> ModelCard:
    """Return the model card in the form that the hub reads. base: source of the policy."""
    on_hub = hub_name(base)  # the hub refuses a card whose base is a local path
    library, relation = ("peft", "adapter") if form == "lora" else ("transformers", "finetune")
    data = ModelCardData(
        library_name=library, pipeline_tag="text-generation", base_model=on_hub or None,
        base_model_relation=relation if on_hub else None,
        license=license or ("apache-2.0" if on_hub == EMBEDDED_ON_HUB else None),
        tags=["rlnb", "reinforcement-learning", "trl"],
    )  # fmt: skip
    description = f"LoRA adapters for {on_hub or Path(base).name}"
    description += "" if form == "lora" else f", merged into it ({form})"
    return ModelCard.from_template(
        data, template_str=CARD, name=name, description=description, difference=difference,
        version=rlnb.__version__,
    )  # fmt: skip


@contextmanager
def explain_hub_errors(repo_id: str, directory: Path) -> Iterator[None]:
    """Turn the hub's errors, such as a missing network or key, into ExportFailed with the remedy."""
    try:
        yield
    except (HfHubHTTPError, HTTPError, OSError, ValueError) as error:  # ValueError: of a wrong name
        raise ExportFailed(
            f"--repo-id {repo_id}: an upload needs the hub and a key that may write (HF_TOKEN in .env, or "
            f"`hf auth login`): {error}; `hf upload {repo_id} {directory}` sends what has been written"
        ) from error

"""The command `rlnb export`: write trained adapters as a model that others load, check it, upload it."""

import dataclasses
import gc
import json
from pathlib import Path

import torch
from httpx import HTTPError
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id

from rlnb.errors import ParamsError
from rlnb.params.bases import find_base, is_same_model, read_base
from rlnb.params.sections import ModelParams
from rlnb.policy.export import (
    ExportFailed,
    Form,
    compare_logits,
    compute_logits,
    hub_name,
    load_for_export,
    reload,
    save_in_format,
)
from rlnb.policy.generation import generate
from rlnb.policy.loading import Policy
from rlnb.policy.model_card import write_model_card
from rlnb.policy.prompts import game_text

QUESTIONS = (
    "Write a Python function that returns the sum of the squares of a list of numbers.",
    "What is a prime number? Answer in one sentence.",
    "Write a haiku about a machine that learns.",
)
MAX_NEW_TOKENS = 48
HUB_ERRORS = (HfHubHTTPError, HTTPError, OSError)  # without a network, httpx's


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
    ParamsError, before a model is loaded, for what cannot be exported, and ExportFailed.
    """
    trained_on = read_base(adapters)
    base = base or find_base(adapters)
    check_request(adapters, base=base, out=out, repo_id=repo_id)
    # gpt-oss has no sdpa attention.
    params = ModelParams.model_validate(
        {
            "id": base, "adapters": str(adapters), "cache_dir": cache_dir, "dtype": dtype,
            "engine": "transformers", "attention": "eager", "load_in_4bit": False,
        }
    )  # fmt: skip
    policy = load_for_export(params)
    if trained_on and not is_same_model(trained_on, policy.source):
        print(f"{adapters} were trained on {trained_on}, and are put on {policy.source}")
    prompts = make_prompts(policy)
    trained_logits = compute_logits(policy, prompts)
    change = compare_logits(trained_logits, compute_logits(policy, prompts, reference=True))
    source, directory = policy.source, save_in_format(policy, out, form, params)
    del policy
    gc.collect()
    torch.cuda.empty_cache()
    exported = reload(directory, form, params)
    difference = compare_logits(trained_logits, compute_logits(exported, prompts))
    texts = generate(exported, prompts, max_new_tokens=MAX_NEW_TOKENS, temperature=0)
    answers = dict(zip(QUESTIONS, texts, strict=True))
    name = repo_id or directory.name
    write_model_card(directory, name=name, form=form, base=source, license=license, difference=difference)
    rows = {"exported against trained": difference, "adapters against none": change}
    result = {"format": form, "base": hub_name(source) or Path(source).name, "answers": answers}
    result |= {name: dataclasses.asdict(row) for name, row in rows.items()}
    (directory / "export.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for question, answer in answers.items():
        print(f"{question}\n    {answer.strip()!r}")
    for compared, row in rows.items():
        print(f"logits, {compared}: {row}")
    size = sum(path.stat().st_size for path in directory.iterdir()) / 2**20
    print(f"{directory}: {form} of {source}, {size:.1f} MiB")
    if repo_id:
        print(f"uploaded: {upload(directory, repo_id, private=not public)}")


def check_request(adapters: Path, *, base: str, out: Path, repo_id: str) -> None:
    """Raise ParamsError or ExportFailed for what would fail later, when a large model has been loaded."""
    if not (adapters / "adapter_config.json").is_file():
        raise ParamsError(
            f"--adapters {adapters}: holds no adapter_config.json; name a run's adapters/ or a checkpoint "
            "(a run that trained all weights has saved a whole model)"
        )
    if not base:
        raise ParamsError(f"--base: is missing, and {adapters} do not name the model they were trained on")
    if out.exists():
        raise ParamsError(f"--out {out}: exists; remove it, or name another directory")
    if not repo_id:
        return
    try:
        validate_repo_id(repo_id)
        HfApi().whoami()
    except HFValidationError as error:
        raise ParamsError(f"--repo-id {repo_id}: {error}") from error
    except HUB_ERRORS as error:
        raise ExportFailed(
            f"--repo-id {repo_id}: an upload needs the hub and a key that may write (HF_TOKEN in .env, or "
            f"`hf auth login`): {error}"
        ) from error


def make_prompts(policy: Policy) -> list[str]:
    """Return the questions, inside the model's chat template if it has one."""
    if not policy.tokenizer.chat_template:
        return list(QUESTIONS)
    return [
        game_text(question, tokenizer=policy.tokenizer, thinking=policy.thinking) for question in QUESTIONS
    ]


def upload(directory: Path, repo_id: str, *, private: bool) -> str:
    """Send a directory to the hub, creating the repository if needed, and return its address.

    private: for a new repository; an existing one keeps its visibility. Raises ExportFailed.
    """
    api = HfApi()
    try:
        address = api.create_repo(repo_id, private=private, exist_ok=True)
        api.upload_folder(repo_id=repo_id, folder_path=directory, commit_message="Exported by rlnb")
    except (*HUB_ERRORS, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ExportFailed(
            f"--repo-id {repo_id}: was not uploaded: {reason}. {directory} is whole; "
            f"`hf upload {repo_id} {directory}` sends it"
        ) from error
    return str(address)

"""Exports of a trained policy: adapters, a merged model in 16 bits, or gpt-oss in MXFP4."""

import ctypes
import gc
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from huggingface_hub import snapshot_download
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from transformers import Mxfp4Config

from rlnb.errors import RlnbError
from rlnb.params.model_cache import read_quantization
from rlnb.params.resolving import merged_id
from rlnb.params.sections import ModelParams
from rlnb.policy.adapters import adapters_off
from rlnb.policy.builtin import EMBEDDED_NAME, model_directory
from rlnb.policy.generation import generate, generating
from rlnb.policy.loading import (
    TIED,
    Policy,
    adapts_tied,
    explain_load_errors,
    fetch_config,
    load_policy,
    load_whole,
    save_adapters,
    save_tokenizer,
)
from rlnb.run.disk import written_whole

Form = Literal["lora", "merged_16bit", "merged_32bit", "mxfp4"]
EMBEDDED_ON_HUB = f"HuggingFaceTB/{EMBEDDED_NAME}"


class ExportFailed(RlnbError):
    """The policy cannot be written in this form or uploaded; nothing half done remains."""

    exit_code = 1


@dataclass(frozen=True)
class LogitDifference:
    """Absolute differences between the logits of two models; same_argmax: share of the positions."""

    largest: float
    mean: float
    same_argmax: float
    num_positions: int

    def __str__(self) -> str:
        return (
            f"differ by at most {self.largest:.2g}, by {self.mean:.2g} on average; the likeliest next token "
            f"is the same at {self.same_argmax:.1%} of {self.num_positions}"
        )


def compute_logits(policy: Policy, prompts: Sequence[str], *, reference: bool = False) -> list[torch.Tensor]:
    """Return each prompt's logits, float32 (num_tokens, vocabulary); reference: without adapters."""
    logits = []
    with generating(policy), adapters_off(policy) if reference else nullcontext():
        for prompt in prompts:
            tokens = policy.tokenizer(prompt, return_tensors="pt").to(policy.device)
            logits.append(policy.model(**tokens).logits[0].float().cpu())
    return logits


def compare_logits(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> LogitDifference:
    """Compare two models' logits on the same prompts, read as the same tokens."""
    left, right = torch.cat(list(first)), torch.cat(list(second))
    gaps = (left - right).abs()
    same_argmax = (left.argmax(-1) == right.argmax(-1)).float().mean().item()
    return LogitDifference(gaps.max().item(), gaps.mean().item(), same_argmax, len(left))


def save_in_format(
    policy: Policy, directory: str | Path, form: Form, params: ModelParams, *, is_last: bool = False
) -> Path:
    """Write the policy with its tokenizer, whole or not at all, replacing an older directory.

    params: those that the policy was loaded with. is_last: it is not used again, so that its weights may be
    freed before a copy of them is merged; else it stays as it is. Raises ExportFailed.
    """
    directory = Path(directory)
    if form == "mxfp4" and read_quantization(fetch_config(find_merged(params), params)) != "mxfp4":
        raise ExportFailed(
            f"mxfp4 keeps the experts of a base that is stored in MXFP4, unlike {params.id}; write "
            "merged_16bit, or for gpt-oss `rlnb export --base openai/gpt-oss-20b`"
        )
    with written_whole(directory) as unfinished:
        if form == "lora":
            save_lora(policy, unfinished)
        elif form == "mxfp4":
            save_mxfp4(policy, unfinished, params)
        elif policy.engine == "unsloth" and form == "merged_16bit":
            save_by_unsloth(policy, unfinished, params)
        else:
            save_merged(policy, unfinished, params, is_wide=form == "merged_32bit", is_last=is_last)
    return directory


def find_merged(params: ModelParams) -> str:
    """Return the folder or the id on the hub of the model that adapters are merged into."""
    return model_directory(merged_id(params), params.cache_dir)


def fetch_merged(params: ModelParams) -> Path:
    """Return the folder of the model that adapters are merged into, from the hub if it is not here."""
    source = find_merged(params)
    if Path(source).is_dir():
        return Path(source)
    with explain_load_errors(params):
        downloaded = snapshot_download(
            source, cache_dir=params.cache_dir, allow_patterns=["*.json", "*.safetensors"],
            ignore_patterns=["original/*", "metal/*"],
        )  # fmt: skip
    return Path(downloaded)


def save_by_unsloth(policy: Policy, directory: Path, params: ModelParams) -> None:
    """Merge into files in 16 bits or MXFP4 shard by shard, also after a training in 4 bits.

    unsloth finds them by the name in the config, and asks the hub for what is not a folder.
    """
    config = policy.model.config
    loaded_name, config._name_or_path = config._name_or_path, str(fetch_merged(params))
    try:
        policy.model.save_pretrained_merged(
            str(directory), tokenizer=policy.tokenizer, save_method="merged_16bit"
        )
        save_tokenizer(policy.tokenizer, directory)
    finally:
        config._name_or_path = loaded_name


def save_lora(policy: Policy, directory: Path) -> None:
    """Write adapters and tokenizer, naming the base as on the hub, so that other machines can load it."""
    save_adapters(policy, directory)
    path = directory / "adapter_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = hub_name(policy.source) or policy.source
    path.write_text(json.dumps(config, indent=2), encoding="utf-8")


def hub_name(source: str) -> str:
    """Return the hub's name of a model, or "" for a local one."""
    if Path(source).name == EMBEDDED_NAME:
        return EMBEDDED_ON_HUB
    return "" if Path(source).is_dir() else source


def save_merged(
    policy: Policy, directory: Path, params: ModelParams, *, is_wide: bool, is_last: bool
) -> None:
    """Merge into a copy of the base on the CPU, saved in 16 bits: float16 if the policy is, else bfloat16.

    Adapters cannot be merged into weights of 4 bits. A float32 policy's copy is in float32, to round once.
    is_wide: it is saved in float32. is_last: as in `save_in_format`. Raises ExportFailed.
    """
    if adapts_tied(policy.model):
        raise ExportFailed(f"the adapters cannot be merged: {TIED}; write lora")
    half = torch.float16 if params.dtype == "float16" else torch.bfloat16
    dtype = torch.float32 if is_wide else half
    source = find_merged(params)
    is_mxfp4 = read_quantization(fetch_config(source, params)) == "mxfp4"
    options: dict[str, object] = {"dtype": torch.float32 if params.dtype == "float32" else dtype}
    if is_mxfp4:
        options["quantization_config"] = Mxfp4Config(dequantize=True)
    with tempfile.TemporaryDirectory() as adapters:
        PeftModel.save_pretrained(policy.model, adapters, save_embedding_layers=False)
        if is_last:
            policy.model.to("meta")
            return_memory()
        with explain_load_errors(params):
            base = load_whole(source, cache_dir=params.cache_dir, **options)
        merged = PeftModel.from_pretrained(base, adapters).merge_and_unload().to(dtype)
    try:
        merged.generation_config.validate(strict=True)
    except ValueError:  # of a published one that transformers loads and refuses to save, as Vicuna's
        merged.generation_config = copy(policy.model.generation_config)
    # Base models of the Qwen family do not list the chat's end among their end tokens.
    merged.generation_config.eos_token_id = policy.model.generation_config.eos_token_id
    merged.generation_config.pad_token_id = policy.tokenizer.pad_token_id
    # transformers 5.17 takes "down_proj$", a pattern, for the name that dequantized experts had in the file.
    merged.save_pretrained(directory, save_original_format=not is_mxfp4)
    save_tokenizer(policy.tokenizer, directory)


def return_memory() -> None:
    """Give freed memory back to the system; glibc keeps it, and loading fills other arenas."""
    gc.collect()
    torch.cuda.empty_cache()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def save_mxfp4(policy: Policy, directory: Path, params: ModelParams) -> None:
    """Write the base's files with the adapters added to its 16-bit layers and the 4-bit experts unchanged.

    transformers 5.17 saves MXFP4 only from its CUDA kernels' layout; unsloth 2026.10.7 quantizes every layer.
    """
    whole = [name for name, _ in policy.model.named_parameters() if ".modules_to_save." in name]
    if whole:
        raise ExportFailed(
            f"mxfp4 holds LoRA alone, and {whole[0]} is trained as a whole; write merged_16bit or lora"
        )
    deltas = {  # what the adapters add to each weight, by its name in the base: float32 (out, in)
        f"{name.removeprefix('base_model.model.')}.weight": module.get_delta_weight("default")
        .detach()
        .float()
        for name, module in policy.model.named_modules()
        if isinstance(module, LoraLayer)
    }
    folder = fetch_merged(params)
    shards = sorted(folder.glob("*.safetensors"))
    for shard in shards:
        tensors = load_file(shard)
        for name in tensors.keys() & deltas.keys():
            weight, delta = tensors[name], deltas.pop(name)
            tensors[name] = (weight.float() + delta.cpu()).to(weight.dtype)
        save_file(tensors, directory / shard.name, metadata={"format": "pt"})
    if deltas or not shards:
        raise ExportFailed(f"{folder}: has no weights {', '.join(sorted(deltas)[:3])} in 16 bits")
    save_tokenizer(policy.tokenizer, directory)
    for name in ("config.json", "generation_config.json", "model.safetensors.index.json"):
        if (folder / name).exists():
            shutil.copyfile(folder / name, directory / name)


def reload(directory: str | Path, form: Form, params: ModelParams) -> Policy:
    """Load what was written: a whole model by transformers, or adapters onto their base."""
    changes = {"id": str(directory), "adapters": "", "load_in_4bit": False, "engine": "transformers"}
    if form == "lora":
        changes = {"adapters": str(directory)}
    return load_policy(params.model_copy(update=changes), is_trained=False)


@contextmanager
def using_adapters(policy: Policy, directory: str | Path) -> Iterator[None]:
    """Put the adapters of a directory in the place of the policy's own, on the model that is loaded."""
    policy.model.load_adapter(str(directory), "reloaded")
    policy.model.set_adapter("reloaded")
    try:
        yield
    finally:
        policy.model.set_adapter("default")
        policy.model.delete_adapter("reloaded")


def ask(policy: Policy, prompt: str) -> tuple[str, np.ndarray]:
    """Return a short greedy answer, and the logits of the prompt, float32 (num_tokens, vocabulary)."""
    answer = generate(policy, [prompt], max_new_tokens=24, temperature=0)[0].text
    return answer, compute_logits(policy, [prompt])[0].numpy()


def reload_and_ask(
    directory: str | Path, form: Form, params: ModelParams, prompt: str
) -> tuple[str, np.ndarray]:
    """Load what was written and ask it."""
    return ask(reload(directory, form, params), prompt)


def ask_written(
    policy: Policy, directory: str | Path, form: Form, params: ModelParams, prompt: str
) -> tuple[str, np.ndarray]:
    """Ask what was written, as those who load it will find it.

    Adapters use the policy's own base, which would not fit twice. A process in which unsloth has patched
    transformers misreads a whole GPT-OSS, so another process loads it.
    """
    if form == "lora":
        with using_adapters(policy, directory):
            return ask(policy, prompt)
    if policy.engine != "unsloth":
        return reload_and_ask(directory, form, params, prompt)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(reload_and_ask, directory, form, params, prompt).result()


def save_and_reload(
    policy: Policy, directory: str | Path, form: Form, params: ModelParams, *, prompt: str
) -> str:
    """Write the policy, load it, let it answer, and return a line about the result, or about a failure.

    The line says how far the adapters moved the logits and how far the written model is from the trained one.
    """
    progress = "not saved"
    try:
        save_in_format(policy, directory, form, params)
        progress = f"{directory}: saved, and not reloaded here"
        answer, logits = ask_written(policy, directory, form, params, prompt)
        trained_logits = compute_logits(policy, [prompt])
        change = compare_logits(trained_logits, compute_logits(policy, [prompt], reference=True))
        difference = compare_logits(trained_logits, [torch.from_numpy(logits)])
    except (RlnbError, OSError, RuntimeError, ValueError) as error:  # the rest of a run of hours goes on
        return f"{progress}: {error}"
    return (
        f"{directory}: reloaded, and continues with {answer!r}. Its logits differ from the trained "
        f"model's by {difference.mean:.2g} on average, where the adapters changed them by {change.mean:.2g}"
    )

"""A model with its adapters and tokenizer: loaded by transformers or unsloth, and saved."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled
from peft import LoraConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

from rlnb.errors import ParamsError, PolicyUnavailable
from rlnb.machine import rank
from rlnb.params.sections import ModelParams
from rlnb.policy.builtin import model_directory

LINEAR_LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Policy:
    """A model with LoRA adapters and its tokenizer; the reference policy is the model, adapters disabled.

    own_ends: the tokens that end an answer by the model's own account, without those of `stop_at`.
    """

    model: Any
    tokenizer: Any
    source: str
    engine: str
    own_ends: tuple[int, ...]

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def stop_at(self, token_ids: Sequence[int]) -> None:
        """End every generation at these tokens too, also TRL's: it reads the model's generation config."""
        config = self.model.generation_config
        config.eos_token_id = sorted({*config.eos_token_id, *token_ids})

    def num_parameters(self) -> tuple[int, int]:
        """Trained and all parameters."""
        sizes = [(parameter.numel(), parameter.requires_grad) for parameter in self.model.parameters()]
        return sum(size for size, trained in sizes if trained), sum(size for size, _ in sizes)


def load_policy(
    params: ModelParams,
    *,
    is_trained: bool = True,
    gradient_checkpointing: bool = False,
    max_seq_length: int = 2048,
    seed: int = 42,
) -> Policy:
    """Load a model and put LoRA adapters on it: those of `params.adapters`, or fresh ones if it is trained.

    params: the section `model` without an "auto" (`rlnb.params.resolve`). seed: of fresh adapters' first
    values. The two before it matter to unsloth, which fixes them at loading.
    Raises PolicyUnavailable where the weights or a package are not at hand, naming the remedy.
    """
    source = model_directory(params.id, params.cache_dir)
    if params.adapters:
        check_base(params.adapters, source)
    checkpointing: str | bool = "unsloth" if gradient_checkpointing else False
    if params.engine == "unsloth":
        model, tokenizer = load_with_unsloth(
            source, params, max_seq_length=max_seq_length, checkpointing=checkpointing
        )
    else:
        model, tokenizer = load_with_transformers(source, params, is_trained=is_trained)
    if is_trained and not params.adapters and params.lora_rank:
        check_targets(model, params)
        model = with_fresh_adapters(model, params, checkpointing=checkpointing, seed=seed)
    elif params.id == "tiny" and not params.lora_rank:
        model = with_fresh_weights(model, seed=seed)
    complete_tokenizer(model, tokenizer)
    return Policy(model, tokenizer, source, params.engine, tuple(model.generation_config.eos_token_id))


def hub_cache(source: str, params: ModelParams) -> str | None:
    """Where the hub's files are kept; a local directory needs no cache."""
    return None if Path(source).is_dir() else params.cache_dir


def load_tokenizer(params: ModelParams) -> Any:
    """The tokenizer alone, in a second: what takes the measure of prompts before a model is loaded."""
    source = model_directory(params.id, params.cache_dir)
    with clear_errors(params):
        return AutoTokenizer.from_pretrained(source, cache_dir=hub_cache(source, params))


def load_with_transformers(source: str, params: ModelParams, *, is_trained: bool) -> tuple[Any, Any]:
    """Model and tokenizer by transformers, adapters of a directory by peft, 4 bits by bitsandbytes."""
    cache = hub_cache(source, params)
    options: dict[str, Any] = {
        "dtype": DTYPES[params.dtype],
        "attn_implementation": params.attention,
        "cache_dir": cache,
    }
    if params.load_in_4bit:
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=DTYPES[params.dtype],
            bnb_4bit_use_double_quant=True,
        )
    if torch.cuda.is_available():
        options["device_map"] = {"": int(os.environ.get("LOCAL_RANK", "0"))}
    with clear_errors(params):
        tokenizer = AutoTokenizer.from_pretrained(source, cache_dir=cache)
        model = AutoModelForCausalLM.from_pretrained(source, **options)
        if params.load_in_4bit and is_trained:
            model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    if params.adapters:
        try:
            model = PeftModel.from_pretrained(model, params.adapters, is_trainable=is_trained)
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise PolicyUnavailable(
                f"model.adapters = {params.adapters!r} cannot be loaded: {reason}"
            ) from error
    return model, tokenizer


def load_with_unsloth(
    source: str, params: ModelParams, *, max_seq_length: int, checkpointing: str | bool
) -> tuple[Any, Any]:
    """Model and tokenizer by unsloth, which must have been imported before trl: the notebooks do so.

    Of a directory of adapters it loads the model that they name, and them.
    """
    from unsloth import FastLanguageModel

    with clear_errors(params):
        model, tokenizer = FastLanguageModel.from_pretrained(
            params.adapters or source,
            dtype=DTYPES[params.dtype],
            load_in_4bit=bool(params.load_in_4bit),
            max_seq_length=max_seq_length,
            use_gradient_checkpointing=checkpointing,
            cache_dir=hub_cache(source, params),
            offload_embedding=params.offload_embedding,
        )
    return model, tokenizer


def with_fresh_adapters(model: Any, params: ModelParams, *, checkpointing: str | bool, seed: int) -> Any:
    """The model with untrained LoRA adapters, which change nothing yet."""
    targets = list(params.lora_target_modules)
    lora: dict[str, Any] = {
        "r": params.lora_rank,
        "lora_alpha": params.lora_alpha,
        "lora_dropout": params.lora_dropout,
        "target_modules": targets[0] if targets == ["all-linear"] else targets,
    }
    if params.engine == "unsloth":
        from unsloth import FastLanguageModel

        if lora["target_modules"] == "all-linear":
            lora = {**lora, "target_modules": LINEAR_LAYERS}
        return FastLanguageModel.get_peft_model(
            model, use_gradient_checkpointing=checkpointing, random_state=seed, **lora
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **lora))


def with_fresh_weights(model: Any, *, seed: int) -> Any:
    """A model of the same shape with random weights of this seed: what is trained whole has no base."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = type(model)(model.config).to(model.device, model.dtype)
    fresh.generation_config = model.generation_config
    return fresh


def check_base(adapters: str, source: str) -> None:
    """Raise ParamsError for adapters that were saved with another model than `source`."""
    config = json.loads((Path(adapters) / "adapter_config.json").read_text(encoding="utf-8"))
    base = str(config.get("base_model_name_or_path") or "")
    if base and Path(base).name != Path(source).name:
        raise ParamsError(f"model.adapters = {adapters!r} belong to {base}, not to model.id, {source}")


def complete_tokenizer(model: Any, tokenizer: Any) -> None:
    """Pad on the left, with the end token where there is no other; stop at every end the chat has too."""
    tokenizer.padding_side = "left"
    tokenizer.clean_up_tokenization_spaces = False  # it would strip spaces from code
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    ends = model.generation_config.eos_token_id
    ends = [ends] if isinstance(ends, int) else list(ends or [])
    chat_end = tokenizer.convert_tokens_to_ids("<|im_end|>")  # base models of the Qwen family never list it
    known = [tokenizer.eos_token_id, *ends]
    if isinstance(chat_end, int) and chat_end != tokenizer.unk_token_id:
        known.append(chat_end)
    model.generation_config.eos_token_id = sorted({token for token in known if token is not None})
    model.generation_config.pad_token_id = tokenizer.pad_token_id


def check_targets(model: Any, params: ModelParams) -> None:
    """Raise ParamsError for names of layers that the model does not have."""
    names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    missing = [target for target in params.lora_target_modules if target.rpartition(".")[2] not in names]
    if missing and list(params.lora_target_modules) != ["all-linear"]:
        parts = [(name, part) for name, part in model.named_modules() if isinstance(part, torch.nn.Linear)]
        linear = {name.rpartition(".")[2] for name, _ in parts}
        raise ParamsError(
            f"model.lora_target_modules: {', '.join(missing)} is no layer of {params.id!r}; "
            f"its linear layers are {', '.join(sorted(linear))}"
        )


@contextmanager
def clear_errors(params: ModelParams) -> Iterator[None]:
    """Turn what a loader raises for missing weights or memory into one sentence with the remedy.

    To be put around the loaders alone: a ValueError of our own is no missing model.
    """
    name, cache = params.id, params.cache_dir
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        smaller = "take a smaller model"
        remedy = smaller if params.load_in_4bit else f"set model.load_in_4bit to true or {smaller}"
        raise PolicyUnavailable(f"model.id = {name!r} does not fit this GPU; {remedy}") from error
    except (OSError, ValueError, SafetensorError) as error:
        if is_missing_offline(error):
            raise PolicyUnavailable(
                f"model.id = {name!r} is not in {cache} and this machine is offline. On a machine with "
                f"internet run `hf download {name} --cache-dir {cache}` and copy that directory here, "
                "or set model.id to 'embedded'"
            ) from error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise PolicyUnavailable(f"model.id = {name!r} cannot be loaded: {reason}") from error


def is_missing_offline(error: BaseException | None) -> bool:
    """Whether a file was neither in the hub's cache nor to be had from the network."""
    while error is not None:
        if isinstance(error, LocalEntryNotFoundError | OfflineModeIsEnabled):
            return True
        error = error.__cause__ or error.__context__
    return False


def save_adapters(policy: Policy, directory: str | Path) -> Path:
    """Write the adapters and the tokenizer, with a note of the model they belong to; rank 0 alone does."""
    directory = Path(directory)
    if rank() != 0:
        return directory
    policy.model.save_pretrained(directory)
    policy.tokenizer.save_pretrained(directory)
    (directory / "base_model.json").write_text(json.dumps({"base": policy.source}) + "\n", encoding="utf-8")
    return directory

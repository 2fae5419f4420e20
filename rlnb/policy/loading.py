"""A model with its adapters and tokenizer: loaded by transformers or unsloth, and saved."""

import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, load_peft_weights
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors import SafetensorError
from tokenizers import Tokenizer
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rlnb.errors import ParamsError, PolicyUnavailable, see
from rlnb.machine import rank
from rlnb.machine.table import SHARED_MEMORY
from rlnb.params.bases import find_adapter_fault, is_same_model, read_base, write_base
from rlnb.params.model_cache import find_4bit_fault, find_folder, is_path
from rlnb.params.resolving import NAME_END, PREFETCH, loaded_id
from rlnb.params.sections import ModelParams
from rlnb.params.thoughts import THOUGHT_TOKEN
from rlnb.policy.builtin import model_directory
from rlnb.policy.cpu_attention import use_cpu_attention
from rlnb.policy.prompts import Chat

LONGEST_TEXT = 8192  # tokens that a model loaded by unsloth reads; MBPP's longest prompt has 4271
TOWERS = r".*(vision|audio).*"  # layers of models that also see or hear
LINEAR_LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# By which models of chats end an answer, or a text; <|end|> is not one of GPT-OSS, which goes on after it.
END_TOKENS = {
    "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<end_of_turn>",
    "<|return|>", "<|call|>",
}  # fmt: skip
TIED = "the embeddings are this model's head as well, and merged adapters would change both"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Policy:
    """A model with LoRA adapters and its tokenizer; the reference policy is the model, adapters disabled.

    model: also a PeftModel, which forwards to its PreTrainedModel. dtype: that the layers compute in;
    adapters are float32. directory: of the model's files, "" if not known.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    source: str
    engine: str
    dtype: torch.dtype
    chat: Chat
    directory: str = ""

    @property
    def device(self) -> torch.device:
        """Return where the decoder is; unsloth may keep the first parameter, the embeddings, on the CPU."""
        return self.model.device

    def num_parameters(self) -> tuple[int, int]:
        """Return the numbers of trained and of all parameters, those of 4 bits counted each."""
        return self.model.num_parameters(only_trainable=True), self.model.num_parameters()


def load_policy(
    params: ModelParams,
    *,
    is_trained: bool = True,
    gradient_checkpointing: bool = False,
    max_seq_length: int = 2048,
    seed: int = 42,
) -> Policy:
    """Load a model and put LoRA adapters on it: those of `params.adapters`, or fresh ones if it is trained.

    params: without "auto". gradient_checkpointing, max_seq_length: for unsloth, which fixes them at loading.
    seed: of the fresh adapters' values. Raises PolicyUnavailable if the weights or a package are missing.
    """
    if params.adapters and (fault := find_adapter_fault(params.adapters)):
        raise ParamsError(f"model.adapters = {params.adapters!r} {fault}")
    leave_memory_to_the_system()
    source = find_model(params)
    base = read_base(params.adapters) if params.adapters else ""
    if base and not is_same_model(base, source):
        raise ParamsError(
            f"model.adapters = {params.adapters!r} belong to {base}, not to {source}; write model.id = {base}"
        )
    checkpointing: str | bool = "unsloth" if gradient_checkpointing else False
    if params.engine == "unsloth":
        model, tokenizer = load_with_unsloth(source, params, max_seq_length, checkpointing)
    else:
        model, tokenizer = load_with_transformers(source, params, is_trained=is_trained)
    if is_trained and not params.adapters and params.lora_rank:
        model = add_fresh_adapters(model, params, checkpointing=checkpointing, seed=seed)
    elif params.id == "tiny" and not (params.lora_rank or params.adapters):
        model = make_fresh_weights(model, seed=seed)
    if params.engine == "unsloth":
        read_longer_texts(model)
    folder = find_folder(model.name_or_path, params.cache_dir)
    complete_tokenizer(model, tokenizer, folder, params=params)
    use_plain_sampling(model)
    use_cpu_attention(model)
    dtype, chat = DTYPES[params.dtype], Chat(tokenizer, params.thinking, params.system)
    return Policy(model, tokenizer, source, params.engine, dtype, chat, str(folder or ""))


def leave_memory_to_the_system() -> None:
    """Let torch raise an out-of-memory error before it has the memory that a GPU shares with the system."""
    if torch.cuda.is_available() and (share := SHARED_MEMORY.get(torch.cuda.get_device_capability())):
        torch.cuda.set_per_process_memory_fraction(share)


def load_tokenizer(params: ModelParams) -> PreTrainedTokenizerBase:
    """Load the tokenizer alone, in a second, to measure prompts before the model is loaded."""
    source = find_model(params.model_copy(update={"id": loaded_id(params)}))
    # Else mistral-common, which vLLM brings, takes over models with a tekken.json, and has no backend.
    form = {"mistral_format": False}
    if int(version("transformers").partition(".")[0]) < 5:
        form = {}
    with explain_load_errors(params):
        return AutoTokenizer.from_pretrained(source, cache_dir=params.cache_dir, **form)


def find_model(params: ModelParams) -> str:
    """Return the model's directory or name on the hub.

    Raises PolicyUnavailable for one that transformers 4.57, of the V100's set, would silently misread.
    """
    source = model_directory(params.id, params.cache_dir)
    if int(version("transformers").partition(".")[0]) < 5:
        config = fetch_config(source, params)
        parts = (config, config.get("text_config") or {})
        if any("rope_parameters" in part and "rope_theta" not in part for part in parts):
            raise PolicyUnavailable(
                f"model.id = {params.id!r}: {source} was saved by transformers 5, whose rope_parameters this "
                "machine's 4.57 does not read; save it with 4.57 (delete one that rlnb has built here)"
            )
    return source


def fetch_config(source: str, params: ModelParams) -> dict[str, Any]:
    """Return the config.json of a model on the hub or in a folder. Raises PolicyUnavailable."""
    with explain_load_errors(params):
        config, _ = PretrainedConfig.get_config_dict(source, cache_dir=params.cache_dir)
    return dict(config)


def load_with_transformers(
    source: str, params: ModelParams, *, is_trained: bool
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load model and tokenizer by transformers, saved adapters by peft, 4 bits by bitsandbytes."""
    dtype = DTYPES[params.dtype]
    options: dict[str, object] = {"dtype": dtype}
    if params.load_in_4bit:
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype,
            bnb_4bit_use_double_quant=True,
        )  # fmt: skip
    if torch.cuda.is_available():
        options["device_map"] = choose_device_map()
    tokenizer = load_tokenizer(params)
    with explain_load_errors(params):
        model = load_whole(source, cache_dir=params.cache_dir, **options)
    if params.load_in_4bit:  # not peft's prepare_model_for_kbit_training: it makes a float32 copy of the head
        model.requires_grad_(False)
    elif dtype != torch.bfloat16:  # to which transformers 4.57 dequantizes MXFP4, whatever is asked
        for weight in model.parameters():
            weight.data = weight.data.to(dtype) if weight.dtype == torch.bfloat16 else weight.data
    return attach_adapters(model, params, is_trained=is_trained) if params.adapters else model, tokenizer


def load_whole(source: str, **options: object) -> PreTrainedModel:
    """Load a model by transformers. Raises ValueError for weights that its files lack.

    transformers makes them up and goes on, which it only reports.
    """
    model, report = AutoModelForCausalLM.from_pretrained(source, output_loading_info=True, **options)
    if lacking := sorted(report["missing_keys"]):
        raise ValueError(f"its files lack {len(lacking)} of its weights, such as {lacking[0]}")
    return model


@contextmanager
def refuse_made_up_weights() -> Iterator[None]:
    """Raise ValueError where transformers, called by another library, logs that files lack weights."""
    reports = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            reports.append(record.getMessage())

    logger, keep = logging.getLogger("transformers.modeling_utils"), Keep(logging.WARNING)
    logger.addHandler(keep)
    try:
        yield
    finally:
        logger.removeHandler(keep)
    if lacking := re.findall(r"^(\S.*?) *\| (?:\x1b\[\d+m)?MISSING", "\n".join(reports), re.MULTILINE):
        raise ValueError(f"its files lack weights, such as {lacking[0]}")


def choose_device_map() -> dict[str, int]:
    """Return the map of a whole model onto this rank's GPU, which becomes the one that cuda alone means."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(local_rank)
    return {"": local_rank}


def attach_adapters(model: PreTrainedModel, params: ModelParams, *, is_trained: bool) -> PeftModel:
    """Return the model with the adapters of `params.adapters`. Raises PolicyUnavailable."""
    try:
        adapted = PeftModel.from_pretrained(model, params.adapters, is_trainable=is_trained)
        saved = load_peft_weights(params.adapters, device="cpu")
    except Exception as error:  # a folder of others may hold anything
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise PolicyUnavailable(f"model.adapters = {params.adapters!r} cannot be loaded: {reason}") from error
    # peft only warns, and by default asks the hub for the base's vocabulary.
    expected = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    # What else may be saved is a weight of the model: embeddings that adapters lie on.
    if expected.keys() - saved.keys() or saved.keys() - expected.keys() - adapted.state_dict().keys():
        raise ParamsError(
            f"model.adapters = {params.adapters!r} do not fit this model, which has other layers"
        )
    return adapted


def load_with_unsloth(
    source: str, params: ModelParams, max_seq_length: int, checkpointing: str | bool
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load by unsloth, which must be imported before trl; from adapters also the model that they name."""
    from unsloth import FastLanguageModel

    if params.load_in_4bit and (fault := find_4bit_fault(fetch_config(loaded_id(params), params))):
        raise ParamsError(f"model.load_in_4bit = true {fault}")
    ranks: dict[str, object] = {}
    if "LOCAL_RANK" in os.environ:
        ranks["device_map"] = choose_device_map()
    with explain_load_errors(params), refuse_made_up_weights():
        model, tokenizer = FastLanguageModel.from_pretrained(
            params.adapters or source, dtype=DTYPES[params.dtype], load_in_4bit=bool(params.load_in_4bit),
            max_seq_length=max_seq_length, use_gradient_checkpointing=checkpointing,
            cache_dir=params.cache_dir, offload_embedding=params.offload_embedding, **ranks,
        )  # fmt: skip
    return model, getattr(tokenizer, "tokenizer", tokenizer)  # of a model that also sees, within a processor


def read_longer_texts(model: PreTrainedModel) -> None:
    """Let a model of unsloth read texts up to LONGEST_TEXT, or its positions; longer ones than it trains on.

    It cuts what is longer than the length that it was loaded for, which then does not fit its mask.
    """
    longest = min(model.config.get_text_config().max_position_embeddings, LONGEST_TEXT)
    for module in model.modules():
        if hasattr(module, "max_seq_length"):
            module.max_seq_length = max(module.max_seq_length, longest)


def add_fresh_adapters(
    model: PreTrainedModel, params: ModelParams, *, checkpointing: str | bool, seed: int
) -> PreTrainedModel:
    """Return the model with untrained LoRA adapters. Raises ParamsError for a missing layer, unlike peft."""
    targets: object = list(params.lora_target_modules)
    layers = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    config = model.config.get_text_config()
    is_mixture = bool(getattr(config, "num_local_experts", 0) or getattr(config, "num_experts", 0))
    if targets == ["all-linear"] and is_mixture and params.engine == "unsloth":
        raise ParamsError(
            "model.lora_target_modules = [all-linear]: unsloth puts adapters on the experts of "
            f"{params.id!r} too, which the estimate of memory does not count and mxfp4 cannot hold; write "
            "[q_proj, k_proj, v_proj, o_proj]"
        )
    if targets == ["all-linear"]:
        targets = LINEAR_LAYERS if params.engine == "unsloth" else "all-linear"
    elif missing := [name for name in params.lora_target_modules if name.rpartition(".")[2] not in layers]:
        raise ParamsError(
            f"model.lora_target_modules: {', '.join(missing)} is not a layer of {params.id!r}; "
            "write all-linear, or layers that it has"
        )
    lora: dict[str, object] = {"r": params.lora_rank, "lora_alpha": params.lora_alpha, "lora_dropout": 0.0}
    lora["target_modules"] = targets
    if params.engine == "unsloth":
        from unsloth import FastLanguageModel

        adapted = FastLanguageModel.get_peft_model(
            model, use_gradient_checkpointing=checkpointing, random_state=seed, **lora
        )
        # unsloth saves a pattern of names, and `find_adapter_fault` refuses that of GPT-OSS as too slow.
        adapted.peft_config["default"].target_modules = set(adapted.base_model.targeted_module_names)
        return adapted
    if any(re.fullmatch(TOWERS, name) for name, _ in model.named_modules()):  # never used here
        lora["exclude_modules"] = TOWERS
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **lora))
    if adapts_tied(adapted):
        raise ParamsError(f"model.lora_target_modules: {TIED}; write all-linear")
    return adapted


def adapts_tied(model: PreTrainedModel) -> bool:
    """Return whether adapters are on a matrix that is embeddings and head at once."""
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    is_tied = head is not None and head.weight is embeddings.weight
    return is_tied and any(isinstance(layer, BaseTunerLayer) for layer in (head, embeddings))


def make_fresh_weights(model: PreTrainedModel, *, seed: int) -> PreTrainedModel:
    """Return a model of the same shape with random weights of this seed, to be trained as a whole."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = type(model)(model.config).to(model.device, model.dtype)
    fresh.generation_config = model.generation_config
    return fresh


def complete_tokenizer(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path | None, *, params: ModelParams
) -> None:
    """Pad on the left, with the end token if there is no pad token; also stop at the chat's end.

    Without a generation_config.json in its folder the model stops at all tokens that are known as ends, as
    published models do. Raises PolicyUnavailable for a model without an end.
    """
    tokenizer.padding_side = "left"
    tokenizer.clean_up_tokenization_spaces = False  # it would strip spaces from code
    show_all_text(tokenizer)
    ends = model.generation_config.eos_token_id
    known = {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])}
    is_published = folder is None or (folder / "generation_config.json").is_file()
    vocabulary = tokenizer.get_vocab().keys()
    # Base models of the Qwen family never list the end of a chat, StarCoder 2's never that of a file.
    names = vocabulary & {"<|im_end|>"} or {"<file_sep>"} if is_published else END_TOKENS
    known |= {tokenizer.convert_tokens_to_ids(name) for name in vocabulary & names}
    if not (known := known - {None}):
        raise PolicyUnavailable(f"model.id = {params.id!r} has no end token; {NAME_END}")
    if tokenizer.eos_token is None:
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(min(known))
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.generation_config.eos_token_id = sorted(known)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.bos_token_id = tokenizer.bos_token_id
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):  # else the trainer does it, and warns
        setattr(model.config, name, getattr(tokenizer, name))


def show_all_text(tokenizer: PreTrainedTokenizerBase) -> None:
    """Let decoded text hold what begins and ends thoughts, and the blank that it begins with.

    The first are special tokens of Mistral's and Gemma's models; sentencepiece's decoders drop the second, as
    if nothing came before. `save_tokenizer` writes the rules that were published; the checkpoints that TRL
    writes have these.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # a tokenizer written in Python
        return
    added = tokenizer.added_tokens_decoder.values()
    hides_thoughts = any(token.special and THOUGHT_TOKEN.fullmatch(token.content) for token in added)
    if not hides_thoughts and not re.search("Metaspace|Strip", str(backend.decoder)):
        return
    rules = json.loads(backend.to_str())
    for token in rules["added_tokens"]:
        token["special"] &= not THOUGHT_TOKEN.fullmatch(token["content"])
    decoding = rules["decoder"] or {}
    for part in (parts := decoding.get("decoders", [decoding])):
        if part.get("type") == "Metaspace":
            part["prepend_scheme"] = "never"
    if "decoders" in decoding:
        decoding["decoders"] = [part for part in parts if part["type"] != "Strip"]
    tokenizer.published, tokenizer._tokenizer = backend, Tokenizer.from_str(json.dumps(rules))


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Write a tokenizer by the rules that it was published with."""
    if (published := vars(tokenizer).get("published")) is None:
        tokenizer.save_pretrained(directory)
        return
    ours, tokenizer._tokenizer = tokenizer._tokenizer, published
    try:
        tokenizer.save_pretrained(directory)
    finally:
        tokenizer._tokenizer = ours


def use_plain_sampling(model: PreTrainedModel) -> None:
    """Drop the settings that a model was published with, such as a repetition penalty.

    Training and evaluation sample from the plain distribution at a temperature. A line says what was dropped.
    """
    published = model.generation_config
    model.generation_config = GenerationConfig(
        bos_token_id=published.bos_token_id,
        eos_token_id=published.eos_token_id,
        pad_token_id=published.pad_token_id,
    )
    dropped = [
        f"{name} = {value}"
        for name, value in published.to_diff_dict().items()
        if name.endswith(("penalty", "ngram_size", "words_ids", "bias", "tokens"))
        and value != (1 if name.endswith("penalty") else 0)
    ]
    if dropped and rank() == 0:
        print(f"{model.name_or_path}: is used without its published {', '.join(dropped)}")


@contextmanager
def explain_load_errors(params: ModelParams) -> Iterator[None]:
    """Turn an error of a library's loader, for missing weights or memory, into one sentence."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        remedy = "take a smaller model or 4 bits, or restart a kernel that has loaded one before"
        reason = f"does not fit this GPU; {remedy}{see('out-of-memory')}"
        raise PolicyUnavailable(f"model.id = {params.id!r} {reason}") from error
    except (ImportError, OSError, RuntimeError, ValueError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        place = f"model.id = {params.id!r} cannot be loaded"
        if is_path(params.id):
            raise PolicyUnavailable(f"{place} by transformers: {reason}") from error
        remedy = f"where files are missing, {PREFETCH}{see('no-network')}"
        raise PolicyUnavailable(f"{place} from {params.cache_dir} or the hub: {reason}; {remedy}") from error


def save_adapters(policy: Policy, directory: str | Path) -> Path:
    """Write the adapters, the tokenizer and a note of the model they belong to; only rank 0 writes."""
    directory = Path(directory)
    if rank() == 0:
        card = directory / "README.md"
        had_card = card.exists()
        if isinstance(policy.model, PeftModel):  # by default it asks the hub for the base's vocabulary
            PeftModel.save_pretrained(policy.model, directory, save_embedding_layers=False)
        else:
            policy.model.save_pretrained(directory)
        if not had_card:  # peft's says "More Information Needed" forty times
            card.unlink(missing_ok=True)
        save_tokenizer(policy.tokenizer, directory)
        write_base(directory, policy.source)
    return directory

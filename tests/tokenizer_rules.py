"""Small tokenizers by the rules of published ones: how they cut a text before they merge bytes."""

from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SIGNS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # with the ends of lines behind them
LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"  # with one sign before them
CASED = r"[^\r\n\p{L}\p{N}]?\p{Lu}*\p{Ll}+|[^\r\n\p{L}\p{N}]?\p{Lu}+"
RULES = {
    "qwen": [Regex(LETTERS + r"|\p{N}" + SIGNS)],
    "llama 3": [Regex(LETTERS + r"|\p{N}{1,3}" + SIGNS)],
    "gpt-oss, mistral": [Regex(CASED + r"|\p{N}{1,3}" + SIGNS.replace("]*|", "/]*|", 1))],
    "smollm2": [Regex(r"\p{N}"), Regex(r" ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")],
    "deepseek": [Regex(r"[\r\n]"), Regex(r"\s?\p{L}+"), Regex(r"\s?\p{P}+"), Regex(r"\p{N}")],
    "newlines apart": ["\n"],
    "gemma": [],  # no bytes but characters, and "▁" for a blank
}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Qwen's "```" is one token; before a blank line it is "``" and "`\n\n".
FENCE_MERGES = [("`", "`"), ("Ċ", "Ċ"), ("`", "ĊĊ"), ("``", "`")]


def train_tokenizer(name: str, texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """Train merges on texts, so that signs join with what these rules let them join."""
    tokenizer = cut_by(name, models.BPE())
    alphabet = pre_tokenizers.ByteLevel.alphabet() if name != "gemma" else list(map(chr, range(32, 127)))
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIAL, show_progress=False, initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator([*texts] * 3, trainer)
    return finish(tokenizer)


def make_tokenizer(
    name: str, texts: Sequence[str], merges: Sequence[tuple[str, str]]
) -> PreTrainedTokenizerFast:
    """Return a tokenizer with these merges, of the bytes that the texts hold."""
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters = sorted(
        {letter for text in texts for piece, _ in as_bytes.pre_tokenize_str(text) for letter in piece}
    )
    words = [*SPECIAL, *letters, *map("".join, merges)]
    return finish(cut_by(name, models.BPE({word: index for index, word in enumerate(words)}, list(merges))))


def cut_by(name: str, model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    if name == "gemma":
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
        tokenizer.decoder = decoders.Replace("▁", " ")
    else:
        as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        splits = [pre_tokenizers.Split(rule, "isolated") for rule in RULES[name]]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, as_bytes])
        tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def finish(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    tokens = {"bos_token": SPECIAL[1], "eos_token": SPECIAL[2], "pad_token": SPECIAL[0]}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **tokens)
    fast.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>\n"
    return fast

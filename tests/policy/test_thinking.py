"""model.thinking decides for every chat of every pipeline whether the reply may begin with thoughts."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_policy import load_tiny

import rlnb
from rlnb.policy.prompts import chat_text, game_text

PACKAGE = Path(rlnb.__file__).parent
# As Qwen3's: where nothing is said, the model thinks.
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
SKIPPED = "<|im_start|>assistant\n<think>\n\n</think>\n\n"


def syntax() -> Iterator[tuple[str, ast.AST]]:
    """Yield (file, node) of all of rlnb/."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield path.relative_to(PACKAGE).as_posix(), node


@pytest.mark.parametrize("thinking", [False, True])
def test_a_chat_skips_the_thoughts_unless_they_are_allowed(thinking, cache_dir):
    policy = load_tiny(cache_dir, thinking=thinking)
    policy.tokenizer.chat_template = TEMPLATE
    texts = (
        chat_text(
            [{"role": "user", "content": "Hi"}], policy.tokenizer, asked_by="", instead="",
            thinking=policy.thinking,
        ),
        game_text("Your move", tokenizer=policy.tokenizer, thinking=policy.thinking),
    )  # fmt: skip
    assert [text.endswith(SKIPPED) for text in texts] == [not thinking] * 2


def test_chats_are_rendered_in_one_place():
    files = {
        file
        for file, node in syntax()
        if isinstance(node, ast.Attribute) and node.attr == "apply_chat_template"
    }
    assert files == {"policy/prompts.py"}


def test_every_pipeline_hands_on_what_the_parameter_says():
    nodes = list(syntax())
    takers = {
        node.name
        for _, node in nodes
        if isinstance(node, ast.FunctionDef) and "thinking" in [each.arg for each in node.args.kwonlyargs]
    }
    packages = set()
    for file, node in nodes:
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func).rpartition(".")[2]
        if called == "partial" and node.args:
            called = ast.unparse(node.args[0])
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if called in takers and not (None in given and "thinking" not in given):  # may be in **wording
            assert given.get("thinking", "").rpartition(".")[2] == "thinking", f"{file}:{node.lineno}"
            packages.add(file.partition("/")[0])
    assert packages >= {"code_execution", "code_game", "game_2048", "mbpp", "selfplay", "ppo"}

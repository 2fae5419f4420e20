"""Where a prompt ends and who speaks first in it, by the rules of published tokenizers and templates."""

import ast
from dataclasses import replace
from datetime import datetime
from importlib import resources

import pytest
from refusals import refused
from tokenizer_rules import RULES, train_tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from rlnb.code_execution.prompts import build_prompt
from rlnb.code_execution.sources import load_tasks
from rlnb.code_game.prompts import GameQuestion, build_game_prompt
from rlnb.game_2048.board import BoardKind
from rlnb.game_2048.prompts import build_strategy_prompt
from rlnb.mbpp.problems import load_mbpp
from rlnb.mbpp.prompts import TEMPLATES, build_question
from rlnb.mbpp.writers import PROGRAM_STARTS
from rlnb.params import load_params
from rlnb.params.thoughts import THOUGHT_MARKS
from rlnb.policy.loading import save_tokenizer, show_all_text
from rlnb.policy.prompts import Chat, Prompt, begin_answer
from rlnb.selfplay.acting import make_encoder
from rlnb.selfplay.params import ActingParams
from rlnb.source_code.extraction import is_complete_answer

TASK = load_tasks("builtin")["train"][0]
BODIES = [
    "    return n\n",
    "    total = 0\n    for x in xs:\n",
    '    """Do it."""\n',
    "    if (n):\n",
    "    y = [1]\n",
]
PROGRAMS = [
    f"```python\ndef f(n):\n{body}    print(n)\n    print('a')\n```\n\nIt is right.\n" for body in BODIES
]
PROGRAMS += [
    'def g(xs):\n    """Sort.\n    """\n    return xs\n',
    "xs = [1, 2]\nprint(len(xs))\nprint([n])\n",
]


@pytest.fixture(scope="module", params=RULES)
def tokenizer(request) -> PreTrainedTokenizerFast:
    return train_tokenizer(request.param, PROGRAMS)


def read_template(name: str) -> str:
    """Return a published chat template, of those that TRL carries."""
    return resources.files("trl").joinpath("chat_templates", f"{name}.jinja").read_text(encoding="utf-8")


def prompts_of(tokenizer: PreTrainedTokenizerFast) -> list[tuple[Prompt, str, list[str]]]:
    """Each prompt that begins an answer, how it would end in full, and how answers go on."""
    chat, task = Chat(tokenizer), TASK
    params = load_params(
        "gpt_oss_2048", profile="tiny", overrides={"prompt": {"prefilled": True}}, environ={}
    )
    head = f"def {task.function}({task.parameters}):\n"
    strategy = build_strategy_prompt(params, BoardKind(4, 2048), 0, chat)
    game = [
        build_game_prompt(GameQuestion("a", "n = 7", topic), form, chat)
        for form, topic in (("seeded", ""), ("topic", "loops"))
    ]
    problems = load_mbpp("builtin").problems
    questions = [build_question(problems[11], TEMPLATES[name], problems) for name in ("paper", "docstring")]
    return [
        (build_prompt(task, "prefilled", chat), f"```python\n{head}", BODIES),
        (build_prompt(task, "completion", chat), '"""\n', BODIES),
        (strategy, "def strategy(board):\n", BODIES),
        (game[0], "print(", ["n)\n", "'a' * n)\n", "(n + 1))\n", "len(xs))\n", "3)\n"]),
        (game[1], "```python\n", ["n = 7\nprint(n)\n", "import math\n"]),
        *(
            (begin_answer("", text, tokenizer, PROGRAM_STARTS), text[-9:], ["def f(n):\n", "import re\n"])
            for text in questions
        ),
    ]  # fmt: skip


def test_no_prompt_ends_inside_a_token(tokenizer):
    for prompt, end, continuations in prompts_of(tokenizer):
        assert prompt.text.endswith(prompt.prefix)
        num_cut = next(n for n in range(len(end) + 1) if prompt.text.endswith(end[: len(end) - n]))
        tokens = tokenizer(prompt.text)["input_ids"]
        for continuation in continuations:
            whole = prompt.text + end[len(end) - num_cut :] + continuation
            assert tokenizer(whole)["input_ids"][: len(tokens)] == tokens, (prompt.text[-30:], continuation)


@pytest.mark.parametrize(("name", "ends"), [("qwen", ["):\n", "print"]), ("smollm2", ["):", "print"])])
def test_the_end_of_a_line_is_left_to_the_answer_where_a_token_joins_it_with_what_follows(name, ends):
    prompts = [prompt for prompt, *_ in prompts_of(train_tokenizer(name, PROGRAMS))]
    for prompt, end in zip((prompts[0], prompts[3]), ends, strict=True):
        assert prompt.text.endswith(end)


TURNS = (
    "{% for m in messages %}{% if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
    "<assistant>{% if enable_thinking is false and thinks %}<think>\n\n</think>{% endif %}"
)
# What the templates of these families do with a system message.
FAMILIES = {
    "qwen 2.5": "<system>{% if SYSTEM %}TEXT{% else %}You are Qwen.{% endif %}",
    "qwen 3": "{% set thinks = true %}{% if SYSTEM %}<system>TEXT{% endif %}",
    "llama 3": "{{ bos_token }}<system>Today: 26 Jul 2024. {% if SYSTEM %}TEXT{% endif %}",
    "gemma": "{{ bos_token }}{% if SYSTEM %}{{ raise_exception('System role not supported') }}{% endif %}",
    "gpt-oss": "<system>Reasoning: {{ reasoning_effort }}{% if SYSTEM %}<developer>TEXT{% endif %}",
    "mistral": "{{ bos_token }}{% if SYSTEM %}[INST]TEXT[/INST]{% endif %}",
    "deepseek": "{{ bos_token }}{% if SYSTEM %}TEXT{% endif %}",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_speaks_under_its_own_system_message_unless_it_is_given_one(family):
    tokenizer = train_tokenizer("qwen", PROGRAMS)
    template = FAMILIES[family].replace("SYSTEM", "messages[0].role == 'system'") + TURNS
    tokenizer.chat_template = template.replace("TEXT", "{{ messages[0].content }}")
    own, empty, given = (Chat(tokenizer, system=text).ask("Why?") for text in (None, "", "Be brief."))
    for text in (own, empty, given):
        assert text.count("Why?") == 1 and text.rindex("<assistant>") > text.index("Why?")
    assert ("You are Qwen." in own) == (family == "qwen 2.5")
    assert "You are Qwen." not in empty + given
    assert given.count("Be brief.") == 1 and given.index("Be brief.") < given.index("Why?")
    if family == "gemma":  # it has no system role
        assert own == empty and given == own.replace("Why?", "Be brief.\n\nWhy?")


@pytest.mark.gpu
@pytest.mark.parametrize(("template", "written"), [("gptoss", "2025-06-28"), ("llama3_2", "28 Jun 2025")])
def test_prompts_are_the_same_on_another_day(template, written, monkeypatch):
    chat = Chat(train_tokenizer("qwen", PROGRAMS))
    chat.tokenizer.chat_template = read_template(template)
    texts = []
    for day in (27, 28):
        clock = type("Clock", (datetime,), {"now": classmethod(lambda cls, day=day: cls(2026, 11, day))})
        monkeypatch.setattr(chat_template_utils, "datetime", clock)
        texts.append(chat.ask("Why?"))
    assert texts[0] == texts[1] and written in texts[0]


@pytest.mark.gpu
def test_a_begun_answer_is_in_the_channel_of_answers_where_a_template_has_channels():
    tokenizer = train_tokenizer("gpt-oss, mistral", PROGRAMS)
    tokenizer.chat_template = read_template("gptoss")
    begun = [prompt for prompt, *_ in prompts_of(tokenizer)]
    chats = [prompt for prompt in begun if prompt.text.startswith("<|start|>")]
    assert len(chats) == 4  # code execution, 2048, both forms of the code game
    for prompt in chats:
        head = prompt.text.removesuffix(prompt.prefix)
        question = head.rpartition("<|start|>user<|message|>")[2].partition("<|end|>")[0]
        answered = [{"role": "user", "content": question}, {"role": "assistant", "content": prompt.prefix}]
        whole = tokenizer.apply_chat_template(answered, tokenize=False)
        assert whole.endswith(f"{question}<|end|>{head.rpartition('<|end|>')[2]}{prompt.prefix}<|return|>")
    assert all("<|channel|>" not in prompt.text for prompt in begun if prompt not in chats)
    for acting, end in (("constrained", "<|channel|>final<|message|>"), ("free", "<|start|>assistant")):
        assert make_encoder(ActingParams(acting=acting), Chat(tokenizer)).as_text("Which move?").endswith(end)


OPENINGS = {
    "<think>": "</think>", "<thought>": "</thought>", "<|channel>thought": "<channel|>", **THOUGHT_MARKS
}  # fmt: skip


@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("thinking", [False, True])
def test_a_thought_that_the_template_opens_is_closed_or_belongs_to_the_answer(thinking, opening):
    tokenizer = train_tokenizer("qwen", PROGRAMS)
    tokenizer.chat_template = (
        FAMILIES["deepseek"].replace("SYSTEM", "false") + TURNS + f"{{{{ '{opening}\\n' }}}}"
    )
    prompt = build_prompt(TASK, "chat", Chat(tokenizer, thinking))
    begun = build_prompt(TASK, "prefilled", Chat(tokenizer, thinking))
    answer = "```python\ndef f(n):\n    return 1\n```\nNo.\n"
    closed = f"{opening}\n\n{OPENINGS[opening]}\n\n"
    assert begun.text.removesuffix(begun.prefix).endswith(closed)
    assert prompt.prefix == (f"{opening}\n" if thinking else "")
    assert prompt.text.endswith(f"{opening}\n" if thinking else closed)
    assert (
        is_complete_answer(answer, prefix=prompt.prefix, function="f") != thinking
    )  # a draft, or the answer


@pytest.mark.parametrize("name", ["enable_thinking", "thinking"])  # Qwen's, DeepSeek V3.1's and Granite's
def test_a_template_is_told_whether_to_think(name):
    tokenizer = train_tokenizer("qwen", PROGRAMS)
    tokenizer.chat_template = f"{{% if {name} %}}<think>{{% endif %}}"
    assert [Chat(tokenizer, thinking).ask("Why?") for thinking in (False, True)] == ["", "<think>"]


@pytest.mark.parametrize(
    "marks", [("[THINK]", "[/THINK]"), ("<|channel>", "<channel|>"), ("<think>", "</think>")]
)
def test_thoughts_stand_in_decoded_text_and_a_saved_tokenizer_hides_them_as_published(marks, tmp_path):
    """Although their marks are special tokens."""
    tokenizer = train_tokenizer("qwen", PROGRAMS)
    tokenizer.add_special_tokens({"additional_special_tokens": list(marks)})
    text = f"{marks[0]}print(1){marks[1]}print(2)"
    tokens = tokenizer(text + tokenizer.eos_token)["input_ids"]
    show_all_text(tokenizer)
    assert tokenizer.decode(tokens, skip_special_tokens=True) == text
    assert tokenizer(text + tokenizer.eos_token)["input_ids"] == tokens
    save_tokenizer(tokenizer, tmp_path)
    hidden = AutoTokenizer.from_pretrained(tmp_path).decode(tokens, skip_special_tokens=True)
    assert hidden == "print(1)print(2)"


@pytest.mark.parametrize(
    "statement", ['Return """x""".', r"Count \x and \N in a path, as C:\users.", "Say \\"]
)
def test_any_statement_can_stand_in_the_head_that_a_body_completes(statement):
    task = replace(TASK, statement=statement)
    head = build_prompt(task, "completion", Chat(train_tokenizer("newlines apart", PROGRAMS))).prefix
    assert (ast.get_docstring(ast.parse(head).body[0]) or "").startswith(statement)


def test_a_chat_needs_a_template():
    tokenizer = train_tokenizer("qwen", PROGRAMS)
    tokenizer.chat_template = None
    assert "model.id: " in refused(Chat(tokenizer).ask, "Why?")


def test_a_system_message_that_a_template_skips_begins_the_users():
    tokenizer = train_tokenizer("qwen", PROGRAMS)
    of_user = "{% if m.role == 'user' %}<u>{{ m.content }}{% endif %}"
    tokenizer.chat_template = f"{{% for m in messages %}}{of_user}{{% endfor %}}<a>"
    assert Chat(tokenizer, system="Be brief.").ask("Why?") == "<u>Be brief.\n\nWhy?<a>"

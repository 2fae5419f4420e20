"""The question for a strategy: what it states, and what is held out."""

import pytest

from rlnb.errors import ParamsError
from rlnb.games.board2048 import KEYS
from rlnb.games.queries2048 import QUERIES
from rlnb.policy.builtin import model_directory
from rlnb.tasks.extraction import extract_code
from rlnb.tasks.strategy_prompts import (
    HELD_OUT_WORDING,
    NUM_TRAINED_WORDINGS,
    WORDINGS,
    StrategyQuestion,
    build_strategy_prompt,
)


def question(preset="api", *, keys="bepo", wording=0, size=4, target=256) -> StrategyQuestion:
    return StrategyQuestion(preset, size, target, KEYS[keys], wording, QUERIES)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_directory("tiny", tmp_path_factory.mktemp("models")))


@pytest.mark.parametrize("preset", ["board", "api"])
@pytest.mark.parametrize("keys", KEYS)
def test_the_question_states_board_target_and_what_each_key_does(preset, keys):
    text = question(preset, keys=keys, size=5, target=8192).text()
    assert "5x5" in text and "8192" in text
    for direction, key in KEYS[keys].items():
        assert f'"{key}" {direction}' in text


def test_only_the_preset_api_offers_functions():
    assert all(query in question("api").text() for query in QUERIES)
    assert not any(query in str(question("board").messages()) for query in QUERIES)


def test_examples_are_earlier_answers_and_use_the_keys_that_were_asked_for():
    roles = [message["role"] for message in question("api").messages()]
    assert roles == ["user", "assistant", "user", "assistant", "user"]
    (message,) = question("board", keys="wasd").messages()
    assert 'return "w"' in message["content"]


def test_the_held_out_wording_is_none_of_the_trained_ones():
    assert list(range(NUM_TRAINED_WORDINGS)) == [0, 1] and HELD_OUT_WORDING == 2
    last = [question(wording=index).messages()[-1]["content"] for index in range(3)]
    assert last == list(WORDINGS) and len(set(last)) == 3


def test_a_prefilled_answer_begins_with_the_function_and_is_read_together_with_its_prefix(tokenizer):
    prompt = build_strategy_prompt(question(), tokenizer, prefilled=True)
    assert prompt.text.endswith(prompt.prefix) and prompt.prefix.endswith("def strategy(board):")
    code = extract_code('\n    return "a"\n```', prefix=prompt.prefix)
    assert code == 'def strategy(board):\n    return "a"\n'


def test_reasoning_effort_reaches_the_template_and_leaves_the_system_message_to_it(tokenizer):
    tokenizer.chat_template = "{{ reasoning_effort }}|{{ messages[0]['role'] }}"
    prompt = build_strategy_prompt(question(), tokenizer, prefilled=False, reasoning_effort="low")
    assert (prompt.text, prompt.prefix) == ("low|user", "")


def test_a_tokenizer_without_a_chat_is_refused(tokenizer):
    tokenizer.chat_template = None
    with pytest.raises(ParamsError, match="^the prompt of a strategy needs a chat template"):
        build_strategy_prompt(question(), tokenizer, prefilled=False)

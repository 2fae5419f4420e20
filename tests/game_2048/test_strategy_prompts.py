"""The question for a strategy, and the functions that it may offer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from rlnb.game_2048 import queries
from rlnb.game_2048.board import DIRECTIONS, KEYS, BoardKind, slide_board
from rlnb.game_2048.prompts import HELD_OUT_WORDING, WORDINGS, build_messages, build_strategy_prompt
from rlnb.game_2048.queries import QUERIES
from rlnb.params import load_params
from rlnb.policy.builtin import model_directory
from rlnb.policy.prompts import Chat
from rlnb.source_code.extraction import extract_program

KIND = BoardKind(5, 8192)
ROWS = [st.lists(st.sampled_from([0, 0, 2, 2, 4, 8, 1024]), min_size=n, max_size=n) for n in range(9)]
BOARDS = st.integers(2, 8).flatmap(lambda size: st.lists(ROWS[size], min_size=size, max_size=size))


def ask(preset="api", *, wording=0) -> list[dict[str, str]]:
    return build_messages(preset, KIND, wording)


def build(tokenizer, **prompt):
    params = load_params("gpt_oss_2048", profile="tiny", overrides={"prompt": prompt}, environ={})
    return build_strategy_prompt(params, KIND, 0, Chat(tokenizer))


@pytest.fixture(scope="module")
def tokenizer(cache_dir):
    return AutoTokenizer.from_pretrained(model_directory("tiny", cache_dir))


@pytest.mark.parametrize("preset", ["board", "api"])
def test_the_question_states_board_target_and_what_each_key_does(preset):
    text = ask(preset)[0]["content"]
    assert "5x5" in text and "8192" in text
    assert all(f'"{key}" {direction}' in text for direction, key in KEYS.items())
    assert all((query in text) == (preset == "api") for query in QUERIES)


def test_the_example_is_a_key_or_an_earlier_answer_and_the_held_out_wording_is_not_trained():
    assert [message["role"] for message in ask("api")] == ["user", "assistant", "user"]
    assert 'return "é"' in ask("board")[0]["content"]
    last = [ask(wording=index)[-1]["content"] for index in range(len(WORDINGS))]
    assert last == list(WORDINGS) and len(set(last)) == HELD_OUT_WORDING + 1


def test_a_prefilled_answer_begins_with_the_function_and_is_read_with_its_prefix(tokenizer):
    prompt = build(tokenizer, prefilled=True, reasoning_effort="")
    assert prompt.text.endswith(prompt.prefix) and prompt.prefix.endswith("def strategy(board):\n")
    code = extract_program('    return "a"\n```', prefix=prompt.prefix)
    assert code == 'def strategy(board):\n    return "a"\n'


def test_reasoning_effort_reaches_the_template_which_writes_the_system_message(tokenizer):
    tokenizer.chat_template = "{{ reasoning_effort }}|{{ messages[0]['role'] }}"
    prompt = build(tokenizer, prefilled=False, reasoning_effort="low")
    assert (prompt.text, prompt.prefix) == ("low|user", "")


@given(BOARDS)
def test_the_offered_functions_agree_with_the_engine_and_leave_the_board_alone(board):
    before = [list(row) for row in board]
    for direction in DIRECTIONS:
        key = KEYS[direction]
        rows, points = slide_board(board, direction)
        assert queries.moved(board, key) == [list(row) for row in rows]
        assert queries.merged(board, key) == points
        assert queries.can_move(board, key) == (queries.moved(board, key) != board)
        assert (key in queries.legal_moves(board)) == queries.can_move(board, key)
    assert queries.num_empty(board) == sum(board, []).count(0)
    assert queries.largest(board) == max(sum(board, []))
    with pytest.raises(ValueError, match="'x' is none of the keys"):
        queries.moved(board, "x")
    assert board == before

"""An answer in a player's own words is read back as one legal action, or said to be none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlnb.games.answers import ParsedAnswer, parse_answer

CELLS = {cell: f"place X in row {cell // 3 + 1}, column {cell % 3 + 1}" for cell in (1, 2, 4, 5, 8)}
KUHN = {0: "pass", 1: "bet"}


@pytest.mark.parametrize(
    ("text", "action"),
    [
        (r"not 3, so \boxed{5}", 5),
        (r"\boxed{2} or no, \boxed{5}", 5),
        (r"\boxed{5}. Place X in row 2, column 2 would lose. Answer: 4", 5),  # a box beats what follows it
        (r"\boxed{ \text{Action 4.} }", 4),
        (r"\boxed{cell 4}", 4),
        (r"\boxed{position 4}", 4),
        (r"\boxed{4\text{ (row 2, column 2)}}", 4),
        (r"\boxed{4 \quad \text{(row 2, column 2)}}", 4),
        (r"\boxed{4\;(\text{row 2, column 2})}", 4),
        (r"\boxed{\text{Place x in Row 2,  Column 2.}}", 4),
        (r"\boxed{I place X in row 2, column 2, in the middle}", 4),
        (r"\boxed{4 -> place X in row 2, column 2}", 4),
        (r"\boxed{4", 4),  # cut off, or the closing brace was a stop string
        ("boxed{4}", 4),
        (r"I am to write \boxed{id}. Answer: 4", 4),
        (r"\boxed{4} \boxed{}", 4),
        (" 4.\n", 4),
        ("A: 4", 4),
        ("4, because 3 is taken", 4),
        ("The final answer is **4**.", 4),
        ("I choose action 4, as action 5 loses.", 4),
        ("I choose 2. No: I pick 5.", 5),
        ("There are 3 rows.\n4", 4),
        ("There are 8 lines to win.\nMy choice: place X in row 1, column 2", 1),
        ("<think>Answer: 2</think>4", 4),
        ("<think>Answer: 2</think>", 2),
        ("Bet.", 1),
        (r"\boxed{\text{Pass}}", 0),
        ("I choose to bet, since he would pass.", 1),
        ("Do not pick bet. Pick pass.", 0),
        (r"\boxed{0}, no wait, \boxed{1}", 1),
        (r"analysismaybe \boxed{0}assistantfinal1", 1),
        ("<think>x\n<answer>bet</answer>", 1),
        ("0 -> pass\n1 -> bet\n\n1", 1),
        ("He will raise. So bet, I think.", 1),
        ("I would take [4] now", 4),
        ("<answer>place X in row 2, column 2</answer>, not 5", 4),
        ("４", 4),
        ("\\boxed｛4｝", 4),
        ("4<|im_end|>", 4),
        ("I think it wins. {4}", 4),
        ("so «4»", 4),
        ("[x] 4", 4),
        ("Boxed: 4", 4),
        ("<answer>[4]</answer>", 4),
        ("<answer>Action (4)</answer>", 4),
        ("[box]4[/box]", 4),
        ('{"reasoning": "2 is bad", "action": 4}', 4),
        ('{"action": "place X in row 2, column 2"}', 4),
        ("<think>1</think><response>4</response>", 4),
        ("4️⃣", 4),
    ],
)
def test_the_last_answer_is_read_in_the_forms_that_models_use(text, action):
    words = KUHN if action in KUHN and "row" not in text else CELLS
    assert parse_answer(text, words) == ParsedAnswer(action, None, "")


@pytest.mark.parametrize("answer", [r"\boxed{4}", "<answer>4</answer>", r"\boxed{\text{Action 4.}}"])
@pytest.mark.parametrize("before", ["I could play 5, which\nwins. Play 5:\n", r"\boxed{5}, no: "])
def test_an_answer_that_is_cut_counts_by_a_box_that_has_ended(before, answer):
    written = f"{before}{answer} or"
    first = parse_answer(before, CELLS, is_cut=True)
    assert first.action == (5 if "boxed" in before else None) and (first.action or first.problem == "cut")
    for end in range(len(before), len(before + answer)):
        assert parse_answer(written[:end], CELLS, is_cut=True) in (first, ParsedAnswer(4, None, ""))
    assert parse_answer(written, CELLS, is_cut=True).action == 4
    assert parse_answer("4", CELLS, is_cut=True).problem == "cut"


@pytest.mark.parametrize(
    "text",
    ["", " \n ", "(2,2)", "2-2", "I play [2,2].", "[ ] 2\n[x] 4\n[ ] 8",
     "there are 3 rows and 2 columns", "1) I look at 2 cells. 2) I think", "Answer: 4.5",
     "column 9", "If I bet he folds.\nSo what now?", "I am a better passer", r"\boxed{id}",
     r"<think>\boxed{4}", r"analysismaybe \boxed{4}", "pass or bet", "I prefer pass to bet", "do not bet",
     "0 -> pass\n1 -> bet", "pass: safe\nbet: risky", "I can pass.\nI can bet.", r"\boxed{pass} \boxed{bet}",
     "1, 2, 4, 5", "You may play 1, 2, 4 or 5 now.", "4, 5", "1 is fine. 4 is fine. 8 is fine.",
     "Answer: 4 or 5", "play 4, 5", r"\boxed{4} or \boxed{5}", "Legal: 0 -> pass\n1 -> bet", "0 -> bet",
     "0, because bet is weak", "I will not fold, so bet", "[1] or pass, but bet",
     "place X in row 1, column 2 loses, place X in row 2, column 2 wins", "I do not choose bet",
     "If I bet, he may fold.\nI pass.", "pass; do not bet", "I'd rather pass than bet", "He will bet",
     "He will bet. I pass.", "bet is too risky, pass", "0 -> pass\n1 -> bet\n\nI bet."],
)  # fmt: skip
def test_a_text_without_an_answer_names_no_action(text):
    words = KUHN if "bet" in text else CELLS
    legal = "0, 1" if words is KUHN else "1, 2, 4, 5, 8"
    assert parse_answer(text, words) == ParsedAnswer(
        None, "no_action", f"The answer names no action; legal: {legal}."
    )


@given(st.text(st.sampled_from("abcdefgh .,;:!?\n-0123")))
def test_running_text_with_two_actions_names_none_whatever_joins_them(joining):
    for first, second in ((4, 5), (5, 4)):
        text = f"So {CELLS[first]} {joining} {CELLS[second]} now"
        assert parse_answer(text, CELLS).problem == "no_action"
        assert parse_answer(f"\\boxed{{{text}}}", CELLS).problem == "no_action"
        assert parse_answer(f"So {CELLS[first]} now", CELLS).action == first


def test_a_box_with_something_else_in_it_is_a_failed_answer_whatever_surrounds_it():
    assert parse_answer(r"Answer: 4, that is \boxed{the corner at the top}", CELLS) == ParsedAnswer(
        None,
        "no_action",
        "The box holds 'the corner at the top', which names no legal action; legal: 1, 2, 4, 5, 8.",
    )
    for squares in ("4, 5", "2,2", "(2, 2)", "2-2"):
        assert parse_answer(rf"\boxed{{{squares}}}", CELLS).problem == "no_action"
    many = {action: f"bid {action}" for action in range(100)}
    ids = ", ".join(map(str, range(12)))
    assert parse_answer("", many).reason == f"The answer names no action; legal: {ids} and 88 more."


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (r"\boxed{3}", "3"),
        ("Answer: 7", "7"),
        (r"\boxed{-1}", "-1"),
        ("answer: -1", "-1"),
        (r"\boxed{" + "9" * 50 + "}", "999999999..."),
        (r"\boxed{4}, no, \boxed{3}", "3"),
    ],
)
def test_an_id_that_is_not_legal_is_named_with_those_that_are(text, named):
    assert parse_answer(text, CELLS) == ParsedAnswer(
        None, "illegal", f"Action {named} is not legal here; legal: 1, 2, 4, 5, 8."
    )


def test_words_that_differ_only_by_case_are_told_apart_exactly_and_not_guessed():
    chess = {7: "bxc3", 9: "Bxc3"}
    assert parse_answer(r"\boxed{bxc3}", chess).action == 7
    assert parse_answer(r"\boxed{\text{Bxc3}}", chess).action == 9
    assert parse_answer("BXC3", chess).problem == "no_action"


def test_a_line_of_the_prompt_is_an_answer_whatever_signs_its_words_hold():
    words = {2924: r"bQ \bM", 2938: r"bQ \bP"}
    for text in (r"2924 -> bQ \bM", r"\boxed{2924 -> bQ \bM}"):
        assert parse_answer(text, words).action == 2924


def test_an_id_beats_words_that_look_like_another_id():
    assert parse_answer("5", {5: "value 7", 7: "value 5"}).action == 5
    assert parse_answer("value 5", {5: "value 7", 7: "value 5"}).action == 7


@given(st.text(st.sampled_from("\\boxed{}0123456789 @-+.,:*\nanswer<>/think"), max_size=300) | st.text())
def test_any_text_gives_a_legal_action_or_a_problem_with_a_reason(text):
    answer = parse_answer(text, CELLS)
    if answer.problem is None:
        assert answer.action in CELLS
        assert answer.reason == ""
    else:
        assert answer.action is None
        assert answer.reason.endswith("legal: 1, 2, 4, 5, 8.")


def test_words_in_json_are_read_whole_and_not_for_those_of_another_action():
    assert (
        parse_answer('{"action": "place X in row 3, column 1"}', CELLS).action is None
    )  # 8 alone is in row 3

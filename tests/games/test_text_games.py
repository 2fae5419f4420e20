"""OpenSpiel's games are told in text and played through it, by OpenSpiel's rules alone."""

import itertools
import random
import re

import pytest
from refusals import refused

from rlnb.games.answers import READ_CHARACTERS
from rlnb.games.rendering_words import RULES, WORDED
from rlnb.games.text_games import TextGame, load_game, states_in_play
from rlnb.params import load_params

GAMES = (*sorted(WORDED), "connect_four(columns=5,rows=4)", "nim(pile_sizes=2;12)")
AUTOMATIC = (
    *sorted(RULES), "backgammon", "breakthrough(columns=6,rows=6)", "chess", "goofspiel(imp_info=True)",
    "hex(board_size=3)", "leduc_poker(suit_isomorphism=True)", "liars_dice(numdice=2)", "markov_soccer",
    "matrix_rps", "misere(game=tic_tac_toe())", "phantom_ttt",
)  # fmt: skip
ACTION_LINE = re.compile(r"^(\d+) -> (.+)$", re.MULTILINE)


def states_of_a_game(game: TextGame, seed: int, most: int = 10_000):
    """The states of one random game in which a player moves."""
    return itertools.islice(states_in_play(game, 1, rng=random.Random(seed)), most)


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("seed", range(2))
def test_a_game_is_played_to_its_end_through_text_alone(name, seed):
    game, rng = load_game(name), random.Random(seed)
    state = game.new_state()
    while not state.is_terminal():
        if state.is_chance_node():
            state.apply_action(rng.choice(state.legal_actions()))
            continue
        lines = ACTION_LINE.findall(game.prompt(state))
        assert [int(action) for action, _ in lines] == sorted(state.legal_actions())
        assert len({words for _, words in lines}) == len(lines)
        action, words = rng.choice(lines)
        answer = rng.choice(IDS + WORDS).format(action, words)
        parsed = game.parse(answer, state)
        assert (parsed.action, parsed.problem) == (int(action), None), f"{answer!r} in {state}"
        game.apply(state, parsed.action)
    assert sum(state.returns()) == 0


@pytest.mark.parametrize("name", AUTOMATIC)
def test_games_without_texts_of_their_own_are_played_with_those_of_openspiel(name):
    game, compact = load_game(name), load_game(name, style="compact")
    for state in states_of_a_game(game, seed=1, most=60):
        prompt = game.prompt(state)
        assert f"You are player {state.current_player()}." in prompt
        for action, words in list(game.legal_words(state).items())[:40]:
            assert f"\n{action} -> {words}\n" in prompt
            assert game.parse(words, state).action == action
        assert compact.prompt(state).startswith(f"P{state.current_player()}\n")
        assert compact.prompt(state).endswith("?")


PERFECT = [name for name in (*GAMES, *RULES) if not load_game(name).has_hidden_information] + ["mancala"]


@pytest.mark.parametrize("name", PERFECT)
@pytest.mark.parametrize("style", ["full", "compact"])
def test_states_that_differ_have_prompts_that_differ(name, style):
    game = load_game(name, style=style)
    seen = {}
    for seed in range(30):
        for state in states_of_a_game(game, seed):
            here = (str(state), state.current_player())
            assert seen.setdefault(game.prompt(state), here) == here
    assert len(seen) >= 10


def after(name, *actions, style="compact"):
    game = load_game(name, style=style)
    state = game.new_state()
    for action in actions:
        state.apply_action(action)
    return game, state


@pytest.mark.parametrize(
    ("name", "actions", "prompt"),
    [
        ("tic_tac_toe", (0, 1, 4, 2), "x:\nxoo\n3x5\n678\n?"),
        ("connect_four(columns=3,rows=2)", (0, 0), "x:\no..\nx12\n?"),
        ("kuhn_poker", (1, 2), "P0 Q ?"),
        ("leduc_poker", (1, 4, 1, 2, 1, 3, 1), "P1 Ka crc Qb c?"),
        ("nim", (27, 14), "P0 1 3 1 0?"),
    ],
)
def test_compact_prompts_are_as_short_as_is_clear(name, actions, prompt):
    game, state = after(name, *actions)
    assert game.prompt(state) == prompt


def test_a_full_prompt_tells_rules_seat_state_and_legal_actions():
    game, state = after("tic_tac_toe", 0, 4, 8, 2, 6, style="full")
    assert game.prompt(state) == (
        "Tic-tac-toe on a board of 3 rows and 3 columns. X and O place one mark in turn on an empty cell; X "
        "begins. Three own marks in one row, column, or diagonal win. A full board without them is a "
        "draw.\n\n"
        "You are O (player 1, who moves second).\n\n"
        "The board; an empty cell shows the id of its action:\nX 1 O\n3 O 5\nX 7 X\n\n"
        "Your legal actions (id -> words):\n1 -> place O in row 1, column 2\n"
        "3 -> place O in row 2, column 1\n5 -> place O in row 2, column 3\n"
        "7 -> place O in row 3, column 2\n\n"
        "Choose one of them. End your answer with its id in a box: \\boxed{id}"
    )


def test_free_play_asks_for_thoughts_where_there_is_room_and_constrained_play_never_does():
    for acting, num_tokens, asks in (("free", 256, True), ("free", 255, False), ("constrained", 1024, False)):
        cell = {"game": {"name": "kuhn_poker", "acting": acting, "max_new_tokens": num_tokens}}
        game = load_params("spiral_self_play", overrides=cell, profile="default", environ={}).load_game()
        state = game.new_state()
        for card in (0, 1):
            state.apply_action(card)
        last = game.prompt(state).splitlines()[-1]
        assert ("reason step by step" in last) == asks and "\\boxed{" in last


IDS = (
    "{0}", "[{0}]", "({0})", "{0})", "{0}.0", "Action{0}", "**{0}**", "[[{0}]]", "【{0}】", "{0} -> {1}",
    "[Action {0}]", "I think.\n\\boxed{{{0}}}", "I choose action {0}.",
    "\\boxed[{0}]", "\\boxed{{{0}.0}}", "\\boxed{{[{0}]}}", "\\boxed{{\\text{{{0})}}}}", "\\boxed {0}",
    "<answer>{0}</answer>", "<answer>\n{0}\n</answer>", "Answer: ({0})",
)  # fmt: skip
WORDS = (
    "{1}",
    "[{1}]",
    "<answer>{1}</answer>",
    "\\boxed{{{1}}}",
    "So \\boxed{{\\text{{{1}}}}}.",
    "My answer: {1}",
)
THOUGHTS = (
    "<think>\\boxed{9}</think>\n",
    "analysisPerhaps \\boxed{9}.assistantfinal",
    "<|channel|>analysis<|message|>9<|end|><|start|>assistant<|channel|>final<|message|>",
)


@pytest.mark.parametrize("name", [*GAMES, *AUTOMATIC, "checkers"])
def test_each_legal_action_is_read_in_each_form_and_a_list_of_all_as_none(name):
    game, rng = load_game(name), random.Random(name)
    for state in itertools.islice(states_of_a_game(game, seed=3), 0, 12, 4):
        legal = list(game.legal_words(state).items())
        for form in IDS + WORDS:
            for action, words in rng.sample(legal, min(len(legal), 4)):
                answer = form.format(action, words)
                assert game.parse(answer, state).action == action, f"{answer!r} in {state}"
                answer = rng.choice(THOUGHTS) + answer
                assert game.parse(answer, state).action == action, f"{answer!r} in {state}"
        for separator in ("\n", ", ") if len(legal) > 1 else ():
            for form in ("{0}", "{0} -> {1}", "{1}"):
                answer = separator.join(form.format(action, words) for action, words in legal)
                if len(answer) <= READ_CHARACTERS:
                    assert game.parse(answer, state).problem == "no_action", f"{answer!r} in {state}"


def test_in_leduc_to_call_is_to_check_while_there_is_nothing_to_call():
    game, state = after("leduc_poker", 0, 5)
    assert game.legal_words(state) == {1: "check", 2: "raise"}
    state.apply_action(2)
    assert game.legal_words(state) == {0: "fold", 1: "call", 2: "raise"}


@pytest.mark.parametrize(("is_misere", "result"), [(True, "loses"), (False, "wins")])
def test_nim_says_what_the_last_object_does(is_misere, result):
    game, state = after(f"nim(is_misere={is_misere},pile_sizes=2;1)", 1, style="full")
    assert f"The player who takes the last object of all {result}." in game.prompt(state)
    game.apply(state, 2)  # player 1 takes both that are left
    assert state.returns()[1] == (-1 if is_misere else 1)


def test_an_illegal_action_is_refused_before_openspiel_sees_it():
    game, state = after("kuhn_poker", 0, 1)
    with pytest.raises(ValueError, match="action 5 is not legal here"):
        game.apply(state, 5)  # OpenSpiel would take it
    assert state.history() == [0, 1]


def test_nobody_is_prompted_at_chance_nodes_and_after_the_end():
    game, deal = after("kuhn_poker")
    _, end = after("kuhn_poker", 0, 1, 0, 0)
    for state in (deal, end):
        with pytest.raises(ValueError, match="No player is to move"):
            game.prompt(state)


def test_words_are_left_where_a_parameter_gives_the_actions_other_meanings():
    assert type(load_game("leduc_poker(action_mapping=True)")) is TextGame


def test_a_game_knows_its_names_and_whether_it_hides_anything():
    game = load_game(" breakthrough(rows=6,columns=6)\n")
    assert (game.name, game.short_name) == ("breakthrough(columns=6,rows=6)", "breakthrough")
    assert (game.roles, load_game("tic_tac_toe").roles) == (("player 0", "player 1"), ("X", "O"))
    assert load_game("tic_tac_toe()").name == "tic_tac_toe"
    hidden = {name for name in {**WORDED, **RULES} if load_game(name).has_hidden_information}
    assert hidden == {"kuhn_poker", "leduc_poker", "liars_dice", "goofspiel"}  # goofspiel: the pending bid


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_such", "OpenSpiel has no such game; for example: connect_four, kuhn_poker"),
        ("tic_tac_to", "did you mean tic_tac_toe"),
        ("tic_tac_toe(foo=1)", "Unknown parameter 'foo'"),
        ("kuhn_poker(players=3)", "has 3 player(s); choose a game for two."),
        ("matrix_pd", "is not zero-sum"),
        ("breakthrough(rows=1)", "cannot be played: "),
        ("connect_four(rows=0)", "OpenSpiel dies of it"),
        ("oware(num_houses_per_player=0)", "is over before it starts"),
        ("quoridor", "has known faults in OpenSpiel"),
    ],
)
def test_a_name_that_cannot_be_played_is_refused_with_its_place(name, reason):
    said = refused(load_game, name, field="params.yaml: game")
    assert said.startswith(f"params.yaml: game = {name!r}") and reason in said

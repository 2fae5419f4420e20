"""Replays of games of two and play against the model: games of the tiny model, real widgets, a browser."""

import base64
import html
import json
import random
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import nbformat
import pyspiel
import pytest
from nbclient import NotebookClient

from rlnb.display import self_play_boards
from rlnb.display.self_play import PlayAgainst
from rlnb.display.self_play_boards import GameReplay, bars_html, likeliest, replay_widget, scenes
from rlnb.display.self_play_pictures import draw_game, show_moves
from rlnb.games.opponents import load_opponent
from rlnb.games.text_games import load_game
from rlnb.params.sections import ModelParams
from rlnb.policy import load_policy
from rlnb.policy.acting import ConstrainedPlayer, Encoder, FreePlayer
from rlnb.policy.actor_critic import ActorCritic
from rlnb.rollouts import Rules, against, play_games, self_play

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
GAMES = ("tic_tac_toe", "connect_four", "kuhn_poker", "leduc_poker", "liars_dice", "goofspiel(num_cards=4)",
         "breakthrough(rows=6,columns=6)")  # fmt: skip


@pytest.fixture(scope="module")
def actor(tmp_path_factory):
    params = ModelParams(
        id="tiny", cache_dir=str(tmp_path_factory.mktemp("tiny")), engine="transformers", dtype="float32",
        attention="sdpa", load_in_4bit=False, lora_rank=4,
    )  # fmt: skip
    return ActorCritic(load_policy(params, seed=1), has_value=True)


@pytest.fixture(scope="module")
def encoder(actor):
    tokenizer = actor.policy.tokenizer
    return Encoder(tokenizer, lambda text: text, end=tokenizer.eos_token_id)


@pytest.fixture(scope="module")
def player(actor, encoder):
    return ConstrainedPlayer(actor, encoder)


def game_of(name):
    return load_game(name, style="compact")


def played(name, player, *, opening=0, seed=4):
    episodes = self_play(game_of(name), 1, seed=seed, max_opening_plies=opening)
    return play_games(episodes, {"policy": player})[0]


@pytest.mark.parametrize("name", GAMES)
def test_a_replay_ends_where_the_game_ended_and_marks_every_move(name, player):
    game = game_of(name)
    one = played(name, player, opening=2)
    found = scenes(one, game)
    assert [scene.mover for scene in found] == [*(move.seat for move in one.moves), None]
    assert [scene.num_moves for scene in found] == list(range(len(one.moves) + 1))
    words = [game_words(game, one)[at] for at in range(len(one.moves))]
    assert [scene.chosen.words for scene in found[:-1]] == words
    assert scenes(json.loads(json.dumps(one.as_record())), game) == found


def game_words(game, one):
    state, words = game.new_state(), []
    for action in one.history:
        if not state.is_chance_node():
            words.append(game.legal_words(state)[action])
        state.apply_action(action)
    assert state.is_terminal()
    return words


def test_probabilities_stand_at_the_moves_that_the_player_gave_them_to(player):
    game = game_of("tic_tac_toe")
    one = played("tic_tac_toe", player)
    turns = {(t.seat, turn.ply): turn for t in one.trajectories for turn in t.turns}
    for scene in scenes(one, game)[:-1]:
        turn = turns[scene.mover, scene.num_moves]
        if len(turn.legal_actions) > 1:
            assert [bar.probability for bar in scene.bars] == pytest.approx(
                turn.probabilities, abs=6e-5
            )  # four decimals are kept
        else:
            assert [bar.probability for bar in scene.bars] == [1.0]
        assert [bar.cell for bar in scene.bars] == list(turn.legal_actions)
        assert scene.texts[scene.mover] == turn.text == str(turn.action)


def test_a_disc_lands_where_the_replay_framed_its_cell(player):
    game = game_of("connect_four")
    found = scenes(played("connect_four", player), game)
    for before, after in zip(found, found[1:], strict=False):
        old, new = "".join(before.grid), "".join(after.grid)
        changed = [cell for cell in range(42) if old[cell] != new[cell]]
        assert changed == [before.chosen.cell] == [after.last_cell]


def test_a_replay_of_poker_shows_the_cards_of_both(player):
    game = game_of("kuhn_poker")
    record = played("kuhn_poker", player).as_record()
    first, second = (("Jack", "Queen", "King")[card] for card in record["history"][:2])
    start, *_, end = scenes(record, game)
    cards = f"first player: {first}\nsecond player: {second}\n\n"
    assert start.described == cards + "nobody has moved yet"
    done = [("pass", "bet")[action] for action in record["history"][2:]]
    told = [f"{('first', 'second')[at % 2]} player: {move}" for at, move in enumerate(done)]
    assert end.described == cards + "\n".join(told)


def test_answers_without_a_legal_move_are_told(actor, encoder):
    game = load_game("tic_tac_toe")
    players = {
        "policy": FreePlayer(actor, encoder, temperature=1.0, max_new_tokens=8),
        "random": load_opponent("random", game),
    }
    lost, made = (
        play_games(against(game, "random", 1, seed=3), players, rules=Rules(invalid=kind))[0]
        for kind in ("forfeit", "random")
    )
    assert lost.forfeit == 0
    (last,) = scenes(lost, game)
    assert (last.heading, last.chosen) == ("O wins: X forfeits", None)
    assert last.note == "policy answered without a legal move (no action) and lost the game."
    first = scenes(made, game)[0]
    assert first.note == "policy answered without a legal move (no action); a random one was made instead."
    assert first.chosen.cell == made.moves[0].action
    assert "\x00" not in repr(show_moves(made, game)) and "policy" in repr(show_moves(made, game))


def test_a_record_of_another_game_or_with_impossible_moves_is_refused(player):
    record = played("tic_tac_toe", player).as_record()
    with pytest.raises(ValueError) as caught:
        scenes(record, game_of("connect_four"))
    assert str(caught.value) == (
        "the record is of tic_tac_toe, the game given is connect_four; give load_game's"
    )
    record["history"][1] = record["history"][0]
    with pytest.raises(ValueError) as caught:
        scenes(record, game_of("tic_tac_toe"))
    assert str(caught.value) == f"the history of this record of tic_tac_toe is no game: {record['history']}"


def test_of_many_moves_the_likeliest_and_the_chosen_are_shown_and_the_rest_summed(player):
    game = game_of("breakthrough(rows=6,columns=6)")
    bars = scenes(PlayAgainst(game, player, seat=1).record, game)[0].bars
    chosen = next(bar for bar in bars if bar.is_chosen)
    shown = likeliest(bars, most=5)
    assert chosen in shown and len(shown) == 5 and shown[-1].words == f"{len(bars) - 4} others"
    assert sum(bar.probability for bar in shown) == pytest.approx(1)
    unknown = [replace(bar, probability=None) for bar in bars]
    assert likeliest(unknown) == [replace(chosen, probability=None)]


@pytest.mark.parametrize("name", GAMES)
def test_a_picture_has_a_panel_for_each_position_it_shows(name, player):
    game, one = game_of(name), played(name, player)
    figure = draw_game(one, game, title="A game")
    most = {"tic_tac_toe": 10}.get(game.short_name, 6)
    drawn = [axes for axes in figure.axes if axes.texts or axes.get_title()]
    assert len(drawn) == min(most, len(one.moves) + 1)
    texts = " ".join(text.get_text() for axes in drawn for text in axes.texts)
    assert ("%" in texts) == (game.short_name != "breakthrough")  # ids of several tokens: not known


def test_the_person_plays_a_whole_game_by_clicks(player):
    game = game_of("tic_tac_toe")
    play = PlayAgainst(game, player, seed=3)
    assert all(not button.disabled for button in play.buttons.values())
    play.buttons[4].click()
    assert (play.buttons[4].description, play.buttons[4].disabled) == ("X", True)
    assert len(play.moves) == 2 and play.status.value == "<b>Your move.</b>"
    answer = play.moves[1]["action"]
    assert play.buttons[answer].description == "O"
    shares = player.probabilities(["o:\n012\n3x5\n678\n?"], [(0, 1, 2, 3, 5, 6, 7, 8)])[0]
    assert f"{max(shares):.1%}" in play.model_moves.value
    assert play.model_moves.value.count("%</td>") == 8
    play.buttons[4].click()  # taken: nothing happens
    assert len(play.moves) == 2
    while not play.is_over:
        shown = [button for button in play.buttons.values() if not button.disabled]
        shown[0].click()
        num_moves = len(play.moves)
        shown[-1].click()  # one that waited while the model moved: it meant the position before
        assert len(play.moves) == num_moves
    assert all(button.disabled for button in play.buttons.values())
    first, second = play.state.returns()
    assert play.status.value.startswith("<b>" + {0: "A draw", 1: "You won", -1: "You lost"}[int(first)])
    assert scenes(play.record, game)[-1].num_moves == len(play.moves) and first == -second
    with pytest.raises(ValueError, match="^the game is over; start a new one$"):
        play.choose(0)


def test_a_new_game_starts_empty_and_in_the_chosen_seat(player):
    play = PlayAgainst(game_of("connect_four"), player, seed=3)
    play.buttons[3].click()
    play.new_game.click()
    assert (play.moves, play.num_games) == ([], 2)
    play.seat_choice.value = 1
    assert [move["seat"] for move in play.moves] == [0]  # the model began
    assert play.record["players"] == ["model", "person"]


def test_the_same_seed_and_clicks_give_the_same_game(player):
    game = game_of("leduc_poker")
    first, again = (PlayAgainst(game, player, seed=7, seat=1).against_random_person() for _ in range(2))
    assert first.is_over and first.record == again.record
    histories = {tuple(PlayAgainst(game, player, seed=seed).state.history()) for seed in range(20)}
    assert len(histories) > 5  # deals follow the seed


def test_a_waiting_second_click_does_not_play_in_the_next_position(player):
    play = PlayAgainst(game_of("connect_four"), player, seed=3)
    old = play.buttons[0]
    old.click()
    old.click()
    assert sum(move["seat"] == 0 for move in play.moves) == 1


@pytest.mark.parametrize("style", ["full", "compact"])
def test_the_persons_view_and_the_models_bars_do_not_tell_the_models_card(style, player):
    game = load_game("kuhn_poker", style=style)
    views = {}
    for seed in range(30):
        play = PlayAgainst(game, player, seed=seed, seat=1)
        other, own, opened = play.state.history()
        if own != 1:
            continue
        shown = (play.view.value, play.status.value, play.model_moves.value)
        views.setdefault(opened, set()).add(shown)
        while not play.is_over:
            play.buttons[0].click()
        assert ("Jack", "Queen", "King")[other] in play.view.value  # at the end both cards are shown
        assert play.model_moves.value.count("which the model chose") == len(play.turns) > 0
    start, end = "<pre style='margin:0'>Your card: Queen. ", ".</pre>"
    assert views == {
        at: {(f"{start}Your opponent {did}{end}", "<b>Your move.</b>", "")}
        for at, did in ((0, "passed"), (1, "bet"))
    }


def test_buttons_name_the_legal_actions_of_games_in_words(player):
    play = PlayAgainst(game_of("leduc_poker"), player, seed=1)
    words = {action: button.description for action, button in play.buttons.items()}
    assert words == {1: "check", 2: "raise"}
    play.buttons[2].click()
    assert play.moves[0]["action"] == 2


def test_a_model_that_answers_nonsense_forfeits_against_the_person(actor, encoder, player):
    class Babbler(FreePlayer):
        def probabilities(self, prompts, legal):
            return player.probabilities(prompts, legal)

    babbler = Babbler(actor, encoder, temperature=1.0, max_new_tokens=4)
    play = PlayAgainst(load_game("tic_tac_toe"), babbler, seed=1, seat=1)
    assert play.status.value == "<b>You won: O wins: X forfeits.</b>"
    assert play.record["returns"] == [-1.0, 1.0]


def test_bars_escape_the_words_of_a_game():
    bar = self_play_boards.Bar("<script>", 0.25, True)
    assert "<b>&lt;script&gt;</b>" in bars_html([bar]) and "25.0%" in bars_html([bar])


PAGE = """<!doctype html><meta charset="utf-8"><style>{css}</style><div id="here"></div><pre id="log"></pre>
<script type="module">
const state = {state}, listeners = {{}}, log = [];
const model = {{
  get: (name) => state[name],
  set: (name, value) => {{ state[name] = value; (listeners["change:" + name] || []).forEach((f) => f()); }},
  on: (name, f) => (listeners[name] ||= []).push(f),
  off: (name, f) => (listeners[name] = listeners[name].filter((one) => one !== f)),
  save_changes: () => 0,
}};
try {{
  const {{ default: widget }} = await import("data:text/javascript;base64,{script}");
  const root = document.querySelector("#here");
  const cleanUp = widget.render({{ model, el: root }});
  const texts = (name) => [...root.querySelectorAll(name)].map((node) => node.textContent);
  const look = () => log.push(
    [state.position, texts(".rlnb-game-cell"), texts(".rlnb-game-played span")[0] ?? null, texts("dd")]);
  look();
  root.querySelector("input").value = 3;
  root.querySelector("input").dispatchEvent(new Event("input"));
  look();
  root.querySelector('button[aria-label="Last position"]').click();
  look();
  cleanUp();
  log.push([listeners["change:position"].length, root.querySelectorAll("script").length]);
}} catch (error) {{
  log.push(String(error));
}}
document.querySelector("#log").textContent = JSON.stringify(log);
</script>"""


@pytest.mark.skipif(not CHROMIUM, reason="no chromium to run the widget's script in")
def test_in_a_browser_slider_and_buttons_show_the_positions(tmp_path, player):
    game = game_of("tic_tac_toe")
    record = played("tic_tac_toe", player).as_record()
    record["turns"][0]["text"] = "<script>alert(1)</script>"
    found = scenes(record, game)
    widget = replay_widget(record, game)
    state = {name: widget.get_state()[name] for name in GameReplay.class_own_traits()}
    source = Path(self_play_boards.__file__).with_name("self_play.js")
    page = tmp_path / "page.html"
    script = base64.b64encode(source.read_bytes()).decode()
    text = json.dumps(state).replace("<", "\\u003c")
    page.write_text(PAGE.format(css=source.with_suffix(".css").read_text(), state=text, script=script))
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'user'}",
    ]
    command += ["--virtual-time-budget=5000", "--dump-dom", page.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    log = json.loads(html.unescape(dom.partition('<pre id="log">')[2].partition("</pre>")[0]))
    assert log[-1] == [0, 0], log
    assert [look[0] for look in log[:-1]] == [0, 3, len(found) - 1]
    for at, cells, words, answers in log[:-1]:
        scene = found[at]
        shares = {bar.cell: f"{bar.probability:.0%}" for bar in scene.bars}
        marks = "".join(scene.grid).upper()
        assert cells == [shares.get(n, "") if mark == "." else mark for n, mark in enumerate(marks)]
        assert words == (scene.chosen.words if scene.chosen else None)
        assert answers == [text for text in scene.texts if text]
    assert log[0][3] == ["<script>alert(1)</script>"]


NOTEBOOK = """
import numpy as np
from rlnb.display.self_play import PlayAgainst, show_game
from rlnb.games.text_games import load_game
from rlnb.trajectories import Turn
class Uniform:
    def probabilities(self, prompts, legal):
        return [np.full(len(actions), 1 / len(actions)) for actions in legal]
    def answer(self, requests):
        picks = [request.random.choice(request.legal_actions) for request in requests]
        return [Turn((), (), (), (), p, r.legal_actions, r.ply) for p, r in zip(picks, requests)]
play = PlayAgainst(load_game("tic_tac_toe"), Uniform(), seed=2)
show_game(play.against_random_person().record, play.game)
play
"""


def test_a_saved_notebook_holds_pictures_of_games_and_words_for_the_widgets(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(NOTEBOOK)])
    options = {"kernel_name": "python3", "timeout": 120, "resources": {"metadata": {"path": "."}}}
    NotebookClient(notebook, **options).execute()
    outputs = notebook.cells[0].outputs
    kinds = [sorted(output["data"]) for output in outputs]
    widget = ["application/vnd.jupyter.widget-view+json", "text/plain"]
    assert kinds == [
        widget,
        ["image/png", "text/plain"],
        ["text/html", "text/plain"],
        widget,
        ["image/png", "text/plain"],
    ]
    texts = [output["data"]["text/plain"] for output in outputs]
    assert texts[0].startswith("tic_tac_toe (X: person, O: model): ")
    assert texts[3] == "Buttons to play against the model: they need a running notebook."
    assert texts[4].startswith("The person played at random. tic_tac_toe (X: person, O: model): ")
    assert base64.b64decode(outputs[1]["data"]["image/png"]).startswith(b"\x89PNG")


def test_a_random_person_is_random_and_leaves_the_shown_game_alone(player):
    play = PlayAgainst(game_of("tic_tac_toe"), player, seed=5)
    over = play.against_random_person()
    source = random.Random(5)
    state = pyspiel.load_game("tic_tac_toe").new_initial_state()
    for move in over.moves:
        if move["seat"] == 0:
            assert move["action"] == source.choice(state.legal_actions())
        state.apply_action(move["action"])
    assert state.is_terminal() and play.moves == []

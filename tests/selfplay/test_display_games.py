"""Replays of games of two and play against the model: games of the tiny model on real widgets."""

import json
import re

import pytest
from tiny_actor import make_encoder, tiny_actor

from rlnb.display.replay import draw_replay
from rlnb.games.opponents import load_opponent
from rlnb.games.text_games import load_game
from rlnb.selfplay.acting import ConstrainedPlayer, FreePlayer
from rlnb.selfplay.display_games import make_frames, replay_game
from rlnb.selfplay.display_person import PlayAgainst
from rlnb.selfplay.rollouts import GameRules, paired_episodes, play_games, self_play_episodes

GAMES = ("tic_tac_toe", "connect_four", "leduc_poker", "goofspiel(num_cards=4)",
         "breakthrough(rows=6,columns=6)")  # fmt: skip


@pytest.fixture(scope="module")
def actor(cache_dir):
    return tiny_actor(cache_dir, lora_rank=4, has_value=True)


@pytest.fixture(scope="module")
def player(actor):
    return ConstrainedPlayer(actor, make_encoder(actor))


@pytest.fixture(scope="module")
def play(player):
    """Return (game, finished game of the player against itself)."""

    def play_once(name, *, opening=0):
        game = load_game(name, style="compact")
        episodes = self_play_episodes(game, 1, seed=4, max_opening_plies=opening)
        return game, play_games(episodes, {"policy": player})[0]

    return play_once


def compact(name):
    return load_game(name, style="compact")


@pytest.mark.parametrize("name", GAMES)
def test_a_replay_marks_every_move_and_ends_where_the_game_ended(name, play):
    game, played = play(name, opening=2)
    frames = make_frames(played, game)
    assert [frame.mover for frame in frames] == [*(move.seat for move in played.moves), None]
    assert [frame.num_moves for frame in frames] == list(range(len(played.moves) + 1))
    state, words = game.new_state(), []
    for action in played.history:
        if not state.is_chance_node():
            words.append(game.legal_words(state)[action])
        state.apply_action(action)
    assert state.is_terminal()
    assert [frame.chosen.words for frame in frames[:-1]] == words
    assert make_frames(json.loads(json.dumps(played.as_record())), game) == frames
    figure = draw_replay(replay_game(played, game))
    figure.draw_without_rendering()
    for axes in figure.axes:
        edge = axes.get_window_extent().x1
        assert all(text.get_window_extent().x1 <= edge + 1 for text in axes.texts), "words run into the next"


def test_each_probability_belongs_to_its_move_and_cell(play):
    game, played = play("tic_tac_toe")
    turns = {(t.seat, turn.ply): turn for t in played.trajectories for turn in t.turns}
    for frame in make_frames(played, game)[:-1]:
        turn = turns[frame.mover, frame.num_moves]
        expected = turn.probabilities if len(turn.legal_actions) > 1 else [1.0]
        assert [bar.probability for bar in frame.bars] == pytest.approx(expected, abs=6e-5)  # four decimals
        assert [bar.cell for bar in frame.bars] == list(turn.legal_actions)
        assert frame.answers[frame.mover] == (game.roles[frame.mover], turn.text)


@pytest.mark.parametrize("name", ["connect_four", "connect_four(columns=3,rows=2)"])
def test_a_disc_lands_in_the_cell_that_the_replay_marked(name, play):
    game, played = play(name)
    frames = make_frames(played, game)
    for before, after in zip(frames, frames[1:], strict=False):
        cells = range(len(before.cells))
        changed = [cell for cell in cells if before.cells[cell] != after.cells[cell]]
        assert changed == [before.chosen.cell] == [after.last]


def test_answers_without_a_legal_move_are_told(actor):
    game = load_game("tic_tac_toe")
    players = {
        "policy": FreePlayer(actor, make_encoder(actor), temperature=1.0, max_new_tokens=8),
        "random": load_opponent("random", game),
    }
    lost, made = (
        play_games(paired_episodes(game, "random", 1, seed=3), players, rules=GameRules(invalid=kind))[0]
        for kind in ("forfeit", "random")
    )
    assert lost.forfeit == 0
    (last,) = make_frames(lost, game)
    assert last.chosen is None and last.note
    first = make_frames(made, game)[0]
    assert first.note and first.chosen.cell == made.moves[0].action


def test_a_record_of_another_game_is_refused(play):
    _, played = play("tic_tac_toe")
    with pytest.raises(ValueError, match="the record is of tic_tac_toe"):
        make_frames(played, compact("connect_four"))


def test_the_person_plays_a_whole_game_by_clicks(player):
    game = compact("tic_tac_toe")
    panel = PlayAgainst(game, player, seed=3)
    assert sorted(panel.buttons) == list(range(9))
    with pytest.raises(ValueError, match="99 is not legal"):
        panel.choose(99)
    panel.buttons[4].click()
    moves = panel.playing.moves
    assert moves[0].action == 4 and len(moves) == 2
    (board,) = panel.choices.children
    marks = {at: cell.description for at, cell in enumerate(board.children) if cell.disabled}
    assert marks == {4: "X", moves[1].action: "O"}
    assert sorted(panel.buttons) == panel.playing.state.legal_actions()
    turn = panel.playing.finish().trajectories[0].turns[0]
    widths = map(float, re.findall(r"width:([\d.]+)px", panel.model_moves.value))
    assert sorted(widths) == pytest.approx(sorted(200 * share for share in turn.probabilities), abs=0.06)
    assert panel.model_moves.value.count("%") == 8
    while not panel.playing.is_over:
        old = list(panel.buttons.values())
        old[0].click()
        num_moves = len(moves)
        old[-1].click()  # one that waited while the model moved: it meant the position before
        assert len(moves) == num_moves
    assert not panel.buttons
    with pytest.raises(ValueError, match="the game is over"):
        panel.choose(0)
    panel.new_game.click()
    panel.seat_choice.value = 1
    assert [move.seat for move in panel.playing.moves] == [0]  # the model began


@pytest.mark.parametrize("invalid", ["forfeit", "random"])
def test_a_model_that_names_no_move_plays_by_the_rules_of_the_run_and_a_forfeit_is_told(invalid, actor):
    player = FreePlayer(actor, make_encoder(actor), 1.0, 2, 32, 1024)
    panel = PlayAgainst(compact("tic_tac_toe"), player, seat=1, rules=GameRules(invalid=invalid))
    if invalid == "forfeit":
        assert panel.playing.is_over
        assert panel.status.value.startswith("You won (+1). Policy answered without a legal move")
    else:
        assert not panel.playing.is_over and len(panel.playing.moves) == 1


@pytest.mark.parametrize("style", ["full", "compact"])
def test_the_persons_view_and_the_models_bars_do_not_tell_the_models_card(style, player):
    game = load_game("kuhn_poker", style=style)
    views = {}
    for seed in range(30):
        panel = PlayAgainst(game, player, seed=seed, seat=1)
        other, card, opened = panel.playing.state.history()
        if card != 1:
            continue
        shown = (panel.view.value, panel.status.value, panel.model_moves.value)
        views.setdefault(opened, set()).add(shown)
        while not panel.playing.is_over:
            panel.buttons[0].click()
        assert ("Jack", "Queen", "King")[other] in panel.view.value  # at the end both cards are shown
        assert panel.model_moves.value.count("&gt;") == sum(move.seat == 0 for move in panel.playing.moves)
    assert [len(views[opened]) for opened in (0, 1)] == [1, 1]  # whatever the model's card is

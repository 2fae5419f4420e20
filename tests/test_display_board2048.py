"""Replays, tables and the live figure of 2048: real widgets, a real kernel, a real browser."""

import base64
import json
import random
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbclient import NotebookClient

from rlnb.display import board2048
from rlnb.display.board2048 import (
    LiveStrategies,
    draw_positions,
    draw_strategies,
    ending_words,
    positions,
    replay_widget,
    show_baselines,
    show_strategies,
)
from rlnb.display.plots import LiveRewards
from rlnb.games.baselines2048 import Reached
from rlnb.games.board2048 import DIRECTIONS, KEYS, BoardKind, GameBoard, replay
from rlnb.metrics import METRICS

RULES = {"four_probability": 0.1, "patience": 64, "play_on": False}
HOSTILE = "def strategy(board):\n    return '<script>alert(1)</script>\udc80'"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def played(kind="4x4/2048", seed=1, *, ending="", error="", num_moves=10**6, **rules) -> SimpleNamespace:
    """A game with random keys, as `PlayedGame`."""
    board_kind = BoardKind.parse(kind)
    board = GameBoard(board_kind.size, board_kind.target, seed, **rules)
    draw = random.Random(seed)
    while board.state == "ongoing" and len(board.moves) < num_moves:
        board.move(draw.choice(DIRECTIONS))
    how = {"largest": board.largest, "score": board.score, "moves": board.moves, "error": error}
    return SimpleNamespace(kind=board_kind, seed=seed, ending=ending or board.state, seconds=0.1, **how)


def won(seed: int, largest: int = 2048) -> SimpleNamespace:
    return SimpleNamespace(kind=BoardKind(4, 2048), seed=seed, ending="success", largest=largest)


def lost(seed: int, largest: int, ending: str = "failed") -> SimpleNamespace:
    return SimpleNamespace(kind=BoardKind(4, 2048), seed=seed, ending=ending, largest=largest)


def strategy(code, *games, reason="", score=None) -> SimpleNamespace:
    return SimpleNamespace(code=code, reason=reason, games=games, score=score)


def rows_of(frame: str, size: int) -> list[list[int]]:
    tiles = [2**exponent if (exponent := ord(character) - 48) else 0 for character in frame]
    return [tiles[start : start + size] for start in range(0, size * size, size)]


@pytest.mark.parametrize("kind", ["2x2/8", "4x4/2048", "6x6/64"])
def test_every_frame_is_the_engine_s_position_after_so_many_moves(kind):
    game = played(kind, seed=3)
    widget = replay_widget(game, keys=KEYS["bepo"], **RULES)
    assert widget.steps == list(range(len(game.moves) + 1))
    assert widget.letters == " " + game.moves
    for step, frame in enumerate(widget.frames):
        board = replay(game.kind, 3, game.moves[:step])
        assert (rows_of(frame, game.kind.size), widget.scores[step]) == (board.rows, board.score), step
    assert widget.key_names == {"U": "é", "D": "u", "L": "a", "R": "i"}


def test_the_tile_that_appeared_is_marked_and_none_after_a_move_that_changed_nothing():
    found = positions(played(seed=5), **RULES)
    for before, position in zip(found, found[1:], strict=False):
        cells = [tile for row in position.rows for tile in row]
        assert (position.spawned == -1) == (position.rows == before.rows)
        if position.spawned >= 0:
            assert cells[position.spawned] in (2, 4)
            assert sum(cells) == sum(map(sum, before.rows)) + cells[position.spawned]


def test_a_long_game_keeps_its_first_and_last_position_and_an_even_choice_between():
    game = played("6x6/2048", 2, play_on=True)
    widget = replay_widget(game, keys=KEYS["wasd"], **RULES | {"play_on": True})
    assert len(game.moves) > board2048.LONGEST_REPLAY == len(widget.frames) == len(widget.letters)
    assert (widget.steps[0], widget.steps[-1], widget.scores[-1]) == (0, len(game.moves), game.score)
    gaps = {after - before for before, after in zip(widget.steps, widget.steps[1:], strict=False)}
    assert max(gaps) - min(gaps) <= 1
    assert len(json.dumps(widget.get_state())) < 150_000


def test_a_game_that_other_rules_were_for_is_refused():
    game = played("5x5/32", 1, play_on=True)
    with pytest.raises(
        ValueError, match="^the moves lead to score .* give the four_probability, patience and"
    ):
        replay_widget(game, keys=KEYS["wasd"], **RULES)


@pytest.mark.parametrize("ending", board2048.ENDINGS)
def test_every_ending_has_its_words(ending):
    game = played(num_moves=7, ending=ending, error="IndexError: \udc80")
    words = ending_words(game, patience=64)
    assert words.endswith(f"; 7 moves, largest tile {game.largest}, score {game.score}")
    assert "{" not in words
    assert ending_words(game, patience=64, with_error=True) == words + " (IndexError: \\udc80)"


def test_a_picture_says_which_moves_it_shows():
    found = positions(played(seed=4), **RULES)
    figure = draw_positions([found[0], found[-1]], title="$x$ no mathematics: \\frac{")
    assert [axes.get_title() for axes in figure.axes] == ["move 0", f"move {len(found) - 1}"]
    texts = [text.get_text() for text in figure.axes[1].texts]
    assert sorted(texts) == sorted(str(tile) for row in found[-1].rows for tile in row if tile)
    figure.draw_without_rendering()


def test_strategies_are_counted_once_with_the_wilson_interval_of_their_games():
    games = [won(seed) for seed in range(8)] + [lost(8, 256), lost(9, 64), lost(10, 2, "sandbox_error")]
    twice = [strategy("def a(): ...", *games, score=0.5), strategy("def a(): ...", *games, score=0.7)]
    refused = strategy(None, reason="no function named strategy")
    table = show_strategies([refused, strategy("def b(): ...", lost(1, 4, "stuck"), score=-1.0), *twice])
    assert table.rows == [
        ["def a(): ...\n", "2", "4x4/2048", "8 of 10", "0.800 [0.490, 0.943]", "2048, 2048", "0.600"]
        + ["success 8, failed 2, sandbox error 1"],
        ["def b(): ...\n", "1", "4x4/2048", "0 of 1", "0.000 [0.000, 0.793]", "4, 4", "-1.000", "stuck 1"],
        ["(no code)\n", "1", *["–"] * 5, "no function named strategy"],
    ]
    assert table.caption == (
        "3 of 3 distinct strategies that 4 completions wrote, best mean score first; "
        "1 completions were refused."
    )
    assert len(show_strategies([refused, *twice], limit=1).rows) == 1
    assert show_strategies([]).rows == []


def test_hostile_code_is_escaped_and_does_not_end_the_notebook():
    table = show_strategies([strategy(HOSTILE, reason="<b>\udc80")])
    html = table._repr_html_()
    assert "<script>" not in html and "<b>" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\udc80" in html
    (html + repr(table)).encode()


def test_baselines_have_a_line_each_and_a_column_a_board():
    entries = [
        Reached("4x4/2048", "random", 4096, 0.0, 0.0, 0.0009, 0.0, 128, 115),
        Reached("6x6/2048", "random", 4096, 0.978, 0.973, 0.982, 0.0, 2048, 1265),
        Reached("6x6/2048", "cycle LDRD", 400, 0.974, 0.95, 0.98, 0.026, 2048, 1100),
    ]
    table = show_baselines(entries)
    assert table.headers == ["baseline", "4x4/2048", "6x6/2048"]
    assert table.rows == [
        ["random", "0.000 [0.000, 0.001]; 128", "0.978 [0.973, 0.982]; 2048"],
        ["cycle LDRD", "–", "0.974 [0.950, 0.980]; 2048; stuck 0.026"],
    ]
    assert table.caption.endswith("400–4096 games each.")


def test_the_live_figure_leaves_out_what_was_not_measured():
    rows = [
        {"step": 0, "heldout/strategy/skill": 0.1, "heldout/strategy/greedy_skill": 0.2},
        {"step": 1, "strategy/score": -1.0, "strategy/skill": None, "strategy/no_code_share": 1.0},
        {"step": 2, "strategy/score": 0.5, "strategy/skill": 0.5, "strategy/success_share": 1.0},
    ]
    left, right = draw_strategies(rows, max_steps=10).axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in left.lines}
    assert lines["mean graded reward"] == [[1, -1], [2, -0.25]]
    assert lines["skill of honest completions"] == [[2, 0.5]]
    assert lines["held out: skill"] == [[0, 0.1]]
    assert lines["held out: skill of the greedy one"] == [[0, 0.2]]
    assert "held out: graded reward" not in lines
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["success", "no code"]


def test_the_live_figure_knows_no_metric_that_runs_do_not_write():
    names = [f"strategy/{ending}_share" for ending in board2048.ENDING_COLOURS]
    names += [f"{where}strategy/{name}" for where in ("", "heldout/") for name in ("score", "skill")]
    assert {*names, "heldout/strategy/greedy_skill"} <= METRICS.keys()


@pytest.mark.parametrize("live", [LiveRewards, LiveStrategies])
def test_live_figures_are_drawn_from_an_empty_run_and_from_a_started_one(live, tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr("rlnb.display.plots.display", lambda figure, display_id: shown.append(figure))
    live(tmp_path).update(0, 5)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "strategy/score": 0.5}\n')
    live(tmp_path).update(1, 5)
    assert len(shown) == 2


def test_the_script_parses():
    if not shutil.which("node"):
        pytest.skip("no node to parse the widget's script")
    script = Path(board2048.__file__).with_suffix(".js").read_text()
    parsed = subprocess.run(
        ["node", "--check", "--input-type=module"], input=script, text=True, capture_output=True
    )
    assert parsed.returncode == 0, parsed.stderr


PAGE = """<!doctype html><meta charset="utf-8"><style>{css}</style><div id="here"></div><pre id="log"></pre>
<script type="module">
const state = {state}, listeners = {{}}, log = [];
let saved = 0;
const model = {{
  get: (name) => state[name],
  set: (name, value) => {{ state[name] = value; (listeners["change:" + name] || []).forEach((f) => f()); }},
  on: (name, f) => (listeners[name] ||= []).push(f),
  off: (name, f) => (listeners[name] = listeners[name].filter((one) => one !== f)),
  save_changes: () => saved++,
}};
try {{
  const {{ default: widget }} = await import("data:text/javascript;base64,{script}");
  const root = document.querySelector("#here");
  const cleanUp = widget.render({{ model, el: root }});
  const cells = () => [...root.querySelectorAll(".rlnb-2048-cell")].map((cell) => Number(cell.textContent));
  const facts = () => [...root.querySelectorAll("dd")].map((node) => node.textContent);
  const slider = root.querySelector("input");
  const look = () => log.push([state.position, cells(), ...facts()]);
  const press = (label) => {{ root.querySelector(`button[aria-label="${{label}}"]`).click(); look(); }};
  look();
  slider.value = 5;
  slider.dispatchEvent(new Event("input"));
  look();
  press("One forward");
  press("One back");
  press("Last position");
  press("First position");
  root.querySelector("select").value = "60";
  press("Play");
  await new Promise((resolve) => setTimeout(resolve, 400));
  const moved = state.position;
  press("Pause");
  cleanUp();
  const left = Object.values(listeners).flat().length;
  log.push([moved > 0, saved, left, root.querySelectorAll("script").length]);
}} catch (error) {{
  log.push(String(error));
}}
document.querySelector("#log").textContent = JSON.stringify(log);
</script>"""


@pytest.mark.skipif(not CHROMIUM, reason="no chromium to run the widget's script in")
def test_in_a_browser_slider_and_buttons_show_the_positions(tmp_path):
    game = played(seed=7, num_moves=30, ending="exception", error="<script>alert(1)</script>")
    widget = replay_widget(game, keys=KEYS["bepo"], **RULES)
    state = {name: widget.get_state()[name] for name in board2048.BoardReplay.class_own_traits()}
    source = Path(board2048.__file__)
    script = base64.b64encode(source.with_suffix(".js").read_bytes()).decode()
    page = tmp_path / "page.html"
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
    log = json.loads(dom.partition('<pre id="log">')[2].partition("</pre>")[0])
    looks, last = log[:-1], log[-1]
    assert [look[0] for look in looks[:6]] == [0, 5, 6, 5, 30, 0], log
    found = positions(game, **RULES)
    for at, cells, move, key, score, largest in looks:
        tiles = [tile for row in found[at].rows for tile in row]
        assert (cells, move, score) == (tiles, f"{at} of 30", str(found[at].score))
        assert largest == str(max(tiles))
        letter = found[at].letter
        assert key == {" ": "–", "U": "↑ é", "D": "↓ u", "L": "← a", "R": "→ i"}[letter]
    has_played, num_saved, num_listeners, num_scripts = last
    assert (has_played, num_saved, num_listeners, num_scripts) == (True, 6, 0, 0)


NOTEBOOK = """
from rlnb.display.board2048 import show_replay
from rlnb.games.board2048 import KEYS, BoardKind, GameBoard
from types import SimpleNamespace
board = GameBoard(4, 2048, 1)
while board.state == "ongoing":
    board.move(board.legal_moves()[0])
game = SimpleNamespace(kind=board.kind, seed=1, moves=board.moves, ending=board.state,
                       largest=board.largest, score=board.score, error="")
show_replay(game, keys=KEYS["wasd"], four_probability=0.1, patience=64, play_on=False)
"""


def test_a_saved_notebook_holds_the_widget_its_words_and_a_picture(tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")  # the picture does not hang on the notebook's backend
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(NOTEBOOK)])
    client = NotebookClient(
        notebook, kernel_name="python3", timeout=120, resources={"metadata": {"path": "."}}
    )
    client.execute()
    nbformat.write(notebook, tmp_path / "saved.ipynb")
    saved = nbformat.read(tmp_path / "saved.ipynb", as_version=4)
    outputs = saved.cells[0].outputs
    assert [output.output_type for output in outputs] == ["display_data", "display_data"]
    widget, picture = (output.data for output in outputs)
    assert set(widget) == {"application/vnd.jupyter.widget-view+json", "text/plain"}
    assert widget["text/plain"].startswith("2048 on 4x4/2048, seed 1: no move was left; ")
    assert base64.b64decode(picture["image/png"]).startswith(b"\x89PNG")
    assert picture["text/plain"].startswith(widget["text/plain"] + ". Boards after 0, ")
    assert outputs[1].metadata["image/png"]["alt"] == picture["text/plain"]

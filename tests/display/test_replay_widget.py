"""The replay widget in a real browser: a position with facts, bars and answers."""

import base64
import html
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from rlnb.display import replay
from rlnb.display.replay import Bar, Frame, Replay

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
HOSTILE = "<script>alert(1)</script>"
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
  const texts = (name) => [...root.querySelectorAll(name)].map((node) => node.textContent);
  const slider = root.querySelector("input");
  const look = () => log.push([
    state.position, texts(".rlnb-replay-cell"), texts(".rlnb-replay-heading")[0],
    texts(".rlnb-replay-played span")[0] ?? null, texts("dd"),
    [...root.querySelectorAll(".rlnb-replay-cell")].map((cell) => cell.className),
  ]);
  const press = (label) => {{ root.querySelector(`button[aria-label="${{label}}"]`).click(); look(); }};
  look();
  slider.value = 2;
  slider.dispatchEvent(new Event("input"));
  look();
  press("One back");
  press("Last position");
  press("One forward");
  press("First position");
  root.querySelector("select").value = "60";
  slider.dispatchEvent(new KeyboardEvent("keydown", {{ key: " " }}));
  await new Promise((resolve) => setTimeout(resolve, 400));
  const moved = state.position;
  cleanUp();
  const left = Object.values(listeners).flat().length;
  log.push([moved > 0, saved === 5, left, root.querySelectorAll("script").length]);
}} catch (error) {{
  log.push(String(error));
}}
document.querySelector("#log").textContent = JSON.stringify(log);
</script>"""


def look_around(widget, tmp_path):
    """Return what a browser shows at the start, then at positions 2, 1, 3, 3 and 0."""
    state = {name: widget.get_state()[name] for name in Replay.class_own_traits()}
    source = Path(replay.__file__)
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
    *looks, summary = json.loads(html.unescape(dom.partition('<pre id="log">')[2].partition("</pre>")[0]))
    assert [look[0] for look in looks] == [0, 2, 1, 3, 3, 0], looks or summary
    assert summary == [True, True, 0, 0]  # it played, Python heard of it, no listener and no script is left
    return looks


@pytest.mark.skipif(not CHROMIUM, reason="no chromium to run the widget's script in")
def test_a_browser_shows_cells_facts_probabilities_and_answers(tmp_path):
    symbols = {"x": ("X", "#eee4da", "#33302b"), "o": ("O", "", ""), ".": ("", "", "")}
    bars = [Bar("left", 0.75, True, 0), Bar("right", 0.25, False, 1)]
    facts = [{"Score": score} for score in ("0", "4", "8", HOSTILE)]
    frames = [
        Frame(0, "..", facts=facts[0], heading="X to move", mover=0, bars=bars),
        Frame(10, "x.", 0, facts[1], heading="O to move", mover=1, bars=[Bar("right", None, True, 1)]),
        Frame(20, "xo", 1, facts[2], heading="a draw", answers=[("X", HOSTILE), ("O", "")]),
        Frame(30, "xo", -1, facts[3], heading="a draw"),
    ]
    looks = look_around(Replay(frames, title="Tiny", ending="a draw", columns=2, symbols=symbols), tmp_path)
    start, third, second, end, _, _ = looks
    assert start[1:5] == [["75%", "25%"], "0 of 30 moves: X to move", "left", ["0"]]
    assert "rlnb-replay-chosen" in start[5][0] and "rlnb-replay-last" in second[5][0]
    assert second[1:5] == [["X", ""], "10 of 30 moves: O to move", "right", ["4"]]
    assert third[4] == ["8", HOSTILE] and end[4] == [HOSTILE]
    assert [index for index, names in enumerate(third[5]) if "rlnb-replay-last" in names] == [1]


def test_a_long_replay_stays_small_and_says_itself_in_words():
    facts = {"Key": "↑", "Score": "12345", "Largest": "1024"}
    frames = [Frame(index, "0" * 36, last=12, facts=facts) for index in range(2000)]
    widget = Replay(frames, title="2048 on 6x6\udc80", ending="stuck", columns=6, symbols={"0": ("", "", "")})
    assert len(json.dumps(widget.get_state(), ensure_ascii=False)) < 170_000
    assert repr(widget) == "2048 on 6x6\\udc80: stuck"
    assert widget.details == []

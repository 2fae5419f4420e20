"""Tables, plots, the live figure and the progress bar, by their text and artists."""

import json

import pandas
import pytest

from rlnb.display import plots, progress
from rlnb.display.plots import LiveFigure, draw_comparison, draw_shares, running_mean, series, spread
from rlnb.display.progress import format_bar, format_duration, progress_bar
from rlnb.display.tables import (
    Table,
    fold,
    format_number,
    format_percent,
    show_comparison,
    show_facts,
    show_samples,
    visible_text,
)
from rlnb.results import Comparison
from rlnb.run.directory import PROGRESS
from rlnb.statistics import Estimate

COMPARISON = [
    Comparison("pass_rate", "all", 4, 0.25, 0.5, Estimate(0.25, -0.25, 0.75)),
    Comparison("pass_rate", "known", 2, 0.5, 0.5, Estimate(0.0, 0.0, 0.0)),
    Comparison("pass_rate", "new", 2, 0.0, 0.5, Estimate(0.5, 0.0, 1.0)),
]


class Screen:
    """Stands in for IPython's display: keeps what was shown, and is its own handle."""

    def __init__(self):
        self.shown = []

    def __call__(self, thing, **options):
        self.shown.append((thing, options))
        return self

    update = __call__


def test_a_table_is_html_and_text_with_code_in_its_place():
    table = Table(["program", "reward"], [("x = 1\n<b>", 0.5), (None, "\udc80")], "Two rows.")
    html = table._repr_html_()
    assert "<caption style='text-align:left'>Two rows.</caption>" in html
    assert "<pre style='margin:0'>x = 1\n&lt;b&gt;</pre>" in html
    assert repr(table) == "Two rows.\nprogram      reward\nx = 1 ⏎ <b>  0.500\n–            \\udc80"
    assert Table(["a"], [], "Rows.", empty="Nothing.").caption == "Nothing."


def test_a_long_table_is_folded_under_its_summary():
    folded = fold("All <24> rows", show_facts({"seed": 1}), "by hand & more")
    html = folded._repr_html_()
    assert html.startswith("<details><summary>All &lt;24&gt; rows</summary><table>")
    assert html.endswith("<pre>by hand &amp; more</pre></details>")
    assert repr(folded).startswith("All <24> rows\n") and "seed  1" in repr(folded)


def test_numbers_have_three_decimals_their_interval_or_a_dash():
    assert format_number(Estimate(0.25, -0.5, 1.0), signed=True) == "+0.250 (-0.500 to +1.000)"
    assert [format_number(value) for value in (0.5, None, float("nan"))] == ["0.500", "–", "–"]
    assert [format_percent(value) for value in (0.125, None, float("nan"))] == ["12.5%", "–", "–"]


def test_text_that_could_change_the_page_is_written_out():
    assert visible_text("a\tb\n\x1b[0m\u202e") == "a\tb\n\\x1b[0m\\u202e"


def test_a_comparison_is_a_table_with_intervals_and_a_picture_without_the_sums():
    table = show_comparison(COMPARISON)
    assert table.rows[0] == ["pass rate", "all", "4", "0.250", "0.500", "+0.250 (-0.250 to +0.750)"]
    assert show_comparison([]).caption == "Nothing was measured both before and after."
    left, right = draw_comparison(COMPARISON).axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["pass rate, new", "pass rate, known"]
    points = {line.get_label(): line.get_xdata().tolist() for line in left.lines}
    assert (points["before"], points["after"]) == ([0.0, 0.5], [0.5, 0.5])
    (segments,) = right.containers[0].lines[2]
    assert [segment[:, 0].tolist() for segment in segments.get_segments()] == [[0.0, 1.0], [0.0, 0.0]]
    assert draw_comparison([]).axes


def test_samples_of_the_last_logged_step_are_shown_best_first(tmp_path):
    assert show_samples(tmp_path).caption == "No completions were logged."
    folder = tmp_path / "checkpoints" / "completions"
    folder.mkdir(parents=True)
    rows = {"step": 3, "prompt": ["p" * 200] * 4, "completion": ["a", "b", "c", "d"], "outcome": "ok"}
    rewards = {"code": [0.0, 1.0, 0.5, 0.25], "format": [0.0, 1.0, 0.0, 0.0], "advantage": 0.0}
    pandas.DataFrame(rows | rewards).to_parquet(folder / "completions_00003.parquet")
    table = show_samples(tmp_path, rewards=["code", "format"], limit=2)
    assert [row[2:5] for row in table.rows] == [["b\n", "ok", "2.000"], ["a\n", "ok", "0.000"]]
    assert table.rows[0][1] == "p" * 160
    assert table.caption == "2 of 4 completions of step 3"


def test_measures_are_read_where_they_were_taken():
    rows = [{"step": 0}, {"step": 1, "a": None}, {"step": 2, "a": 0.5}, {"step": 3, "a": float("nan")}]
    assert series(rows, "a") == ([2], [0.5])
    assert running_mean([1, 2, 3, 4], window=2) == [1, 1.5, 2.5, 3.5]
    assert spread("abcdefg", 3) == ["a", "d", "g"] and spread("ab", 3) == ["a", "b"]


def test_shares_are_stacked_without_those_that_never_occur():
    _, axes = plots.plt.subplots()
    rows = [{"step": 0, "heldout": 1.0}, {"step": 1, "ok": 0.75, "bad": 0.25, "never": 0.0}]
    measures = {"ok": ("right", "green"), "bad": ("wrong", "red"), "never": ("never", "blue")}
    draw_shares(axes, rows, measures, max_steps=4, title="Shares")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["right", "wrong"]
    assert axes.get_xlim() == (0, 4)


def test_the_live_figure_updates_one_bar_and_one_picture(tmp_path, monkeypatch):
    bar, picture = Screen(), Screen()
    monkeypatch.setattr(progress, "display", bar)
    monkeypatch.setattr(plots, "display", picture)
    drawn = []

    def draw(rows, *, max_steps):
        drawn.append((len(rows), max_steps))
        return plots.plt.figure()

    live = LiveFigure(tmp_path, draw)
    live.update(0, 2)
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": 0.5}) + "\n")
    live.update(2, 2)
    assert drawn == [(0, 2), (1, 2)]
    assert [options.get("display_id") for _, options in picture.shown] == [True, None]
    assert bar.shown[-1][0]["text/plain"] == "training step 2/2"
    assert bar.shown[-1][1]["metadata"] == {PROGRESS: {"label": "training step", "done": 2, "total": 2}}


def test_the_bar_tells_the_time_left_from_the_calls_of_this_process(monkeypatch):
    screen, clock = Screen(), iter([100.0, 110.0, 130.0, 131.0])
    monkeypatch.setattr(progress, "display", screen)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    show = progress_bar("games")
    for done in (20, 30, 40):  # a resumed run starts at 20; then 10 in 20 seconds
        show(done, 40)
    texts = [bundle["text/plain"] for bundle, _ in screen.shown]
    assert texts == ["games 0/1", "games 20/40", "games 30/40, 20 s left", "games 40/40"]
    assert "<progress value='30' max='40'" in screen.shown[2][0]["text/html"]
    assert format_bar("games", 1, 2)["text/plain"] == "games 1/2"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (89, "89 s"), (90, "2 min"), (5300, "88 min"), (11100, "3 h 5 min")]
)
def test_durations_are_rounded(seconds, text):
    assert format_duration(seconds) == text

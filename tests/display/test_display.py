"""Tables, plots, the live figure and the progress bar, by their text and artists."""

import itertools
import json
import math

import pandas
import pytest

from rlnb.display import live, plots, progress
from rlnb.display.completions import browse_completions, show_best_and_worst
from rlnb.display.live import LiveFigure
from rlnb.display.panel import Panel
from rlnb.display.plots import draw_comparison, draw_intervals, draw_training, series, spread
from rlnb.display.progress import progress_bar
from rlnb.display.replay import Bar, Frame, write_position
from rlnb.display.tables import Table, as_code, as_percent, as_text, fold, show_comparison, show_facts
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
    assert ">x = 1\n&lt;b&gt;</pre>" in html
    assert repr(table) == "Two rows.\nprogram      reward\nx = 1 ⏎ <b>  0.500\n–            \\udc80"
    path, program = "outputs/" * 12 + "seed=1", "x = 1\n" * 20
    assert repr(Table(["run", "program"], [(path, program)])).count(path) == 1  # programs alone are cut
    assert max(map(len, repr(Table(["program"], [(program,)])).splitlines())) <= 60


def test_a_table_without_rows_is_its_caption_alone():
    table = Table(["a"], [], "Rows.", empty="Nothing <yet>.")
    assert (table._repr_html_(), repr(table)) == ("<p>Nothing &lt;yet&gt;.</p>", "Nothing <yet>.")


def test_a_long_name_of_a_measure_may_end_its_line_at_a_slash():
    html = Table(["exact/average/nash_conv"], [["a/b"]])._repr_html_()
    assert ">exact/<wbr>average/<wbr>nash_conv</th>" in html and ">a/b</td>" in html


def test_a_table_on_its_side_has_a_column_for_each_row():
    table = Table(["program", "reward"], [("x = 1\n", 0.5), ("pass\n", None)], "Two programs.")
    turned = table.side_by_side("before", "after")
    assert (turned.headers, turned.caption) == (["", "before", "after"], "Two programs.")
    assert turned.rows == [["program", "x = 1\n", "pass\n"], ["reward", "0.500", "–"]]


@pytest.mark.parametrize(("line", "width"), [("", 0), ("print(6 * 7)", 12), ("x" * 41, 40)])
def test_a_long_text_in_another_column_leaves_lines_of_code_whole(line, width):
    table = Table(["program", "why"], [(f"a\n{line}\n", "word " * 200)])
    assert f"min-width:{max(width, 1)}ch" in table._repr_html_()


def test_a_long_table_is_folded_under_its_summary():
    folded = fold("All <24> rows", show_facts({"seed": 1}), "by hand & more")
    html = folded._repr_html_()
    assert html.startswith("<details><summary>All &lt;24&gt; rows</summary><table>")
    assert html.endswith("<pre>by hand &amp; more</pre></details>")
    assert repr(folded).startswith("All <24> rows\n") and "seed  1" in repr(folded)


def test_cells_have_three_decimals_their_interval_or_a_dash_and_cannot_change_the_page():
    assert as_text(Estimate(0.25, -0.5, 1.0), signed=True) == "+0.250 (-0.500 to +1.000)"
    assert [as_text(value) for value in (0.5, None, float("nan"), 3)] == ["0.500", "–", "–", "3"]
    assert [as_percent(value) for value in (0.125, None, float("nan"))] == ["12.5%", "–", "–"]
    assert as_text("a\tb\n\x1b[0m\u202e") == "a\tb\n\\x1b[0m\\u202e"
    assert [as_code("x" * 7, longest=5), as_code(""), as_code(None)] == ["xxxxx …\n", "", "(no code)\n"]


def test_a_comparison_is_a_table_with_intervals_and_a_picture_without_the_sums():
    table = show_comparison(COMPARISON)
    assert table.rows[0] == ["pass rate", "all", "4", "0.250", "0.500", "+0.250 (-0.250 to +0.750)"]
    assert show_comparison([]).caption == "Nothing was measured both before and after."
    left, right = draw_comparison(COMPARISON).axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["pass rate, known", "pass rate, new"]
    points = {line.get_label(): line.get_xdata().tolist() for line in left.lines}
    assert (points["before"], points["after"]) == ([0.5, 0.0], [0.5, 0.5])
    segments = right.collections[0].get_segments()
    assert [segment[:, 0].tolist() for segment in segments] == [[0.0, 0.0], [0.0, 1.0]]
    assert draw_comparison([]).axes


def log_completions(output_dir, step, completions, outcomes, **paid):
    """Write a step's table as TRL does: the reward functions stand behind the completion."""
    folder = output_dir / "checkpoints" / "completions"
    folder.mkdir(parents=True, exist_ok=True)
    table = {"step": step, "prompt": ["word " * 40] * len(completions), "completion": completions}
    table |= paid | {"outcome": outcomes, "passed": True, "reason": "", "advantage": 0.5}
    pandas.DataFrame(table).to_parquet(folder / f"completions_{step:05}.parquet")


def test_the_best_and_the_worst_completion_of_the_last_step_are_shown_by_the_sum_of_the_rewards(tmp_path):
    assert show_best_and_worst(tmp_path) is None
    log_completions(tmp_path, 2, ["z"], ["ok"], code=[9.0], format=[9.0])
    paid = {"code": [0.0, 1.0, 0.5, math.nan], "format": [0.5, 1.0, 0.0, -2.0]}
    log_completions(tmp_path, 3, ["a", "b", "c", "d"], ["ok", "ok", "ok", "no_code"], **paid)
    table = show_best_and_worst(tmp_path)
    shown = [[*row[:2], row[3]] for row in table.rows]
    assert shown == [["2.000", "ok", "b\n"], ["-2.000", "no_code", "d\n"]]
    assert table.rows[0][2] == "… " + "word " * 31
    assert table.caption == "The best and the worst of 4 completions of step 3."


@pytest.mark.parametrize("content", [b"", b"PAR1", bytes(900)])
def test_a_table_of_completions_that_is_not_whole_is_passed_over(tmp_path, content):
    log_completions(tmp_path, 1, ["a"], ["ok"], code=[1.0])
    (tmp_path / "checkpoints" / "completions" / "completions_00002.parquet").write_bytes(content)
    assert show_best_and_worst(tmp_path).caption.endswith("of step 1.")
    assert browse_completions(tmp_path).summary == "1 completions of 1 steps"


def test_completions_are_folded_by_step_and_by_outcome_without_a_script(tmp_path):
    assert browse_completions(tmp_path).summary == "No completions were logged."
    for step in range(1, 31):
        log_completions(tmp_path, step, ["<b>", "x"], ["timeout", "ok"], code=[-1.0, step / 10])
    browser = browse_completions(tmp_path)
    by_step, by_outcome = browser.contents
    assert browser.summary == "60 completions of 30 steps"
    assert len(by_step.contents) == 12 and by_step.contents[-1].summary == "step 30: mean reward +1.00"
    assert [row[0] for row in by_step.contents[-1].contents[0].rows] == ["3.000", "-1.000"]
    outcomes = {fold.summary for fold in by_outcome.contents}
    assert outcomes == {"timeout: 50%, mean reward -1.00", "ok: 50%, mean reward +1.55"}
    steps = [int(row[0]) for row in by_outcome.contents[0].contents[0].rows]
    assert steps[0] == 1 and steps[-1] == 30 and steps == sorted(steps)
    page = browser._repr_html_()
    assert page.count("<details>") == page.count("</details>") == 1 + 2 + 12 + 2
    assert "&lt;b&gt;" in page and "<b>" not in page and "<script" not in page


def test_rewards_and_rates_have_axes_of_their_own():
    reward = Comparison("reward", "new", 2, -1.0, 3.0, Estimate(4.0, 3.0, 5.0))
    rewards, _, rates, _ = draw_comparison([COMPARISON[1], reward, COMPARISON[2]]).axes
    lines = [[label.get_text() for label in axes.get_yticklabels()] for axes in (rewards, rates)]
    assert lines == [["reward, new"], ["pass rate, known", "pass rate, new"]]
    assert rates.get_xlim()[1] < 1


def test_a_figure_is_a_picture_with_words_for_who_does_not_see_it_and_a_stamp_that_it_does_not_keep():
    figure = draw_comparison(COMPARISON)
    (plain, metadata), (stamped, _) = plots.as_png(figure), plots.as_png(figure, stamp="tiny")
    words = "Before and after; Difference with its 95% interval; before; after"
    assert metadata == {"image/png": {"alt": words}} and plain["text/plain"] == f"Figure: {words}"
    assert stamped["image/png"] != plain["image/png"] == plots.as_png(figure)[0]["image/png"]


def test_measures_are_read_where_they_were_taken():
    rows = [{"step": 0}, {"step": 1, "a": None}, {"step": 2, "a": 0.5}, {"step": 3, "a": float("nan")}]
    assert series(rows, "a") == ([2], [0.5])
    assert spread("abcdefg", 3) == ["a", "d", "g"] and spread("ab", 3) == ["a", "b"]


def test_estimates_of_a_label_are_points_of_one_line_with_their_intervals():
    share = Estimate(0.5, 0.6, 0.7)  # an interval need not hold its value
    _, (axes,) = plots.make_panels(size=(9, 2))
    labels = draw_intervals(axes, {"before": {"a\x1b": share}, "after": {"a\x1b": share, "b": share}})
    assert labels == ["a\x1b", "b"] and [text.get_text() for text in axes.get_yticklabels()] == ["a", "b"]
    assert {line.get_label(): len(line.get_xdata()) for line in axes.lines} == {"before": 1, "after": 2}
    assert axes.collections[1].get_segments()[0][:, 0].tolist() == [0.6, 0.7]
    heights = [line.get_ydata()[0] for line in axes.lines]
    assert -0.5 < heights[0] < heights[1] < 0.5


@pytest.mark.parametrize("max_steps", [1, 2, 3, 5, 300])
def test_steps_are_whole_numbers(max_steps):
    _, (axes,) = plots.make_panels(size=(5, 4), max_steps=max_steps)
    assert all(tick == round(tick) for tick in axes.get_xticks())


def test_actions_whose_words_differ_at_the_end_are_told_apart_in_a_column():
    bars = [Bar("place O in row 3, column 2", 0.75, is_chosen=True), Bar("pass", 0.25)]
    chosen, other = write_position(Frame(0, bars=bars)).split("\n")[-2:]
    assert (chosen, other) == ("> place O in row 3, column 2  75%", f"  {'pass':26}  25%")


def test_a_panel_leaves_its_words_and_its_picture_to_a_page_without_widgets():
    panel = Panel([], "A <game>", picture="<table></table>")
    bundle = panel._repr_mimebundle_()
    assert bundle["text/html"] == "<p>A &lt;game&gt;</p><table></table>"
    assert bundle["text/plain"] == "A <game>"
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"] == panel.model_id


def test_training_has_trends_hollow_points_and_shares_without_those_that_never_occur():
    rows = [{"step": 0, "late": 1.0, "good": None}, {"step": 1, "ok": 0.75, "bad": 0.25, "never": 0.0}]
    rows += [{"step": 2, "ok": 1.0, "good": 0.5}, {"step": 3, "ok": 1.0, "good": 1.0}]
    shares = {"ok": ("right", "green"), "bad": ("wrong", "red"), "never": ("never", "blue")}
    points = {"late": ("held out", "blue", "s"), "unmeasured": ("nothing", "blue", "o")}
    trends = {"good": ("score", "red")}
    figure = draw_training(rows, trends, points, shares, max_steps=4, titles=("Left", "Right"))
    left, right = figure.axes
    lines = {line.get_label(): line for line in left.lines if not line.get_label().startswith("_")}
    assert lines["score"].get_xydata().tolist() == [[2, 0.5], [3, 0.75]]
    assert left.lines[0].get_xydata().tolist() == [[2, 0.5], [3, 1.0]]
    assert lines["held out"].get_xydata().tolist() == [[0, 1]] and "nothing" not in lines
    assert (lines["held out"].get_fillstyle(), lines["held out"].get_linestyle()) == ("none", "None")
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["right", "wrong"]
    tops = [layer.get_paths()[0].vertices for layer in right.collections]
    assert [max(y for x, y in layer if x == 1) for layer in tops] == [0.75, 1.0]
    assert (right.get_xlim(), plots.plt.get_fignums()) == ((0, 4), [])
    figure.draw_without_rendering()
    boxes = [axes.get_legend().get_window_extent() for axes in figure.axes]
    boxes += [axes.get_tightbbox(for_layout_only=True, bbox_extra_artists=[]) for axes in figure.axes]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    assert draw_training([], trends, points, shares, max_steps=0, titles=("", "")).axes


def test_the_live_figure_updates_one_bar_and_one_picture(tmp_path, monkeypatch):
    bar, picture = Screen(), Screen()
    monkeypatch.setattr(progress, "display", bar)
    monkeypatch.setattr(live, "display", picture)
    drawn = []

    def draw(rows, *, max_steps, title):
        drawn.append((len(rows), max_steps, title))
        return plots.make_panels(size=(2, 2))[0]

    figure = LiveFigure(tmp_path, draw, title="seed 1")
    figure.update(0, 2)
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": 0.5}) + "\n")
    log_completions(tmp_path, 1, ["a"], ["ok"], code=[1.0])
    figure.update(2, 2)
    assert drawn == [(0, 2, "seed 1"), (1, 2, "seed 1")]
    assert [options.get("display_id") for _, options in picture.shown] == [True, None, True]
    assert bar.shown[-1][0]["text/plain"] == "training step 2/2"
    assert bar.shown[-1][1]["metadata"] == {PROGRESS: {"label": "training step", "done": 2, "total": 2}}


def test_below_the_live_figure_of_a_game_is_its_last_game_that_is_whole(tmp_path, capsys):
    turns = [
        {"seat": seat, "ply": seat + 2, "text": text, "action": action, "problem": problem,
         "legal_actions": [0, 4], "probabilities": shares}
        for seat, text, action, problem, shares in (
            (0, "4", 4, None, [0.25, 0.75]), (1, "I think\nso", None, "no_answer", []),
        )
    ]  # fmt: skip
    games = [
        {"step": step, "game": "nim", "players": ["policy", "random"], "returns": [1, -1], "turns": turns}
        for step in (1, 2)
    ]
    lines = [json.dumps(game) + "\n" for game in games]
    (tmp_path / "games.jsonl").write_text("".join(lines) + lines[1][:20])
    LiveFigure(tmp_path, lambda rows, **_: plots.make_panels(size=(2, 2))[0]).update(2, 2)
    shown = capsys.readouterr().out.splitlines()
    assert shown[-4] == "A game of nim of step 2; the seats' returns: +1 and -1."
    assert " ".join(shown[-2].split()) == "3 first, policy 4 0.750 –"
    assert " ".join(shown[-1].split()) == "4 second, random I think ⏎ so – no_answer"


def test_the_bar_tells_the_time_left_from_the_calls_of_this_process(monkeypatch):
    screen, clock = Screen(), iter([110.0, 130.0, 131.0])
    monkeypatch.setattr(progress, "display", screen)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    show = progress_bar("games")
    show(0, 0)  # nothing to do: nothing to draw
    for done in (20, 30, 40):  # a resumed run starts at 20; then 10 in 20 seconds
        show(done, 40)
    texts = [bundle["text/plain"] for bundle, _ in screen.shown]
    assert texts == ["games 20/40", "games 30/40, 0:00:20 left", "games 40/40"]
    assert "<progress value='30' max='40'" in screen.shown[1][0]["text/html"]


def test_completions_of_a_reward_function_that_logs_no_outcome_are_shown(tmp_path):
    log_completions(tmp_path, 1, ["a", "b"], ["", ""], mine=[1.0, 0.25])
    path = tmp_path / "checkpoints" / "completions" / "completions_00001.parquet"
    pandas.read_parquet(path).drop(columns=["outcome", "passed", "reason"]).to_parquet(path)
    assert [row[0] for row in show_best_and_worst(tmp_path).rows] == ["1.000", "0.250"]


def test_each_step_is_paid_by_the_functions_that_it_had(tmp_path):
    log_completions(tmp_path, 1, ["a"], ["ok"], passes=[1.0])
    log_completions(tmp_path, 2, ["a"], ["ok"], passes=[1.0], short=[0.5])
    by_step, _ = browse_completions(tmp_path).contents
    said = [each.summary for each in by_step.contents]
    assert said == ["step 1: mean reward +1.00", "step 2: mean reward +1.50"]

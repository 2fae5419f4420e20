"""Runs in one table: what differs, what is averaged, what is paired, what is left out and why."""

import io
import json
import os
import shutil
from pathlib import Path

import pandas
import pytest

from rlnb import cli
from rlnb.batch import points_table as tables
from rlnb.batch.display import draw_curves, tabulate_curves
from rlnb.batch.overview import LOG_FILE
from rlnb.batch.sweeps import POINTS_FILE
from rlnb.errors import ParamsError
from rlnb.params import dump_yaml, load_params
from rlnb.results import compare, save_results
from rlnb.run import directory as runs
from rlnb.run.checkpoints import STATE_FILE
from rlnb.run.disk import RECIPE_FILE

LOSSES = ["exact/loss_first", "exact/loss_second"]
# Of each advantage and seed: the two losses at the last step.
LAST = {("rae", 1): (0.1, 0.3), ("rae", 2): (0.2, 0.4), ("none", 1): (0.2, 0.4), ("none", 2): (0.3, 0.5)}


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """The folder of a sweep of two advantages and three seeds; the third seed failed, or never began."""
    monkeypatch.chdir(tmp_path)
    folder = Path("sweep")
    points = [(kind, seed) for kind in ("rae", "none") for seed in (1, 2, 3)]
    for kind, seed in points:
        directory = folder / f"kind={kind}_seed={seed}"
        directory.mkdir(parents=True)
        if (kind, seed) == ("none", 3):
            (directory / LOG_FILE).write_text("rlnb: 3 GPUs are asked for\n\n")
            continue
        overrides = {"advantage": {"kind": kind}, "seed": seed, "output_dir": str(directory)}
        params = load_params("spiral_self_play", profile="kuhn", overrides=overrides, environ={})
        (directory / "params.yaml").write_text(dump_yaml(params))
        status = runs.start_attempt(directory, notebook="spiral_self_play.ipynb")
        rows = [{"step": 0, "time": 1.0, LOSSES[0]: 0.0, LOSSES[1]: 0.0}]
        rows += [{"step": 10, "time": 2.0, "time/update_seconds": 90.0}]
        if (kind, seed) in LAST:
            rows += [{"step": 20, "time": 3.0, **dict(zip(LOSSES, LAST[kind, seed], strict=True))}]
            before = {"score": {"new": {"a": 0.0, "b": 0.5}}}
            after = {"score": {"new": {"a": 1.0, "b": 0.5 + 0.25 * seed}}}
            save_results(directory / "results.json", params={}, comparison=compare(before, after))
            runs.end_attempt(directory, status, state="done")
        else:
            runs.end_attempt(directory, status, state="failed", reason="cell 7 of 9: TrainingDiverged: NaN")
        (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = [{"name": f"kind={kind}_seed={seed}"} for kind, seed in points]
    (folder / POINTS_FILE).write_text(json.dumps({"points": names}))
    return folder


def test_a_point_shows_what_differs_how_it_ended_and_its_last_values(sweep):
    results = tables.gather_results([sweep])
    table = tables.show_points(results, LOSSES)
    assert table.rows[0] == ["rae", "1", "done", "20", "0.100", "0.300"]  # not the 0 of step 0
    assert table.rows[2] == ["rae", "3", "failed", "10", "0.000", "0.000"]
    assert table.rows[5] == ["–", "–", "pending", "–", "–", "–"]
    assert results[tables.TRAINING_MINUTES][0] == 1.5
    assert tables.show_failures(results) == [
        "sweep/kind=rae_seed=3: failed: cell 7 of 9: TrainingDiverged: NaN",
        "sweep/kind=none_seed=3: pending: rlnb: 3 GPUs are asked for",
    ]


def test_means_are_over_seeds_of_finished_runs_and_differences_over_the_seeds_that_both_have(sweep):
    groups = tables.group_results(tables.gather_results([sweep]))
    assert [group.label for group in groups] == ["kind=rae", "kind=none"]
    # Two values .1 apart: 12.706 * .0707 / sqrt(2) = .635 to either side. Both seeds are .1 apart.
    assert [row[:3] for row in tables.show_groups(groups, LOSSES).rows] == [
        ["kind=rae", "2", "0.150 (-0.485 to 0.785)"],
        ["kind=none", "2", "0.250 (-0.385 to 0.885)"],
        ["kind=none minus kind=rae", "2", "+0.100 (+0.100 to +0.100)"],
    ]


def test_gains_have_an_interval_over_items_one_over_runs_and_one_over_both(sweep):
    rae, _ = tables.group_results(tables.gather_results([sweep]))
    (row,) = tables.show_gains(rae).rows
    # Items gain 1 and 1, and .25 and .5: runs .625 and .75, items 1 and .375.
    assert row[:7] == ["score", "new", "2", "2", "0.250", "0.938", "+0.688"]
    assert row[7] == "[+0.375, +1.000]"
    assert row[8] == "[-0.107, +1.482]"  # .0625 * 12.706 = .794
    assert row[9].startswith("[+0.2") and row[9].endswith("+1.000]")


def test_a_value_that_was_lost_is_not_replaced_by_an_older_one(sweep):
    with (sweep / "kind=rae_seed=1" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 30, "time": 4.0, LOSSES[0]: None}) + "\n")  # NaN, as it is reported
    results = tables.gather_results([sweep])
    assert LOSSES[0] in results["reason"][0]
    assert tables.show_points(results, LOSSES).rows[0][-2:] == ["–", "0.300"]
    mean = tables.show_groups(tables.group_results(results), LOSSES[:1]).rows[0][2]
    assert mean == "0.200"  # of the second seed


def test_the_command_prints_tables_or_csv_and_refuses_an_unknown_measure(sweep, capsys):
    assert cli.main(["results", str(sweep), "--gains"]) == 0
    printed = capsys.readouterr().out
    assert "kind=none minus kind=rae" in printed and "kind=rae_seed=3: failed: " in printed
    assert cli.main(["results", str(sweep), "--csv"]) == 0
    frame = pandas.read_csv(io.StringIO(capsys.readouterr().out))
    assert len(frame) == 6 and frame["score (new): difference"].notna().sum() == 4
    assert frame[LOSSES[0]].tolist()[:2] == [0.1, 0.2]
    assert cli.main(["results", str(sweep), "--show", "exact/los_first"]) == 2
    assert "exact/los_first" in capsys.readouterr().err


def test_runs_of_any_folder_are_found_and_a_damaged_file_is_a_reason(sweep):
    (sweep / POINTS_FILE).unlink()
    (sweep / "kind=rae_seed=1" / "results.json").write_text("{")
    results = tables.gather_results([sweep.parent])
    assert results["advantage.kind"].tolist() == ["none", "none", "rae", "rae", "rae"]
    damaged = results.set_index("run").loc["sweep/kind=rae_seed=1"]
    assert "results.json" in damaged["reason"] and damaged["exact/loss_first"] == 0.1
    for text in ("seed: abc", "seed: 1.5", "model: {id: tiny}"):  # written by somebody else
        (sweep / "kind=rae_seed=1" / "params.yaml").write_text(f"notebook: spiral_self_play\n{text}\n")
        seeds = tables.gather_results([sweep.parent]).set_index("run")["seed"]
        assert pandas.isna(seeds["sweep/kind=rae_seed=1"]) and seeds.notna().sum() == 4
    with pytest.raises(ParamsError, match="holds no runs"):
        tables.gather_results([Path("sweep/kind=none_seed=3")])


def test_runs_that_were_trained_with_other_cells_are_other_groups_and_are_named(sweep):
    directories = [sweep / f"kind=rae_seed={seed}" for seed in (1, 2)]
    for number, directory in enumerate(directories):
        recipe = {"reward cell": f"def reward(): return {number}", "files": {}}
        (checkpoint := directory / "checkpoints" / "checkpoint-20").mkdir(parents=True)
        (checkpoint / RECIPE_FILE).write_text(json.dumps(recipe))
        (checkpoint / STATE_FILE).write_text('{"global_step": 20}')
        path = directory / "params.yaml"
        path.write_text(path.read_text().replace("seed: 2", "seed: 1"))
    results = tables.gather_results(directories)
    assert results["state"].tolist() == ["done", "done"]
    assert [group.label for group in tables.group_results(results)] == ["reward cell=1", "reward cell=2"]
    for number, directory in enumerate(directories):
        recipe = {"reward cell": "def reward(): return 0", "ranks": 2**number, "files": {}}
        (directory / "checkpoints" / "checkpoint-20" / RECIPE_FILE).write_text(json.dumps(recipe))
    results = tables.gather_results(directories)
    assert results["state"].tolist() == ["done", "repeat"]  # the same games on any number of ranks
    for directory in directories:  # GRPO's batch is as many times as large
        overrides = {"output_dir": str(directory)}
        params = load_params("grpo_code_execution", profile="tiny", overrides=overrides, environ={})
        (directory / "params.yaml").write_text(dump_yaml(params))
    results = tables.gather_results(directories)
    assert [group.label for group in tables.group_results(results)] == ["ranks=1", "ranks=2"]
    recipe_file = directories[1] / "checkpoints" / "checkpoint-20" / RECIPE_FILE
    recipe_file.unlink()
    recipe_file.mkdir()  # cannot be read, as somebody else's
    table = tables.show_points(tables.gather_results(directories), LOSSES)
    assert [row[0] for row in table.rows] == [directory.name for directory in directories]


def test_without_a_sweep_the_newest_trainings_of_a_notebook_are_taken(tmp_path):
    with pytest.raises(ParamsError, match="there are no runs under"):
        tables.newest_runs(tmp_path)
    for seconds, run in enumerate(("a/lab-001", "b/lab-001", "b/lab-002", "a/lab-002")):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "metrics.jsonl").touch()
        os.utime(tmp_path / run / "metrics.jsonl", (seconds, seconds))
    (tmp_path / "compare_runs" / "lab-001").mkdir(parents=True)  # it trains nothing
    assert tables.newest_runs(tmp_path) == tmp_path / "a"
    (tmp_path / "b" / "seeds-cpu").mkdir()
    (tmp_path / "b" / "seeds-cpu" / POINTS_FILE).touch()
    assert tables.newest_runs(tmp_path) == tmp_path / "b" / "seeds-cpu"


def test_curves_have_a_mean_over_finished_runs_and_from_three_on_a_band_of_students_interval(sweep):
    rae, none = tables.group_results(tables.gather_results([sweep]))
    assert tabulate_curves(none, LOSSES[0]).to_dict("list") == {
        "sweep/kind=none_seed=1": [0.0, 0.2],
        "sweep/kind=none_seed=2": [0.0, 0.3],
    }
    axes = draw_curves([rae, none], LOSSES[0]).axes[0]
    means = {line.get_label(): line.get_ydata().tolist() for line in axes.lines}
    assert means["kind=none (2)"] == pytest.approx([0.0, 0.25])
    assert means["kind=rae (2)"] == pytest.approx([0.0, 0.15])
    # The failed run is a thin line as far as it came, and in no mean.
    assert [0.0] in [line.get_ydata().tolist() for line in axes.lines if line.get_linewidth() < 1]
    assert len(axes.collections) == 0
    third = shutil.copytree(sweep / "kind=rae_seed=2", "rae_seed=4")
    text = Path(third, "params.yaml").read_text()
    Path(third, "params.yaml").write_text(text.replace("seed: 2\n", "seed: 4\n"))
    rae, none = tables.group_results(tables.gather_results([sweep, Path(third)]))
    assert len(draw_curves([rae, none], LOSSES[0]).axes[0].collections) == 1


def test_a_run_counts_once_by_whatever_path_it_is_given_and_a_repeat_of_it_does_not_count(sweep):
    once = tables.gather_results([sweep])
    Path("link").symlink_to(sweep)
    assert tables.gather_results([sweep, Path("link"), sweep / "kind=rae_seed=1"]).equals(once)
    shutil.copytree(sweep / "kind=rae_seed=1", "again/kind=rae_seed=1")
    states = tables.gather_results([sweep, Path("again")])["state"].tolist()
    assert states == [*once["state"], "repeat"]


def test_two_evaluations_are_compared_and_two_trainings_are_a_table(sweep, monkeypatch, capsys):
    monkeypatch.setattr("rlnb.results.compare_files", lambda *paths: f"compared: {paths}")
    Path("a").mkdir()
    Path("a", "params.yaml").write_text("# of a run\nnotebook: mbpp_eval\n")
    Path("mbpp_before.json").write_text("{}")
    assert cli.main(["results", "mbpp_before.json", "a"]) == 0
    assert capsys.readouterr().out.startswith("compared: ")
    assert cli.main(["results", *(str(sweep / f"kind=rae_seed={seed}") for seed in (1, 2))]) == 0
    assert "all runs" in capsys.readouterr().out


def test_points_of_which_none_has_begun_are_a_table_with_their_reasons(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("sweep/seed=1").mkdir(parents=True)
    Path("sweep/seed=1", LOG_FILE).write_text("rlnb: the hub cannot be reached\n")
    Path("sweep", POINTS_FILE).write_text('{"points": [{"name": "seed=1"}, {"name": "seed=2"}]}')
    assert cli.main(["results", "sweep"]) == 0
    assert "sweep/seed=1: pending: rlnb: the hub cannot be reached" in capsys.readouterr().out
    (tmp_path / "empty").mkdir()
    with pytest.raises(ParamsError, match="holds no runs"):
        tables.gather_results([tmp_path / "empty"])


def test_curves_may_begin_at_different_steps(sweep):
    path = sweep / "kind=rae_seed=1" / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[1:]))  # the first run of the first group, from its second step on
    figure = draw_curves(tables.group_results(tables.gather_results([sweep])), LOSSES[0])
    low, high = figure.axes[0].get_ylim()
    assert low < high


def test_no_system_message_is_another_setting_than_one(sweep):
    for seed in (1, 2):
        path = sweep / f"kind=none_seed={seed}" / "params.yaml"
        text = path.read_text().replace("kind: none", "kind: rae")
        assert text.count("system: null") == 1
        path.write_text(text.replace("system: null", "system: Be brief."))
    groups = tables.group_results(tables.gather_results([sweep]))
    assert [group.label for group in groups] == ["system=null", "system=Be brief."]

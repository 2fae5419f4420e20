"""Runs in one table: what differs, what is averaged, what is paired, what is left out and why."""

import csv
import io
import json
import re
from pathlib import Path

import pytest

from rlnb import cli
from rlnb.batch import points_table as tables
from rlnb.batch.display import draw_curves, draw_ranking, tabulate_curves
from rlnb.batch.local import LOG_FILE
from rlnb.batch.sweeps import POINTS_FILE
from rlnb.errors import ParamsError
from rlnb.params import dump_yaml, load_params
from rlnb.results import compare, save_results
from rlnb.run import directory as runs
from rlnb.statistics import Estimate

LOSSES = ("exact/loss_first", "exact/loss_second")
# Of each advantage and seed: the two losses at the last step. Means: rae .2 .3; none .3 .4.
LAST = {
    ("rae", 1): (0.1, 0.3),
    ("rae", 2): (0.2, 0.4),
    ("none", 1): (0.2, 0.4),
    ("none", 2): (0.3, 0.5),
}


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
        rows += [{"step": 10, "time": 2.0, "curriculum/stage": 2.0, "time/update_seconds": 90.0}]
        if (kind, seed) in LAST:
            rows += [{"step": 20, "time": 3.0, **dict(zip(LOSSES, LAST[kind, seed], strict=True))}]
            before = {"score": {"new": {"a": 0.0, "b": 0.5}}}
            after = {"score": {"new": {"a": 1.0, "b": 0.5 + 0.25 * seed}}}
            save_results(directory / "results.json", params={}, comparison=compare(before, after))
            runs.end_attempt(directory, status, state="done")
        else:
            runs.end_attempt(directory, status, state="failed", reason="cell 7 of 9: TrainingDiverged: NaN")
        (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    content = {
        "notebook": "spiral_self_play.ipynb",
        "profile": "kuhn",
        "points": [
            {"name": f"kind={kind}_seed={seed}", "overrides": {"advantage.kind": kind, "seed": seed}}
            for kind, seed in points
        ],
    }
    (folder / POINTS_FILE).write_text(json.dumps(content))
    return folder


def make_run(directory: Path, *, reward: float, rate: float, state: str = "done") -> Path:
    """A run seed=N whose reward is 0 at step 1 and `reward` at step 2."""
    directory.mkdir(parents=True)
    seed = int(directory.name.removeprefix("seed="))
    overrides = {"training": {"learning_rate": rate}, "seed": seed, "output_dir": str(directory)}
    params = load_params("grpo_code_execution", profile="tiny", overrides=overrides, environ={})
    (directory / "params.yaml").write_text(dump_yaml(params))
    status = runs.start_attempt(directory, notebook="grpo_code_execution.ipynb")
    runs.end_attempt(directory, status, state=state)
    rows = [{"step": step, "time": float(step), "reward": reward * (step - 1)} for step in (1, 2)]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


@pytest.fixture
def two_sweeps(tmp_path, monkeypatch):
    """Two folders with the same names of runs; of the second the first run failed. Means: A .2, B .7."""
    monkeypatch.chdir(tmp_path)
    for seed in (1, 2, 3):
        make_run(Path("A", f"seed={seed}"), reward=seed / 10, rate=1e-5)
        state = "failed" if seed == 1 else "done"
        make_run(Path("B", f"seed={seed}"), reward=0.2 + seed / 5, rate=2e-5, state=state)
    return [Path("A"), Path("B")]


def test_a_run_made_twice_is_no_evidence_of_its_own(two_sweeps, capsys):
    make_run(Path("A2", "seed=3"), reward=0.3, rate=1e-5)
    assert cli.main(["results", "A", "A2"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^all runs +3 +", printed, re.MULTILINE)
    assert "A2/seed=3: repeat: has the parameters and the seed of A/seed=3, so it is in no mean" in printed


def results_of(folder: Path, **options) -> list[tables.PointResult]:
    return tables.gather_results([folder], **options)


def test_a_point_shows_what_differs_how_it_ended_and_its_last_values(sweep):
    table = tables.show_points(results_of(sweep), LOSSES)
    assert table.headers == ["kind", "seed", "state", "step", *LOSSES]
    assert table.rows[0] == ["rae", "1", "done", "20", "0.100", "0.300"]  # not the 0 of step 0
    assert table.rows[2] == ["rae", "3", "failed", "10", "0.000", "0.000"]
    assert table.rows[5] == ["none", "3", "pending", "–", "–", "–"]
    assert tables.show_failures(results_of(sweep)) == [
        "kind=rae_seed=3: failed: cell 7 of 9: TrainingDiverged: NaN",
        "kind=none_seed=3: pending: rlnb: 3 GPUs are asked for",
    ]


def test_means_are_over_seeds_of_finished_runs_and_the_best_group_is_first(sweep):
    groups = tables.group_results(results_of(sweep))
    assert [group.label for group in groups] == ["kind=rae", "kind=none"]
    assert [group.values(LOSSES) for group in groups] == [
        pytest.approx([0.2, 0.3]),
        pytest.approx([0.3, 0.4]),
    ]
    mean = tables.mean_over_runs(groups[0].values(LOSSES))
    # Two values .1 apart: 12.706 * .0707 / sqrt(2) = .635 to either side.
    assert isinstance(mean, Estimate)
    assert (mean.value, mean.high - mean.value) == pytest.approx((0.25, 0.635), abs=1e-3)
    gain = "score (new): difference"
    for measures, lowest_first, order in (
        (LOSSES, False, ["kind=rae", "kind=none"]),  # of a loss the lowest is the best anyway
        ([gain], False, ["kind=rae", "kind=none"]),
        ([LOSSES[0], gain], False, ["kind=none", "kind=rae"]),
        ([LOSSES[0], gain], True, ["kind=rae", "kind=none"]),
    ):
        ranked = tables.rank_groups(groups, measures, lowest_first=lowest_first)
        assert [group.label for group in ranked] == order


def test_groups_are_compared_over_the_seeds_that_both_have(sweep):
    rae, none = tables.group_results(results_of(sweep))
    # Both seeds are .1 apart, however far apart the seeds are.
    difference, verdict = tables.compare_groups(none, rae, LOSSES)
    assert str(difference) == "+0.100 [+0.100, +0.100]"
    assert verdict == "higher; lower in 0 of 2 seeds"
    assert tables.compare_groups(rae, rae, LOSSES) == (None, "what the others are compared with")
    assert tables.compare_groups(none, rae, ["nothing"]) == (None, "no seed in common")


def test_gains_have_an_interval_over_items_one_over_runs_and_one_over_both(sweep):
    rae, _ = tables.group_results(results_of(sweep))
    (row,) = tables.show_gains(rae).rows
    # Items gain 1 and 1, and .25 and .5: runs .625 and .75, items 1 and .375.
    assert row[:7] == ["score", "new", "2", "2", "0.250", "0.938", "+0.688"]
    assert row[7] == "[+0.375, +1.000]"
    assert row[8] == "[-0.107, +1.482]"  # .0625 * 12.706 = .794
    assert row[9].startswith("[+0.2") and row[9].endswith("+1.000]")


def test_the_first_step_that_meets_a_condition_is_a_measure(sweep):
    condition = "curriculum/stage>=2,exact/loss_first<=0.5"
    results = results_of(sweep, reach=["curriculum/stage>=2", condition])
    assert results[0].values["curriculum/stage>=2"] == 10
    assert condition not in results[0].values  # no step has both
    assert results[0].values[tables.TRAINING_MINUTES] == 1.5
    for text in ("curriculum/stage=2", "curriculum/stage>=nan"):
        with pytest.raises(ParamsError, match=f"--reach {text}: .* is not a condition"):
            results_of(sweep, reach=[text])


def test_a_value_that_was_lost_is_not_replaced_by_an_older_one(sweep, capsys):
    with (sweep / "kind=rae_seed=1" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 30, "time": 4.0, LOSSES[0]: None}) + "\n")  # NaN, as it is reported
    results = results_of(sweep)
    assert results[0].reason == f"the last value is not a number, and in no mean: {LOSSES[0]}"
    assert tables.show_points(results, LOSSES).rows[0][-2:] == ["–", "0.300"]
    assert tables.group_results(results)[0].values(LOSSES[:1]) == [0.2]  # of the second seed
    assert cli.main(["results", str(sweep / "kind=rae_seed=1"), "--show", LOSSES[0]]) == 0
    assert results[0].reason in capsys.readouterr().out


def test_the_command_prints_tables_or_csv_and_says_which_measures_there_are(sweep, capsys):
    rank = [part for name in LOSSES for part in ("--rank", name)]
    assert cli.main(["results", str(sweep), *rank, "--lowest-first"]) == 0
    printed = capsys.readouterr().out
    assert "Difference: exact/loss_first and exact/loss_second, minus kind=rae" in printed
    assert printed.index("kind=rae ") < printed.index("kind=none ")
    assert "kind=rae_seed=3: failed: cell 7 of 9: TrainingDiverged: NaN" in printed
    assert cli.main(["results", str(sweep), "--csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("point,advantage.kind,seed,state,step,reason,exact/loss_first")
    assert len(lines) == 7 and "score (new): difference" in lines[0]
    assert cli.main(["results", str(sweep), "--csv", "--by", "kind"]) == 0
    assert "kind=none,exact/loss_first,2,0.25," in capsys.readouterr().out
    assert cli.main(["results", str(sweep), "--show", "exact/los_first"]) == 2
    assert (
        "'exact/los_first' is in none of these runs; did you mean exact/loss_first?"
        in capsys.readouterr().err
    )
    assert cli.main(["results", str(sweep), "--by", "games"]) == 2
    assert "--by games: the runs do not differ in it; known: advantage.kind" in capsys.readouterr().err


def test_runs_of_any_folder_are_found_and_a_damaged_file_is_a_reason(sweep):
    (sweep / POINTS_FILE).unlink()
    (sweep / "kind=rae_seed=1" / "results.json").write_text("{")
    results = results_of(sweep.parent)
    assert [result.name for result in results][:2] == ["kind=none_seed=1", "kind=none_seed=2"]
    assert len(results) == 5 and results[0].fields == {"advantage.kind": "none"}
    damaged = next(result for result in results if result.name == "kind=rae_seed=1")
    assert "results.json: not JSON" in damaged.reason and damaged.values["exact/loss_first"] == 0.1
    with pytest.raises(ParamsError, match="holds no runs"):
        results_of(Path("sweep/kind=none_seed=3"))


def test_curves_have_a_mean_over_finished_runs_and_a_band_of_students_interval(sweep):
    rae, none = tables.group_results(results_of(sweep))
    table = tabulate_curves(none, LOSSES[0])
    assert table.to_dict("list") == {
        "sweep/kind=none_seed=1": [0.0, 0.2],
        "sweep/kind=none_seed=2": [0.0, 0.3],
    }
    axes = draw_curves([rae, none], LOSSES[0]).axes[0]
    means = {line.get_label(): line.get_ydata().tolist() for line in axes.lines}
    assert means["kind=none (2)"] == pytest.approx([0.0, 0.25])
    assert means["kind=rae (2)"] == pytest.approx([0.0, 0.15])
    # The failed run is a thin line as far as it came, and in no mean.
    assert [0.0] in [line.get_ydata().tolist() for line in axes.lines if line.get_linewidth() < 1]
    assert len(axes.collections) == 2
    picture = draw_ranking({"kind=rae": Estimate(0.2, 0.1, 0.3), "kind=none": None}, "loss").axes[0]
    assert [label.get_text() for label in picture.get_yticklabels()] == ["kind=rae", "kind=none"]


def test_curves_of_several_sweeps_are_of_their_own_runs_whatever_their_names(two_sweeps):
    groups = tables.group_results(tables.gather_results(two_sweeps))
    axes = draw_curves(groups, "reward").axes[0]
    means = {line.get_label(): line.get_ydata().tolist() for line in axes.lines if line.get_linewidth() == 2}
    assert means["learning_rate=1e-05 (3)"] == pytest.approx([0.0, 0.2])
    assert means["learning_rate=2e-05 (2)"] == pytest.approx([0.0, 0.7])  # .6 and .8; the failed .4 is not in
    assert [len(band.get_paths()) for band in axes.collections] == [1, 1]


def test_runs_of_one_group_with_the_same_name_keep_their_curves(two_sweeps):
    results = tables.gather_results(two_sweeps)
    together = tables.Group("all runs", tuple(results))
    assert list(tabulate_curves(together, "reward")) == [str(result.directory) for result in results]
    lines = draw_curves([together], "reward").axes[0].lines
    assert "all runs (5)" in [line.get_label() for line in lines]


def test_a_name_that_several_runs_have_is_shown_with_its_folder(two_sweeps):
    results = tables.gather_results(two_sweeps)
    assert tables.show_failures(results) == ["B/seed=1: failed"]
    points = [row["point"] for row in csv.DictReader(io.StringIO(tables.points_csv(results)))]
    assert points == [f"{folder}/seed={seed}" for folder in "AB" for seed in (1, 2, 3)]
    assert tables.show_failures(results_of(Path("B"))) == ["seed=1: failed"]


def test_points_that_have_not_begun_are_in_the_group_of_their_equals(tmp_path, monkeypatch):
    """They have texts of --set, and older names, where params.yaml has values under the present names."""
    monkeypatch.chdir(tmp_path)
    for folder, given, rate in (("A", "1e-5", 1e-5), ("B", "0.00002", 2e-5)):
        make_run(Path(folder, "seed=1"), reward=0.5, rate=rate)
        texts = {"training_args.learning_rate": given, "tracking.tensorboard": "yes"}
        points = [{"name": f"seed={seed}", "overrides": {**texts, "seed": seed}} for seed in (1, 2)]
        content = {"notebook": "grpo_code_execution.ipynb", "profile": "tiny", "points": points}
        Path(folder, POINTS_FILE).write_text(json.dumps(content))
    groups = tables.group_results(tables.gather_results([Path("A"), Path("B")]))
    assert {group.label: [result.state for result in group.results] for group in groups} == {
        "learning_rate=1e-05": ["done", "pending"],
        "learning_rate=2e-05": ["done", "pending"],
    }


def test_a_point_whose_parameters_are_refused_now_shows_what_it_was_given(sweep):
    content = json.loads((sweep / POINTS_FILE).read_text())
    content["points"][5]["overrides"] |= {"advantage.kind": "gone"}
    (sweep / POINTS_FILE).write_text(json.dumps(content))
    assert results_of(sweep)[5].fields == {"advantage.kind": "gone"}


def test_a_run_counts_once_however_often_and_by_whatever_path_its_folder_is_given(sweep):
    once = results_of(sweep)
    Path("link").symlink_to(sweep)
    for directories in ([sweep, sweep.absolute(), sweep], [sweep, Path("link"), sweep / "kind=rae_seed=1"]):
        twice = tables.gather_results(directories)
        assert [result.directory for result in twice] == [result.directory for result in once]
        assert len(tables.group_results(twice)[0].finished) == 2
    absolute = tables.gather_results([sweep.absolute(), sweep])
    assert [result.directory for result in absolute] == [result.directory.absolute() for result in once]


def columns(text: str) -> list[str]:
    """The headers of the first table that was printed."""
    return re.split(r"  +", text.splitlines()[1].strip())


def test_a_condition_is_a_column_more_also_where_no_run_meets_it(two_sweeps, capsys):
    assert cli.main(["results", "A", "--reach", "reward>=0.3", "--reach", "reward>=9"]) == 0
    printed = capsys.readouterr().out
    assert columns(printed) == ["seed", "state", "step", "reward", "reward>=0.3", "reward>=9"]
    assert [line.split()[-3:] for line in printed.splitlines()[2:5]] == [
        ["0.100", "–", "–"],
        ["0.200", "–", "–"],
        ["0.300", "2", "–"],
    ]
    assert cli.main(["results", "A", "--reach", "reward>=9", "--rank", "reward"]) == 0
    assert columns(capsys.readouterr().out) == ["seed", "state", "step", "reward", "reward>=9"]
    assert cli.main(["results", "A", "--reach", "reward>=9", "--show", "rewards"]) == 2
    assert "measure 'rewards' is in none of these runs; did you mean reward?" in capsys.readouterr().err


def test_groups_are_ranked_by_a_condition_also_where_no_run_meets_it(two_sweeps, capsys):
    Path("A/seed=3/metrics.jsonl").write_text('{"step": 1, "time": 1.0, "reward": 0.4}\n')
    for condition, order in (("reward>=0.3", ["1e-05", "2e-05"]), ("reward>=9", ["2e-05", "1e-05"])):
        options = ["--reach", condition, "--rank", condition]
        assert cli.main(["results", "B", "A", *options]) == 0
        printed = capsys.readouterr().out
        assert f"Difference: {condition}, minus learning_rate=2e-05, over paired seeds." in printed
        assert re.findall(r"^learning_rate=(\S+)", printed, re.MULTILINE) == order  # A is there at step 1


def test_options_that_would_change_nothing_in_the_csv_are_refused(sweep, capsys):
    options = ["--show", LOSSES[1], "--rank", LOSSES[0], "--gains"]
    assert cli.main(["results", str(sweep), "--csv", *options]) == 2
    assert capsys.readouterr() == (
        "",
        "rlnb: --csv with --show exact/loss_second --rank exact/loss_first --gains: CSV holds all measures "
        "and ranks nothing; leave out these options, or --csv\n",
    )
    assert cli.main(["results", str(sweep), "--csv", "--by", "kind", "--lowest-first"]) == 2
    assert "--csv with --lowest-first: CSV" in capsys.readouterr().err
    assert cli.main(["results", str(sweep), "--csv", "--by", "kind", "--reach", "curriculum/stage>=2"]) == 0
    assert "kind=rae,curriculum/stage>=2,2,10" in capsys.readouterr().out


def test_the_fields_of_dotenv_are_those_of_points_that_have_not_begun(two_sweeps, monkeypatch, capsys):
    make_run(Path("C/seed=1"), reward=0.5, rate=1e-5)
    text = Path("C/seed=1/params.yaml").read_text()
    Path("C/seed=1/params.yaml").write_text(text.replace("project: rlnb", "project: mine"))
    points = [
        {"name": f"seed={seed}", "overrides": {"training.learning_rate": 1e-5, "seed": seed}}
        for seed in (1, 2)
    ]
    content = {"notebook": "grpo_code_execution.ipynb", "profile": "tiny", "points": points}
    Path("C", POINTS_FILE).write_text(json.dumps(content))
    Path(".env").write_text("RLNB_TRACKING__PROJECT=mine\n")
    monkeypatch.setenv("RLNB_TRACKING__PROJECT", "")  # so that it is unset again after the test
    monkeypatch.delenv("RLNB_TRACKING__PROJECT")
    assert cli.main(["results", "C"]) == 0
    assert columns(capsys.readouterr().out) == ["seed", "state", "step", "reward"]

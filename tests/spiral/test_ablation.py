"""The same run with other advantages: what is kept equal, what is compared, what few seeds may say."""

import pytest
from self_play_run import notebook_reward, params_of, rows_of

from rlnb.games.text_games import load_game
from rlnb.spiral.ablation import compare_advantages, compare_curves, exact_metrics, make_curves, make_variant

FIRST, SECOND = "exact/loss_first", "exact/loss_second"


def last_values(**by_arm: list[float]):
    """Curves of one point for each arm and seed."""
    return {
        arm: {seed: {"steps": [9], "values": [value]} for seed, value in enumerate(values, start=1)}
        for arm, values in by_arm.items()
    }


def test_an_arm_differs_by_its_advantage_seed_and_length_alone(cache_dir):
    params = params_of(cache_dir)
    variant = make_variant(params, "leave_one_out", seed=3, max_steps=7)
    expected = params.model_dump()
    expected["seed"], expected["advantage"]["kind"] = 3, "leave_one_out"
    expected["training"]["max_steps"] = 7
    assert variant.model_dump() == expected


@pytest.mark.parametrize("resume, expected", [("auto", "auto"), ("never", "never"), (".", "auto")])
def test_an_arm_never_goes_on_from_a_directory_that_the_run_went_on_from(cache_dir, resume, expected):
    params = params_of(cache_dir, training={"resume": resume})
    assert make_variant(params, "rae", seed=1, max_steps=2).training.resume == expected


def test_curves_are_means_of_the_metrics_where_a_step_has_them_all():
    rows = [
        {"step": 0, FIRST: 0.8, SECOND: 0.6},
        {"step": 1, FIRST: 0.5},
        {"step": 2, FIRST: None, SECOND: 0.1},
        {"step": 3, FIRST: 0.0, SECOND: 0.25},
    ]
    assert make_curves({"rae": {1: rows}}, (FIRST, SECOND)) == {
        "rae": {1: {"steps": [0, 3], "values": [0.7, 0.125]}}
    }
    assert make_curves({"rae": {1: rows}}, (FIRST,))["rae"][1]["steps"] == [0, 1, 3]


def test_a_run_is_judged_by_what_its_game_measures_exactly():
    metrics = {name: exact_metrics(load_game(name)) for name in ("tic_tac_toe", "kuhn_poker", "connect_four")}
    assert metrics == {
        "tic_tac_toe": (FIRST, SECOND), "kuhn_poker": ("exact/nash_conv",), "connect_four": (),
    }  # fmt: skip


def test_verdicts_say_lower_higher_or_neither_seed_by_seed():
    verdicts = compare_curves(
        last_values(
            none=[0.5, 0.5, 0.5, 0.5, 0.5],
            gae=[0.4, 0.3, 0.4, 0.3, 0.4],
            group=[0.6, 0.7, 0.6, 0.7, 0.6],
            rae=[0.4, 0.6, 0.4, 0.6, 0.5],
        )
    )
    assert verdicts["none"] == "the baseline of this comparison"
    # Mean gaps of -.14 and +.14, deviation .0548: 2.776 * .0548 / sqrt(5) = .068 to either side.
    assert verdicts["gae"] == "lower: -0.140 [-0.208, -0.072], lower in 5 of 5 seeds"
    assert verdicts["group"] == "higher: +0.140 [+0.072, +0.208], lower in 0 of 5 seeds"
    assert verdicts["rae"].startswith("not shown to differ: +0.000 [-")
    assert verdicts["rae"].endswith(", lower in 2 of 5 seeds")
    # Seeds are paired: all differ by the same small step, however far apart they are.
    verdicts = compare_curves(last_values(none=[0.1, 0.5, 0.9], rae=[0.09, 0.49, 0.89]))
    assert verdicts["rae"].startswith("lower: -0.010 [-0.010, -0.010], lower in 3 of 3 seeds")
    verdicts = compare_curves(last_values(none=[0.5], rae=[0.1], gae=[]))
    assert (verdicts["rae"], verdicts["gae"]) == ("one seed shows nothing: -0.400", "no run")


def test_each_arm_is_run_with_each_seed_and_no_run_is_made_twice(cache_dir, tmp_path):
    params = params_of(
        cache_dir,
        training={"games_per_step": 4, "num_epochs": 1},
        ablation={"enabled": True, "kinds": ["none", "rae"], "num_seeds": 2, "max_steps": 2},
        evaluation={"exact": True, "eval_interval_steps": 1},
    )
    done, reward = [], notebook_reward(params)
    runs = compare_advantages(params, tmp_path, reward=reward, progress=lambda *now: done.append(now))
    assert done == [(1, 4), (2, 4), (3, 4), (4, 4)]
    names = ["none-1-2", "none-2-2", "rae-1-2", "rae-2-2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert {arm: sorted(seeds) for arm, seeds in runs.items()} == {"none": [1, 2], "rae": [1, 2]}
    starts = {arm: [runs[arm][seed][0]["exact/nash_conv"] for seed in (1, 2)] for arm in runs}
    assert starts["none"] == starts["rae"]  # the same weights and games to begin with
    assert starts["none"][0] != starts["none"][1]
    assert (tmp_path / "none-1-2" / "games.jsonl").read_text().splitlines()[:4] == (
        tmp_path / "rae-1-2" / "games.jsonl"
    ).read_text().splitlines()[:4]
    first_updates = [runs[arm][1][1]["advantage/std"] for arm in runs]
    assert first_updates[0] != 0
    for curves in make_curves(runs, exact_metrics(load_game("kuhn_poker"))).values():
        assert all(curve["steps"] == [0, 1, 2] for curve in curves.values())
    kept = {name: (tmp_path / name / "games.jsonl").stat().st_mtime_ns for name in names}
    rows = {name: rows_of(tmp_path / name) for name in names}
    compare_advantages(params, tmp_path, reward=reward)
    assert {name: (tmp_path / name / "games.jsonl").stat().st_mtime_ns for name in names} == kept
    assert {name: rows_of(tmp_path / name) for name in names} == rows

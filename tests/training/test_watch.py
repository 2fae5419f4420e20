"""Warnings of a run: each comes once, names the parameter to change, and not before there is reason."""

from types import SimpleNamespace

from rlnb.training.watch import Watch


def watched(rows, *, window=10) -> list[str]:
    said: list[str] = []
    watch = Watch(window=window, say=said.append)
    for step, row in enumerate(rows, 1):
        state = SimpleNamespace(global_step=step, is_world_process_zero=True)
        watch.on_log(None, state, None, logs=row)
    return said


def row(reward=0.0, *, cut=0.0, kl=0.0, tied=0.0, spread=0.5) -> dict[str, float]:
    return {
        "reward": reward, "reward_std": spread, "completions/clipped_ratio": cut, "kl": kl,
        "frac_reward_zero_std": tied,
    }  # fmt: skip


def test_a_run_that_learns_is_not_disturbed():
    assert watched([row(step / 10) for step in range(40)]) == []


def test_completions_that_are_all_cut_are_told_once():
    assert watched([row(step, cut=1.0) for step in range(3)]) == [
        "warning: step 1: all completions were cut; raise training.max_completion_length"
    ]


def test_a_divergence_above_a_hundredth_is_told_with_its_size():
    said = watched([row(0, kl=0.01), row(1, kl=0.25), row(2, kl=3.0)])
    assert len(said) == 1
    assert said[0].startswith("warning: step 2: kl is 0.250, above 0.01")


def test_tied_groups_are_told_with_their_share_over_a_whole_window():
    assert watched([row(step, tied=1.0) for step in range(9)]) == []
    said = watched([row(step, tied=0.75) for step in range(10)])
    assert len(said) == 1 and "75% of the groups of the last 10 steps were tied" in said[0]


def test_a_reward_that_stands_is_told_after_two_windows():
    assert watched([row(0.3) for _ in range(19)]) == []
    said = watched([row(0.3) for _ in range(20)])
    assert len(said) == 1 and "the reward has stood at +0.300 for 20 steps" in said[0]


def test_a_closing_log_without_a_reward_counts_for_nothing():
    assert watched([{"train_runtime": 1.0}, {}] * 20) == []

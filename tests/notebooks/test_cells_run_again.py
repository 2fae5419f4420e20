"""What a person does with a training in JupyterLab: interrupts it, repairs a cell, and runs it again."""

from pathlib import Path

import pytest
from live_kernel import cells_until, kernel_in, parameters

from rlnb.run.checkpoints import checkpoint_step, latest_checkpoint
from rlnb.run.directory import read_status
from rlnb.run.tracking import read_metrics

GRPO = ("show=live_plot.update", "show=lambda step, _: 1 / (2 - step)")
# How to make the picture of each training fail at step 2.
BREAKS = {
    "grpo_code_execution": GRPO,
    "grpo_code_game": GRPO,
    "gpt_oss_2048": GRPO,
    "spiral_self_play": ("LiveSelfPlay(run.output_dir).update", "lambda step, _: 1 / (2 - step)"),
    "ppo_openspiel": ("LiveFigure(run.output_dir, draw_ppo).update", "lambda step, _: 1 / (2 - step)"),
}
QUICK = "spiral_self_play"


def learned(row: dict[str, object]) -> dict[str, object]:
    """What a step measured, without the time that it took."""
    return {name: value for name, value in row.items() if "time" not in name and "memory/" not in name}


@pytest.mark.parametrize(
    "notebook", [name if name == QUICK else pytest.param(name, marks=pytest.mark.slow) for name in BREAKS]
)
def test_a_training_cell_that_failed_starts_over_and_one_that_was_interrupted_goes_on(
    notebook: str, tmp_path: Path, cache_dir: Path
) -> None:
    def rows() -> list[dict[str, object]]:
        return [row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if row["step"]]

    *others, recipe, after = cells_until(notebook, "recipe", num_more=1)
    *_, reward, before = cells_until(notebook, "reward", num_more=1)
    is_self_play = "def reward(event, seat_return)" in reward
    edited = "def reward(event, seat_return):\n    return 7.0" if is_self_play else reward + "\n# edited"
    assert recipe.count(BREAKS[notebook][0]) == 1
    sizes = {"training.max_steps": 99, "training.save_steps": 1000}
    with kernel_in(tmp_path) as kernel:
        kernel.work(parameters(notebook, tmp_path / "run", cache_dir, **sizes), *others)
        broken = kernel.run(recipe.replace(*BREAKS[notebook]))
        assert broken.error == "ZeroDivisionError", broken
        failed = rows()
        assert [row["step"] for row in failed] == [1, 2]
        # One reading: the rows are cut in between.
        first = kernel.run(
            recipe, interrupt_when=lambda: any(row["time"] > failed[-1]["time"] for row in rows()[:1])
        )
        stopped = rows()
        assert learned(stopped[0]) == learned(failed[0])  # of the first weights, not of two steps later
        kernel.work(edited)
        again = kernel.run(recipe, interrupt_when=lambda: len(rows()) > len(stopped))
        last = len(rows())
        made_anew = kernel.run(before).error, kernel.run(after).error
    for ran, step in ((first, len(stopped)), (again, last)):
        assert ran.error == "Preempted" and ran.traceback == [ran.traceback[0].strip()], ran
        assert (tmp_path / "run" / "checkpoints" / f"checkpoint-{step}").is_dir()
    assert [row["step"] for row in rows()] == [*range(1, last + 1)] and len(stopped) < last < 99
    assert rows()[: len(stopped)] == stopped
    assert {row["reward"] for row in rows()[len(stopped) :]} == {7.0} or not is_self_play
    assert made_anew == ("", "RuntimeError" if is_self_play else "")  # the trained policy is not that run's
    assert f"changed since checkpoint-{len(stopped)}: reward cell was edited\n" in again.printed
    assert "You are adding a" not in again.printed
    status = read_status(tmp_path / "run")
    assert status.state == "preempted"  # the kernel was closed
    assert checkpoint_step(latest_checkpoint(tmp_path / "run")) == last

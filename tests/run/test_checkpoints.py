"""Which checkpoint a run goes on from: the newest whole one, and never one of another experiment."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import TrainerState

from rlnb.code_execution.params import GrpoCodeExecutionParams
from rlnb.errors import ParamsError
from rlnb.grpo.training import SaveRecipe
from rlnb.run import checkpoints


def params_with(**sections: dict[str, Any]) -> GrpoCodeExecutionParams:
    return GrpoCodeExecutionParams.model_validate(sections)


def to_resume(resume: str, output_dir: str | Path) -> str | None:
    return checkpoints.checkpoint_to_resume(params_with(training={"resume": resume}), output_dir)


def refused(output_dir: Path, **sections: dict[str, Any]) -> str:
    with pytest.raises(ParamsError) as refusal:
        checkpoints.checkpoint_to_resume(params_with(**sections), output_dir)
    return str(refusal.value)


def save_checkpoint(run: Path, *, step: int, params: GrpoCodeExecutionParams) -> Path:
    """A checkpoint as far as resuming looks at it."""
    folder = run / "checkpoints" / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    state = TrainerState(global_step=step, is_world_process_zero=True)
    arguments: Any = SimpleNamespace(output_dir=str(folder.parent))
    SaveRecipe(params).on_save(arguments, state, None)  # type: ignore[arg-type]
    return folder


def test_a_checkpoint_that_was_being_written_is_passed_over(tmp_path: Path) -> None:
    for step in (2, 10, 12, 14, 16):
        save_checkpoint(tmp_path, step=step, params=params_with())
    folder = tmp_path / "checkpoints"
    (folder / "checkpoint-12" / checkpoints.INCOMPLETE_MARK).touch()
    (folder / "checkpoint-14" / "trainer_state.json").unlink()
    (folder / "checkpoint-16" / "trainer_state.json").write_text('{"global_st')
    found = to_resume("auto", tmp_path)
    assert checkpoints.checkpoint_step(found) == 10
    assert to_resume("latest", tmp_path) == found
    assert to_resume("never", tmp_path) is None


def test_a_checkpoint_that_is_asked_for_has_to_be_there(tmp_path: Path) -> None:
    assert to_resume("auto", tmp_path) is None
    assert refused(tmp_path, training={"resume": "latest"}) == (
        f"training.resume = 'latest' finds no complete checkpoint in {tmp_path / 'checkpoints'}; "
        "write auto, or a checkpoint's directory"
    )
    assert refused(tmp_path, training={"resume": str(tmp_path)}) == (
        f"training.resume = '{tmp_path}' holds no complete checkpoint; write auto or never"
    )


def test_a_run_goes_on_from_its_own_newest_checkpoint_wherever_it_began(tmp_path: Path) -> None:
    begun = save_checkpoint(tmp_path / "other", step=9, params=params_with())
    renamed = begun.rename(tmp_path / "of any name")
    assert to_resume(f"{renamed}/", tmp_path / "run") == f"{renamed}/"
    old, new = (save_checkpoint(tmp_path / "run", step=step, params=params_with()) for step in (12, 16))
    assert to_resume(f"{renamed}/", tmp_path / "run") == to_resume(str(new), tmp_path / "run") == str(new)
    assert refused(tmp_path / "run", training={"resume": str(old)}) == (
        f"training.resume = '{old}' is of this run, which has gone on to {new}; give another output_dir to "
        "begin with its weights, or delete the later ones to go back"
    )


def test_a_checkpoint_of_another_experiment_is_refused_with_what_differs(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, step=3, params=params_with())
    assert refused(tmp_path, reward={"preset": "tests"}, training={"max_steps": 7}) == (
        f"{folder}: belongs to another run: reward.preset was 'execution' and is 'tests' now; "
        "training.max_steps was 90 and is 7 now. Give another output_dir, or write training.resume = never"
    )
    # What is not learned from may change between attempts.
    asked = params_with(training={"save_steps": 5, "num_threads": 2}, evaluation={"num_questions": 9})
    assert checkpoints.checkpoint_to_resume(asked, tmp_path) == str(folder)


def test_another_recipe_may_begin_from_a_checkpoint_but_not_other_adapters(tmp_path: Path) -> None:
    begun = save_checkpoint(tmp_path, step=3, params=params_with())
    resume = {"resume": str(begun)}
    asked = params_with(reward={"preset": "tests"}, training=resume)
    assert checkpoints.checkpoint_to_resume(asked, tmp_path / "own") == str(begun)
    said = refused(tmp_path / "own", model={"lora_rank": 3}, training=resume)
    assert "model.lora_rank was 16 and is 3 now" in said


def test_what_is_begun_anew_leaves_the_former_attempt_beside_it(tmp_path: Path) -> None:
    for number, step in ((1, 5), (2, 7)):
        save_checkpoint(tmp_path, step=step, params=params_with())
        (tmp_path / "metrics.jsonl").write_text(f"{step}")
        assert to_resume("never", tmp_path) is None
        assert to_resume("auto", tmp_path) is None  # killed before its first checkpoint it begins anew
        kept = tmp_path / f"checkpoints-{number}" / f"checkpoint-{step}"
        assert checkpoints.saved_step(kept) == step
        assert (tmp_path / f"metrics-{number}.jsonl").read_text() == f"{step}"
    assert to_resume("never", tmp_path) is None
    assert not (tmp_path / "checkpoints-3").exists()

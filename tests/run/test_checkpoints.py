"""Which checkpoint a run goes on from: the newest whole one, and never one of another experiment."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from fake_checkpoints import save_checkpoint

from rlnb.code_execution.params import GrpoCodeExecutionParams
from rlnb.code_game.params import GrpoCodeGameParams
from rlnb.errors import ParamsError
from rlnb.params import load_params
from rlnb.ppo.params import PpoOpenspielParams
from rlnb.run import checkpoints


def params_with(**sections: dict[str, Any]) -> GrpoCodeExecutionParams:
    return GrpoCodeExecutionParams.model_validate(sections)


def to_resume(resume: str, output_dir: str | Path) -> str | None:
    return checkpoints.checkpoint_to_resume(params_with(training={"resume": resume}), output_dir)


def refused(output_dir: Path, **sections: dict[str, Any]) -> str:
    """What the command says, which writes nothing."""
    before = sorted(output_dir.rglob("*"))
    with pytest.raises(ParamsError) as refusal:
        checkpoints.check_resuming(params_with(**sections), output_dir)
    assert sorted(output_dir.rglob("*")) == before
    return str(refusal.value)


def test_a_checkpoint_that_is_asked_for_has_to_be_there(tmp_path: Path) -> None:
    assert to_resume("auto", tmp_path) is None
    kept = str(save_checkpoint(tmp_path / "run", step=3, params=params_with()))
    assert to_resume("auto", tmp_path / "run") == to_resume("latest", tmp_path / "run") == kept
    for resume in ("latest", str(tmp_path)):
        assert f"training.resume = '{resume}'" in refused(tmp_path, training={"resume": resume})


def test_a_directory_called_auto_is_no_checkpoint_to_begin_from(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for word in ("auto", "never"):
        save_checkpoint(Path(word), step=3, params=params_with())
        assert to_resume(word, "new") is None


def test_a_run_goes_on_from_its_own_newest_checkpoint_wherever_it_began(tmp_path: Path) -> None:
    begun = save_checkpoint(tmp_path / "other", step=9, params=params_with())
    renamed = begun.rename(tmp_path / "of any name")
    assert to_resume(f"{renamed}/", tmp_path / "run") == f"{renamed}/"
    old, new = (save_checkpoint(tmp_path / "run", step=step, params=params_with()) for step in (12, 16))
    assert to_resume(f"{renamed}/", tmp_path / "run") == to_resume(str(new), tmp_path / "run") == str(new)
    assert f"gone on to {new}" in refused(tmp_path / "run", training={"resume": str(old)})
    for own in ("run", "a third run"):
        assert to_resume(str(tmp_path / "run"), tmp_path / own) == str(new)


def test_a_checkpoint_of_another_experiment_is_refused_with_what_differs(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, step=3, params=params_with())
    said = refused(tmp_path, reward={"preset": "tests"}, training={"optim": "adamw_torch", "beta": 0.1})
    assert "reward.preset " in said and "training.optim " in said and "training.beta" not in said
    assert "model.lora_alpha 32 -> 8" in refused(tmp_path, model={"lora_alpha": 8})
    assert "training.max_steps = 2 " in refused(tmp_path, training={"max_steps": 2})


def test_what_has_changed_in_a_run_is_said_in_a_line_and_in_its_log(tmp_path: Path, capsys) -> None:
    folder = save_checkpoint(tmp_path, step=3, params=params_with())
    assert to_resume("auto", tmp_path) == str(folder)
    assert capsys.readouterr().out == "" and not (tmp_path / "train.log").exists()
    asked = params_with(training={"learning_rate": 1e-4}, sandbox={"timeout_seconds": 2.0})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORLD_SIZE", "2")
        assert checkpoints.checkpoint_to_resume(asked, tmp_path) == str(folder)
    line = capsys.readouterr().out
    for change in ("ranks 1 -> 2", "sandbox.timeout_seconds 5.0 -> 2.0", "training.learning_rate 2.0e-5 -> "):
        assert change in line
    assert (tmp_path / "train.log").read_text().endswith(f" {line}")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("optimizer.pt", None),
        ("optimizer.pt", b"moments" * 999),
        ("rlnb.json", None),
        ("rlnb.json", bytes(50)),
        ("trainer_state.json", b""),  # of the size that it had, and zeros: after a crash of the machine
    ],
)
def test_a_damaged_checkpoint_is_named_removed_and_the_one_before_is_taken(
    tmp_path: Path, capsys, name: str, content: bytes | None
) -> None:
    old, new = (save_checkpoint(tmp_path, step=step, params=params_with()) for step in (9, 10))
    assert to_resume("auto", tmp_path) == str(new)
    size = (new / name).stat().st_size
    (new / name).unlink()
    if content is not None:
        (new / name).write_bytes(content or bytes(size))
    assert f"training.resume = '{new}'" in refused(tmp_path / "another run", training={"resume": str(new)})
    capsys.readouterr()
    assert to_resume("auto", tmp_path) == str(old)
    line = capsys.readouterr().out
    assert line.startswith(f"{new}: ") and line.count("\n") == 1
    assert name in line or (name, content) == ("rlnb.json", None)  # was it still being written?
    assert (tmp_path / "train.log").read_text().endswith(line)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["checkpoint-9"]


@pytest.mark.parametrize(
    ("method", "name"), [("stat", "optimizer.pt"), ("open", "rlnb.json"), ("iterdir", "checkpoints")]
)
def test_a_read_error_that_passes_ends_the_attempt_and_costs_no_checkpoint(
    tmp_path: Path, method: str, name: str
) -> None:
    old, new = (save_checkpoint(tmp_path, step=step, params=params_with()) for step in (9, 10))
    before, real = sorted(tmp_path.rglob("*")), getattr(Path, method)

    def fail(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == name and old not in path.parents:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return real(path, *arguments, **options)

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(Path, method, fail)
        with pytest.raises(OSError, match=name):
            to_resume("auto", tmp_path)
    assert sorted(tmp_path.rglob("*")) == before
    assert to_resume("auto", tmp_path) == str(new)


def test_without_a_whole_checkpoint_a_run_starts_again_and_keeps_all_until_then(
    tmp_path: Path, capsys
) -> None:
    folder = save_checkpoint(tmp_path, step=3, params=params_with())
    for name in ("metrics.jsonl", "games.jsonl"):
        (tmp_path / name).write_text(name)
    (folder / "optimizer.pt").write_bytes(bytes(6000))
    assert "'latest'" in refused(tmp_path, training={"resume": "latest"})
    assert to_resume("auto", tmp_path) is None
    names = ("metrics-1.jsonl", "games-1.jsonl", "train-1.log", "checkpoints-1")
    kept = [tmp_path / name for name in names]
    damage, begins = capsys.readouterr().out.splitlines()
    assert damage.startswith(f"{folder}: optimizer.pt ")
    assert begins.endswith(", ".join(map(str, kept)))
    assert (kept[3] / "checkpoint-3" / "optimizer.pt").exists() and not folder.exists()
    assert [path.read_text() for path in kept[:2]] == ["metrics.jsonl", "games.jsonl"]


def test_checkpoints_that_were_being_written_are_removed_and_nothing_else(tmp_path: Path) -> None:
    kept = save_checkpoint(tmp_path, step=3, params=params_with())
    (tmp_path / ".secret.txt").touch()
    half = [kept.with_name(name) for name in (".checkpoint-7", "checkpoint-2", "checkpoint-5")]
    for path in half:  # of self-play; of GRPO, before and after trainer_state.json
        path.mkdir()
    (half[2] / "trainer_state.json").write_text('{"global_step": 5}')
    assert to_resume("auto", tmp_path) == str(kept)
    names = {path.name for path in (*tmp_path.iterdir(), *kept.parent.iterdir())}
    assert names == {"checkpoints", "checkpoint-3", "train.log", ".secret.txt"}
    log = (tmp_path / "train.log").read_text()
    assert log.count("it was being written when its run ended; removed") == log.count("\n") == 3


def test_a_checkpoint_is_on_the_disk_before_it_counts(tmp_path: Path, monkeypatch) -> None:
    """Every file, the recipe last, then the directory's entries."""
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}")))
    folder = save_checkpoint(tmp_path, step=3, params=params_with())
    files = {str(folder / name) for name in ("trainer_state.json", "optimizer.pt")}
    recipe = next(place for place, path in enumerate(synced) if f".{checkpoints.RECIPE_FILE}." in path)
    assert files <= set(synced[:recipe])
    assert synced[-2:] == [str(folder), str(folder.parent)]


def test_thresholds_of_stages_may_change_but_not_their_games(tmp_path: Path) -> None:
    def asked(**changed: Any) -> PpoOpenspielParams:
        stage = {"name": "easy", "games": ["nim"], "threshold": 0.5} | changed
        return PpoOpenspielParams.model_validate({"curriculum": {"stages": [stage]}})

    saved = str(save_checkpoint(tmp_path, step=3, params=asked()))
    assert checkpoints.checkpoint_to_resume(asked(threshold=0.4, window=300), tmp_path) == saved
    for fields, name in (({"games": ["hex"]}, ".easy.games"), ({"name": "hard"}, "")):
        with pytest.raises(ParamsError, match=f"curriculum.stages{name} "):
            checkpoints.checkpoint_to_resume(asked(**fields), tmp_path)


def test_another_recipe_may_begin_from_a_checkpoint_but_not_other_adapters(tmp_path: Path, capsys) -> None:
    begun = save_checkpoint(tmp_path, step=3, params=params_with())
    own, resume = tmp_path / "own", {"resume": str(begun)}
    asked = params_with(reward={"preset": "tests"}, training=resume)
    assert checkpoints.checkpoint_to_resume(asked, own) == str(begun)
    said = capsys.readouterr().out
    assert f"{begun}: step 3" in said and "reward.preset" in said
    for sections, field in (
        ({"model": {"lora_rank": 3}, "training": resume}, "model.lora_rank 16 -> 3"),
        ({"training": {"optim": "adamw_torch", **resume}}, "training.optim "),
        ({"training": {"max_steps": 3, **resume}}, "training.max_steps = 3 "),
    ):
        assert field in refused(own, **sections)
    game = GrpoCodeGameParams(training=resume)
    with pytest.raises(ParamsError, match="notebook 'grpo_code_execution' -> 'grpo_code_game'"):
        checkpoints.check_resuming(game, own)


def test_a_limit_that_cuts_nothing_may_be_raised_in_a_run(tmp_path: Path) -> None:
    """The error for a longer prompt says to raise it."""
    begun = load_params("spiral_self_play", profile="tiny", environ={})
    save_checkpoint(tmp_path, step=1, params=begun)
    longer = begun.game.model_copy(update={"max_prompt_tokens": 4096})
    checkpoints.check_resuming(begun.model_copy(update={"game": longer}), tmp_path)
    other = begun.game.model_copy(update={"max_opening_plies": 1})
    with pytest.raises(ParamsError, match="game.max_opening_plies"):
        checkpoints.check_resuming(begun.model_copy(update={"game": other}), tmp_path)


def test_a_run_that_starts_over_keeps_its_former_attempts_also_where_checkpoints_were_deleted(
    tmp_path: Path,
) -> None:
    for number, step in ((1, 5), (2, 7)):
        save_checkpoint(tmp_path, step=step, params=params_with())
        (tmp_path / "metrics.jsonl").write_text(f"{step}")
        assert to_resume("never", tmp_path) is None
        assert to_resume("auto", tmp_path) is None  # it was killed before its first checkpoint
        assert (tmp_path / f"checkpoints-{number}" / f"checkpoint-{step}").is_dir()
        shutil.rmtree(tmp_path / f"checkpoints-{number}")
    assert [(tmp_path / f"metrics-{number}.jsonl").read_text() for number in (1, 2)] == ["5", "7"]
    assert to_resume("never", tmp_path) is None
    assert not (tmp_path / "checkpoints-3").exists()


def test_what_people_put_beside_the_checkpoints_stays(tmp_path: Path) -> None:
    old, new = (save_checkpoint(tmp_path, step=step, params=params_with()) for step in (9, 10))
    shutil.copytree(old, old.with_name("checkpoint-9-best"))
    old.with_name("checkpoint-9-weights").mkdir()
    old.with_name("checkpoint-9.tar.gz").touch()
    assert to_resume("auto", tmp_path) == str(new)
    checkpoints.remove_old_checkpoints(tmp_path, step=10, keep=1)
    names = {path.name for path in old.parent.iterdir()}
    assert names == {"checkpoint-10", "checkpoint-9-best", "checkpoint-9-weights", "checkpoint-9.tar.gz"}


def test_an_old_checkpoint_that_somebody_reads_ends_no_training(tmp_path: Path, monkeypatch) -> None:
    for step in (9, 10):
        new = save_checkpoint(tmp_path, step=step, params=params_with())
    monkeypatch.setattr(os, "rmdir", Mock(side_effect=OSError(errno.ENOTEMPTY, "not empty")))  # as on NFS
    checkpoints.remove_old_checkpoints(tmp_path, step=10, keep=1)
    assert checkpoints.latest_checkpoint(tmp_path) == str(new)


def test_a_link_called_latest_is_not_what_latest_means(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    old, new = (save_checkpoint(Path("run"), step=step, params=params_with()) for step in (3, 4))
    Path("latest").symlink_to(old)
    assert to_resume("latest", "run") == str(new)
    assert "'latest'" in refused(tmp_path / "new", training={"resume": "latest"})

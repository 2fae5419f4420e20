"""A disk that is full, or will be: what is refused before a run, and what is left of one that it ends."""

import shutil
from pathlib import Path

import pytest
from refusals import refused
from waiting import small_disk

from rlnb.errors import DiskFull
from rlnb.params import load_params
from rlnb.params.training import ResumableParams
from rlnb.policy import model_directory
from rlnb.run import directory as runs
from rlnb.run.disk import check_disk, telling_full_disk
from rlnb.run.memory import check_room

TWO = ResumableParams(save_total_limit=2)


def test_checkpoints_that_would_fill_the_disk_are_refused_beyond_those_that_are_there(tmp_path: Path):
    free = shutil.disk_usage(tmp_path).free
    check_disk(tmp_path / "not" / "there", free // 4, TWO)
    assert refused(check_disk, tmp_path, free // 2, TWO).startswith(f"output_dir = '{tmp_path}' has ")
    for step in (5, 10):
        (tmp_path / "checkpoints" / f"checkpoint-{step}").mkdir(parents=True)
    check_disk(tmp_path, free // 2, TWO)


@pytest.mark.parametrize("notebook", ["grpo_code_execution", "spiral_self_play"])
def test_room_for_checkpoints_is_checked_by_the_parameters_alone(cache_dir, monkeypatch, notebook):
    model_directory("tiny", cache_dir)  # builds it
    needed = []
    monkeypatch.setattr("rlnb.run.memory.check_disk", lambda _, num_bytes, training: needed.append(num_bytes))
    for lora_rank, save_optimizer in ((8, True), (8, False), (16, True)):
        overrides = {"model": {"id": "tiny", "lora_rank": lora_rank, "dtype": "float32"}}
        overrides["model"]["cache_dir"] = str(cache_dir)
        overrides["training"] = {"save_optimizer": save_optimizer}
        check_room(load_params(notebook, profile="tiny", overrides=overrides, environ={}))
    whole, without_moments, twice = needed
    weights = (whole - without_moments) / 2
    assert weights > 1e4 and without_moments % weights == 0 and twice == 2 * whole


def test_an_error_of_a_full_disk_is_seen_behind_others_and_no_other_is_taken_for_it(tmp_path):
    def write_to_full_device() -> None:
        with open("/dev/full", "w") as file:
            file.write("x")

    def wrap() -> None:
        try:
            write_to_full_device()
        except OSError as error:
            raise RuntimeError("it did not work") from error

    def drop() -> None:
        try:
            write_to_full_device()
        except OSError:
            raise ValueError("another story") from None

    for raise_it in (write_to_full_device, wrap):
        with pytest.raises(DiskFull), telling_full_disk(tmp_path):
            raise_it()
    with pytest.raises(ValueError, match="another story"), telling_full_disk(tmp_path):
        drop()
    with pytest.raises(FileNotFoundError), telling_full_disk(tmp_path):
        (tmp_path / "a" / "b").read_text()


@pytest.fixture
def full_disk(tmp_path):
    """A file system of 64 KiB, to be filled."""
    with small_disk(tmp_path / "small", 2**16):
        yield tmp_path / "small"


def test_a_file_on_a_full_disk_stays_what_it_was_and_the_status_is_true(full_disk):
    status = runs.start_attempt(full_disk, notebook="attempt-01.ipynb")
    runs.write_text(full_disk / "versions.json", "whole")
    with pytest.raises(OSError), (full_disk / "filling").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    with pytest.raises(OSError):
        runs.write_text(full_disk / "versions.json", "x" * 5000)
    assert (full_disk / "versions.json").read_text() == "whole"
    runs.end_attempt(full_disk, status, state="failed", reason="no room: " + "why " * 100)
    assert runs.read_status(full_disk).state == "failed"
    assert {path.name for path in full_disk.iterdir()} == {"status.json", "versions.json", "filling"}

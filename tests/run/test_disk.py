"""A disk that fills up: what is said, and what is left of the run that it ends."""

import errno
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from waiting import small_disk

from rlnb.errors import DiskFull
from rlnb.run import directory as runs
from rlnb.run.disk import telling_full_disk, write_text, written_whole


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


def test_a_file_that_several_write_at_a_time_is_always_one_of_theirs(tmp_path):
    """As ranks do; threads have one process id, as processes on two hosts may have."""
    path, texts = tmp_path / "params.yaml", ["one" * 500, "two" * 500]

    def write(text: str) -> None:
        for _ in range(200):
            write_text(path, text)
            assert path.read_text() in texts

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, texts))
    assert [*tmp_path.iterdir()] == [path]


@pytest.fixture
def full_disk(tmp_path):
    """A file system of 64 KiB, to be filled."""
    with small_disk(tmp_path / "small", 2**16):
        yield tmp_path / "small"


def test_a_file_on_a_full_disk_stays_what_it_was_and_the_status_is_true(full_disk):
    status = runs.start_attempt(full_disk, notebook="attempt-01.ipynb")
    write_text(full_disk / "versions.json", "whole")
    with pytest.raises(OSError), (full_disk / "filling").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    with pytest.raises(OSError):
        write_text(full_disk / "versions.json", "x" * 5000)
    assert (full_disk / "versions.json").read_text() == "whole"
    runs.end_attempt(full_disk, status, state="failed", reason="no room: " + "why " * 100)
    assert runs.read_status(full_disk).state == "failed"
    assert {path.name for path in full_disk.iterdir()} == {"status.json", "versions.json", "filling"}


def test_an_older_directory_is_whole_until_the_new_one_is_there(tmp_path, monkeypatch):
    (tmp_path / "it").mkdir()
    is_new = []
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: is_new.append((tmp_path / "it" / "new").exists()))
    with written_whole(tmp_path / "it") as folder:
        (folder / "new").touch()
    assert is_new == [True, True]


def test_an_older_directory_returns_where_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    (tmp_path / "it").mkdir()
    (tmp_path / "it" / "old").touch()
    rename = Path.rename

    def fail_for_the_new(path, target):
        if (path / "new").exists():
            raise OSError(errno.ENOSPC, "no room")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail_for_the_new)
    with pytest.raises(OSError), written_whole(tmp_path / "it") as folder:
        (folder / "new").touch()
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["it", "it/old"]

"""Keys come from .env of the folder at hand and of the project, where the environment has none."""

from pathlib import Path

import pytest

from rlnb.params import load_dotenv


def keys_of(text: str | bytes, folder: Path) -> dict[str, str]:
    """What a .env file adds to an empty environment."""
    (folder / ".env").write_bytes(text if isinstance(text, bytes) else text.encode())
    environ: dict[str, str] = {}
    load_dotenv(folder, environ=environ, project=folder)
    return environ


def test_a_dotenv_file_gives_the_two_keys_and_nothing_else(tmp_path):
    (tmp_path / ".env").write_text(
        "# keys\nexport WANDB_API_KEY='a1'\nHF_TOKEN = \"b2\"\nPATH=/nowhere\nRLNB_SEED=3\nnonsense\n"
    )
    environ = {"PATH": "/bin"}
    assert load_dotenv(tmp_path, environ=environ, project=tmp_path) == ["WANDB_API_KEY", "HF_TOKEN"]
    assert environ == {"PATH": "/bin", "WANDB_API_KEY": "a1", "HF_TOKEN": "b2"}


def test_a_key_that_is_set_already_stays(tmp_path):
    (tmp_path / ".env").write_text("WANDB_API_KEY=new\nHF_TOKEN=\n")
    environ = {"WANDB_API_KEY": "old"}
    assert load_dotenv(tmp_path, environ=environ, project=tmp_path) == []
    assert environ == {"WANDB_API_KEY": "old"}


def test_without_a_dotenv_file_nothing_happens(tmp_path):
    assert load_dotenv(tmp_path, environ={}, project=tmp_path) == []


def test_what_the_folder_at_hand_lacks_comes_from_the_project(tmp_path):
    here, project = tmp_path / "here", tmp_path / "project"
    here.mkdir()
    project.mkdir()
    (here / ".env").write_text("WANDB_API_KEY=here\n")
    (project / ".env").write_text("WANDB_API_KEY=project\nHF_TOKEN=project\n")
    environ: dict[str, str] = {}
    load_dotenv(here, environ=environ, project=project)
    assert environ == {"WANDB_API_KEY": "here", "HF_TOKEN": "project"}


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ('"abc" # my key', "abc"),
        ("'a#c'#", "a#c"),
        ("abc # my key", "abc"),
        ("a#c", "a#c"),
        ('"abc', "abc"),
        (" # put it here", None),
        ('""  # put it here', None),
        ("a\0c", None),
    ],
)
def test_a_value_ends_where_a_shell_would_end_it(tmp_path, value, key):
    assert keys_of(f"WANDB_API_KEY={value}\n", tmp_path).get("WANDB_API_KEY") == key


def test_bytes_that_are_no_text_are_no_key_and_spoil_no_other(tmp_path):
    assert keys_of(b"WANDB_API_KEY=\xff\xfe\n# caf\xe9\nHF_TOKEN=b2\n", tmp_path) == {"HF_TOKEN": "b2"}


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path):
    assert keys_of(b"\xef\xbb\xbfHF_TOKEN=b2\n", tmp_path) == {"HF_TOKEN": "b2"}

"""Keys and parameters come from .env of the folder at hand or the project, unless they are set."""

import pytest

from rlnb.params import load_dotenv


@pytest.fixture
def keys_of(tmp_path):
    """A function that returns an environment and what a .env file adds to it."""

    def keys_of(text: str | bytes, **environ: str) -> dict[str, str]:
        (tmp_path / ".env").write_bytes(text if isinstance(text, bytes) else text.encode())
        before = dict(environ)
        assert load_dotenv(tmp_path, environ=environ, project=tmp_path) == [*environ][len(before) :]
        return environ

    return keys_of


def test_a_dotenv_file_gives_keys_and_parameters_and_nothing_else(keys_of):
    text = (
        "# keys\nexport WANDB_API_KEY='a1'\nHF_TOKEN = \"b2\"\nOPENAI_API_KEY= # here\nPATH=/nowhere\nnone\n"
    )
    assert keys_of(text, PATH="/bin") == {"PATH": "/bin", "WANDB_API_KEY": "a1", "HF_TOKEN": "b2"}
    text = "MBPP_EVAL_NUM_QUESTIONS=7\nMBPP_DATASET_PATH=/data/Bücher\nRLNB_SEED=3\n"
    assert keys_of(text, RLNB_SEED="4") == {
        "RLNB_SEED": "4",
        "MBPP_EVAL_NUM_QUESTIONS": "7",
        "MBPP_DATASET_PATH": "/data/Bücher",
    }


def test_what_the_folder_at_hand_lacks_comes_from_the_project(tmp_path):
    here, project = tmp_path / "here", tmp_path / "project"
    environ: dict[str, str] = {}
    assert load_dotenv(here, environ=environ, project=project) == []
    for folder, text in ((here, "WANDB_API_KEY=here\n"), (project, "WANDB_API_KEY=there\nHF_TOKEN=there\n")):
        folder.mkdir()
        (folder / ".env").write_text(text)
    load_dotenv(here, environ=environ, project=project)
    assert environ == {"WANDB_API_KEY": "here", "HF_TOKEN": "there"}


def test_bytes_that_are_not_text_spoil_no_other_key_and_a_folder_is_passed_over(keys_of, tmp_path):
    for start in (b"WANDB_API_KEY=\xff\xfe\n# caf\xe9\n", b"\xef\xbb\xbf"):
        assert keys_of(start + b"HF_TOKEN=b2\n") == {"HF_TOKEN": "b2"}
    (tmp_path / "folder" / ".env").mkdir(parents=True)
    assert load_dotenv(tmp_path / "folder", environ={}, project=tmp_path / "folder") == []

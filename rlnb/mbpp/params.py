"""Parameters of notebooks/mbpp_eval.ipynb and of `rlnb eval`, and the problems that they choose."""

import hashlib
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from rlnb.errors import ParamsError
from rlnb.mbpp.evalplus import load_plus
from rlnb.mbpp.problems import Problem, ProblemSet, load_mbpp, parse_problems
from rlnb.mbpp.prompts import TEMPLATES
from rlnb.mbpp.samples import read_samples
from rlnb.params import sections
from rlnb.params.resolving import resolve_mbpp
from rlnb.params.sections import Conflict, ModelRunParams, Section, ServerAddress, described


class WriterParams(Section):
    """Who writes the completions: the model of this notebook, unless a server or a file is named."""

    base_url: ServerAddress = described("", "Address of a server (vLLM) that writes; http://host:port/v1")
    served_model: str = described("", "The model's name on that server")
    samples_path: str = described("", "Programs to check: EvalPlus's file or folder, or bigcode's file")

    @property
    def kind(self) -> Literal["policy", "endpoint", "file"]:
        return "file" if self.samples_path else "endpoint" if self.base_url else "policy"

    def conflicts(self) -> Iterator[Conflict]:
        if self.samples_path and self.base_url:
            yield Conflict("writer.samples_path", "and writer.base_url both write; name one of them")
        if bool(self.base_url) != bool(self.served_model):
            reason = "is needed with writer.base_url" if self.base_url else "is a model of writer.base_url"
            yield Conflict("writer.served_model", f"{reason}; write both or none")
        if self.samples_path and not os.path.exists(self.samples_path):
            yield Conflict("writer.samples_path", f"is not in {os.getcwd()}")


class MbppEvaluationParams(sections.SamplingParams):
    num_questions: int = described(0, "Problems asked, drawn by the seed; 0 = all of the split", ge=0)
    plus_path: str = described("", "EvalPlus's MbppPlus.jsonl; its base and plus inputs are checked as well")

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.plus_path and not os.path.isfile(self.plus_path):
            yield Conflict("evaluation.plus_path", f"is not a file in {os.getcwd()}")


class MbppEvalParams(ModelRunParams):
    """Pass rates on MBPP; temperature and time limit are those of the evaluations in trainings."""

    output_dir: str = described("outputs/mbpp_eval", "Directory for results and metrics", min_length=1)
    writer: WriterParams = WriterParams()
    mbpp: sections.MbppParams = sections.MbppParams()
    evaluation: MbppEvaluationParams = MbppEvaluationParams()

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.model.adapters and self.writer.kind != "policy":
            reason = f"does not write: completions come from a writer.{self.writer.kind}; name one of them"
            yield Conflict("model.adapters", reason, ("writer.base_url", "writer.samples_path"))

    def check_files(self) -> None:
        """Raise ParamsError for wrong files of EvalPlus or of completions, and for what does not match."""
        super().check_files()
        plus_path, samples_path = self.evaluation.plus_path, self.writer.samples_path
        if plus_path or self.writer.kind == "file":
            mbpp = resolve_mbpp(self) or self.mbpp
            data = load_data(mbpp, plus_path, self.model.cache_dir)
            problems = choose_problems(data, mbpp, self.evaluation.num_questions, seed=self.seed)
        if self.writer.kind == "file":
            read_samples(samples_path, [problem.task_id for problem in problems])


def load_data(mbpp: sections.MbppParams, plus_path: str, cache_dir: str | Path) -> ProblemSet:
    """Return the problems of a section that `resolve_mbpp` returned, or those of EvalPlus's file.

    The latter have the assert in their prompt. Raises ParamsError for data that cannot be read, or that have
    no problem in the split.
    """
    if plus_path:
        plus = load_plus(plus_path)
        problems = parse_problems((f"{plus_path}: Mbpp/{n}", plus[n].to_record()) for n in plus)
        return ProblemSet(problems, plus_path, hashlib.sha256(Path(plus_path).read_bytes()).hexdigest())
    data = load_mbpp(mbpp.source, path=mbpp.path, subset=mbpp.subset, cache_dir=cache_dir)
    if not data.split(mbpp.split):
        raise ParamsError(f"{data.source}: has no problem of mbpp.split = {mbpp.split!r}; write all")
    return data


def choose_problems(
    data: ProblemSet, mbpp: sections.MbppParams, num_questions: int, *, seed: int
) -> list[Problem]:
    """Return the problems that are asked, drawn by the seed; 0 is all of the split."""
    shots = TEMPLATES[mbpp.template].shots
    candidates = [problem for problem in data.split(mbpp.split) if problem.task_id not in shots]
    drawn = random.Random(seed).sample(candidates, len(candidates))[: num_questions or None]
    return sorted(drawn, key=lambda problem: problem.task_id)

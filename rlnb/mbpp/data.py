"""The problems of an evaluation: where they come from, and which of them are asked."""

import hashlib
import random
from pathlib import Path

from rlnb.errors import ParamsError
from rlnb.mbpp.evalplus import load_plus
from rlnb.mbpp.problems import Problem, ProblemSet, load_mbpp, parse_problems
from rlnb.mbpp.prompts import TEMPLATES
from rlnb.params.sections import MbppParams


def load_data(mbpp: MbppParams, plus_path: str, cache_dir: str | Path) -> ProblemSet:
    """Return the problems of a resolved section `mbpp`, or with split "plus" those of EvalPlus's file.

    The latter have the asserts of mbpp.path or, if that is empty, the one in each prompt. Raises ParamsError
    for data that cannot be read, that have no problem in the split, or that lack problems of EvalPlus's file.
    """
    plus = load_plus(plus_path) if mbpp.split == "plus" else {}
    if mbpp.split == "plus" and not mbpp.path:
        problems = parse_problems((f"{plus_path}: Mbpp/{n}", plus[n].to_record()) for n in plus)
        return ProblemSet(problems, plus_path, hashlib.sha256(Path(plus_path).read_bytes()).hexdigest())
    data = load_mbpp(mbpp.source, path=mbpp.path, subset=mbpp.subset, cache_dir=cache_dir)
    if missing := plus.keys() - data.problems.keys():
        raise ParamsError(
            f"{data.source}: lacks {len(missing)} of the {len(plus)} problems of {plus_path}, task_id "
            f"{min(missing)} for one; leave mbpp.path empty, or write mbpp.split = all"
        )
    if mbpp.split == "plus":
        return data._replace(problems={task_id: data.problems[task_id] for task_id in plus})
    if not data.split(mbpp.split):
        raise ParamsError(f"{data.source}: has no problem of mbpp.split = {mbpp.split!r}; write all")
    return data


def choose_problems(data: ProblemSet, mbpp: MbppParams, num_questions: int, *, seed: int) -> list[Problem]:
    """Return the problems that are asked, drawn by the seed; mbpp.num_questions of a training wins."""
    num_questions = getattr(mbpp, "num_questions", 0) or num_questions
    shots = TEMPLATES[mbpp.template].shots
    candidates = [problem for problem in data.split(mbpp.split) if problem.task_id not in shots]
    drawn = random.Random(seed).sample(candidates, len(candidates))[: num_questions or None]
    return sorted(drawn, key=lambda problem: problem.task_id)

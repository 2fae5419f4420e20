"""The problems of an evaluation: where they come from, and which of them are asked."""

import hashlib
import random
from collections.abc import Sequence
from pathlib import Path

from rlnb.errors import ParamsError
from rlnb.mbpp.evalplus import load_plus
from rlnb.mbpp.problems import Problem, ProblemSet, Source, load_mbpp, parse_problems
from rlnb.mbpp.prompts import TEMPLATES
from rlnb.params.sections import MbppInTrainingParams, MbppParams


def load_data(
    mbpp: MbppParams, *, plus_path: str = "", cache_dir: str | Path = "./model_cache"
) -> ProblemSet:
    """Return the problems of a resolved section `mbpp`, or with split "plus" those of EvalPlus's file.

    The latter have the asserts of mbpp.path or, if that is empty, the one in each prompt. Raises ParamsError
    for data that cannot be read, that have no problem in the split, or that lack problems of EvalPlus's file.
    """
    if mbpp.split == "plus" and not mbpp.path:
        plus = load_plus(plus_path)
        problems = parse_problems((f"{plus_path}: Mbpp/{n}", plus[n].to_record()) for n in plus)
        return ProblemSet(problems, plus_path, hashlib.sha256(Path(plus_path).read_bytes()).hexdigest())
    source: Source = "builtin" if mbpp.source == "builtin" else "hub"
    data = load_mbpp(source, path=mbpp.path, subset=mbpp.subset, cache_dir=cache_dir)
    if mbpp.split == "plus":
        task_ids = load_plus(plus_path)
        if missing := [task_id for task_id in task_ids if task_id not in data.problems]:
            raise ParamsError(
                f"{data.source}: lacks {len(missing)} of the {len(task_ids)} problems of {plus_path}, "
                f"task_id {missing[0]} for one; leave mbpp.path empty, or write mbpp.split = all"
            )
        return data._replace(problems={task_id: data.problems[task_id] for task_id in task_ids})
    if not data.split(mbpp.split):
        raise ParamsError(f"{data.source}: has no problem of mbpp.split = {mbpp.split!r}; write all")
    return data


def choose_problems(data: ProblemSet, mbpp: MbppParams, num_questions: int, *, seed: int) -> list[Problem]:
    """Return `num_questions` problems of the split, or all if that is 0, without the template's shots.

    mbpp.num_questions of a training wins where it is not 0.
    """
    if isinstance(mbpp, MbppInTrainingParams) and mbpp.num_questions:
        num_questions = mbpp.num_questions
    split = data.split(mbpp.split)
    candidates = [problem for problem in split if problem.task_id not in TEMPLATES[mbpp.template].shots]
    return draw_problems(candidates, num_questions, seed=seed)


def draw_problems(problems: Sequence[Problem], num_questions: int, *, seed: int) -> list[Problem]:
    """Return problems drawn by the seed, or all; a smaller draw is part of a larger one."""
    drawn = random.Random(seed).sample(list(problems), len(problems))[: num_questions or None]
    return sorted(drawn, key=lambda problem: problem.task_id)

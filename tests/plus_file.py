"""A file of EvalPlus's shape made of MBPP: base inputs from its asserts, further inputs by small changes."""

import ast
import json
from pathlib import Path

ADD = {
    "task_id": "Mbpp/900",
    "prompt": '"""\nWrite a function to add.\nassert add(1, 2) == 3\n"""\n',
    "entry_point": "add",
    "canonical_solution": "\ndef add(a, b):\n    return a + b\n",
    "base_input": [[1, 2]],
    "plus_input": {},
    "atol": 0,
}
SANITIZED = Path(__file__).parents[2] / "shared" / "data" / "sanitized-mbpp.json"


def make_records(num_problems: int) -> list[dict]:
    """Records of the hard problems, and of the first whose asserts call a function with literals."""
    records = hard_records()
    replaced = {record["task_id"] for record in records}
    for problem in json.loads(SANITIZED.read_text()):
        calls = [find_call(test, problem["code"]) for test in problem["test_list"]]
        if f"Mbpp/{problem['task_id']}" in replaced or None in calls or len({name for name, _ in calls}) > 1:
            continue
        inputs = [[as_json(argument) for argument in arguments] for _, arguments in calls]
        records.append(
            {
                "task_id": f"Mbpp/{problem['task_id']}",
                "prompt": f'"""\n{problem["prompt"]}\n{problem["test_list"][0]}\n"""\n',
                "entry_point": calls[0][0],
                "canonical_solution": "\n" + problem["code"].replace("\r\n", "\n") + "\n",
                "contract": "\n",
                "base_input": inputs,
                "plus_input": inputs[::-1] if len(records) % 50 else {},
                "atol": 0,
            }
        )
    return records[:num_problems]


def find_call(test: str, code: str) -> tuple[str, list] | None:
    """The function of `code` that a test calls, and its arguments if they are literals."""
    defined = {node.name for node in ast.walk(ast.parse(code)) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(ast.parse(test)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in defined:
            try:
                return node.func.id, [ast.literal_eval(argument) for argument in node.args]
            except ValueError:
                return None
    return None


def as_json(value: object) -> object:
    """Tuples and sets as lists and complex numbers as text, as in EvalPlus's file."""
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [as_json(item) for item in value]
    return str(value) if isinstance(value, complex) else value


def hard_records() -> list[dict]:
    """Problems that end a naive evaluation: answers too large, a reference that fails, no further inputs."""
    common = {"contract": "\n", "atol": 0}
    letters = list("abcdefghijkl")
    return [
        {
            **common,
            "task_id": "Mbpp/255",
            "prompt": '"""\nWrite a function for all combinations with repetition.\n'
            'assert combinations_colors([1], 1) == [(1,)]\n"""\n',
            "entry_point": "combinations_colors",
            "canonical_solution": "\nfrom itertools import combinations_with_replacement\n"
            "def combinations_colors(l, n):\n    return list(combinations_with_replacement(l, n))\n",
            "base_input": [[["Red", "Green"], 1], [["Red", "Green"], 2]],
            # The lists have 293,930, 2,496,144 and 6 tuples.
            "plus_input": [[letters[:10], 12], [letters, 13], [[1, 2, 3], 2]],
        },
        {
            **common,
            "task_id": "Mbpp/800",
            "prompt": '"""\nWrite a function to divide.\nassert divide(4, 2) == 2\n"""\n',
            "entry_point": "divide",
            "canonical_solution": "\ndef divide(a, b):\n    return a / b\n",
            "base_input": [[4, 2]],
            "plus_input": [[1, 0], [9, 3]],
        },
        {
            **common,
            "task_id": "Mbpp/801",
            "prompt": '"""\nWrite a function to wait.\nassert wait(1) == 1\n"""\n',
            "entry_point": "wait",
            "canonical_solution": "\nimport rlnb_has_no_such_module\ndef wait(a):\n    return a\n",
            "base_input": [[1]],
            "plus_input": {},
        },
    ]

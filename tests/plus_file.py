"""Records as EvalPlus's file has them: an easy one, one with tuples, and such as end a naive evaluation."""

ADD = {
    "task_id": "Mbpp/900",
    "prompt": '"""\nWrite a function to add.\nassert add(1, 2) == 3\n"""\n',
    "entry_point": "add",
    "canonical_solution": "\ndef add(a, b):\n    return a + b\n",
    "base_input": [[1, 2]],
    "plus_input": {},
    "atol": 0,
}
ALIKE = ADD | {
    "task_id": "Mbpp/2",
    "prompt": '"""\nWrite a function for the elements of both.\nassert alike((1, 2), (2, 3)) == (2,)\n"""\n',
    "entry_point": "alike",
    "canonical_solution": "\ndef alike(a, b):\n    return tuple({*a} & {*b})\n",
    "base_input": [[[1, 2], [2, 3]]],
    "plus_input": [[[1, 2], [3, 4]]],
}
COMBINE = ADD | {  # its answers have 293,930, 2,496,144 and 6 tuples
    "task_id": "Mbpp/255",
    "prompt": '"""\nWrite a function for combinations.\nassert combine([1], 1) == [(1,)]\n"""\n',
    "entry_point": "combine",
    "canonical_solution": "\nfrom itertools import combinations_with_replacement\n"
    "def combine(letters, n):\n    return list(combinations_with_replacement(letters, n))\n",
    "base_input": [[["Red", "Green"], 1], [["Red", "Green"], 2]],
    "plus_input": [[list("abcdefghij"), 12], [list("abcdefghijkl"), 13], [[1, 2, 3], 2]],
}
DIVIDE = ADD | {
    "task_id": "Mbpp/800",
    "prompt": '"""\nWrite a function to divide.\nassert divide(4, 2) == 2\n"""\n',
    "entry_point": "divide",
    "canonical_solution": "\ndef divide(a, b):\n    return a / b\n",
    "base_input": [[4, 2]],
    "plus_input": [[1, 0], [9, 3]],
}
WAIT = ADD | {
    "task_id": "Mbpp/801",
    "prompt": '"""\nWrite a function to wait.\nassert wait(1) == 1\n"""\n',
    "entry_point": "wait",
    "canonical_solution": "\nimport rlnb_has_no_such_module\ndef wait(a):\n    return a\n",
    "base_input": [[1]],
}
RECORDS = [ADD, ALIKE, COMBINE, DIVIDE, WAIT]

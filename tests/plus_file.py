"""Records as EvalPlus's file has them: an easy one, and such as end a naive evaluation."""

ADD = {
    "task_id": "Mbpp/900",
    "prompt": '"""\nWrite a function to add.\nassert add(1, 2) == 3\n"""\n',
    "entry_point": "add",
    "canonical_solution": "\ndef add(a, b):\n    return a + b\n",
    "base_input": [[1, 2]],
    "plus_input": {},
    "atol": 0,
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
RECORDS = [ADD, DIVIDE, WAIT]

"""Tasks from files and from MBPP; what is no task is refused with its file and line."""

import json
from pathlib import Path

import pytest

from rlnb.errors import ParamsError
from rlnb.tasks.sources import MBPP_SPLITS, load_tasks

DATA = Path(__file__).parents[3] / "shared" / "data"
RECORD = {
    "id": "double-1",
    "family": "double",
    "function": "double",
    "parameters": "n",
    "statement": "Return twice n.",
    "tests": [{"arguments": [2], "expected": 4}, {"arguments": [5], "expected": 10}],
}


@pytest.fixture
def write(tmp_path):
    def write_lines(*lines):
        path = tmp_path / "tasks.jsonl"
        path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
        return str(path)

    return write_lines


def load(path):
    return load_tasks("jsonl", jsonl_path=path)


@pytest.fixture(scope="module")
def mbpp():
    if not (DATA / "mbpp.jsonl").exists():
        pytest.skip("MBPP is not at hand: ../shared/data/mbpp.jsonl is missing")
    return load_tasks("mbpp", mbpp_path=str(DATA))


def test_a_line_becomes_a_task_whose_first_test_is_the_example(write):
    known = {**RECORD, "level": 2, "split": "known"}
    (task,) = load(write(known, {**RECORD, "id": "other"}))["known"]
    assert (task.id, task.family, task.level) == ("double-1", "double", 2)
    assert (task.example_call, task.example.expected) == ("double(2)", 4)
    assert [(test.arguments, test.expected) for test in task.tests] == [((5,), 10)]


def test_records_go_to_the_split_they_name(write):
    names = ("train", "known", "new")
    splits = load(write(*({**RECORD, "id": name, "split": name} for name in names)))
    assert {name: [task.id for task in splits[name]] for name in splits} == {name: [name] for name in names}


def test_records_without_a_split_family_or_id_are_split_by_the_seed(write):
    bare = {name: RECORD[name] for name in ("function", "parameters", "statement", "tests")}
    splits = load(write(*[bare] * 10))
    assert {name: len(tasks) for name, tasks in splits.items()} == {"train": 7, "known": 3, "new": 0}


def test_levels_choose_among_the_tasks_of_a_file(write):
    path = write({**RECORD, "id": "a", "level": 1}, {**RECORD, "id": "b", "level": 3})
    splits = load_tasks("jsonl", jsonl_path=path, levels=(3,))
    assert [task.id for tasks in splits.values() for task in tasks] == ["b"]


def test_blank_lines_count_as_lines_but_not_as_tasks(write):
    path = write(RECORD, "", "{")
    assert message_of(path) == (
        f"{path}:3: not JSON (Expecting property name enclosed in double quotes); write one task a line"
    )


def message_of(path, source="jsonl"):
    with pytest.raises(ParamsError) as raised:
        load_tasks(source, jsonl_path=path, mbpp_path=path)
    return str(raised.value)


BROKEN = {
    "is no object": ("5", "no task: a record is an object with named fields"),
    "lacks a field": ({"id": "x", "function": "f"}, "no task: the field 'tests' is missing"),
    "has a single test": (
        {**RECORD, "tests": RECORD["tests"][:1]},
        "no task: tests must hold at least 2; the first is the prompt's example",
    ),
    "expects infinity": (
        {**RECORD, "tests": [{"arguments": [1], "expected": float("inf")}] * 2},
        "no task: tests hold a number that is not finite; write finite ones",
    ),
    "names no function": ({**RECORD, "function": "f; g"}, "no task: function = 'f; g' is no name"),
    "names an unknown split": (
        {**RECORD, "split": "dev"},
        "split = 'dev' is unknown; write 'train', 'known' or 'new'",
    ),
    "names its function by a number": ({**RECORD, "function": 5}, "no task: function = 5 is no text"),
    "names its function by a keyword": (
        {**RECORD, "function": "class"},
        "no task: function = 'class' is no name",
    ),
    "names a list of splits": (
        {**RECORD, "split": ["train"]},
        "split = ['train'] is unknown; write 'train', 'known' or 'new'",
    ),
    "has text for arguments": (
        {**RECORD, "tests": [{"arguments": "ab", "expected": 1}] * 2},
        "no task: arguments = 'ab' is no list",
    ),
    "has a number for a test": (
        {**RECORD, "tests": [1, 2]},
        "no task: a test = 1 is no object with named fields",
    ),
    "has arguments nested too deeply": (
        {**RECORD, "tests": [{"arguments": json.loads("[" * 300 + "]" * 300), "expected": 1}] * 2},
        "no task: tests are nested too deeply",
    ),
    "has a number too long": (
        json.dumps(RECORD).replace("10", "1" * 5000),
        "not JSON (a number is too long); write one task a line",
    ),
    "has an endless level": (
        {**RECORD, "level": float("inf")},
        "no task: level = inf is no whole number",
    ),
    "has parameters that do not parse": (
        {**RECORD, "parameters": "n, n ="},
        "no task: its code does not parse",
    ),
}


@pytest.mark.parametrize("problem", BROKEN)
def test_the_error_names_file_and_line_of_a_record_that(problem, write):
    record, message = BROKEN[problem]
    path = write({**RECORD, "id": "good"}, record)
    assert message_of(path) == f"{path}:2: {message}"


INJECTED = {
    "another function": "n): pass\ndef g(n",
    "a second line": "n,\nm",
    "a result": "n) -> (int",
    "a body": "n): return (n",
    "a comment": "n): pass #",
}


@pytest.mark.parametrize("what", INJECTED)
def test_parameters_hold_no_more_than_a_signature_and_not(what, write):
    message = message_of(write({**RECORD, "parameters": INJECTED[what]}))
    assert "no task: " in message
    assert "\n" not in message


def test_parameters_may_have_defaults_annotations_and_stars(write):
    parameters = "n: int = 1, *rest, sep: str = '#)', **options"
    ((task,), _, _) = load(write({**RECORD, "parameters": parameters})).values()
    assert task.parameters == parameters


MBPP_RECORD = {
    "task_id": 601,
    "text": "Return twice n.",
    "code": "def double(n):\n    return 2 * n",
    "test_list": ["assert double(2) == 4", "assert double(5) == 10"],
}
BROKEN_MBPP = {
    "is numbered in words": ({"task_id": "abc"}, "no task: task_id = 'abc' is no whole number"),
    "has no number": ({"task_id": None}, "no task: task_id = None is no whole number"),
    "has a number for an assert": ({"test_list": [1]}, "no task: an assert = 1 is no text"),
    "has text for a list of asserts": (
        {"test_list": "assert f(1) == 1"},
        "no task: test_list = 'assert f(1) == 1' is no list",
    ),
    "has a number for its code": ({"code": 5}, "no task: code = 5 is no text"),
}


@pytest.mark.parametrize("source", ["mbpp", "jsonl"])
@pytest.mark.parametrize("problem", BROKEN_MBPP)
def test_the_error_names_file_and_line_of_a_record_of_mbpp_that(problem, source, write):
    fields, message = BROKEN_MBPP[problem]
    path = write(MBPP_RECORD, {**MBPP_RECORD, **fields})
    assert message_of(path, source) == f"{path}:2: {message}"


@pytest.mark.parametrize("literal", ["0x" + "f" * 5000, "1e999", "{[]: 1}"])
def test_an_mbpp_task_is_left_out_whose_result_cannot_be_shown(literal, write):
    odd = {**MBPP_RECORD, "task_id": 602, "test_list": [f"assert double(2) == {literal}"] * 2}
    splits = load_tasks("mbpp", mbpp_path=write(MBPP_RECORD, odd))
    assert [task.id for task in splits["train"]] == ["mbpp-601"]


def test_a_file_without_a_task_to_train_on_is_refused(write):
    path = write({**RECORD, "split": "new"})
    assert message_of(path) == (
        f"{path}: no task of tasks.levels = [1, 2, 3] is in split 'train'; add some, or allow more levels"
    )
    path = write({**MBPP_RECORD, "task_id": 11})
    assert message_of(path, "mbpp") == (
        f"{path}: no task_id is of MBPP's train split, 601 to 974; add such tasks"
    )


@pytest.mark.parametrize("brackets", ["", "[]"])
def test_a_file_may_begin_with_a_byte_order_mark(brackets, tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text(brackets[:1] + json.dumps(RECORD) + brackets[1:], encoding="utf-8-sig")
    assert [task.id for task in load(str(path))["train"]] == ["double-1"]


def test_two_tasks_of_one_id_are_refused(write):
    path = write(RECORD, RECORD)
    assert message_of(path) == (f"{path}:2: id 'double-1' stands at {path}:1 already; give each task its own")


def test_a_missing_file_is_named(tmp_path):
    path = str(tmp_path / "no.jsonl")
    assert message_of(path) == f"{path}: cannot be read: No such file or directory; name a file of tasks"


def test_a_file_that_is_no_text_is_named(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(b"{\xff}")
    assert message_of(str(path)) == f"{path}: is no UTF-8 text (byte 1); name a file of tasks"


def test_a_broken_list_is_named(write):
    path = write("[1, 2")
    assert message_of(path) == f"{path}: not JSON (Expecting ',' delimiter); write one task a line"


def test_a_folder_without_mbpp_is_named(tmp_path):
    file = tmp_path / "mbpp.jsonl"
    assert message_of(str(tmp_path), "mbpp") == (
        f"{file}: cannot be read: No such file or directory; name a file of tasks"
    )


def test_tasks_of_our_format_are_not_mbpp(write):
    path = write(RECORD)
    assert message_of(path, "mbpp") == f"{path}:1: no task: the field 'test_list' is missing"


def test_an_unknown_source_is_refused():
    assert message_of("", "mbbp") == (
        "tasks.source = 'mbbp' is no source of tasks; write 'builtin', 'mbpp' or 'jsonl'"
    )


def test_mbpp_is_split_as_published(mbpp):
    assert {name: len(tasks) for name, tasks in mbpp.items()} == {"train": 371, "known": 88, "new": 498}
    for name, tasks in mbpp.items():
        assert all(int(task.id.removeprefix("mbpp-")) in MBPP_SPLITS[name] for task in tasks)


def test_an_mbpp_task_shows_its_first_assert_and_keeps_the_others(mbpp):
    task = next(task for task in mbpp["new"] if task.id == "mbpp-11")
    assert (task.function, task.parameters) == ("remove_Occ", "s, ch")
    assert (task.example_call, task.example.expected) == ("remove_Occ('hello', 'l')", "heo")
    assert [test.expected for test in task.tests] == ["bcd", "H"]


def test_the_sanitized_edition_is_read_as_well():
    path = DATA / "sanitized-mbpp.json"
    if not path.exists():
        pytest.skip("MBPP is not at hand: ../shared/data/sanitized-mbpp.json is missing")
    splits = load_tasks("mbpp", mbpp_path=str(path))
    assert {name: len(tasks) for name, tasks in splits.items()} == {"train": 114, "known": 42, "new": 241}

"""Evaluating on MBPP: real programs in a real sandbox, asked for by writers that a test can see through."""

import json
from pathlib import Path

import pytest
from pydantic import TypeAdapter
from refusals import refused
from tiny_policy import load_tiny

from rlnb.errors import SandboxUnavailable
from rlnb.mbpp import checking
from rlnb.mbpp.checking import evaluate, evaluate_samples, try_solutions
from rlnb.mbpp.display import show_summary
from rlnb.mbpp.evaluation import MbppEvaluation
from rlnb.mbpp.problems import Problem, interface, load_mbpp
from rlnb.mbpp.prompts import TEMPLATES
from rlnb.mbpp.results import save_evaluation, summarize
from rlnb.mbpp.samples import Sample, WrittenSample
from rlnb.mbpp.writers import keep_completions
from rlnb.params import load_params
from rlnb.policy import Completion
from rlnb.sandbox import Limits, Sandbox, zygotes

SANDBOX = {"limits": Limits(cpu_seconds=2)}
CHAT = TEMPLATES["chat"]
ASSERTS = ("assert double(2) == 4", "assert double(3) == 6", "assert double(0) == 0")
DOUBLE = Problem(1, "Write a function to double a number.", "def double(n): return 2 * n", ASSERTS)
TRIPLE = Problem(
    2, "Write a function to triple a number.", "def triple(n): return 3 * n",
    ("assert triple(2) == 6", "assert triple(1) == 3"),
)  # fmt: skip
RIGHT = {1: "```python\ndef double(n): return 2 * n\n```", 2: "```python\ndef triple(n): return 3 * n\n```"}


def scripted(*answers: str):
    """A writer that answers from a list."""
    return lambda questions, *_: [
        Completion(answers[index % len(answers)], False) for index in range(len(questions))
    ]


def ask(sandbox, writer, *problems, **options) -> list[Sample]:
    return evaluate(problems or (DOUBLE,), CHAT, writer, sandbox, shots={}, **options)


ANSWERS = {
    "def double(n): return 2 * n": ("passed", (True, True, True)),
    "def double(n): return 4": ("wrong", (True, False, False)),
    "def dubble(n): return 2 * n": ("runtime_error", (None, None, None)),
    "def double(n) return 2 * n": ("syntax_error", (None, None, None)),
    "def double(n):\n    while n: pass\n    return 0": ("timeout", (None, None, None)),
    "def double(n): return 2 * n\nexit(0)": ("runtime_error", (None, None, None)),
    "# I cannot.": ("no_code", (None, None, None)),
}


def test_an_answer_is_judged_by_its_asserts(sandbox):
    for program, judged in ANSWERS.items():
        (sample,) = ask(sandbox, scripted(f"```python\n{program}\n```"), timeout_seconds=0.5)
        assert (sample.outcome, sample.results) == judged
        assert sample.passed == (sample.outcome == "passed") == (sample.error == "")


def test_samples_come_in_the_order_of_problems(sandbox):
    writer = scripted(RIGHT[1], "none", RIGHT[2], "none")
    samples = ask(sandbox, writer, DOUBLE, TRIPLE, num_samples=2)
    assert [(s.task_id, s.sample, s.passed) for s in samples] == [
        (1, 0, True), (1, 1, False), (2, 0, True), (2, 1, False),
    ]  # fmt: skip


def test_completions_from_before_an_interruption_are_reused(tmp_path, sandbox):
    path, asked = tmp_path / "completions.jsonl", []

    def ask_kept(write, *problems, settings="m") -> list[Sample]:
        return ask(sandbox, keep_completions(write, path, settings=settings), *problems)

    def write_all(questions, template, progress, *, received, **_):
        asked.append([question.function for question in questions])
        for index, question in enumerate(questions):
            received(index, Completion({"double": RIGHT[1], "triple": RIGHT[2]}[question.function], False))

    def write_one(questions, template, progress, *, received, **_):
        received(1, Completion(RIGHT[2], False))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask_kept(write_one, DOUBLE, TRIPLE)
    path.write_bytes(path.read_bytes() + b'{"torn by a ki')
    for _ in range(2):
        assert [sample.passed for sample in ask_kept(write_all, DOUBLE, TRIPLE)] == [True, True]
    assert asked == [["double"]]
    ask_kept(write_all, DOUBLE, settings="other weights")
    assert asked == [["double"], ["double"]]


def test_setup_belongs_behind_the_program_and_imports_to_this_side(sandbox):
    problem = Problem(
        1, "", "import math\nclass Node:\n    def __init__(self): self.n = 2\ndef size(node): return node.n",
        ("assert size(root) == math.isqrt(4)",), setup="root = Node()",
    )  # fmt: skip
    (sample,) = evaluate_samples([problem], [WrittenSample(task_id=1, solution=problem.code)], sandbox)
    assert sample.passed, sample.error


def test_a_sandbox_that_fails_ends_the_evaluation_before_anything_is_written(monkeypatch):
    with Sandbox(num_workers=1) as sandbox:
        sandbox._idle.pop().close()
        monkeypatch.setattr(zygotes, "INTERPRETER", "/no/such/python")
        with pytest.raises(SandboxUnavailable, match="no program can be run"):
            ask(sandbox, lambda *_: pytest.fail("written"))


# Answers that pass without solving, as sandbox.md lists them, for a function NAME of a problem.
HACKS = {
    "os._exit": "import os\nos._exit(0)",
    "sys.exit": "import sys\nsys.exit(0)",
    "always equal": """
class Equal:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __bool__(self): return True
def NAME(*a, **k): return Equal()
""",
    "an integer that is always equal": """
class Equal(int):
    def __eq__(self, other): return True
    __hash__ = int.__hash__
def NAME(*a, **k): return Equal(0)
""",
    "exits when it is called": "import sys\ndef NAME(*a, **k): sys.exit(0)",
    "raises AssertionError itself": "def NAME(*a, **k): raise AssertionError",
    "excepthook": "import sys, os\nsys.excepthook = lambda *a: os._exit(0)\nraise ValueError",
    "atexit": "import atexit, os\natexit.register(os._exit, 0)\nraise ValueError",
    "parent frames": """
import re, sys
def NAME(*a, **k):
    frame = sys._getframe()
    while frame:
        for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
            if hasattr(value, "append"): value.append("passed")
            if found := re.search(r"assert NAME\\(.*?\\) == ([^']*)", str(value)): return eval(found[1])
        frame = frame.f_back
""",
    "read the asserts": """
import gc, re, sys
def NAME(*a, **k):
    texts = [text for text in gc.get_objects() if isinstance(text, str)] + sys.argv
    texts += [str(value) for f in sys._current_frames().values() for value in f.f_locals.values()]
    for text in texts:
        if found := re.search(r"assert NAME\\(.*\\) == (.*)", text): return eval(found[1])
""",
    "patched builtins": """
import builtins
for name in ("all", "abs", "set", "sorted"):
    setattr(builtins, name, lambda *a, **k: True)
def NAME(*a, **k): return "patched"
""",
}
NEVER_ANSWERS = HACKS["patched builtins"].replace('"all"', '"len", "isinstance", "all"')
HACK_SECONDS = 0.5  # of CPU time; all but the last take some hundredths


def hacked(problems: list[Problem], sandbox: Sandbox) -> list[str]:
    """Return the programs of the hacks that pass. Only one that breaks its own `len` runs out of time."""
    tries = [(hack, problem) for hack in HACKS.values() for problem in problems]
    tries += [(NEVER_ANSWERS, problem) for problem in problems[:2]]
    written = [
        WrittenSample(task_id=p.task_id, solution=hack.replace("NAME", interface(p).functions[0]))
        for hack, p in tries
    ]
    samples = evaluate_samples(problems, written, sandbox, timeout_seconds=HACK_SECONDS)
    late = [sample.completion for sample in samples if sample.outcome == "timeout"]
    assert late and [hack for hack in late if '"len"' not in hack] == []
    return [sample.completion for sample in samples if sample.passed]


def test_no_hack_passes_a_builtin_problem(sandbox):
    assert hacked(load_mbpp("builtin").split("all"), sandbox) == []


def test_no_hack_passes_a_problem_of_mbpp_in_a_weaker_sandbox(mbpp_folder):
    problems = load_mbpp(path=mbpp_folder).split("test")[:40]
    without = ("system calls", "files", "namespaces")
    with Sandbox(num_workers=2, require="basic", without=without) as sandbox:
        assert sandbox.level == "basic" and hacked(problems, sandbox) == []


def test_every_reference_passes_its_asserts(mbpp_folder, sandbox):
    problems = load_mbpp(path=mbpp_folder).split("all")
    written = [WrittenSample(task_id=p.task_id, solution=p.code) for p in problems]
    samples = evaluate_samples(problems, written, sandbox)
    assert len(samples) == 974
    assert {s.task_id: s.error for s in samples if not s.passed} == {}


def measurement(tmp_path, sandbox, num_questions=3, num_samples=1, **mbpp):
    mbpp = {"source": "builtin", **mbpp, "max_completion_length": 4}
    overrides = {
        "mbpp": mbpp,
        "evaluation": {"num_samples": num_samples, "num_questions": num_questions},
        "output_dir": str(tmp_path / "run"),
    }
    params = load_params("grpo_code_execution", profile="tiny", overrides=overrides, environ={})
    return MbppEvaluation.from_params(params, sandbox)


IN_PLACE = {  # the list is sorted there, where the assert does not see it
    "task_id": 12, "text": "Sort.", "code": "def f(a):\n    a.sort()",
    "test_list": ["a = [3, 1]\nf(a)\nassert a[0] == 1"],
}  # fmt: skip
NEVER_CALLED = {
    "task_id": 14,
    "text": "Add.",
    "code": "async def f(a, b): return a + b",
    "test_list": ["def test():\n    assert f(1, 2) == 3"],
}
SUM = {
    "task_id": 11,
    "text": "Add.",
    "code": "def f(a, b): return a + b",
    "test_list": ["assert f(1, 2) == 3"],
}
UNSOLVED = {
    "task_id": 13,
    "text": "Add.",
    "test_list": ["assert f(1, 2) == 3", "assert isinstance(f(1, 2), int)"],
}


def test_problems_that_no_program_passes_or_every_program_does_are_left_out_by_name(
    tmp_path, sandbox, write_lines, capsys
):
    path = write_lines(SUM, IN_PLACE, UNSOLVED, NEVER_CALLED)
    measure = measurement(tmp_path, sandbox, 4, source="hub", path=path)
    assert ([p.task_id for p in measure.problems], [p.task_id for p in measure.drawn]) == (
        [11, 13],
        [11, 12, 13, 14],
    )
    left_out = {
        "Mbpp/12": "own solution: a = [3, 1] f(a) assert a[0] == 1",
        "Mbpp/14": "its tests pass without a program",
    }
    untried = "1 problems without a solution"
    assert {"left_out": left_out, "untried": untried}.items() <= measure.describe().items()
    printed = capsys.readouterr().out
    assert f"{path}: left out: {left_out}\n{path}: untried: {untried}\n" in printed
    written = [WrittenSample(task_id=n, solution=SUM["code"]) for n in (11, 12, 13)]
    samples = evaluate_samples(measure.problems, written, sandbox)
    assert [(sample.task_id, sample.passed) for sample in samples] == [(11, True), (13, True)]
    assert "Mbpp/12" in str(show_summary(summarize(samples), measure.describe())._repr_html_())
    said = refused(measurement, tmp_path, sandbox, source="hub", path=write_lines(IN_PLACE))
    assert "no problem tells programs apart" in said


HOSTILE = {  # none is evaluated where f is right
    "assert f(1, 2) == 3 or open('MARK', 'w')": "open",
    "assert f(1, 2) == 3 or __import__('os').system('touch MARK')": ".system",
    "import os\nassert f(1, 2) == 3 or os.system('touch MARK')": "import os",
    "from math import pi\nassert f(1, 2) == 3 or pi.__class__": ".__class__",
    "assert f(1, 2) == 3 or '{0.__globals__}'.format(f)": ".format",
}


@pytest.mark.parametrize("code", [SUM["code"], ""])
def test_a_record_whose_tests_say_more_than_a_test_may_is_left_out_by_name_and_never_runs(
    tmp_path, sandbox, write_lines, monkeypatch, code
):
    monkeypatch.chdir(tmp_path)
    hostile = [*({"test_list": [test]} for test in HOSTILE), {"test_imports": ["import os"]}]
    records = [{**SUM, "task_id": n, "code": code, **fields} for n, fields in enumerate(hostile, start=12)]
    measure = measurement(tmp_path, sandbox, 9, source="hub", path=write_lines(SUM, *records))
    assert [problem.task_id for problem in measure.problems] == [11]
    for why, said in zip(measure.left_out.values(), [*HOSTILE.values(), "import os"], strict=True):
        assert f": {said} is not on the list" in why
    assert not Path("MARK").exists()


ENDLESS = (
    "assert f(1, 2) == 10**10**10", "assert f(1, 2) == 3 and 'a' * 10**10",
    "assert f(1, 2) == sum(range(10**12))", "assert f(1, 2) == '%9999999999d' % 1",
    "assert f(1, 2) != 1 << 10**12", "assert f(1, 2) != 0\nwhile 3: pass",
    "assert f(1, 2) == 3 and [0] * 10**10",
    "m = [f(1, 2)]\nfor i in range(10**5): m = map(abs, m)\nassert list(m)",
    "import re\nassert f(1, 2) == 3 and not re.match('(a+)+$', 'a' * 99 + 'b')",
)  # fmt: skip


@pytest.mark.parametrize("code", [SUM["code"], ""])
def test_a_record_whose_tests_never_end_is_left_out_by_name_and_never_runs_here(
    write_lines, sandbox, monkeypatch, code
):
    monkeypatch.setattr(checking, "REFERENCE_SECONDS", 0.5)
    records = [{**SUM, "task_id": n, "code": code, "test_list": [test]} for n, test in enumerate(ENDLESS)]
    left_out = try_solutions(load_mbpp(path=write_lines(*records)).split("all"), sandbox, timeout_seconds=0.5)
    # Without a solution f returns None, and what comes behind f's right result is not tried.
    assert set(left_out) == (set(range(len(ENDLESS))) if code else {0, 2, 3, 4, 5, 7})


def test_a_smaller_draw_is_part_of_a_larger_one_and_a_disabled_one_is_empty(tmp_path, sandbox):
    assert measurement(tmp_path, sandbox, enabled=False)(scripted("never")) == []
    few, many = ([p.task_id for p in measurement(tmp_path, sandbox, n).problems] for n in (5, 20))
    assert len(few) == 5 and set(few) < set(many) and many == sorted(many)


def test_an_evaluation_is_written_at_once_and_read_back_for_the_same_settings(tmp_path, sandbox):
    measure, policy = measurement(tmp_path, sandbox, num_samples=2), load_tiny(tmp_path / "cache")
    first = measure.measure(policy, "before")
    assert len(first) == 6
    assert measure.measure(policy, "before", progress=lambda *_: pytest.fail("written again")) == first
    assert len(measurement(tmp_path, sandbox).measure(policy, "before")) == 3


def test_completions_are_kept_where_another_node_judges_them_elsewhere(tmp_path, sandbox):
    measure, kept = measurement(tmp_path, sandbox), tmp_path / "completions.jsonl"

    def write_all(questions, *_, received, **__):
        for index in range(len(questions)):
            received(index, Completion("x", False))

    measure(write_all, kept=kept)
    with Sandbox(num_workers=1, without=("namespaces", "files"), require="none") as other:
        assert other.level != sandbox.level
        assert len(measurement(tmp_path, other)(pytest.fail, kept=kept)) == 3


def test_outcomes_of_every_kind_survive_being_saved(tmp_path, sandbox):
    bodies = ("return n", "1 / 0", "while True: pass", "return 2 * n")
    texts = ["no code", *(f"```python\ndef double(n):\n    {body}\n```" for body in bodies)]
    samples = ask(sandbox, scripted(*texts), num_samples=len(texts), timeout_seconds=1)
    assert [s.outcome for s in samples] == ["no_code", "wrong", "runtime_error", "timeout", "passed"]
    save_evaluation(tmp_path / "m.json", samples, params={}, settings={"seed": 1})
    saved = json.loads((tmp_path / "m.json").read_text())["samples"]
    assert TypeAdapter(list[Sample]).validate_python(saved) == samples

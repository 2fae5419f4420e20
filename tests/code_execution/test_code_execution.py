"""Judging and paying programs: the required rewards, and correctness that a program cannot fake."""

from dataclasses import replace
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from tiny_policy import load_tiny

from rlnb.code_execution.evaluation import JudgedAnswer, ProgramEvaluation, heldout_metrics, measure
from rlnb.code_execution.params import GrpoCodeExecutionParams
from rlnb.code_execution.reward import (
    MARK,
    CodeRewards,
    Judgement,
    batch_metrics,
    check_results,
    compute_reward,
    judge,
    try_solutions,
    with_calls,
)  # fmt: skip
from rlnb.code_execution.sources import mbpp_tasks
from rlnb.code_execution.tasks import Task
from rlnb.code_execution.tasks import Test as Call
from rlnb.errors import SandboxUnavailable
from rlnb.mbpp.problems import load_mbpp
from rlnb.notebook import load_cell
from rlnb.policy import generation
from rlnb.run.metrics import STATUSES
from rlnb.sandbox import Execution, Limits, Sandbox, zygotes
from rlnb.sandbox.zygotes import Zygote

SANDBOX = {"limits": Limits(cpu_seconds=1)}
SLOW_TASK = 123  # 2 s of computing
cell = load_cell("grpo_code_execution", "reward", {"params": GrpoCodeExecutionParams()})
pay_execution, pay_tests = cell["execution"], cell["tests"]
PASS, WRONG_RESULT, ERROR = 1.0, 0.0, -0.25


def make_task(*tests: Call) -> Task:
    return Task("t", "family", 1, "f", "n", "Do it.", Call((0,), 0), tests)


DOUBLE = make_task(Call((2,), 4), Call((5,), 10), Call((-1,), -2))
RIGHT = "def f(n):\n    return 2 * n\n"


def judge_all(programs: dict[str, str], sandbox: Sandbox, *, task: Task = DOUBLE) -> dict[str, Judgement]:
    completions = [f"```python\n{program}\n```" for program in programs.values()]
    judgements = judge(completions, [task] * len(programs), [""] * len(programs), sandbox)
    return dict(zip(programs, judgements, strict=True))


def judge_program(program: str, sandbox: Sandbox, *, task: Task = DOUBLE) -> Judgement:
    return judge_all({"": program}, sandbox, task=task)[""]


def finished(stdout: str, status="ok") -> Execution:
    return Execution(status, stdout, "", "", 0.0, 0.0, "")


REQUIRED = {
    "ran with output": ("print(1)", 1.0),
    "ran without output": ("x = 1", 0.5),
    "ran with blank output": ("print()", 0.5),
    "broke the syntax": ("def (", -0.5),
    "raised": ("1 / 0", -1.0),
    "never ended": ("while True: pass", -1.0),
    "took too much memory": ("x = 'x' * 10 ** 10", -1.0),
    "wrote too much": ("while True: print('x' * 1000)", -1.0),
    "was killed": ("import os; os.abort()", -1.0),
    "is wrong, and prints": ("def f(n):\n    return 7\nprint(f(1))", 1.0),
}


def test_preset_execution_pays_what_a_program_did(sandbox):
    judgements = judge_all({what: program for what, (program, _) in REQUIRED.items()}, sandbox)
    for what, judgement in judgements.items():
        assert pay_execution(judgement) == REQUIRED[what][1], what


def test_a_text_without_code_is_paid_like_broken_syntax(sandbox):
    for judgement in judge(["I cannot.", "```python\n# To do.\n```"], [DOUBLE] * 2, [""] * 2, sandbox):
        assert (judgement.outcome, pay_execution(judgement), pay_tests(judgement)) == ("no_code", -0.5, ERROR)


HONEST = {
    "prints without a newline at the end": RIGHT + "print('done', end='')",
    "prints in the function": "def f(n):\n    print('n is', n, end=' ')\n    return 2 * n",
    "has its own print, repr and Exception": RIGHT + "print = repr = Exception = dict = isinstance = None",
    "redirects its output": RIGHT + "import io, sys\nsys.stdout = io.StringIO()",
    "spoils its argument": "def f(n):\n    result = 2 * n\n    n = None\n    return result",
    "returns whole floats": "def f(n):\n    return 2.0 * n",
    "ends without a newline in a comment": RIGHT + "# that is all",
    "leaves a thread": RIGHT + "import threading; threading.Thread(target=int).start()",
    "prints odd line ends": RIGHT + "print('a\\x0b\\x1c\\u2028b\\r')",
    "leaves by exit": RIGHT + "print(f(2))\nexit()",
    "leaves by quit, with a number": RIGHT + "quit(0)",
    "leaves by SystemExit": RIGHT + "raise SystemExit",
    "leaves in a guard": RIGHT + "import sys\nif __name__ == '__main__':\n    sys.exit(print(f(3)))",
    "leaves by its own tests": (
        RIGHT + "import unittest\nclass T(unittest.TestCase):\n"
        "    def test(self): self.assertEqual(f(2), 4)\nunittest.main()"
    ),
    "closes its output at the end": RIGHT + "import sys\nprint(f(2))\nsys.stdout.close()",
    "wraps its output": RIGHT + "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer)",
    "wraps and takes its output": RIGHT
    + "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.detach())",
    "has no output": RIGHT + "import sys\nsys.stdout = sys.__stdout__ = None",
    "looks from the future": "'Doc.'\nfrom __future__ import annotations\n" + RIGHT + "len(__doc__)",
    "names an encoding": "# -*- coding: latin-1 -*-\ndef f(n): return n * (1 + len('ü'))\nassert f(1) == 2",
    "begins with a byte-order mark": "\ufeff" + RIGHT,
    "reads where it lies": RIGHT + "import os\nassert os.path.dirname(__file__) == os.getcwd()",
    "reads its source": RIGHT
    + "import inspect\nassert inspect.getsource(f) == 'def f(n):\\n    return 2 * n\\n'",
    "recurses as deep as a script may": "def f(n, left=990): return f(n, left - 1) if left else 2 * n\nf(1)",
}


def test_a_right_function_passes_whatever_its_program_does_besides(sandbox):
    for what, judgement in judge_all(HONEST, sandbox).items():
        assert judgement.results == (True, True, True), what
        assert pay_tests(judgement) == PASS, what


EVIL = "class Evil:\n    def __repr__(self): {}\ndef f(n): return Evil()"
WRONG = {
    "returns a constant": "def f(n): return 4",
    "returns booleans": "def f(n): return True",
    "returns a generator": "def f(n): yield 2 * n",
    "returns text": "def f(n): return str(2 * n)",
    "returns what equals everything": (
        "class Same:\n    def __eq__(self, other): return True\n    def __repr__(self): return 'Same()'\n"
        "def f(n): return Same()"
    ),
    "prints marks before": f"for x in (4, 10, -2): print({MARK!r}, x)\ndef f(n): return 7",
    "prints a mark in every call": f"def f(n):\n    print({MARK!r} + '4')\n    return 7",
    "prints marks behind": (
        "import atexit\n@atexit.register\ndef _():\n    for _ in range(3): print('#rlnb-result 9')\n"
        "def f(n): return 7"
    ),
    "is shown as a mark": EVIL.format(f"return '\\n{MARK}4\\n{MARK}10'"),
}


def test_a_function_that_returns_something_else_is_wrong(sandbox):
    for what, judgement in judge_all(WRONG, sandbox).items():
        assert not judgement.passed, what
        assert pay_tests(judgement) == WRONG_RESULT, what


BROKEN = {
    "is missing": "def g(n): return 2 * n",
    "raises": "def f(n): raise KeyError(n)",
    "leaves it at once": "import os\ndef f(n): os._exit(0)",
    "prints the marks and leaves": (
        f"import os, sys\ndef f(n):\n    print('\\n{MARK}5' * 3)\n    sys.stdout.flush()\n    os._exit(1)"
    ),
    "returns an integer too long to show": "def f(n): return 10 ** 5000",
    "returns what cannot be shown": EVIL.format("raise KeyError"),
    "floods the output": "def f(n):\n    while True: print('x' * 999)",
    "closes the output": "import os\ndef f(n):\n    os.close(1)\n    return 2 * n",
}


def test_a_function_that_returns_nothing_earns_less_than_a_wrong_one(sandbox):
    for what, judgement in judge_all(BROKEN, sandbox).items():
        assert not judgement.passed, what
        forges_marks = what == "prints the marks and leaves"
        assert pay_tests(judgement) in ((ERROR, WRONG_RESULT) if forges_marks else (ERROR,)), what


SOLVED = {
    "right": ("n", "def f(n):\n    return 2 * n\nexit()", True),
    "wrong": ("n", "def f(n):\n    return n", False),
    "without a solution": ("n, also=None", "", True),
    "not to be called by position": ("*, n", "", False),
}


def test_tasks_that_their_own_solution_fails_are_left_out_by_name(sandbox, capsys):
    tasks = [
        replace(DOUBLE, id=name, parameters=text, solution=solution)
        for name, (text, solution, _) in SOLVED.items()
    ]
    kept, left_out = try_solutions({"train": tasks, "known": []}, sandbox)
    assert [task.id for task in kept["train"]] == [name for name, (*_, is_kept) in SOLVED.items() if is_kept]
    assert [*left_out] == ["wrong", "not to be called by position"] and kept["known"] == []
    printed = capsys.readouterr().out
    assert all(f"task {name} is left out: {why}\n" in printed for name, why in left_out.items())
    assert "2 of 4 tasks have no solution" in printed
    assert "'train' are left out" in refused(try_solutions, {"train": tasks[1:2]}, sandbox)


FAILS_AT_EXIT = "import atexit, os, sys\natexit.register(lambda: sys.stdout.flush() or os._exit(1))\n"
FAILS_AS_A_SCRIPT = {
    RIGHT + "x = 1 \\": ("syntax_error", (None, None, None)),
    FAILS_AT_EXIT + RIGHT: ("runtime_error", (True, True, True)),
    RIGHT + "exit('told why')": ("runtime_error", (True, True, True)),
}


def test_right_results_are_no_pass_where_the_script_fails(sandbox):
    for program, expected in FAILS_AS_A_SCRIPT.items():
        judgement = judge_program(program, sandbox)
        assert (judgement.outcome, judgement.results) == expected
        assert not judgement.passed and pay_tests(judgement) == ERROR
        assert batch_metrics([judgement], [pay_tests])["reward/pass_rate"] == 0


def test_expected_results_never_enter_the_program(sandbox):
    secret = 7_391_846_205
    task = make_task(Call((2,), secret), Call((3,), secret + 1))
    look = (
        "import gc, os, sys\n"
        "seen = repr([o for o in gc.get_objects() if isinstance(o, (dict, list, tuple))])\n"
        "frame = sys._getframe()\n"
        "while frame: seen += repr(frame.f_locals) + repr(frame.f_code.co_consts); frame = frame.f_back\n"
        "seen += repr(os.environ) + repr(sys.argv) + repr(os.listdir('.'))\n"
        "def f(n): return seen\n"
        f"print(''.join(reversed({str(secret)[::-1]!r})) in seen)"
    )
    assert str(secret) not in with_calls(RIGHT, task)
    assert judge_program(look, sandbox, task=task).execution.stdout == "False\n"


def test_no_program_is_paid_for_a_run_in_which_the_sandbox_failed(monkeypatch):
    real = Zygote.run

    def fails_on_calls(zygote, source, limits, *, stopped):
        answer, body = real(zygote, source, limits, stopped=stopped)
        failed = answer._replace(letter="X", message="no process left")
        return (failed if MARK.encode() in source else answer), body

    monkeypatch.setattr(Zygote, "run", fails_on_calls)
    with Sandbox(num_workers=1) as sandbox:
        judgement = judge_program(RIGHT, sandbox)
    assert (judgement.outcome, judgement.execution.error) == ("sandbox_error", "no process left")
    assert compute_reward(judgement, [pay_tests]) is None


@given(st.lists(st.sampled_from(["4", "10", "-2", "x"]), max_size=9), st.sampled_from(["7", "''", "None"]))
def test_no_mark_printed_by_a_program_makes_a_wrong_result_right(forged, wrong):
    printed = "".join(f"\n{MARK}{text}\n" for text in forged)
    calls = f"\n{MARK}{wrong}\n" * len(DOUBLE.tests)
    assert check_results(finished(printed + calls), DOUBLE) == (False, False, False)
    cut = f"\n{MARK}4\n\n{MARK}11\n"  # what was printed before a program was ended counts
    assert check_results(finished(cut, "timeout"), DOUBLE) == (True, False, None)


def test_trl_is_given_a_reward_a_completion_from_each_function_and_the_batchs_metrics(sandbox):
    rewards = CodeRewards([DOUBLE], sandbox, [pay_execution, pay_tests])
    metrics, columns = [], {}
    batch = {
        "completions": [RIGHT + "print(f(2))", "1 /", "No.", "x = 1 / 0"],
        "task_id": ["t"] * 4,
        "prefix": [""] * 4,
        "prompts": ["ignored"] * 4,
    }  # fmt: skip
    execution, tests = (
        function(**batch, log_metric=lambda *pair: metrics.append(pair), log_extra=columns.__setitem__)
        for function in rewards.for_trl()
    )
    assert execution == [1.0, -0.5, -0.5, -1.0]
    assert tests == [1.0, -0.25, -0.25, -0.25]
    assert columns["outcome"] == ["ok_with_output", "no_code", "no_code", "runtime_error"]
    assert columns["passed"] == [True, False, False, False]
    assert len(metrics) == len(dict(metrics)), "logged once"
    values = dict(metrics)
    assert values["reward/avg_batch_reward"] == pytest.approx(-0.25 + 0.0625)
    assert values["reward/successful_predictions_count"] == 1
    assert values["reward/pass_rate"] == values["reward/best_share"] == 0.25
    assert sum(value for name, value in metrics if name.startswith("status/")) == 1
    assert values["time/reward_seconds"] > 0


@given(st.sampled_from(STATUSES), st.lists(st.sampled_from([True, False, None]), max_size=3))
def test_what_earns_the_most_is_said_by_the_reward_and_not_by_the_tests(outcome, results):
    judgement = Judgement("print(1)", outcome, None, tuple(results))
    has_printed = outcome == "ok_with_output"
    shares = [batch_metrics([judgement], [pay])["reward/best_share"] for pay in (pay_execution, pay_tests)]
    assert shares == [has_printed, judgement.ran and all(results)]


def test_a_batch_runs_once_for_all_functions(sandbox, monkeypatch):
    run = Mock(side_effect=sandbox.run_many)
    monkeypatch.setattr(sandbox, "run_many", run)
    functions = CodeRewards([DOUBLE], sandbox, [pay_execution, pay_tests]).for_trl()
    for batch in ([RIGHT, RIGHT], [RIGHT, RIGHT]):  # TRL gives both functions the same list
        for function in functions:
            function(completions=batch, task_id=["t"] * 2, prefix=[""] * 2)
    (programs,), _ = (call.args for call in run.call_args_list)
    assert len(programs) == 2  # each different program as a script, and with calls


def test_too_many_failures_of_the_sandbox_end_the_run(monkeypatch):
    with Sandbox(num_workers=1) as sandbox:
        sandbox._idle.pop().close()
        monkeypatch.setattr(zygotes, "INTERPRETER", "/no/such/python")
        (reward,) = CodeRewards([DOUBLE], sandbox, [pay_tests]).for_trl()
        with pytest.raises(SandboxUnavailable, match="2 of 2 programs"):
            reward(completions=[RIGHT, "x = 2"], task_id=["t"] * 2, prefix=[""] * 2)


def make_answer(name: str, right: bool | None, *, split: str = "known", greedy: bool = False) -> JudgedAnswer:
    """An answer that is right, wrong, or (None) could not be run."""
    outcome = "sandbox_error" if right is None else "ok_with_output"
    return JudgedAnswer(name, "Do it.", split, greedy, "", True, Judgement("", outcome, None, (True, right)))


def test_sampled_and_greedy_answers_are_measured_separately():
    answers = [make_answer("a", True), make_answer("a", False), make_answer("b", True)]
    greedy = make_answer("a", True, greedy=True)
    assert measure([greedy], [pay_execution])["reward"] == {"known": {"a": 1.0}}  # where none was sampled
    assert measure([*answers, make_answer("a", False, greedy=True)], [pay_tests]) == {
        "reward": {"known": {"a": 0.5, "b": 1.0}},
        "output_rate_sampled": {"known": {"a": 1.0, "b": 1.0}},
        "output_rate_greedy": {"known": {"a": 1.0}},
        "pass_rate_sampled": {"known": {"a": 0.5, "b": 1.0}},
        "pass_rate_greedy": {"known": {"a": 0.0}},
        # All were cut, but those that pass are whole.
        "cut_rate": {"known": {"a": pytest.approx(2 / 3), "b": 0.0}},
    }


def test_an_evaluation_writes_as_many_answers_at_a_time_as_it_is_told(cache_dir, sandbox, monkeypatch):
    sizes, decode = [], generation.decode

    def count_rows(model, prompts, **options):
        sizes.append(len(prompts))
        return decode(model, prompts, **options)

    monkeypatch.setattr(generation, "decode", count_rows)
    params = GrpoCodeExecutionParams(
        evaluation={"batch_size": 4, "num_samples": 3}, training={"max_completion_length": 2}
    )
    evaluate = ProgramEvaluation(params, {"known": [replace(DOUBLE, id=name) for name in "abc"]}, sandbox)
    assert len(evaluate(load_tiny(cache_dir))) == sum(sizes) == 12
    assert sizes == [3, 4, 4, 1]  # greedy ones, then samples


def test_an_evaluation_by_other_tests_is_made_again(cache_dir, tmp_path, sandbox):
    sections = {"evaluation": {"temperature": 0.0}, "training": {"max_completion_length": 2}}
    params, policy = GrpoCodeExecutionParams(output_dir=str(tmp_path), **sections), load_tiny(cache_dir)
    others = replace(DOUBLE, tests=(*DOUBLE.tests, Call((3,), 6)))
    first, again, other = (
        ProgramEvaluation(params, {"known": [task]}, sandbox).measure(policy, "before")
        for task in (DOUBLE, DOUBLE, others)
    )
    assert first == again != other and len(other[0].judgement.results) == 4


def test_an_evaluation_that_the_sandbox_failed_to_run_is_not_kept(cache_dir, tmp_path, monkeypatch):
    def judge(texts, *_, **__):
        return [Judgement("x", "sandbox_error", finished("", "sandbox_error"), (None,)) for _ in texts]

    monkeypatch.setattr("rlnb.code_execution.evaluation.judge", judge)
    params = GrpoCodeExecutionParams(output_dir=str(tmp_path), training={"max_completion_length": 2})
    evaluation = ProgramEvaluation(params, {"known": [DOUBLE] * 5}, Mock(level="none", limits=Limits()))
    with pytest.raises(SandboxUnavailable, match="10 of 10 programs"):
        evaluation.measure(load_tiny(cache_dir), "before")
    assert not list(tmp_path.glob("tasks_*"))


def test_metrics_are_means_over_tasks_by_split_without_answers_that_could_not_be_run():
    answers = [make_answer("a", True), make_answer("a", None), make_answer("b", False)]
    metrics = heldout_metrics([*answers, make_answer("c", True, split="new")], [pay_tests])
    assert (metrics["heldout/known/reward"], metrics["heldout/new/reward"]) == (0.5, 1.0)
    assert metrics["heldout/known/pass_rate_sampled"] == 0.5 and len(metrics) == 8


def test_a_sample_of_mbpps_references_passes_the_slowest_among_them(mbpp_folder, sandbox):
    problems = load_mbpp(path=mbpp_folder).problems
    tasks = mbpp_tasks(problems[task_id] for task_id in [SLOW_TASK, *range(11, 975, 16)])
    completions = [f"```python\n{problems[task_id].code}\n```" for task_id in tasks]
    limits = Limits(cpu_seconds=10)
    judgements = judge(completions, list(tasks.values()), [""] * len(tasks), sandbox, limits=limits)
    assert len(judgements) >= 60
    assert [run for run in judgements if not run.passed] == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{'a': Counter(n)}", {"a": {"x": 2}}),
        ("[defaultdict(int, x=2)]", [{"x": 2}]),
        ("namedtuple('P', 'x y')(1, 2)", (1, 2)),
        ("deque([1])", None),  # no list
    ],
)
def test_a_value_of_the_library_is_written_as_the_plain_one_that_it_equals(source, expected, sandbox):
    task, program = (
        make_task(Call(("xx",), expected)),
        f"from collections import *\ndef f(n): return {source}",
    )
    assert judge_program(program, sandbox, task=task).passed == (expected is not None)


def test_an_mbpp_task_takes_what_its_assert_takes(sandbox):
    tasks = [make_task(Call((2,), True), Call((3,), False))]
    tasks.append(replace(tasks[0], family="mbpp"))
    passed = [judge_program("def f(n): return 1 - n % 2", sandbox, task=task).passed for task in tasks]
    assert passed == [False, True]

"""Rewards of programs: the table to the letter, and correctness that cannot be talked into."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlnb.errors import SandboxUnavailable
from rlnb.rewards.code_execution import (
    ERROR_REWARD,
    EXECUTION_REWARDS,
    MARK,
    PASS_REWARD,
    WRONG_REWARD,
    CodeReward,
    Judgement,
    batch_metrics,
    compare_results,
    equal_to,
    judge,
    with_calls,
)
from rlnb.sandbox import Execution, Limits, Sandbox, zygotes
from rlnb.sandbox.zygotes import Zygote
from rlnb.tasks import Task
from rlnb.tasks.mbpp import load_mbpp
from rlnb.tasks.programming import Test as Call
from rlnb.tasks.sources import load_tasks, mbpp_tasks

MBPP = Path(__file__).parents[3] / "shared" / "data" / "mbpp.jsonl"
SLOW_TASK = 123  # 2 s of computing
# Its reference returns 0 and 1 where the asserts say False and True.
NOT_BY_OUR_RULE = {414}


def task_of(*tests: Call, name: str = "t", function: str = "f") -> Task:
    return Task(name, "family", 1, function, "n", "Do it.", Call((0,), 0), tests)


DOUBLE = task_of(Call((2,), 4), Call((5,), 10), Call((-1,), -2))
RIGHT = "def f(n):\n    return 2 * n\n"


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(Limits(cpu_seconds=1), num_workers=2) as opened:
        yield opened


def judged(code: str, sandbox: Sandbox, *, task: Task = DOUBLE) -> Judgement:
    (judgement,) = judge([f"```python\n{code}\n```"], [task], [""], sandbox)
    return judgement


def finished(stdout: str, status="ok") -> Execution:
    return Execution(status, stdout, "", "", 0.0, 0.0, "")


REQUIRED = {
    "ran with output": ("print(1)", 1.0),
    "ran without output": ("x = 1", 0.5),
    "ran with blank output": ("print()", 0.5),
    "broke the syntax": ("def (", -0.5),
    "broke the indentation": ("if 1:\npass", -0.5),
    "raised": ("1 / 0", -1.0),
    "never ended": ("while True: pass", -1.0),
    "took too much memory": ("x = 'x' * 10 ** 10", -1.0),
    "wrote too much": ("while True: print('x' * 1000)", -1.0),
    "was killed": ("import os; os.abort()", -1.0),
}


@pytest.mark.parametrize("what", REQUIRED)
def test_preset_execution_pays_a_program_that(what, sandbox):
    program, reward = REQUIRED[what]
    assert judged(program, sandbox).reward("execution") == reward


def test_preset_execution_pays_no_code_like_broken_syntax(sandbox):
    (judgement,) = judge(["I cannot."], [DOUBLE], [""], sandbox)
    assert (judgement.outcome, judgement.reward("execution")) == ("no_code", -0.5)
    assert judgement.reward("tests") == ERROR_REWARD


def test_comments_alone_are_no_code(sandbox):
    judgement = judged("# To do: write f.", sandbox)
    assert (judgement.outcome, judgement.reward("execution")) == ("no_code", -0.5)


def test_preset_execution_never_looks_at_correctness(sandbox):
    assert judged("def f(n):\n    return 7\nprint(f(1))", sandbox).reward("execution") == 1.0


def test_the_table_has_a_reward_for_every_outcome_but_the_sandboxs_own_failure():
    assert EXECUTION_REWARDS == {
        "ok_with_output": 1.0,
        "ok_without_output": 0.5,
        "no_code": -0.5,
        "syntax_error": -0.5,
        "runtime_error": -1.0,
        "timeout": -1.0,
        "memory_exceeded": -1.0,
        "output_exceeded": -1.0,
        "killed": -1.0,
        "sandbox_error": None,
    }


def test_preset_tests_orders_right_wrong_and_broken():
    assert PASS_REWARD == 1.0
    assert ERROR_REWARD < WRONG_REWARD <= 0 < PASS_REWARD


HONEST = {
    "is plain": RIGHT,
    "prints without a newline at the end": RIGHT + "print('done', end='')",
    "prints in the function": "def f(n):\n    print('n is', n, end=' ')\n    return 2 * n",
    "has its own print, repr and Exception": RIGHT + "print = repr = Exception = dict = isinstance = None",
    "redirects its output": RIGHT + "import io, sys\nsys.stdout = io.StringIO()",
    "spoils its argument": "def f(n):\n    result = 2 * n\n    n = None\n    return result",
    "returns whole floats": "def f(n):\n    return 2.0 * n",
    "ends without a newline in a comment": RIGHT + "# that is all",
    "leaves a thread": RIGHT + "import threading; threading.Thread(target=int).start()",
    "runs only as a script": RIGHT + "if __name__ == '__main__':\n    print(f(2))",
    "prints odd line ends": RIGHT + "print('a\\x0b\\x1c\\u2028b\\r')",
}


@pytest.mark.parametrize("what", HONEST)
def test_a_right_function_passes_although_its_program(what, sandbox):
    judgement = judged(HONEST[what], sandbox)
    assert judgement.results == (True, True, True)
    assert judgement.reward("tests") == PASS_REWARD


def test_a_counter_passes_for_the_dict_that_it_equals(sandbox):
    task = task_of(Call(("aab",), {"a": 2, "b": 1}), Call(("",), {}))
    code = "from collections import Counter\ndef f(text):\n    return Counter(text)"
    assert judged(code, sandbox, task=task).passed


EVIL = "class Evil:\n    def __repr__(self): {}\ndef f(n): return Evil()"
WRONG = {
    "returns None": "def f(n): pass",
    "returns a constant": "def f(n): return 4",
    "returns booleans": "def f(n): return True",
    "returns a generator": "def f(n): yield 2 * n",
    "returns text": "def f(n): return str(2 * n)",
    "returns NaN": "def f(n): return float('nan')",
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


@pytest.mark.parametrize("what", WRONG)
def test_a_function_is_wrong_that(what, sandbox):
    judgement = judged(WRONG[what], sandbox)
    assert not judgement.passed
    assert judgement.reward("tests") == WRONG_REWARD


BROKEN = {
    "is missing": "def g(n): return 2 * n",
    "raises": "def f(n): raise KeyError(n)",
    "leaves the program": "import sys\ndef f(n): sys.exit(0)",
    "leaves it at once": "import os\ndef f(n): os._exit(0)",
    "prints the marks and leaves": (
        f"import os, sys\ndef f(n):\n    print('\\n{MARK}5' * 3)\n    sys.stdout.flush()\n    os._exit(1)"
    ),
    "takes no argument": "def f(): return 4",
    "recurses for ever": "def f(n): return f(n)",
    "returns an integer too long to show": "def f(n): return 10 ** 5000",
    "returns what cannot be shown": EVIL.format("raise KeyError"),
    "leaves when shown": EVIL.format("raise SystemExit(0)"),
    "floods the output": "def f(n):\n    while True: print('x' * 999)",
    "closes the output": "import os\ndef f(n):\n    os.close(1)\n    return 2 * n",
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_function_earns_less_than_a_wrong_one_that(what, sandbox):
    judgement = judged(BROKEN[what], sandbox)
    assert not judgement.passed
    assert judgement.reward("tests") in (ERROR_REWARD, WRONG_REWARD)
    if what != "prints the marks and leaves":
        assert judgement.reward("tests") == ERROR_REWARD


NOT_RUNNING = {
    "is completed by the calls behind it": (RIGHT + "x = 1 \\", "syntax_error"),
    "fails once its function has served": (
        "import atexit, os, sys\n" + RIGHT + "atexit.register(lambda: (sys.stdout.flush(), os._exit(1)))",
        "runtime_error",
    ),
}


@pytest.mark.parametrize("what", NOT_RUNNING)
def test_right_results_are_no_pass_where_the_script(what, sandbox):
    program, outcome = NOT_RUNNING[what]
    judgement = judged(program, sandbox)
    assert (judgement.outcome, judgement.results) == (outcome, (True, True, True))
    assert not judgement.passed
    assert judgement.reward("tests") == ERROR_REWARD
    assert batch_metrics([judgement], [ERROR_REWARD])["reward/pass_rate"] == 0


def test_expected_results_never_enter_the_program(sandbox):
    secret = 7_391_846_205
    task = task_of(Call((2,), secret), Call((3,), secret + 1))
    look = (
        "import gc, os, sys\n"
        "seen = repr([o for o in gc.get_objects() if isinstance(o, (dict, list, tuple))])\n"
        "frame = sys._getframe()\n"
        "while frame: seen += repr(frame.f_locals) + repr(frame.f_code.co_consts); frame = frame.f_back\n"
        "seen += repr(os.environ) + repr(sys.argv) + repr(os.listdir('.'))\n"
        "def f(n):\n"
        "    return seen\n"
        f"print(''.join(reversed({str(secret)[::-1]!r})) in seen)"
    )
    assert str(secret) not in with_calls(RIGHT, task)
    assert judged(look, sandbox, task=task).execution.stdout == "False\n"


def test_a_sandbox_that_fails_in_either_run_blames_nobody(monkeypatch):
    real = Zygote.run

    def fails_on_calls(zygote, source, limits, *, stopped):
        answer, body = real(zygote, source, limits, stopped=stopped)
        return (
            {**answer, "letter": "X", "message": "no process left"} if MARK.encode() in source else answer
        ), body

    monkeypatch.setattr(Zygote, "run", fails_on_calls)
    with Sandbox(num_workers=1) as sandbox:
        judgement = judged(RIGHT, sandbox)
    assert (judgement.outcome, judgement.execution.error) == ("sandbox_error", "no process left")
    assert judgement.reward("tests") is None
    assert judgement.reward("execution") is None


EQUAL = [
    ("4", 4, True),
    ("4.0", 4, True),
    ("4", 4.0, True),
    ("0.30000000000000004", 0.3, True),
    ("True", 1, False),
    ("1", True, False),
    ("[1, True]", [1, 1], False),
    ("{'a': True}", {"a": 1}, False),
    ("{'a': 1.0}", {"a": 1}, True),
    ("[1, 2]", (1, 2), False),
    ("(1, (2,))", (1, (2,)), True),
    ("{1, 2}", {2, 1}, True),
    ("set()", set(), True),
    ("{}", set(), False),
    ("None", None, True),
    ("nan", 1.0, False),
    ("1" + "0" * 400, 1.0, False),
    ("1e999", 1.0, False),
    ("1" * 5000, 1, False),
    ("[" * 5000, [], False),
    ("-" * 50_000 + "1", -1, False),
    ("__import__('os')", None, False),
    ("<generator object f at 0x7f>", [1], False),
    ("\0", "", False),
]


@pytest.mark.parametrize(("text", "expected", "same"), EQUAL, ids=lambda value: repr(value)[:24])
def test_printed_results_are_compared_as_plain_values(text, expected, same):
    assert equal_to(text, expected) is same


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(plain)
def test_every_plain_value_equals_itself_as_printed(value):
    assert equal_to(repr(value), value)


@given(plain, plain)
def test_what_python_holds_for_unequal_is_never_equal_but_for_rounding(left, right):
    if equal_to(repr(left), right) and not isinstance(left, float | list | tuple | dict):
        assert left == right or math.isclose(left, right, abs_tol=1e-12)


@given(st.text(), st.lists(st.text(), max_size=9))
def test_any_printed_text_is_compared_without_an_error(text, lines):
    equal_to(text, 1)
    compare_results(finished(f"\n{MARK}".join([text, *lines])), DOUBLE)


@given(st.lists(st.sampled_from(["4", "10", "-2", "x"]), max_size=9), st.sampled_from(["7", "''", "None"]))
def test_no_mark_printed_by_a_program_makes_a_wrong_result_right(forged, wrong):
    printed = "".join(f"\n{MARK}{text}\n" for text in forged)
    calls = f"\n{MARK}{wrong}\n" * len(DOUBLE.tests)
    assert compare_results(finished(printed + calls), DOUBLE) == (False, False, False)


def test_results_printed_before_a_program_was_ended_count():
    stdout = f"\n{MARK}4\n\n{MARK}11\n"
    assert compare_results(finished(stdout, "timeout"), DOUBLE) == (True, False, None)


def test_alike_completions_are_run_once(monkeypatch):
    ran = []
    real = Zygote.run

    def counted(zygote, source, limits, *, stopped):
        ran.append(source)
        return real(zygote, source, limits, stopped=stopped)

    with Sandbox(num_workers=1) as sandbox:
        monkeypatch.setattr(Zygote, "run", counted)
        judgements = judge([RIGHT] * 3, [DOUBLE] * 3, [""] * 3, sandbox)
    assert [judgement.passed for judgement in judgements] == [True] * 3
    assert len(ran) == 2  # as a script, and with calls


def test_trl_is_given_a_reward_a_completion_and_the_batchs_metrics(sandbox):
    reward = CodeReward([DOUBLE], sandbox, preset="execution")
    metrics, columns = {}, {}
    rewards = reward(
        completions=[RIGHT + "print(f(2))", [{"role": "assistant", "content": "1 /"}], "No.", "x = 1 / 0"],
        task_id=["t"] * 4,
        prefix=[""] * 4,
        log_metric=metrics.__setitem__,
        log_extra=columns.__setitem__,
        prompts=["ignored"] * 4,
    )
    assert rewards == [1.0, -0.5, -0.5, -1.0]
    assert reward.last_outcomes == columns["outcome"]
    assert columns["passed"] == [True, False, False, False]
    assert metrics["reward/avg_batch_reward"] == -0.25
    assert metrics["reward/successful_predictions_count"] == 1
    assert metrics["reward/pass_rate"] == 0.25
    assert sum(value for name, value in metrics.items() if name.startswith("status/")) == 1
    assert 0 < reward.seconds <= metrics["time/reward_seconds"]


def test_too_many_failures_of_the_sandbox_end_the_run(monkeypatch):
    with Sandbox(num_workers=1) as sandbox:
        sandbox._idle.pop().close()
        monkeypatch.setattr(zygotes, "INTERPRETER", "/no/such/python")
        reward = CodeReward([DOUBLE], sandbox, preset="tests")
        with pytest.raises(SandboxUnavailable) as raised:
            reward(completions=[RIGHT, "x = 2"], task_id=["t"] * 2, prefix=[""] * 2)
    assert str(raised.value) == (
        "sandbox: 2 of 2 programs could not be run ([Errno 2] No such file or directory: '/no/such/python'); "
        "`rlnb doctor` shows what this machine allows"
    )


def references_judged(numbers, sandbox: Sandbox, *, seconds: float) -> dict[int, Judgement]:
    """MBPP's own solutions as completions."""
    problems = load_mbpp(path=str(MBPP)).problems
    tasks = mbpp_tasks(problems[number] for number in numbers)
    completions = [f"```python\n{problems[number].code}\n```" for number in tasks]
    limits = Limits(cpu_seconds=seconds)
    judgements = judge(completions, list(tasks.values()), [""] * len(tasks), sandbox, limits=limits)
    return dict(zip(tasks, judgements, strict=True))


needs_mbpp = pytest.mark.skipif(not MBPP.exists(), reason="MBPP is not at hand: ../shared/data is missing")


@needs_mbpp
def test_a_sample_of_mbpps_references_passes_the_slowest_among_them(sandbox):
    judgements = references_judged([SLOW_TASK, *range(11, 975, 16)], sandbox, seconds=10)
    assert len(judgements) >= 60
    assert {number: run for number, run in judgements.items() if not run.passed} == {}


@pytest.mark.slow
@needs_mbpp
def test_every_representable_reference_of_mbpp_passes(sandbox):
    splits = load_tasks("mbpp", mbpp_path=str(MBPP))
    numbers = sorted(int(task.id.removeprefix("mbpp-")) for tasks in splits.values() for task in tasks)
    assert len(numbers) == 957
    judgements = references_judged(numbers, sandbox, seconds=10)
    assert {number for number, run in judgements.items() if not run.passed} == NOT_BY_OUR_RULE

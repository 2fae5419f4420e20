"""Tests that run here, against functions that run in the sandbox: a program sees arguments, never a test."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from rlnb.errors import SandboxUnavailable
from rlnb.sandbox.assertions import PLACE, compile_test
from rlnb.sandbox.calls import Call, LoadedProgram
from rlnb.sandbox.executions import Limits, Status, describe, one_line
from rlnb.sandbox.runner import Sandbox


@dataclass(frozen=True)
class Verdict:
    """results: for each test True, False (its assertion failed) or None (error, limit, or never reached).

    status: "ok", or how the first call that did not return ended. error: one line, untrusted; empty where
    all tests passed.
    """

    results: tuple[bool | None, ...]
    status: Status
    error: str

    @property
    def passed(self) -> bool:
        """Return whether every test passed, and there was at least one."""
        return bool(self.results) and all(self.results)


class CallFailed(Exception):
    """Inside a test: the sandboxed function did not return."""

    def __init__(self, call: Call) -> None:
        super().__init__(call.error)
        self.call = call


def check_tests(
    sandbox: Sandbox,
    program: str,
    tests: Sequence[str],
    *,
    functions: Collection[str],
    values: Collection[str] = (),
    imports: str = "",
    limits: Limits | None = None,
) -> Verdict:
    """Run tests, each a statement such as `assert f(2) == 4`, against an untrusted program.

    functions, values: the names that stand for the program's own; all others, `sum` or `set` too, are those
    of this side, whatever the program defines. imports: statements for this side. Tests and imports say what
    `rlnb.sandbox.assertions` lists: another test fails, other imports raise ValueError. A test that fails
    does not end the others; a call that the program does not survive does. Where the sandbox failed, all is
    tried once more.
    """
    names = {"functions": functions, "values": values}
    verdict, was_lost = run_tests(sandbox, program, tests, names=names, imports=imports, limits=limits)
    if verdict.status == "sandbox_error":
        verdict, is_lost = run_tests(sandbox, program, tests, names=names, imports=imports, limits=limits)
        if was_lost and is_lost:  # a program that takes its zygote with it twice
            verdict = replace(verdict, status="killed")
    return verdict


def run_tests(
    sandbox: Sandbox,
    program: str,
    tests: Sequence[str],
    *,
    names: Mapping[str, Collection[str]],
    imports: str,
    limits: Limits | None,
) -> tuple[Verdict, bool]:
    """Try `check_tests` once; return its verdict and whether the program's zygote was lost meanwhile."""
    results: list[bool | None] = [None] * len(tests)
    status: Status
    with sandbox.load(program, limits=limits) as loaded:
        if loaded.ended is not None:
            error = one_line(loaded.ended.error or "it has ended")
            status = loaded.ended.status
            status = "runtime_error" if status == "ok" else status  # leaving by exit(0) is an error, too
            return Verdict(tuple(results), status, error), loaded.has_lost_its_zygote
        status, error = "ok", ""
        here: dict[str, object] = {"__builtins__": PLACE}
        program_names = frozenset(names["functions"]) | frozenset(names["values"])
        exec(compile_test(imports, program_names), here)
        here |= {name: stub(loaded, name) for name in names["functions"]}
        here |= {name: loaded.get(name).value for name in names["values"]}
        for index, test in enumerate(tests):
            if loaded.ended is not None:
                break
            try:
                exec(compile_test(test, program_names), dict(here))
                if loaded.ended is not None:  # the test caught it, as one that expects an error does
                    raise CallFailed(loaded.how_it_ended())
                results[index] = True
            except AssertionError as failed:
                results[index] = False
                error = error or one_line(f"{test}: {describe(failed)}".removesuffix(": "))
            except CallFailed as failed:
                status = failed.call.status if status == "ok" else status
                error = error or one_line(f"{test}: {failed.call.error}")
            except KeyboardInterrupt:
                raise
            # Comparing what the program returned may raise anything; pytest's derive from BaseException.
            except BaseException as unexpected:
                results[index] = False
                error = error or one_line(f"{test}: {type(unexpected).__name__}: {describe(unexpected)}")
    return Verdict(tuple(results), status, error), loaded.has_lost_its_zygote


def check_oracle(sandbox: Sandbox) -> None:
    """Raise SandboxUnavailable unless a right program passes a test here and a wrong one fails it."""
    for answer in (4, 5):
        verdict = check_tests(sandbox, f"def f(n): return {answer}", ["assert f(2) == 4"], functions=["f"])
        if verdict.passed != (answer == 4):
            raise SandboxUnavailable(
                f"sandbox: no verdict can be trusted here: a function that returns {answer} "
                f"{'passes' if verdict.passed else 'fails'} `assert f(2) == 4` "
                f"({verdict.error or verdict.status}); run rlnb in a Python that nothing has changed"
            )


def stub(loaded: LoadedProgram, name: str) -> Callable[..., object]:
    """Return a function that calls the program's function of that name."""

    def called(*arguments: object, **keywords: object) -> object:
        call = loaded.call(name, *arguments, keywords=keywords)
        if call.status != "ok":
            raise CallFailed(call)
        return call.value

    return called

"""Mutants: programs of one small change, the same for a seed, whose outputs make wrong answers."""

import time

import pytest

from rlnb.sandbox import Limits, Sandbox
from rlnb.tasks.game_mutants import mutants
from rlnb.tasks.game_programs import tree_of, without_comments
from rlnb.tasks.prediction_set import prediction_set

PROGRAMS = prediction_set()
# What one change can make of a program, all of it.
ALL = {
    "print(n + m)": {"print(n - m)", "print(n * m)", "print(m + n)"},
    "print(n ** m)": {"print(n * m)", "print(n + m)"},
    "print(n % m)": {"print(n // m)", "print(n + m)", "print(m % n)"},
    "n -= m": {"n += m", "n *= m"},
    "print(n & m)": {"print(n | m)", "print(n ^ m)", "print(m & n)"},
    "print(n < m)": {"print(n <= m)", "print(n > m)"},
    "print(n == m != k)": {"print(n != m != k)", "print(n == m == k)"},
    "print(n in m)": {"print(n not in m)"},
    "print(n is m)": {"print(n is not m)"},
    "print(n and m)": {"print(n or m)"},
    "print(True)": {"print(False)"},
    "print(s[:])": {f"print(s[{bounds}])" for bounds in ("1:", "2:", ":-1", ":3", "::2", "::-1")},
    "print(max(xs))": {"print(min(xs))"},
    "print(s.upper())": {"print(s.lower())"},
    "print(1.5)": {"print(2.5)", "print(3.0)", "print(0.75)"},
    "print('')": {"print('a')"},
    "if __name__ == '__main__':\n    pass": {"if __name__ != '__main__':\n    pass"},
}


@pytest.mark.parametrize("code", ALL)
def test_each_change_of_the_tree_is_found(code):
    assert set(mutants(code, count=12, seed=0)) == ALL[code]


def test_a_number_grows_shrinks_doubles_or_moves():
    found = mutants("print(50)", count=12, seed=0)
    assert {"print(51)", "print(49)", "print(100)"} < set(found)
    (other,) = set(found) - {"print(51)", "print(49)", "print(100)"}
    assert 52 <= int(other[6:-1]) <= 59


def test_a_text_stays_a_text_of_about_its_length():
    found = mutants("print('garden')", count=12, seed=3)
    lengths = sorted(len(mutant) - len("print('')") for mutant in found)
    assert lengths[0] == 5 and lengths[-1] == 7 and 4 <= len(lengths) <= 5


@pytest.mark.parametrize(
    "code",
    ["print()", "x = y", "pass", "", "# 7", '"""7"""', "print(", "\0", "1e", "print(0x" + "f" * 9000 + ")"],
)
def test_where_nothing_can_be_changed_there_is_no_mutant(code):
    assert mutants(code, count=12, seed=0) == []


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("program", PROGRAMS, ids=[f"{p.level}: {p.code}" for p in PROGRAMS])
def test_mutants_are_distinct_programs_and_the_same_for_a_seed(program, seed):
    found = mutants(program.code, count=12, seed=seed)
    assert found == mutants(program.code, count=12, seed=seed)
    assert len(set(found)) == len(found) <= 12
    assert found == [without_comments(mutant) for mutant in found]
    assert without_comments(program.code) not in found


def test_another_seed_gives_other_mutants_and_a_smaller_count_the_first_of_them():
    code = "n = 7\nprint(n * 2 + 3, 'garden', n - 4)"
    assert len(mutants(code, count=12, seed=0)) == 12
    assert mutants(code, count=12, seed=0) != mutants(code, count=12, seed=1)
    assert mutants(code, count=5, seed=0) == mutants(code, count=12, seed=0)[:5]
    assert mutants(code, count=0, seed=0) == []


def test_the_first_mutants_are_changed_anywhere():
    code = "\n".join(f"print({number}0)" for number in range(10, 30))
    lines = code.split("\n")
    firsts = [mutants(code, count=1, seed=seed)[0].split("\n") for seed in range(40)]
    changed = {next(n for n in range(20) if first[n] != lines[n]) for first in firsts}
    assert len(changed) >= 10 and max(changed) >= 15


def test_comments_and_docstrings_are_neither_changed_nor_kept():
    code = 'def f(n):\n    """Adds 3."""\n    return n  # 42\nprint(f(7))'
    for mutant in mutants(code, count=12, seed=0):
        assert "Adds" not in mutant and "42" not in mutant and mutant.startswith("def f(n):\n    return n\n")


def test_the_format_of_a_value_is_left_alone():
    found = mutants("n = 7\nprint(f'{n:05d}')", count=12, seed=0)
    assert found and all(mutant.endswith("print(f'{n:05d}')") for mutant in found)


def test_programs_that_compute_have_three_mutants_with_other_outputs():
    """As many as a choice of four needs, in at least 9 of 10 programs of the fixed set."""
    programs = [program for program in PROGRAMS if program.level != "L1"]
    tried = [mutants(program.code, count=12, seed=0) for program in programs]
    with Sandbox(Limits(cpu_seconds=0.5), num_workers=2) as sandbox:
        ran = iter(sandbox.run_many([mutant for several in tried for mutant in several]))
    enough = 0
    for program, several in zip(programs, tried, strict=True):
        executions = [next(ran) for _ in several]
        printed = {one.stdout.strip() for one in executions if one.status == "ok"} - {program.output, ""}
        enough += len(printed) >= 3
    assert enough >= 0.9 * len(programs)


@pytest.mark.parametrize(
    "code",
    [
        "print(" + "1 + " * 2000 + "1)",
        "x = [" + "1, " * 2500 + "]",
        "print('" + "a" * 16000 + "')",
        "a = 1;" * 1000,
        "-" * 9000 + "1",
        "(" * 9000,
        "x = 1\n" * 10**6,
    ],
    ids=lambda code: code[:12],
)
def test_a_hostile_program_takes_no_longer_than_seconds(code):
    started = time.process_time()
    found = mutants(code, count=12, seed=0)
    assert time.process_time() - started < 8
    assert all(tree_of(mutant) for mutant in found)

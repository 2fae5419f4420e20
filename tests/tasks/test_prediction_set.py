"""The fixed programs: their outputs are the interpreter's, and only the first level gives them away."""

from collections import Counter

import pytest

from rlnb.errors import ParamsError
from rlnb.sandbox import Sandbox
from rlnb.tasks import prediction_set as module
from rlnb.tasks.game_determinism import forbidden_use
from rlnb.tasks.game_programs import echoes, is_trivial, without_comments
from rlnb.tasks.prediction import SHOTS, is_readable, normalised
from rlnb.tasks.prediction_set import PREDICTION_LEVELS, prediction_set, read_programs

PROGRAMS = prediction_set()


def test_every_program_prints_what_is_stored():
    with Sandbox(num_workers=2) as sandbox:
        executions = sandbox.run_many([program.code for program in PROGRAMS])
    assert [execution.status for execution in executions] == ["ok"] * len(PROGRAMS)
    assert [normalised(execution.stdout) for execution in executions] == [p.output for p in PROGRAMS]


def test_there_are_fifteen_distinct_programs_a_level_and_none_is_a_solved_example():
    assert Counter(program.level for program in PROGRAMS) == dict.fromkeys(PREDICTION_LEVELS, 15)
    codes = {program.code for program in PROGRAMS}
    assert len(codes) == 60
    assert not codes & {code for code, _ in SHOTS}
    assert [program.level for program in PROGRAMS] == sorted(program.level for program in PROGRAMS)


@pytest.mark.parametrize("program", PROGRAMS, ids=[f"{p.level}: {p.code}" for p in PROGRAMS])
def test_a_program_is_short_depends_on_nothing_and_gives_its_output_away_only_in_the_first_level(program):
    assert is_trivial(program.code) == echoes(program.code, program.output) == (program.level == "L1")
    assert forbidden_use(program.code) == ""
    assert is_readable(program.output) and program.output == normalised(program.output) != ""
    assert len(program.code) <= 120 and len(program.output) <= 40
    assert without_comments(program.code) is not None


def test_a_change_of_the_list_is_not_seen_by_the_next_reader():
    prediction_set().clear()
    assert prediction_set() == PROGRAMS


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"level": "L5", "code": "print(1)", "output": "1"}', "level = 'L5' is not one of L1, L2, L3, L4"),
        ('{"level": "L1", "code": "print(1)", "output": 1}', "output = 1 is no text"),
        ('{"level": "L1", "code": "print(1)"}', "the field 'output' is missing"),
    ],
)
def test_a_record_that_is_no_program_is_named_with_its_place(line, said, tmp_path, monkeypatch):
    path = tmp_path / "programs.jsonl"
    path.write_text(line + "\n")
    monkeypatch.setattr(module, "PREDICTION_FILE", path)
    with pytest.raises(ParamsError) as error:
        read_programs.__wrapped__()
    assert str(error.value) == f"{path}:1: no program: {said}"

"""Health checks: each warns at its limit, once, with the parameter to change; alarms end a run."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlnb.errors import OutOfMemory, TrainingDiverged
from rlnb.machine import Machine, recommend
from rlnb.params import load_params, resolve
from rlnb.run import health
from rlnb.run.health import AnswerEnd, Health, check_alarms, describe_ends, find_alarms
from rlnb.run.memory import memory_advice
from rlnb.run.metrics import ENDINGS, INVALID_KINDS, STATUSES
from rlnb.selfplay.checkpoints import RunState
from rlnb.selfplay.params import UpdateParams

QUIET = {"play/invalid_share": 0.1, "entropy": 0.5, "play/completion_tokens": 100.0}
INVALID, FLAT = {"play/invalid_share": 0.75}, {"entropy": 5e-5}


def warnings_of(rows: list[dict[str, float]]) -> list[str]:
    """The lines of a run."""
    health = Health()
    return [line for step, row in enumerate(rows, 1) for line in health.after_step(step, row)]


def row(reward: float = 0.0, *, cut: float = 0.0, kl: float = 0.0, tied: float = 0.0) -> dict[str, float]:
    return {"reward": reward, "completions/clipped_ratio": cut, "kl": kl, "frac_reward_zero_std": tied}


def test_the_first_step_warns_of_what_nothing_is_learned_from():
    ends = ends_of(no_code=2, syntax_error=1, ok_with_output=2)
    shared, cut, tied = Health().after_step(1, row(cut=0.5, tied=1.0), ends)
    assert "60%" in shared and "no valid code" in shared
    assert "50%" in cut and "training.max_completion_length" in cut
    assert "training.num_generations" in tied
    invalid, equal = Health().after_step(1, QUIET | INVALID | {"reward": 0.0, "advantage/std": 0.0})
    assert "training.games_per_step" in equal
    assert "75%" in invalid and "game.acting = constrained" in invalid


def ends_of(**counts: int) -> list[AnswerEnd]:
    return [AnswerEnd(outcome, "") for outcome, count in counts.items() for _ in range(count)]


@pytest.mark.parametrize("metric", health.SATURATED)
def test_groups_that_tie_because_all_have_won_ask_for_harder_tasks(metric):
    tied = {"advantage/std": 0.0} if metric.startswith("play") else {"frac_reward_zero_std": 1.0}
    (line,) = Health().after_step(1, {"reward": 1.0, metric: 1.0, **tied})
    assert "every completion already earns the most" in line and health.SATURATED[metric] in line
    (line,) = Health().after_step(1, {"reward": 0.0, metric: 0.25, **tied})
    assert "harder" not in line
    (line,) = warnings_of([row(0.9, tied=0.8) | {metric: 0.9}] * health.WINDOW_STEPS)  # of 8 in 10 groups
    assert "90% already earn the most" in line


@pytest.mark.parametrize(
    "outcome", sorted({*STATUSES, *ENDINGS, *INVALID_KINDS, "no_result"} - {*health.USUAL})
)
def test_an_outcome_of_more_than_half_of_the_answers_is_told_with_its_most_frequent_error(outcome):
    errors = [f"assert f{n}({n}) == {n}: NameError: name 'f{n}' is not defined." for n in range(3)]
    ends = [AnswerEnd(outcome, reason) for reason in (*errors, "ValueError: no", "OSError: no")]
    (line,) = describe_ends(ends + ends_of(passed=4))
    assert line.startswith("warning: 56% of the answers ended as ")
    assert "most often (3 of 9): NameError: name 'f0' is not defined. Perhaps " in line
    assert describe_ends(ends + ends_of(passed=5)) == []  # half
    alone = [AnswerEnd(outcome, f"{error}Error: no") for error in ("OS", "Key", "Index")]
    assert "most often" not in describe_ends(alone)[0]


@given(counts=st.dictionaries(st.sampled_from(health.USUAL), st.integers(1, 9)))
def test_programs_that_work_or_are_merely_wrong_are_no_outcome_to_tell(counts):
    assert describe_ends(ends_of(**counts)) == []


def test_a_run_that_learns_gets_no_warning():
    assert warnings_of([row(step / 10) for step in range(40)]) == []


def test_all_cut_completions_and_a_large_divergence_are_reported_once():
    (line,) = warnings_of([row(step, cut=1.0) for step in range(3)] + [{"train_runtime": 1.0}, {}] * 20)
    assert line.startswith("warning: step 1: ") and "training.max_completion_length" in line
    (line,) = warnings_of([row(0, kl=0.01), row(1, kl=0.25), row(2, kl=3.0)])
    assert line.startswith("warning: step 2: kl is 0.250, above 0.01") and "training.beta" in line


def test_tied_groups_are_reported_with_their_share_over_a_window():
    rows = [row(-1), *(row(step, tied=0.75) for step in range(20))]
    assert warnings_of(rows[: health.WINDOW_STEPS - 1]) == []
    (line,) = warnings_of(rows)
    assert line.startswith(f"warning: step {health.WINDOW_STEPS}: 68% of the groups")  # 9 * .75 / 10


def test_each_alarm_is_raised_beyond_its_limit_and_not_at_it():
    assert find_alarms(QUIET, first_length=100.0) == {}
    for name, limit, beyond, alarm in [
        ("play/invalid_share", 0.5, 0.51, "invalid"),
        ("entropy", 1e-4, 0.99e-4, "entropy"),
        ("play/completion_tokens", 10.0, 9.9, "length"),
    ]:
        assert find_alarms({**QUIET, name: limit}, first_length=100.0) == {}
        assert set(find_alarms({**QUIET, name: beyond}, first_length=100.0)) == {alarm}


def test_the_run_is_stopped_after_consecutive_updates_with_the_same_alarm(monkeypatch):
    monkeypatch.setattr(health, "ALARM_PATIENCE", 3)
    state, training = RunState(), UpdateParams()
    # Twice, a quiet one, twice with another alarm meanwhile, then the third in a row.
    for changes in [INVALID, INVALID, {}, INVALID, {**INVALID, **FLAT}]:
        state = state.advance(QUIET | changes, training)
        check_alarms(state.alarms, QUIET | changes, first_length=100.0)
    assert (state.alarms, state.first_length) == ({"invalid": 2, "entropy": 1}, 100.0)
    state = state.advance(QUIET | INVALID, training)
    assert state.alarms == {"invalid": 3}
    with pytest.raises(TrainingDiverged, match="^for 3 updates in a row 75%"):
        check_alarms(state.alarms, QUIET | INVALID, first_length=100.0)


def advice(doing: str = "training", **sections: dict) -> str:
    """Return what is said of lack of memory to a run of self-play on an A100."""
    params = load_params("spiral_self_play", profile="default", overrides=sections, environ={})
    machine = Machine("a100", "A100", (8, 0), 40.0, 8, "workstation", "not asked")
    params = resolve(params, recommend(machine, environ={}), environ={})
    with pytest.raises(OutOfMemory) as stopped, memory_advice(params, doing=doing):
        raise torch.cuda.OutOfMemoryError("Tried to allocate 2 GiB")
    return str(stopped.value)


def test_lack_of_memory_names_three_settings_in_order_with_their_values():
    said = advice(model={"load_in_4bit": False})
    assert "training.tokens_per_pass = 4096, game.batch_size = 64, model.load_in_4bit = false" in said


def test_lack_of_memory_names_4_bits_only_for_a_gpt_oss_that_has_them(tmp_path):
    for kind in ("qwen3", "gpt_oss"):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        said = advice(model={"id": str(tmp_path), "load_in_4bit": False})
        assert ("model.load_in_4bit" in said) == (kind == "qwen3")


def test_lack_of_memory_names_no_setting_that_changes_nothing():
    """No 4 bits where all weights are trained, nothing of MBPP where it is not measured."""
    said = advice("evaluation", model={"lora_rank": 0}, mbpp={"enabled": False})
    assert "game.batch_size" in said and "model.load_in_4bit" not in said and "mbpp." not in said

"""What stops a self-play run: each alarm at its bound, after updates in a row, with the games kept."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from self_play_run import params_of, parts_of, rows_of

from rlnb.errors import TrainingDiverged
from rlnb.params.playing import AlarmParams
from rlnb.training.ablation import train_run
from rlnb.training.alarms import check_alarms, kept_when_diverged, ringing
from rlnb.training.checkpoints import latest_checkpoint
from rlnb.training.credit import Credit, credit
from rlnb.training.spiral import SelfPlayState, batch_of
from rlnb.training.update import update

QUIET = {"play/invalid_share": 0.1, "entropy": 0.5, "play/completion_tokens": 100.0}
INVALID, FLAT, SHORT = {"play/invalid_share": 0.75}, {"entropy": 5e-5}, {"play/completion_tokens": 6.0}
MESSAGES = {
    "invalid": "75% of the answers hold no legal move (alarms.invalid_share = 0.5); write game.acting = "
    "constrained, or take a model made for chat",
    "entropy": "the entropy is 5e-05 nats (alarms.entropy = 0.0001): the policy no longer tries anything; "
    "raise training.entropy_coef",
    "length": "answers have shrunk from 100 to 6 tokens (alarms.length_share = 0.1); lower "
    "training.learning_rate; in self-play write advantage.kind = rae",
}


def rung(**changes: float) -> set[str]:
    return set(ringing({**QUIET, **changes}, AlarmParams(), first_length=100.0))


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def test_each_alarm_rings_beyond_its_bound_and_not_at_it():
    assert rung() == set()
    for name, at, beyond, alarm in [
        ("play/invalid_share", 0.5, 0.51, "invalid"),
        ("entropy", 1e-4, 0.99e-4, "entropy"),
        ("play/completion_tokens", 10.0, 9.9, "length"),
    ]:
        assert rung(**{name: at}) == set()
        assert rung(**{name: beyond}) == {alarm}
    assert rung(**INVALID, **FLAT, **SHORT) == {"invalid", "entropy", "length"}


def test_each_alarm_says_what_is_wrong_by_how_much_and_what_to_change():
    found = ringing({**QUIET, **INVALID, **FLAT, **SHORT}, AlarmParams(), first_length=100.0)
    assert found == MESSAGES


def test_an_alarm_can_be_switched_off():
    off = AlarmParams(invalid_share=1.0, entropy=0.0, length_share=0.0)
    worst = {"play/invalid_share": 1.0, "entropy": 0.0, "play/completion_tokens": 0.0}
    assert ringing(worst, off, first_length=100.0) == {}


def test_the_run_is_stopped_by_as_many_updates_in_a_row_as_patience_says():
    alarms = AlarmParams(patience=3)
    params = SimpleNamespace(training=SimpleNamespace(games_per_step=1), alarms=alarms)
    nothing = Credit(torch.zeros(0).numpy(), torch.zeros(0).numpy(), {})
    state = SelfPlayState(first_length=100.0)
    # Twice, a quiet one, twice, another alarm meanwhile, then the third in a row.
    updates = [INVALID, INVALID, {}, INVALID, {**INVALID, **FLAT}]
    for changes in updates:
        metrics = {**QUIET, **changes}
        state = state.after(metrics, nothing, params)
        check_alarms(state.alarms, metrics, alarms, first_length=state.first_length)
    assert state.alarms == {"invalid": 2, "entropy": 1}
    metrics = {**QUIET, **INVALID}
    state = state.after(metrics, nothing, params)
    assert state.alarms == {"invalid": 3}
    with pytest.raises(TrainingDiverged) as stopped:
        check_alarms(state.alarms, metrics, alarms, first_length=state.first_length)
    assert str(stopped.value) == f"for 3 updates in a row {MESSAGES['invalid']}"


def test_a_run_whose_answers_stay_invalid_ends_with_its_games_and_keeps_no_checkpoint_of_them(
    cache_dir, tmp_path
):
    params = params_of(
        cache_dir,
        game={"acting": "free", "max_new_tokens": 3},
        training={"max_steps": 9, "save_steps": 2, "num_epochs": 1},
        alarms={"patience": 3},
        evaluation={"eval_interval_steps": 0},
    )
    with pytest.raises(TrainingDiverged) as stopped:
        train_run(params, tmp_path)
    games = tmp_path / "diverged.jsonl"
    assert str(stopped.value) == (
        "for 3 updates in a row 100% of the answers hold no legal move (alarms.invalid_share = 0.5); write "
        "game.acting = constrained, or take a model made for chat. The games of this update are in "
        f"{games}"
    )
    records = [json.loads(line) for line in games.read_text().splitlines()]
    assert len(records) == 8
    assert all(turn["problem"] for record in records for turn in record["turns"])
    kept = [json.loads(line) for line in (tmp_path / "games.jsonl").read_text().splitlines()]
    assert [game["step"] for game in kept] == [1] * 8 + [2] * 8
    assert records[0]["seed"] not in {game["seed"] for game in kept}
    assert [row["step"] for row in rows_of(tmp_path)] == [0, 1, 2]
    assert latest_checkpoint(tmp_path) is None  # it rang from the first update on
    # A next attempt is stopped by the same update.
    with pytest.raises(TrainingDiverged, match="^for 3 updates in a row"):
        train_run(params, tmp_path)


def test_a_loss_that_is_no_number_ends_the_run_with_its_games(cache_dir, tmp_path):
    params = params_of(cache_dir, advantage={"kind": "rae"})
    arena, learner, table = parts_of(params)
    games = table.play(0)
    with torch.no_grad():
        arena.actor.policy.model.get_output_embeddings().weight[:] = torch.nan
    with pytest.raises(TrainingDiverged) as stopped, kept_when_diverged(games, tmp_path):
        batch = batch_of(
            games, credit(games, {}, params.advantage), has_value=False, training=params.training
        )
        update(learner, batch, step=0, seed=params.seed)
    path = tmp_path / "diverged.jsonl"
    assert str(stopped.value).endswith(f". The games of this update are in {path}")
    assert "nan" in str(stopped.value)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        json.loads(json.dumps(game.as_record())) for game in games
    ]


def test_another_error_leaves_no_file_behind(tmp_path):
    with pytest.raises(KeyError), kept_when_diverged([], tmp_path):
        raise KeyError("player")
    assert list(tmp_path.iterdir()) == []

"""The parameters of the code game: the published settings, what profiles change, what is refused at once."""

from dataclasses import replace

import pytest

from rlnb.code_game.params import TOPICS, GrpoCodeGameParams
from rlnb.code_game.prediction import MAX_SHOTS
from rlnb.errors import ParamsError
from rlnb.machine import Machine, recommend
from rlnb.params import asks_network, check_machine, describe_params, load_params, resolve

CPU = Machine("cpu", "", None, 16.0, 4, "workstation", "reachable")
NO_LOGIN = {"NETRC": "/none"}
SERVED = {"kind": "endpoint", "base_url": "http://h:8000/v1", "model_name": "m"}
NO_JUDGE = {"second_judge": "none"}


def load(profile="default", **sections) -> GrpoCodeGameParams:
    params = load_params("grpo_code_game", profile=profile, overrides=sections, environ={})
    assert isinstance(params, GrpoCodeGameParams)
    return params


def refused(**sections) -> str:
    with pytest.raises(ParamsError) as raised:
        load(**sections)
    return str(raised.value)


def test_the_default_file_holds_the_published_settings_which_are_the_models_defaults():
    params = load()
    assert params == GrpoCodeGameParams()
    training, evaluation = params.training, params.evaluation
    assert (training.learning_rate, training.max_steps) == (2e-5, 90)
    assert (training.per_device_train_batch_size, training.num_generations) == (8, 2)
    assert (params.reward.preset, params.opponent.kind, params.model.id) == ("required", "base", "auto")
    assert (evaluation.eval_interval_steps, evaluation.num_questions) == (20, 5)
    assert (evaluation.num_samples, evaluation.temperature, evaluation.timeout_seconds) == (1, 0.2, 10.0)
    assert (params.vllm.enabled, params.vllm.gpu_memory_utilization) == (False, 0.85)


def test_the_cpu_profile_shows_what_results_are_promised_for():
    params = load("cpu")
    assert params.evaluation.num_prompts * params.evaluation.num_programs >= 192
    assert params.evaluation.control and params.training.max_steps == 30
    completions = params.training.per_device_train_batch_size * params.training.gradient_accumulation_steps
    assert completions // params.training.num_generations == 2
    assert (params.game.form, params.game.max_output_chars) == ("seeded", 40)


def test_without_a_gpu_nothing_is_downloaded_and_no_judge_that_is_never_asked():
    unused = {"enabled": False, "control": False, "second_judge": "me/mine"}
    for params in (load("cpu"), load("tiny"), load("tiny", evaluation=unused)):
        assert not asks_network(params, environ=NO_LOGIN)


def test_as_many_shots_as_there_are_may_be_asked_for():
    assert load(opponent={"num_shots": MAX_SHOTS}).opponent.num_shots == MAX_SHOTS
    said = refused(opponent={"num_shots": MAX_SHOTS + 1})
    assert said == f"parameters cell: opponent.num_shots = {MAX_SHOTS + 1} must be at most {MAX_SHOTS}"


@pytest.mark.parametrize(
    ("game", "said"),
    [
        ({"topics": ["loops", "cats"]}, f"holds 'cats', which is none of {', '.join(TOPICS)}"),
        ({"topics": ["loops", "loops"]}, "names a topic twice; name each once"),
        ({"topics": []}, "must not be empty"),
        ({"num_interpreters": 1}, "must be at least 2"),
        ({"num_interpreters": 65}, "must be at most 64"),
        ({"predictor_share": 1.0}, "must be below 1"),
    ],
)
def test_a_game_that_cannot_be_played_is_refused(game, said):
    assert refused(game=game).endswith(f" {said}")


@pytest.mark.parametrize(
    ("opponent", "said"),
    [
        ({"kind": "model"}, "model_id = '' is needed by opponent.kind = 'model'; write it"),
        (
            {"model_id": "me/mine"},
            "model_id = 'me/mine' does nothing beside opponent.kind = 'base'; leave it out, or write model",
        ),
        (SERVED | {"model_name": ""}, "model_name = '' is needed by opponent.kind = 'endpoint'; write it"),
        (SERVED | {"base_url": ""}, "base_url = '' is needed by opponent.kind = 'endpoint'; write it"),
        (
            {"kind": "snapshot", "base_url": "http://h/v1"},
            "base_url = 'http://h/v1' does nothing beside opponent.kind = 'snapshot'; leave it out, or "
            "write endpoint",
        ),
        ({"num_predictions": 4}, "num_predictions = 4 is even, so that two predictions may tie; write 5"),
        (
            {"kind": "snapshot", "refresh_steps": 91},
            "refresh_steps = 91 is more than training.max_steps = 90, so that no snapshot is taken; write "
            "fewer, or opponent.kind = base",
        ),
    ],
)
def test_an_opponent_that_cannot_be_asked_is_refused(opponent, said):
    assert refused(opponent=opponent, evaluation=NO_JUDGE) == f"parameters cell: opponent.{said}"


def test_an_address_of_a_server_is_one():
    for url in ("http://h", "https://h/v1", "http://10.0.0.1:8000/v1/", "http://[::1]:80/v1"):
        assert load(opponent=SERVED | {"base_url": url}, evaluation=NO_JUDGE).opponent.base_url == url
    for url in ("h:8000", "ftp://h/v1", "http://", "http:///v1", "http://h:x/v1", "http://["):
        said = refused(opponent=SERVED | {"base_url": url}, evaluation=NO_JUDGE)
        assert said.endswith(f"opponent.base_url = {url!r} is not an address; write http://host:port/v1")


@pytest.mark.parametrize("preset", ["graded", "choice"])
def test_a_reward_of_probabilities_needs_an_opponent_that_shows_them(preset):
    assert load(reward={"preset": preset}).reward.preset == preset
    needs = f"parameters cell: reward.preset = {preset!r} needs probabilities, "
    assert refused(reward={"preset": preset}, opponent=SERVED, evaluation=NO_JUDGE) == (
        f"{needs}which a server does not give here; write required, or opponent.kind = model"
    )
    assert refused(reward={"preset": preset}, opponent={"num_predictions": 3}) == (
        f"{needs}and opponent.num_predictions = 3 counts votes; write required, or 1 prediction"
    )


def test_a_second_judge_is_another_one_and_can_judge():
    assert refused(opponent=SERVED) == (
        "parameters cell: evaluation.second_judge = 'choice' needs probabilities, which a server does not "
        "give here; write none, or the hub id or directory of a model"
    )
    load(opponent=SERVED, evaluation={"enabled": False})
    for opponent in ({"kind": "model", "model_id": "embedded"}, {"kind": "base"}):
        said = refused(model={"id": "embedded"}, opponent=opponent, evaluation={"second_judge": "embedded"})
        assert said == (
            "parameters cell: evaluation.second_judge = 'embedded' is the opponent that is trained against; "
            "write choice, none, or another model"
        )
    load(model={"id": "embedded"}, opponent={"kind": "snapshot"}, evaluation={"second_judge": "embedded"})


def test_two_roles_need_baselines_and_prompts_of_their_own():
    load(game={"two_sided": True})
    assert refused(game={"two_sided": True}, training={"scale_rewards": "batch"}) == (
        "parameters cell: training.scale_rewards = 'batch' is one scale for two roles, which need baselines "
        "of their own; write group or none"
    )
    assert refused(game={"two_sided": True}, training={"num_generations": 8}) == (
        "parameters cell: game.two_sided = true needs a prompt for each of two roles, and a step has 8 "
        "completions in groups of 8; write false, or more training.gradient_accumulation_steps"
    )
    load(game={"two_sided": True}, training={"num_generations": 8, "gradient_accumulation_steps": 2})


CONTRADICTIONS = {
    "evaluation.control = true trains a control that nothing would measure; write false, or "
    "evaluation.enabled = true": {"evaluation": {"enabled": False, "control": True}},
    "vllm.max_model_len = 700 is below game.max_prompt_tokens + training.max_completion_length; write at "
    "least 768": {"vllm": {"enabled": True, "max_model_len": 700}},
    "opponent.max_prediction_tokens = 64 may be too short for an output of game.max_output_chars = 200, "
    "which would win unread; write at least 200": {
        "opponent": {"num_predictions": 3, "max_prediction_tokens": 64}
    },
    "evaluation.control = true is the same training as reward.preset = 'validity'; write false, or another "
    "preset": {"reward": {"preset": "validity"}, "evaluation": {"control": True}},
    "game.two_sided = true mirrors a reward of +1 and -1, and reward.preset = 'graded' has others; write "
    "false, or preset required": {"reward": {"preset": "graded"}, "game": {"two_sided": True}},
}


@pytest.mark.parametrize("said", CONTRADICTIONS)
def test_what_would_mislead_is_refused(said):
    assert refused(**CONTRADICTIONS[said]).splitlines()[-1] == f"parameters cell: {said}"


def test_every_auto_is_settled_and_mbpp_is_the_hubs():
    advice = recommend(CPU, files_exist=lambda path: False, environ={}, version={}.get)
    resolved = resolve(load(), advice, environ=NO_LOGIN)
    assert [row.field for row in describe_params(resolved) if row.value == "'auto'"] == ["training.resume"]
    assert (resolved.model.id, resolved.mbpp.source) == ("embedded", "hub")


@pytest.mark.parametrize(
    ("sections", "field"),
    [
        ({"opponent": {"kind": "model", "model_id": "me/mine"}}, "opponent.model_id"),
        ({"evaluation": {"second_judge": "me/mine"}}, "evaluation.second_judge"),
    ],
)
def test_another_model_is_asked_of_the_hub_and_missed_offline(sections, field, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    params = load("tiny", **sections)
    assert asks_network(params, environ=NO_LOGIN)
    offline = replace(CPU, hub="unreachable")
    check_machine(params, CPU, environ=NO_LOGIN)
    with pytest.raises(ParamsError, match=f"^parameters cell: {field} = 'me/mine' is not in ./model"):
        check_machine(params, offline, environ=NO_LOGIN)
    (tmp_path / "model_cache" / "models--me--mine").mkdir(parents=True)
    check_machine(params, offline, environ=NO_LOGIN)

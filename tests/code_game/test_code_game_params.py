"""The parameters of the code game: the published settings, what profiles change, what is refused at once."""

from dataclasses import replace

import pytest
from refusals import refused, table, with_set

from rlnb.code_game.params import GrpoCodeGameParams
from rlnb.code_game.prediction import MAX_SHOTS
from rlnb.errors import ParamsError
from rlnb.machine import Machine, recommend
from rlnb.params import asks_network, check_machine, describe_params, load_params, resolve

CPU = Machine("cpu", "", None, 16.0, 4, "workstation", "reachable")
NO_LOGIN = {"NETRC": "/none"}
SERVED = "opponent.kind=endpoint opponent.base_url=http://h:8000/v1 opponent.model_name=m"
JUDGED = "evaluation.second_judge=none"


def load(profile="default", **sections) -> GrpoCodeGameParams:
    params = load_params("grpo_code_game", profile=profile, overrides=sections, environ={})
    assert isinstance(params, GrpoCodeGameParams)
    return params


def test_the_default_file_holds_the_published_settings_which_are_the_models_defaults():
    params = load()
    assert params == GrpoCodeGameParams()
    training, evaluation = params.training, params.evaluation
    assert (training.learning_rate, training.max_steps) == (2e-5, 90)
    assert (training.per_device_train_batch_size, training.num_generations) == (8, 2)
    assert (params.reward.preset, params.opponent.kind, params.model.id) == ("required", "base", "auto")
    assert (evaluation.eval_interval_steps, evaluation.num_questions) == (20, 5)
    assert (evaluation.num_samples, evaluation.temperature, evaluation.timeout_seconds) == (1, 0.2, 10.0)
    assert (params.vllm.enabled, params.vllm.gpu_memory_utilization) == (False, "auto")


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


@pytest.mark.parametrize(
    "assignments",
    [
        f"opponent.num_shots={MAX_SHOTS}",
        "reward.preset=graded",
        "reward.preset=choice",
        f"{SERVED} evaluation.enabled=false",
        "model.id=embedded evaluation.second_judge=embedded opponent.kind=snapshot",
        "game.two_sided=true training.num_generations=8 training.gradient_accumulation_steps=2",
        *(f"{SERVED} {JUDGED} opponent.base_url={url}" for url in ("http://10.0.0.1:80/v1/", "http://[::1]")),
    ],
)
def test_what_fits_together_is_taken(assignments):
    with_set(*assignments.split(), notebook="grpo_code_game")


@pytest.mark.parametrize(
    "assignments, said",
    table("""
game.topics=[cats] => game.topics = ['cats'] holds 'cats', which is none of loops, strings, lists, recursion,
  big integers
game.topics=[loops,loops] => game.topics = ['loops', 'loops'] names a topic twice; name each once
game.topics=[] => game.topics = [] must not be empty
opponent.num_shots=7 => opponent.num_shots = 7 must be at most 6
opponent.kind=model => opponent.model_id = '' is needed by opponent.kind = 'model'; write it
opponent.model_id=me/mine => opponent.model_id = 'me/mine' does nothing beside opponent.kind = 'base';
  leave it out, or write model
SERVED JUDGED opponent.base_url= => opponent.base_url = '' is needed by opponent.kind = 'endpoint'; write it
opponent.num_predictions=4 => opponent.num_predictions = 4 is even, so that two predictions may tie; write 5
opponent.kind=snapshot opponent.refresh_steps=91 => opponent.refresh_steps = 91 is more than
  training.max_steps = 90, so that no snapshot is taken; write fewer, or opponent.kind = base
SERVED JUDGED opponent.base_url=h:8000 => opponent.base_url = 'h:8000' is not an address; write
  http://host:port/v1
SERVED JUDGED opponent.base_url=http:///v1 => opponent.base_url = 'http:///v1' is not an address; write
  http://host:port/v1
SERVED JUDGED opponent.base_url=http://h:x/v1 => opponent.base_url = 'http://h:x/v1' is not an address; write
  http://host:port/v1
SERVED JUDGED opponent.base_url=http://[ => opponent.base_url = 'http://[' is not an address; write
  http://host:port/v1
SERVED JUDGED reward.preset=graded => reward.preset = 'graded' needs probabilities, which a server does not
  give here; write required, or opponent.kind = model
reward.preset=choice opponent.num_predictions=3 => reward.preset = 'choice' needs probabilities, and
  opponent.num_predictions = 3 counts votes; write required, or 1 prediction
SERVED => evaluation.second_judge = 'choice' needs probabilities, which a server does not give here; write
  none, or the hub id or directory of a model
model.id=embedded evaluation.second_judge=embedded => evaluation.second_judge = 'embedded' is the opponent
  that is trained against; write choice, none, or another model
evaluation.second_judge=a/b opponent.kind=model opponent.model_id=a/b => evaluation.second_judge = 'a/b' is
  the opponent that is trained against; write choice, none, or another model
game.two_sided=true training.scale_rewards=batch => training.scale_rewards = 'batch' is one scale for two
  roles, which need baselines of their own; write group or none
game.two_sided=true training.num_generations=8 => game.two_sided = true needs a prompt for each of two roles,
  and a step has 8 completions in groups of 8; write false, or more training.gradient_accumulation_steps
evaluation.enabled=false evaluation.control=true => evaluation.control = true trains a control that nothing
  would measure; write false, or evaluation.enabled = true
vllm.enabled=true vllm.max_model_len=700 => vllm.max_model_len = 700 is below game.max_prompt_tokens +
  training.max_completion_length; write at least 768
opponent.num_predictions=3 opponent.max_prediction_tokens=64 => opponent.max_prediction_tokens = 64 may be too
  short for an output of game.max_output_chars = 200, which would win unread; write at least 200
reward.preset=validity evaluation.control=true => evaluation.control = true is the same training as
  reward.preset = 'validity'; write false, or another preset
reward.preset=graded game.two_sided=true => game.two_sided = true mirrors a reward of +1 and -1, and
  reward.preset = 'graded' has others; write false, or preset required
"""),
)
def test_what_cannot_be_played_or_would_mislead_is_refused(assignments, said):
    given = assignments.replace("SERVED", SERVED).replace("JUDGED", JUDGED).split()
    assert refused(with_set, *given, notebook="grpo_code_game").splitlines()[-1] == f"--set: {said}"


def test_every_auto_is_settled_and_mbpp_is_the_hubs():
    advice = recommend(CPU, files_exist=lambda path: False, environ={}, version={}.get)
    resolved = resolve(load(), advice, environ=NO_LOGIN)
    assert [row.field for row in describe_params(resolved) if row.value == "'auto'"] == [
        "training.resume",
        "vllm.gpu_memory_utilization",
    ]
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
    with pytest.raises(
        ParamsError, match=f"^parameters cell: {field} = 'me/mine' lacks all files in ./model"
    ):
        check_machine(params, offline, environ=NO_LOGIN)
    snapshot = tmp_path / "model_cache" / "models--me--mine" / "snapshots" / "c0ffee"
    names = ("config.json", "model.safetensors", "tokenizer.json", "../../refs/main")
    for path in (snapshot / name for name in names):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("c0ffee" if path.name == "main" else "{}")
    check_machine(params, offline, environ=NO_LOGIN)

"""The parameters of the code game: the published settings, what profiles change, what is refused at once."""

import pytest
from refusals import refused, with_set

from rlnb.code_game.params import GrpoCodeGameParams
from rlnb.params import load_params

SERVED = "opponent.base_url=http://h:8000/v1 opponent.model_id=m"


def test_the_default_file_holds_the_published_settings_which_are_the_models_defaults():
    params = load_params("grpo_code_game", profile="default", environ={})
    assert params == GrpoCodeGameParams()
    training, evaluation = params.training, params.evaluation
    assert (training.learning_rate, training.max_steps) == (2e-5, 90)
    assert (training.per_device_train_batch_size, training.num_generations) == (8, 2)
    assert (params.reward.preset, params.opponent.kind, params.model.id) == ("required", "base", "auto")
    assert (evaluation.eval_interval_steps, evaluation.num_questions) == (20, 5)
    assert (evaluation.num_samples, evaluation.temperature, evaluation.timeout_seconds) == (1, 0.2, 10.0)
    assert (params.vllm.enabled, params.vllm.gpu_memory_utilization) == (False, 0.4)


@pytest.mark.parametrize(
    ("assignments", "field"),
    [
        ("opponent.base_url=http://h:8000/v1", "opponent.model_id"),
        ("opponent.model_id=me/mine", "opponent.model_id"),
        (f"{SERVED} opponent.base_url=h:8000", "opponent.base_url"),
        (f"{SERVED} reward.preset=graded", "reward.preset"),
        (f"{SERVED} opponent.refresh_steps=5", "opponent.refresh_steps"),
        ("opponent.refresh_steps=91", "opponent.refresh_steps"),
        ("evaluation.enabled=false evaluation.control=true", "evaluation.control"),
        ("vllm.enabled=true vllm.max_model_len=700", "vllm.max_model_len"),
    ],
)
def test_what_cannot_be_played_or_would_mislead_is_refused(assignments, field):
    said = refused(with_set, *assignments.split(), notebook="grpo_code_game").splitlines()[-1]
    assert said.startswith(f"--set: {field} = ")

"""Who predicts in a run of the code game, and who judges it without being trained against."""

from typing import Any

from rlnb.params.grpo_code_game import GrpoCodeGameParams
from rlnb.policy import Policy, load_policy
from rlnb.policy.adapters import AdapterValues
from rlnb.rewards.code_game import ChoosingOpponent, GameReferee
from rlnb.rewards.endpoint_opponent import EndpointOpponent
from rlnb.rewards.opponents import ModelOpponent, Opponent, as_it_is, base_opponent, snapshot_opponent
from rlnb.sandbox import Reruns, Sandbox


def reader_of(
    params: GrpoCodeGameParams, policy: Policy, snapshot: AdapterValues | None = None
) -> ModelOpponent | EndpointOpponent:
    """The opponent of `params.opponent`, which predicts; kind "snapshot" needs one.

    Raises PolicyUnavailable where another model cannot be loaded.
    """
    asked = params.opponent
    options: dict[str, Any] = {
        "num_shots": asked.num_shots,
        "num_predictions": asked.num_predictions,
        "temperature": asked.temperature,
        "max_prediction_tokens": asked.max_prediction_tokens,
        "batch_size": asked.batch_size,
        "seed": params.seed,
    }
    if asked.kind == "endpoint":
        return EndpointOpponent.from_params(asked, seed=params.seed)
    if asked.kind == "model":
        return ModelOpponent(other_model(params, asked.model_id), as_it_is, **options)
    if asked.kind == "snapshot":
        return snapshot_opponent(policy, snapshot or AdapterValues.of(policy), **options)
    return base_opponent(policy, **options)


def opponent_of(params: GrpoCodeGameParams, reader: Any, sandbox: Sandbox) -> Opponent:
    """The opponent in the form that `reward.preset` asks for: it predicts, or picks among outputs."""
    return choosing(params, reader, sandbox) if params.reward.preset == "choice" else reader


def fixed_judge_of(
    params: GrpoCodeGameParams, policy: Policy, opponent: Opponent, sandbox: Sandbox
) -> Opponent:
    """Who judges evaluations: the opponent, or where that changes with training the untrained model.

    Figures from before and after, and of a control, are comparable only under one judge.
    """
    if params.opponent.kind != "snapshot":
        return opponent
    return opponent_of(params, base_opponent(policy, num_shots=params.opponent.num_shots), sandbox)


def second_judge_of(params: GrpoCodeGameParams, policy: Policy, sandbox: Sandbox) -> Opponent | None:
    """A judge that nobody is trained against.

    "choice": the untrained model picks among outputs; where that is the game already, it predicts. Else the
    model that is named predicts.
    """
    asked = params.evaluation
    if asked.names_model:
        other = other_model(params, asked.second_judge)
        return ModelOpponent(
            other, as_it_is, num_shots=params.opponent.num_shots, batch_size=asked.batch_size
        )
    if asked.second_judge == "none" or not asked.enabled:
        return None
    untrained = base_opponent(policy, num_shots=params.opponent.num_shots, batch_size=asked.batch_size)
    return untrained if params.reward.preset == "choice" else choosing(params, untrained, sandbox)


def choosing(params: GrpoCodeGameParams, reader: Any, sandbox: Sandbox) -> ChoosingOpponent:
    """The second form of the game with this reader."""
    return ChoosingOpponent(
        reader,
        sandbox,
        num_choices=params.reward.num_choices,
        max_output_chars=params.game.max_output_chars,
        seed=params.seed,
    )


def other_model(params: GrpoCodeGameParams, model_id: str) -> Policy:
    """Another model, without adapters, loaded as the policy's is."""
    changed = params.model.model_copy(update={"id": model_id, "adapters": ""})
    return load_policy(changed, is_trained=False)


def referee_of(params: GrpoCodeGameParams, policy: Policy, reruns: Reruns) -> GameReferee:
    """The referee of a notebook's parameters; code is counted in the policy's tokens."""
    return GameReferee(
        reruns,
        lambda code: len(policy.tokenizer(code, add_special_tokens=False)["input_ids"]),
        max_output_chars=params.game.max_output_chars,
        max_code_tokens=params.game.max_code_tokens,
    )

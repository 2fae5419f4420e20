"""The set-up that SPIRAL, PPO and the arena share: the model as actor, and prompts as tokens."""

from collections.abc import Callable
from functools import partial

from transformers import PreTrainedTokenizerBase

from rlnb.policy import Policy
from rlnb.policy.prompts import game_text
from rlnb.selfplay.acting import ActorCritic, Encoder
from rlnb.selfplay.params import ActingParams


def make_encoder(game: ActingParams, tokenizer: PreTrainedTokenizerBase) -> Encoder:
    return Encoder(
        tokenizer, choose_markup(game, tokenizer), end=tokenizer.eos_token_id,
        max_prompt_tokens=game.max_prompt_tokens,
    )  # fmt: skip


def choose_markup(game: ActingParams, tokenizer: PreTrainedTokenizerBase) -> Callable[[str], str]:
    """Return the function that puts a full prompt into a chat message; compact prompts stay as they are."""
    return str if game.style == "compact" else partial(game_text, tokenizer=tokenizer)


def make_actor(policy: Policy, *, has_value: bool, gradient_checkpointing: bool = False) -> ActorCritic:
    """Return the policy as it plays and learns. Raises PolicyUnavailable for unsupported models."""
    actor = ActorCritic(policy, has_value=has_value)
    actor.check_logits()
    if gradient_checkpointing:
        policy.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return actor

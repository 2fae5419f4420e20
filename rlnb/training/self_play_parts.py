"""The parts of a self-play run, as its parameters ask for them."""

from collections.abc import Callable
from functools import partial
from typing import Any

from accelerate import PartialState

from rlnb.errors import ParamsError
from rlnb.evaluation.arena import EXACT_GAMES, Arena, is_exact
from rlnb.games.opponents import load_opponent
from rlnb.games.text_games import TextGame
from rlnb.policy import Policy
from rlnb.policy.acting import Encoder
from rlnb.policy.actor_critic import ActorCritic
from rlnb.rollouts import Rules
from rlnb.tasks.prompts import game_text
from rlnb.training.playable import load_self_play
from rlnb.training.spiral import SelfPlay
from rlnb.training.update import Learner


def game_of(params: Any) -> TextGame:
    """The game, once its opponents are known to be able to play it; ParamsError else, before any model."""
    game = load_self_play(params)
    if params.ablation.enabled and not is_exact(game):
        raise ParamsError(
            f"ablation.enabled = true cannot compare runs of {game.name}: they are judged by exact measures, "
            f"which only {', '.join(EXACT_GAMES)} have. Write false"
        )
    return game


def encoder_of(params: Any, policy: Policy) -> Encoder:
    """Full prompts as a user's message in a chat, compact ones as they are."""
    tokenizer = policy.tokenizer
    return Encoder(
        tokenizer, text_of(params, tokenizer), end=tokenizer.eos_token_id,
        max_prompt_tokens=params.game.max_prompt_tokens,
    )  # fmt: skip


def text_of(params: Any, tokenizer: Any) -> Callable[[str], str]:
    """What puts a chat's markup around full prompts."""
    return str if params.game.style == "compact" else partial(game_text, tokenizer=tokenizer)


def actor_of(params: Any, policy: Policy, *, has_value: bool) -> ActorCritic:
    """The policy as it is read and trained."""
    actor = ActorCritic(policy, has_value=has_value)
    actor.check_reading()
    if params.training.gradient_checkpointing:
        policy.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return actor


def arena_of(params: Any, policy: Policy, game: TextGame) -> Arena:
    """The policy as it plays and is measured, with a value head where advantages need one."""
    actor = actor_of(params, policy, has_value=params.advantage.has_value)
    return Arena(actor, encoder_of(params, policy), game, rules_of(params), params)


def rules_of(params: Any) -> Rules:
    """What a game is worth, in the game's own units."""
    asked = params.game
    return Rules(
        reward_scale=asked.reward_scale, invalid=asked.invalid, num_retries=asked.num_retries,
        invalid_reward=asked.invalid_reward, forfeit_reward=asked.forfeit_reward,
    )  # fmt: skip


def learner_of(params: Any, arena: Arena) -> Learner:
    """What is trained, and how: a fresh optimizer and fresh averages."""
    return Learner.of(
        arena.actor, params.training, temperature=params.game.temperature,
        value_coef=params.advantage.value_coef if params.advantage.has_value else 0.0,
        loss_tokens=params.loss_tokens, kl_coef=params.training.kl_coef,
    )  # fmt: skip


def self_play_of(params: Any, arena: Arena) -> SelfPlay:
    """What is played for each update: by the policy's weights as they are then, against whom it is asked."""
    name, ranks = params.game.opponent, PartialState().num_processes
    if params.training.games_per_step % (ranks * (1 if name == "self" else 2)):
        raise ParamsError(
            f"training.games_per_step = {params.training.games_per_step} cannot be shared by {ranks} ranks"
            f"{'' if name == 'self' else ' in pairs'}; write a multiple of "
            f"{ranks * (1 if name == 'self' else 2)}"
        )
    opponents = {} if name == "self" else {name: load_opponent(name, arena.game, field="game.opponent")}
    return SelfPlay(
        game=arena.game,
        rules=arena.rules,
        player=lambda: arena.player(params.game.acting),
        opponents=opponents,
        params=params,
    )

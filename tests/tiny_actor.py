"""The tiny model as an actor whose probabilities are far from equal: what the tests of self-play stand on."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from rlnb.games.text_games import load_game
from rlnb.params.sections import ModelParams
from rlnb.policy import Policy, load_policy
from rlnb.policy.acting import ConstrainedPlayer, Encoder, FreePlayer
from rlnb.policy.actor_critic import ActorCritic
from rlnb.rollouts import play_games, self_play


def tiny_policy(cache_dir: Path, *, lora_rank: int = 0, lora_dropout: float = 0.0, seed: int = 1) -> Policy:
    """Trained whole, or by adapters; its answers are as uneven as those of a model that has learned."""
    torch.set_num_threads(1)
    params = ModelParams.model_construct(
        id="tiny", cache_dir=str(cache_dir), engine="transformers", dtype="float32", attention="sdpa",
        load_in_4bit=False, lora_rank=lora_rank, lora_alpha=8, lora_dropout=lora_dropout, adapters="",
        lora_target_modules=("all-linear",), offload_embedding=False,
    )  # fmt: skip
    policy = load_policy(params, seed=seed)
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.mul_(4)
    return policy


def tiny_actor(cache_dir: Path, *, has_value: bool = False, **options: object) -> ActorCritic:
    actor = ActorCritic(tiny_policy(cache_dir, **options), has_value=has_value)
    if actor.value_head is not None:
        with torch.no_grad():
            actor.value_head.weight.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    return actor


def encoder(actor: ActorCritic) -> Encoder:
    return Encoder(actor.policy.tokenizer, lambda text: text, end=actor.policy.tokenizer.eos_token_id)


def played(actor: ActorCritic, game: str, count: int, *, free: bool = False, seed: int = 3):
    """Games of self-play, answers of three tokens where they are free."""
    options = {"max_new_tokens": 3} if free else {}
    player = (FreePlayer if free else ConstrainedPlayer)(actor, encoder(actor), temperature=1.0, **options)
    return play_games(self_play(load_game(game, style="compact"), count, seed=seed), {"policy": player})


def training(**changes: object) -> SimpleNamespace:
    """The section of the parameters that an update reads."""
    usual = {
        "max_steps": 10, "warmup_steps": 0, "learning_rate": 1e-3, "final_learning_rate": 1e-3,
        "entropy_coef": 0.0, "final_entropy_coef": 0.0, "magnet_coef": 0.0, "magnet_rate": 0.1,
        "kl_coef": 0.0, "average_decay": 0.9, "num_epochs": 1, "num_mini_batches": 1, "weight_decay": 0.0,
        "adam_beta2": 0.99, "max_grad_norm": 1e9, "tokens_per_pass": 4096, "ratio": "token", "clip": 0.2,
    }  # fmt: skip
    return SimpleNamespace(**{**usual, **changes})


def assert_same_gradients(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Compare each gradient to 2e-5 of its largest entry.

    Entries are sums whose terms are as large as that one, so a small entry has the rounding of a large one:
    4e-6 of it at most with five seeds and the settings of `make cpus`.
    """
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5 * np.abs(other).max())
    assert max(np.abs(other).max() for other in expected) > 1e-3  # else all are alike

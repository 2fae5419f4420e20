"""Actors for tests: the tiny language model with uneven probabilities, and a small recurrent network."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from tiny_policy import tiny_params
from torch import nn

from rlnb.games.text_games import load_game
from rlnb.policy import Policy, load_policy
from rlnb.policy.prompts import Chat
from rlnb.selfplay.acting import ActorCritic, ConstrainedPlayer, Encoder, FreePlayer
from rlnb.selfplay.params import UpdateParams
from rlnb.selfplay.rollouts import FinishedGame, play_games, self_play_episodes

VOCABULARY, WIDTH = 128, 8


def tiny_policy(cache_dir: Path, *, seed: int = 1, **options: object) -> Policy:
    """Return the tiny model, trained whole or by adapters; its answers are as uneven as after learning.

    options: of `model`.
    """
    torch.set_num_threads(1)
    params = tiny_params(cache_dir).model_copy(update={"lora_rank": 0, "lora_alpha": 8, **options})
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


def make_encoder(actor: ActorCritic) -> Encoder:
    return Encoder(actor.policy.tokenizer, lambda text: text, end=actor.policy.tokenizer.eos_token_id)


def played(
    actor: ActorCritic, game: str, num_games: int, *, free: bool = False, seed: int = 3
) -> list[FinishedGame]:
    """Return games of self-play, with answers of three tokens where they are free."""
    options = {"max_new_tokens": 3} if free else {}
    player = (FreePlayer if free else ConstrainedPlayer)(
        actor, make_encoder(actor), temperature=1.0, **options
    )
    episodes = self_play_episodes(load_game(game, style="compact"), num_games, seed=seed)
    return play_games(episodes, {"policy": player})


def training(**changes: object) -> UpdateParams:
    """Return the parameters of an update: one step, no schedules, no terms beside the surrogate."""
    usual = {
        "max_steps": 10, "warmup_steps": 0, "learning_rate": 1e-3, "final_learning_rate": 1e-3,
        "magnet_rate": 0.1, "average_decay": 0.9, "num_epochs": 1, "max_grad_norm": 1e9,
    }  # fmt: skip
    return UpdateParams(**{**usual, **changes})


def assert_same_gradients(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Compare each gradient to 2e-5 of its largest entry.

    Entries are sums whose terms are as large as that one, so a small entry has the rounding of a large one:
    at most 4e-6 of it with five seeds and the settings of `make cpus`.
    """
    for gradient, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(gradient, other, rtol=0, atol=2e-5 * np.abs(other).max())
    assert max(np.abs(other).max() for other in expected) > 1e-3  # else all would be equal


class Characters:
    """A tokenizer with a token for each character of ASCII."""

    eos_token_id = 0
    pad_token_id = 1

    def __call__(self, texts: list[str], **_: object) -> dict[str, list[list[int]]]:
        return {"input_ids": [[ord(character) % VOCABULARY for character in text] for text in texts]}


class Decoder(nn.Module):
    """Causal states, as of a language model, by a recurrent network."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, input_ids: torch.Tensor, *, use_cache: bool = False) -> SimpleNamespace:
        return SimpleNamespace(last_hidden_state=self.layers(self.embed(input_ids))[0])


class SmallNetwork(nn.Module):
    """The parts of a language model that ActorCritic uses."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        super().__init__()
        self.base_model = Decoder()
        self.unembed = nn.Linear(WIDTH, VOCABULARY, bias=False)
        with torch.no_grad():
            self.unembed.weight.mul_(4)  # uneven answers, as of a network that has learned
        self.config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(hidden_size=WIDTH))

    def get_output_embeddings(self) -> nn.Linear:
        return self.unembed


class DoubleActor(ActorCritic):
    """An actor that stays in float64, where ActorCritic ends in float32."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.unembed(hidden)

    def values(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.value_head(hidden)[:, 0]


def small_actor(*, seed: int = 0) -> ActorCritic:
    """Return an actor on SmallNetwork in torch's default precision, with values other than 0."""
    torch.set_num_threads(1)
    precision = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)  # the same draws in either precision
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        policy = Policy(SmallNetwork(), Characters(), "small", "transformers", precision, Chat(Characters()))
        actor = (DoubleActor if precision == torch.float64 else ActorCritic)(policy, has_value=True)
        nn.init.normal_(actor.value_head.weight, std=0.3)
    torch.set_default_dtype(precision)
    policy.model.to(precision)
    actor.value_head.to(precision)
    return actor

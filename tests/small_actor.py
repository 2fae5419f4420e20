"""An actor with a small recurrent network in the place of its language model, in float32 or float64."""

from types import SimpleNamespace

import torch
from torch import nn

from rlnb.policy import Policy
from rlnb.policy.actor_critic import ActorCritic

VOCABULARY, WIDTH = 128, 8


class Characters:
    """A tokenizer: a token is a character of ASCII."""

    eos_token_id = 0
    pad_token_id = 1

    def __call__(self, texts: list[str], **_: object) -> dict[str, list[list[int]]]:
        return {"input_ids": [[ord(one) % VOCABULARY for one in text] for text in texts]}


class Decoder(nn.Module):
    """States that know what came before, as those of a causal language model do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, input_ids: torch.Tensor, *, use_cache: bool = False) -> SimpleNamespace:
        return SimpleNamespace(last_hidden_state=self.layers(self.embed(input_ids))[0])


class SmallNetwork(nn.Module):
    """What an ActorCritic asks of a language model."""

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
    """Reads in float64, where ActorCritic goes to float32 at the end."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.unembed(hidden)

    def values(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.value_head(hidden)[:, 0]


def small_actor(*, seed: int = 0) -> ActorCritic:
    """In torch's default precision; its values are not 0."""
    torch.set_num_threads(1)
    precision = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)  # the same draws in either
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        policy = Policy(SmallNetwork(), Characters(), "small", "transformers", (0,))
        actor = (DoubleActor if precision == torch.float64 else ActorCritic)(policy, has_value=True)
        nn.init.normal_(actor.value_head.weight, std=0.3)
    torch.set_default_dtype(precision)
    policy.model.to(precision)
    actor.value_head.to(precision)
    return actor

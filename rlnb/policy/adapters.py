"""Which adapters are at work: none, the trained ones, or earlier values of them; one set of weights for all.

Earlier values are kept beside the model, not in it as further adapters of peft: transformers 5.17 loads from
a checkpoint with two sets only one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from rlnb.policy.loading import Policy, save_adapters

WHOLE, ADAPTERS = "weights.safetensors", "adapter_model.safetensors"
PEFT_NAME = ".default."  # stands in the names of parameters, not of what peft saves


@contextmanager
def adapters_off(policy: Policy) -> Iterator[None]:
    """The model as it was before training; a model without adapters is that anyway."""
    if not hasattr(policy.model, "disable_adapter"):
        yield
        return
    with policy.model.disable_adapter():
        yield


@dataclass(frozen=True)
class AdapterValues:
    """What the trained adapters held at some time, by the names of their parameters."""

    values: dict[str, torch.Tensor]

    @classmethod
    def of(cls, policy: Policy) -> "AdapterValues":
        """A copy of what they hold now."""
        return cls({name: parameter.detach().clone() for name, parameter in adapters_of(policy)})

    def take(self, policy: Policy) -> None:
        """Hold from here on what the adapters hold now."""
        self.values.update(AdapterValues.of(policy).values)

    def move(self, policy: Policy, rate: float) -> None:
        """Go towards what the adapters hold now: v + rate * (now - v), an exponential average of weights."""
        with torch.no_grad():
            for name, parameter in adapters_of(policy):
                self.values[name].lerp_(parameter.to(self.values[name].dtype), rate)

    def put_into(self, policy: Policy) -> None:
        """Let the adapters hold these values again."""
        for name, parameter in adapters_of(policy):
            parameter.data.copy_(self.values[name])

    @contextmanager
    def at_work(self, policy: Policy) -> Iterator[None]:
        """These values in the place of the adapters' own, which come back untouched."""
        own = {name: parameter.data for name, parameter in adapters_of(policy)}
        try:
            for name, parameter in adapters_of(policy):
                parameter.data = self.values[name]
            yield
        finally:
            for name, parameter in adapters_of(policy):
                parameter.data = own[name]

    def save(self, path: str | Path) -> None:
        save_file(self.values, path)

    def load(self, path: str | Path) -> None:
        """Hold what was saved; on the device of what is held now."""
        device = next(iter(self.values.values())).device
        self.values.update(load_file(path, device=str(device)))

    def load_trained(self, directory: str | Path) -> None:
        """Hold what `save_trained` wrote there; KeyError where it was of another model."""
        device = next(iter(self.values.values())).device
        whole, adapters = Path(directory) / WHOLE, Path(directory) / ADAPTERS
        saved = load_file(whole if whole.is_file() else adapters, device=str(device))
        short = {name: name if whole.is_file() else name.replace(PEFT_NAME, ".") for name in self.values}
        self.values.update({name: saved[short[name]] for name in self.values})


def save_trained(policy: Policy, directory: str | Path) -> None:
    """What is trained, in the form that peft, `model.adapters` and `rlnb export` read; by rank 0.

    Of a model without adapters: all its weights.
    """
    if hasattr(policy.model, "peft_config"):
        save_adapters(policy, directory)
    else:
        AdapterValues.of(policy).save(Path(directory) / WHOLE)


def has_trained(directory: str | Path) -> bool:
    """Whether there is something for `AdapterValues.load_trained`."""
    return any(Path(directory, name).is_file() for name in (WHOLE, ADAPTERS))


def adapters_of(policy: Policy) -> list[tuple[str, torch.nn.Parameter]]:
    """Names and parameters of the trained adapters."""
    return [(name, one) for name, one in policy.model.named_parameters() if one.requires_grad]

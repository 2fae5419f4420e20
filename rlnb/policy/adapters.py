"""Trained weights: snapshots of them, the model without them, and adapters computed in its dtype.

A snapshot is not another adapter of peft: transformers 5.17 loads only one from a checkpoint.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from peft.tuners.lora import Linear as LoraLinear
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from rlnb.params.sections import WEIGHT_FILES
from rlnb.policy.loading import Policy, save_adapters

WHOLE, ADAPTERS = WEIGHT_FILES


def adapters_off(policy: Policy) -> AbstractContextManager[None]:
    """Use the model without its adapters; a model without adapters stays as it is."""
    return policy.model.disable_adapter() if hasattr(policy.model, "disable_adapter") else nullcontext()


@dataclass(frozen=True)
class WeightSnapshot:
    """A copy of the trained weights, by the names of their parameters."""

    values: dict[str, torch.Tensor]

    @classmethod
    def take(cls, policy: Policy) -> "WeightSnapshot":
        return cls({name: parameter.detach().clone() for name, parameter in trained_parameters(policy)})

    def equals_weights_of(self, policy: Policy) -> bool:
        """Return whether these are the policy's present weights, to the bit."""
        return all(
            torch.equal(self.values[name], parameter) for name, parameter in trained_parameters(policy)
        )

    def move_towards(self, policy: Policy, rate: float) -> None:
        """Move to v + rate * (policy's weights - v): an exponential average, at rate 1 a copy to the bit."""
        with torch.no_grad():
            for name, parameter in trained_parameters(policy):
                self.values[name].lerp_(parameter.to(self.values[name].dtype), rate)

    def restore(self, policy: Policy) -> None:
        """Copy this snapshot into the policy's trained weights."""
        for name, parameter in trained_parameters(policy):
            parameter.data.copy_(self.values[name])

    @contextmanager
    def applied_to(self, policy: Policy) -> Iterator[None]:
        """Let the policy use this snapshot; its own weights return untouched at the end."""
        parameters = trained_parameters(policy)
        current = [parameter.data for _, parameter in parameters]
        try:
            for name, parameter in parameters:
                parameter.data = self.values[name]
            yield
        finally:
            for (_, parameter), weights in zip(parameters, current, strict=True):
                parameter.data = weights

    def save(self, path: str | Path) -> None:
        save_file(self.values, path)

    def load(self, path: str | Path) -> None:
        """Replace this snapshot by a saved one, on its devices, in its dtypes.

        Raises KeyError for that of another model.
        """
        saved = load_file(path)
        short = {name: name if name in saved else name_in_file(name) for name in self.values}
        self.values.update(  # copied: load_file maps the file, and NFS keeps a mapped one that is deleted
            {name: saved[short[name]].to(value, copy=True) for name, value in self.values.items()}
        )

    def load_trained(self, directory: str | Path) -> None:
        """Replace this snapshot by what `save_trained` wrote. Raises KeyError for that of another model."""
        whole = Path(directory) / WHOLE
        self.load(whole if whole.is_file() else Path(directory) / ADAPTERS)


def name_in_file(name: str) -> str:
    """Return the name that peft gives a parameter of adapters in its file."""
    return name.replace(".default.", ".").replace("lora_magnitude_vector.weight", "lora_magnitude_vector")


def save_trained(policy: Policy, directory: str | Path) -> None:
    """Write the adapters in peft's form, or all weights of a model without adapters; rank 0 only."""
    if hasattr(policy.model, "peft_config"):
        save_adapters(policy, directory)
    else:
        WeightSnapshot.take(policy).save(Path(directory) / WHOLE)


def trained_parameters(policy: Policy) -> list[tuple[str, torch.nn.Parameter]]:
    """Return the names and parameters that training changes."""
    return [pair for pair in policy.model.named_parameters() if pair[1].requires_grad]


def rewind(*modules: torch.nn.Module) -> bool:
    """Give modules the weights that they had at the first call, and return whether one was made before.

    Trainings begin with it: where a training cell is run again, its policy may be half-trained.
    """
    is_repeated = any("first_weights" in vars(module) for module in modules)
    for module in modules:
        first: dict[str, torch.Tensor] = vars(module).setdefault("first_weights", {})
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                parameter.data.copy_(first.setdefault(name, parameter.detach().to("cpu", copy=True)))
    return is_repeated


def was_trained(policy: Policy) -> bool:
    """Return whether a training has begun in this process."""
    return "first_weights" in vars(policy.model)


def first_weights(policy: Policy) -> WeightSnapshot:
    """Return the weights that a policy had before it was trained in this process; not a copy of them."""
    first: dict[str, torch.Tensor] = vars(policy.model).get("first_weights", {})
    parameters = trained_parameters(policy)
    return WeightSnapshot({name: first.get(name, each.detach()).to(each.device) for name, each in parameters})


def hash_trained(policy: Policy, snapshots: Sequence[WeightSnapshot] = ()) -> str:
    """Return the SHA-256 of the trained weights, and of snapshots of them, with their names."""
    digest = hashlib.sha256()
    for weights in (dict(trained_parameters(policy)), *(snapshot.values for snapshot in snapshots)):
        for name, tensor in weights.items():
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


@contextmanager
def adapters_in_weights_dtype(model: PreTrainedModel) -> Iterator[None]:
    """Compute plain LoRA layers with adapters cast to the weights' dtype once: three kernels, not eight.

    Gradients reach the float32 adapters through the cast. Layers that a surrounding call has taken are left.
    """
    layers = [layer for layer in model.modules() if _is_plain_lora(layer)]
    try:
        for layer in layers:
            name, weight = layer.active_adapters[0], layer.base_layer.weight
            down = layer.lora_A[name].weight.to(weight.dtype)
            up = (layer.lora_B[name].weight * layer.scaling[name]).to(weight.dtype)
            layer.forward = _lora_forward(layer.base_layer, down, up)
        yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)


def _is_plain_lora(layer: torch.nn.Module) -> bool:
    if not isinstance(layer, LoraLinear) or "forward" in vars(layer):
        return False
    if layer.disable_adapters or len(layer.active_adapters) != 1:
        return False
    (name,) = layer.active_adapters
    has_dropout = not isinstance(layer.lora_dropout[name], torch.nn.Identity)
    return not (has_dropout or layer.merged or layer.lora_bias[name] or name in layer.lora_variant)


def _lora_forward(base: torch.nn.Module, down: torch.Tensor, up: torch.Tensor) -> object:
    def forward(x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = base(x)
        inner = F.linear(x, down).flatten(0, -2)
        return torch.addmm(output.flatten(0, -2), inner, up.t()).view(output.shape)

    return forward

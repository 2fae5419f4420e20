"""The language model that is trained: loading it, generating with it, saving it."""

from rlnb.policy.builtin import model_directory
from rlnb.policy.generation import Completion, Progress, Received, generate
from rlnb.policy.loading import Policy, load_policy, save_adapters

__all__ = [
    "Completion",
    "Policy",
    "Progress",
    "Received",
    "generate",
    "load_policy",
    "model_directory",
    "save_adapters",
]

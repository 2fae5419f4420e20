"""The rows of the self-test: what each one tries and needs, and how long it may take. Imports no torch."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rlnb.machine import Machine, Recommendation, installed_version

Need = Literal["gpu", "bitsandbytes", "unsloth", "vllm", "open-spiel"]
NEEDS_GPU = "needs a CUDA GPU"


@dataclass(frozen=True)
class Row:
    """One line of the self-test. function: "module:name", called with a `Setting` in a process of its own.

    limit_seconds: after which that process is ended.
    """

    name: str
    function: str
    meaning: str
    needs: tuple[Need, ...] = ()
    limit_seconds: float = 180.0

    def missing(self, machine: Machine) -> str:
        """Return why the row cannot run on this machine, or ""."""
        if "gpu" in self.needs and (machine.capability is None or machine.name == "older"):
            return NEEDS_GPU
        packages = [need for need in self.needs if need != "gpu" and installed_version(need) is None]
        return f"needs {' and '.join(packages)}" if packages else ""


@dataclass(frozen=True)
class Setting:
    """What a row works with: a folder of its own, one for models that rows share, and the machine."""

    folder: Path
    models: Path
    machine: Machine
    choices: Recommendation


@dataclass(frozen=True)
class Outcome:
    """What a row found. headline: the number that matters with its unit. fault: "" if all is well.

    measured: all its numbers, as JSON has them, for the file.
    """

    headline: str
    fault: str = ""
    measured: dict[str, Any] = field(default_factory=dict)


ROWS = (
    Row("torch", "rlnb.selftest.arithmetic:check_torch", "matrix products; kernels for this GPU"),
    Row("triton", "rlnb.selftest.arithmetic:check_triton", "a compiled kernel, and TRL's", ("gpu",)),
    Row("families", "rlnb.selftest.reading:check_families", "log-probabilities of three kinds of models"),
    Row("noise", "rlnb.selftest.reading:check_noise", "the same tokens read in batches of 1, 8 and 32"),
    Row(
        "4bit", "rlnb.selftest.training:check_4bit", "generation, GRPO and PPO in 4 bits",
        ("bitsandbytes", "open-spiel"), 240,
    ),
    Row("grpo", "rlnb.selftest.training:check_grpo", "GRPO steps, a checkpoint, and the same step again"),
    Row("games", "rlnb.selftest.training:check_games", "updates of self-play and PPO", ("open-spiel",)),
    Row(
        "unsloth", "rlnb.selftest.engines:check_unsloth", "the same by unsloth",
        ("gpu", "unsloth", "bitsandbytes"), 600,
    ),
    Row("vllm", "rlnb.selftest.engines:check_vllm", "GRPO with vLLM on the same GPU", ("gpu", "vllm"), 600),
    Row("export", "rlnb.selftest.reading:check_export", "adapters, merged model and MXFP4, loaded again"),
    Row("speed", "rlnb.selftest.reading:check_speed", "tokens per second in batches of 1 and 64"),
)  # fmt: skip

"""The known kinds of machines and the settings that suit each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MachineRow:
    """The settings that suit one kind of machine.

    capabilities: CUDA compute capabilities, (8, 0). profile: for the memory that such a machine usually has.
    unsloth, vllm: whether they work there.
    """

    name: str
    capabilities: tuple[tuple[int, int], ...]
    profile: str
    dtype: str
    unsloth: bool
    vllm: bool


# Written for torch 2.10 to 2.14, unsloth 2026.10.7, vllm 0.31.0 and bitsandbytes 0.50.
# Attention is sdpa everywhere: it is part of torch, with flash kernels from 8.0 on; the flash-attn package
# adds nothing to it for training and breaks on 7.0 and 12.1.
MACHINES = (
    # On a CPU unsloth hands training to TRL's own classes, so it is left out.
    MachineRow("cpu", (), "cpu", "float32", unsloth=False, vllm=False),
    # With instructions for bfloat16 a forward pass of the embedded model takes 0.35 of float32's time, a
    # backward pass 0.8 (2 cores with avx512_bf16); without them it would take several times as long. Adapters
    # stay float32.
    MachineRow("cpu_bf16", (), "cpu", "bfloat16", unsloth=False, vllm=False),
    # Before Volta: torch's wheels have no kernels for these any more, so the CPU computes.
    MachineRow(
        "older", ((5, 0), (5, 2), (6, 0), (6, 1), (6, 2)), "cpu", "float32", unsloth=False, vllm=False
    ),
    # No bfloat16, no FlashAttention 2. torch 2.10 is the last on PyPI with kernels for 7.0; vLLM's have none.
    MachineRow("v100", ((7, 0), (7, 2)), "v100", "float16", unsloth=True, vllm=False),
    # No bfloat16 either, but served by every wheel.
    MachineRow("t4", ((7, 5),), "v100", "float16", unsloth=True, vllm=True),
    MachineRow("a100", ((8, 0),), "a100", "bfloat16", unsloth=True, vllm=True),
    # A10, A40, RTX 30; L4, L40S, RTX 40: as an A100, with batches by the memory that they have.
    MachineRow("ampere", ((8, 6), (8, 7)), "a100", "bfloat16", unsloth=True, vllm=True),
    MachineRow("ada", ((8, 9),), "a100", "bfloat16", unsloth=True, vllm=True),
    # H100, H200, GH200.
    MachineRow("h100", ((9, 0),), "h100", "bfloat16", unsloth=True, vllm=True),
    # B200, B300.
    MachineRow("b200", ((10, 0), (10, 3)), "h100", "bfloat16", unsloth=True, vllm=True),
    # RTX 50, RTX PRO 6000.
    MachineRow("rtx_blackwell", ((12, 0),), "a100", "bfloat16", unsloth=True, vllm=True),
    # DGX Spark. unsloth switches vLLM off for the name "NVIDIA GB10"; TRL alone may use it.
    MachineRow("gb10", ((12, 1),), "gb10", "bfloat16", unsloth=True, vllm=True),
    # Any other: what every GPU since Ampere does, in small batches, without packages that bring own kernels.
    MachineRow("newer", (), "v100", "bfloat16", unsloth=False, vllm=False),
)

CPU_ROWS = ("cpu", "cpu_bf16", "older")
BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})  # x86-64 twice, aarch64

# A profile's batches need this much. With less the next one is taken, v100's at last: slices of a GPU and
# consumer cards end up where their memory says.
PROFILE_MEMORY_GIB = (("h100", 70.0), ("a100", 38.0))


def find_row(name: str) -> MachineRow:
    """Return the row of a name."""
    return next(row for row in MACHINES if row.name == name)


def name_machine(capability: tuple[int, int]) -> str:
    """Return the name of the row for a compute capability: "older" before Volta, "newer" if unknown."""
    for row in MACHINES:
        if capability in row.capabilities:
            return row.name
    return "older" if capability < (7, 0) else "newer"


def recommend_profile(row: MachineRow, memory_gib: float) -> str:
    """Return the profile whose batches fit into the memory."""
    steps = [name for name, _ in PROFILE_MEMORY_GIB]
    if row.profile not in steps:
        return row.profile
    fitting = [name for name, needed_gib in PROFILE_MEMORY_GIB if memory_gib >= needed_gib]
    return next((name for name in fitting if steps.index(name) >= steps.index(row.profile)), "v100")

"""The known kinds of machines and the settings that suit each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MachineRow:
    """The settings that suit one kind of machine.

    capabilities: CUDA compute capabilities, (8, 0). profile: for the memory that such a machine usually has.
    unsloth: whether it works there, and so is the engine where it is installed; elsewhere transformers is.
    vLLM works on the same machines.
    """

    name: str
    profile: str
    capabilities: tuple[tuple[int, int], ...] = ()
    dtype: str = "bfloat16"
    unsloth: bool = True


# Written for torch 2.10 to 2.14, unsloth 2026.10.7, vllm 0.31.0 and bitsandbytes 0.50.
# Attention is sdpa everywhere: it is part of torch, with flash kernels from 8.0 on; the flash-attn package
# adds nothing to it for training and breaks on 7.0 and 12.1.
MACHINES = (
    # On a CPU unsloth hands training to TRL's own classes, so it is left out.
    MachineRow("cpu", "cpu", dtype="float32", unsloth=False),
    # With instructions for bfloat16 a forward pass of the embedded model takes 0.35 of float32's time, a
    # backward pass 0.8 (2 cores with avx512_bf16); without them it would take several times as long. Adapters
    # stay float32.
    MachineRow("cpu_bf16", "cpu", unsloth=False),
    # Before Volta: torch's wheels have no kernels for these any more, so the CPU computes.
    MachineRow("older", "cpu", dtype="float32", unsloth=False),
    # No bfloat16, no FlashAttention 2. torch 2.10 is the last on PyPI with kernels for 7.0: the set volta has
    # it, without unsloth, whose pins need a newer one. vLLM's wheels have none.
    MachineRow("v100", "v100", ((7, 0), (7, 2)), "float16", unsloth=False),
    # No bfloat16 either, but served by every wheel.
    MachineRow("t4", "v100", ((7, 5),), "float16"),
    MachineRow("a100", "a100", ((8, 0),)),
    # A10, A40, RTX 30; L4, L40S, RTX 40: as an A100, with batches by the memory that they have.
    MachineRow("ampere", "a100", ((8, 6), (8, 7))),
    MachineRow("ada", "a100", ((8, 9),)),
    # H100, H200, GH200.
    MachineRow("h100", "h100", ((9, 0),)),
    # B200, B300.
    MachineRow("b200", "h100", ((10, 0), (10, 3))),
    # RTX 50, RTX PRO 6000.
    MachineRow("rtx_blackwell", "a100", ((12, 0),)),
    # DGX Spark. unsloth switches vLLM off for the name "NVIDIA GB10"; TRL alone may use it.
    MachineRow("gb10", "gb10", ((12, 1),)),
    # Any other: what every GPU since Ampere does, in small batches, without packages that bring own kernels.
    MachineRow("newer", "v100", unsloth=False),
)

BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})  # x86-64 twice, aarch64

# {capability: share of the system's memory that counts as the GPU's, which has none of its own}. A GB10 with
# 122 GiB freezes when asked for more than the 102 that CUDA has: no error, no OOM killer (pytorch#174358).
SHARED_MEMORY = {(12, 1): 0.8}

# A profile's batches need this much. With less the next one is taken, v100's at last: slices of a GPU and
# consumer cards end up where their memory says.
PROFILE_MEMORY_GIB = (("h100", 70.0), ("a100", 38.0), ("v100", 0.0))

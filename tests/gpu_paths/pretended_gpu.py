"""A GPU that is not there, for the real unsloth: its CUDA branches run on the CPU.

unsloth 2026.10.7 has a switch for it, UNSLOTH_ALLOW_CPU; Triton's kernels run in Triton's interpreter, which
gives NaN in bfloat16, so models are float32. In 4 bits bitsandbytes' kernels for
CPUs compute. Not run: compiled kernels, xformers, 4-bit CUDA kernels, vLLM.
"""

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

H100 = {"name": "NVIDIA H100 80GB HBM3", "capability": (9, 0), "memory_gib": 80}


class Stream:
    """A CUDA stream or event with nothing to wait for."""

    cuda_stream = 0

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None: ...

    def record_event(self, *_: object) -> "Stream":
        return Stream()

    def query(self) -> bool:
        return True

    def wait_stream(self, *_: object) -> None: ...

    wait_event = synchronize = record = wait_stream


def import_unsloth() -> bool:
    """Import unsloth, before trl; where there is no GPU pretend one, and return False."""
    if Path("/dev/nvidiactl").exists():
        os.environ |= {"UNSLOTH_DISABLE_STATISTICS": "1", "HF_HUB_OFFLINE": "1"}
        import unsloth  # noqa: F401

        return True
    os.environ |= {
        "UNSLOTH_ALLOW_CPU": "1",
        "TRITON_INTERPRET": "1",
        "UNSLOTH_COMPILE_DISABLE": "1",
        "UNSLOTH_DISABLE_STATISTICS": "1",
        "UNSLOTH_GRPO_PREFIX_GROUPER": "0",  # its FlexAttention has no backward pass on CPUs
        "HF_HUB_OFFLINE": "1",
    }
    import unsloth  # noqa: F401

    os.environ["UNSLOTH_ALLOW_CPU"] = "0"  # which would leave these patches out
    from unsloth import FastLanguageModel
    from unsloth.models.rl import PatchFastRL

    PatchFastRL(FastLanguageModel=FastLanguageModel)
    os.environ["UNSLOTH_ALLOW_CPU"] = "1"
    pretend_facts()
    keep_tensors_on_the_cpu()
    tell_unsloth()
    return False


def pretend_facts() -> None:
    """Let torch.cuda describe an H100 that has nothing to do."""
    import torch

    gib = 2**30
    properties = SimpleNamespace(
        name=H100["name"], total_memory=H100["memory_gib"] * gib, major=H100["capability"][0],
        minor=H100["capability"][1], multi_processor_count=132, warp_size=32, gcnArchName="",
    )  # fmt: skip
    answers = {
        "get_device_properties": properties, "get_device_capability": H100["capability"],
        "get_device_name": H100["name"], "mem_get_info": (78 * gib, 80 * gib), "current_device": 0,
        "device_count": 1, "is_bf16_supported": True, "memory_allocated": 0, "max_memory_allocated": 0,
        "memory_reserved": 0, "max_memory_reserved": 0, "synchronize": None, "empty_cache": None,
        "set_device": None, "reset_peak_memory_stats": None, "current_stream": Stream(),
        "default_stream": Stream(), "stream": contextlib.nullcontext(),
    }  # fmt: skip
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
    torch.cuda.Stream = torch.cuda.Event = Stream


def is_cuda(device: object) -> bool:
    return (isinstance(device, int) and not isinstance(device, bool)) or str(device).startswith("cuda")


def keep_tensors_on_the_cpu() -> None:
    """Read "cuda" as "cpu" wherever tensors and models are made or moved."""
    import torch
    from transformers import PreTrainedModel

    def on_cpu(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: object, **options: object) -> object:
            options.pop("pin_memory", None)
            if is_cuda(options.get("device")):
                options["device"] = "cpu"
            return make(*arguments, **options)

        return made

    makers = ("empty", "zeros", "ones", "tensor", "full", "arange", "as_tensor", "empty_like", "zeros_like")
    for name in makers:
        setattr(torch, name, on_cpu(getattr(torch, name)))
    for module in unsloth_modules():
        for name in ("torch_empty", "torch_zeros"):
            if hasattr(module, name):
                setattr(module, name, on_cpu(getattr(module, name)))

    move = torch.Tensor.to

    def moved(tensor: torch.Tensor, *arguments: object, **options: object) -> torch.Tensor:
        if is_cuda(options.get("device")):
            options["device"] = "cpu"
        return move(tensor, *("cpu" if is_cuda(value) else value for value in arguments), **options)

    torch.Tensor.to = moved
    torch.Tensor.cuda = torch.Tensor.pin_memory = lambda tensor, *_, **__: tensor
    load = PreTrainedModel.from_pretrained.__func__

    def loaded(cls: type, *arguments: object, **options: object) -> object:
        return load(cls, *arguments, **options | {"device_map": {"": "cpu"}})

    PreTrainedModel.from_pretrained = classmethod(loaded)


def unsloth_modules() -> list[Any]:
    return [module for name, module in list(sys.modules.items()) if name.startswith("unsloth") and module]


def tell_unsloth() -> None:
    """Set what unsloth's modules have read before the facts were there, and make its rotary caches."""
    import bitsandbytes
    import torch
    import unsloth.models.llama as llama
    import unsloth.models.loader as loader

    bitsandbytes.nn.modules.has_avx512bf16 = lambda: False  # no gradient goes through weights packed for it
    loader.ALLOW_BITSANDBYTES = loader.ALLOW_PREQUANTIZED_MODELS = True  # which has kernels for CPUs too
    for module in unsloth_modules():
        if hasattr(module, "SUPPORTS_BFLOAT16"):
            module.SUPPORTS_BFLOAT16 = True
        if isinstance(getattr(module, "DEVICE_COUNT", None), int):
            module.DEVICE_COUNT = 1

    class Cuda:
        """A device that calls itself cuda:0, which the tensors' `to` above takes for the CPU."""

        index, type = 0, "cuda"

        def __str__(self) -> str:
            return "cuda:0"

    def build(self: Any, device_index: int) -> None:
        rows = self.current_rope_size
        self._set_cos_sin_cache(seq_len=self._rope_cache_rows(), device=Cuda(), dtype=self._rope_cache_dtype)
        self.current_rope_size = rows
        self._rope_cache_versions[0] = self._rope_cache_version

    assert torch.get_default_dtype() == torch.float32
    llama._PerDeviceRopeCache._build_rope_cache = build

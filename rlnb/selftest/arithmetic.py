"""Rows without a model: torch's products on this machine, and kernels that Triton compiles."""

import re
from collections.abc import Mapping, Sequence

import torch

from rlnb.machine import Machine
from rlnb.selftest.rows import Outcome, Setting

SIZE = 512
# Largest error of a product of matrices as a share of its largest entry; with TF32, float32's is 3e-4.
MAX_ERROR = {"float32": 5e-5, "bfloat16": 0.02, "float16": 0.004}
MAX_KERNEL_ERROR = 1e-3  # nats


def check_torch(setting: Setting) -> Outcome:
    """Multiply matrices in the number formats of this machine; see that torch has kernels for its GPU."""
    machine = setting.machine
    if machine.capability is None:
        return judge_products(measure_products("cpu", dtypes_of(machine)))
    if not torch.cuda.is_available():
        return Outcome(
            f"torch {torch.__version__}",
            f"the driver knows {machine.accelerator}, torch sees no GPU: ./setup.sh",
        )
    kernels, capability = torch.cuda.get_arch_list(), torch.cuda.get_device_capability()
    if not serves(kernels, capability):
        return Outcome(
            f"torch {torch.__version__}", f"no kernels for capability {capability}, only {', '.join(kernels)}"
        )
    outcome = judge_products(measure_products("cuda", dtypes_of(machine)))
    facts = torch.cuda.get_device_properties(0)
    outcome.measured.update(
        gpu=facts.name,
        memory_gib=round(facts.total_memory / 2**30, 1),
        multiprocessors=facts.multi_processor_count,
        cuda=torch.version.cuda,
        kernels=kernels,
    )
    return outcome


def dtypes_of(machine: Machine) -> list[str]:
    """Return the number formats that this machine computes in; GPUs before Ampere have no bfloat16."""
    has_bfloat16 = machine.capability is None or machine.capability >= (8, 0)
    return ["float32", "float16", *(["bfloat16"] if has_bfloat16 else [])]


def serves(kernels: Sequence[str], capability: tuple[int, int]) -> bool:
    """Return whether code for these architectures (sm_90, compute_120) runs on a GPU.

    sm_80 runs on 8.6 too, and not on 9.0; compute_80, which the driver compiles, runs on all newer ones; what
    ends in "a" runs on this architecture alone.
    """
    for kind, major, minor, suffix in re.findall(r"\b(sm|compute)_(\d+)(\d)([af]?)\b", " ".join(kernels)):
        built = (int(major), int(minor))
        is_same_major = built[0] == capability[0] and suffix != "a"
        if built == capability or (
            built <= capability and (is_same_major or kind == "compute" and not suffix)
        ):
            return True
    return False


def measure_products(device: str, dtypes: Sequence[str]) -> dict[str, float]:
    """Return the largest error of a product in each number format, as a share of the largest entry."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(SIZE, SIZE, generator=generator) for _ in range(2))
    errors = {}
    for name in dtypes:
        rounded = [matrix.to(getattr(torch, name)) for matrix in (left, right)]
        exact = rounded[0].double() @ rounded[1].double()
        product = torch.matmul(*(matrix.to(device) for matrix in rounded)).cpu().double()
        errors[name] = float((product - exact).abs().max() / exact.abs().max())
    return errors


def judge_products(errors: Mapping[str, float]) -> Outcome:
    wrong = [name for name, error in errors.items() if not error <= MAX_ERROR[name]]
    fault = ""
    if wrong:
        bounds = ", ".join(f"{MAX_ERROR[name]:g}" for name in wrong)
        fault = f"products in {', '.join(wrong)} are wrong by more than {bounds} of their largest entry"
    shown = ", ".join(f"{error:.1g} in {name}" for name, error in errors.items())
    return Outcome(f"error {shown}", fault, {"product_error": dict(errors)})


def check_triton(setting: Setting) -> Outcome:
    """Compile a kernel of our own, then run the one by which TRL computes log-probabilities."""
    from rlnb.selftest.triton_kernel import doubled

    values = torch.arange(1000.0, device="cuda")
    if not torch.equal(doubled(values), 2 * values):
        return Outcome("", "a kernel that doubles numbers returns others")
    errors = {name: logprob_error("cuda", name) for name in dtypes_of(setting.machine)}
    return judge_kernel(errors)


def logprob_error(device: str, dtype: str) -> float:
    """Return how far TRL's kernel for log-probabilities is from torch's log_softmax, in nats."""
    from trl.kernels import ChunkedLogProbFunction

    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(rows, 64, generator=generator) / 4 for rows in (100, 3000))
    targets = torch.randint(0, 3000, (100,), generator=generator)
    rounded = [tensor.to(device, getattr(torch, dtype)) for tensor in (hidden, weight)]
    computed = ChunkedLogProbFunction.apply(*rounded, None, targets.to(device), 1.0, 1024)[0]
    logits = rounded[0].cpu().double() @ rounded[1].cpu().double().T
    exact = logits.log_softmax(-1)[torch.arange(100), targets]
    return float((computed.cpu().double() - exact).abs().max())


def judge_kernel(errors: Mapping[str, float]) -> Outcome:
    # The tiles of logits are in the number format of the weights.
    wrong = [name for name, error in errors.items() if not error <= MAX_KERNEL_ERROR + MAX_ERROR[name]]
    fault = f"TRL's kernel is wrong in {', '.join(wrong)}" if wrong else ""
    shown = ", ".join(f"{error:.1g} in {name}" for name, error in errors.items())
    return Outcome(f"TRL's log-probabilities: error {shown} (nats)", fault, {"logprob_error": dict(errors)})

"""What torch and Triton compute here: matrix products, and the kernel of TRL's log-probabilities."""

import pytest
import torch

pytestmark = pytest.mark.gpu
SIZE = 512
# Largest error of a product as a share of its largest entry; with TF32, float32's is 3e-4.
MAX_ERROR = {"float32": 5e-5, "bfloat16": 0.02, "float16": 0.004}
MAX_KERNEL_ERROR = 1e-3  # nats
DTYPES = ["float32", "float16", pytest.param("bfloat16", marks=pytest.mark.needs("bfloat16"))]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_of_matrices_is_exact_but_for_rounding(device, dtype, measured):
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(SIZE, SIZE, generator=generator).to(getattr(torch, dtype)) for _ in range(2))
    exact = left.double() @ right.double()
    product = torch.matmul(left.to(device), right.to(device)).cpu().double()
    error = float((product - exact).abs().max() / exact.abs().max())
    measured("error of a product (NVIDIA_TF32_OVERRIDE?)", error, at_most=MAX_ERROR[dtype])


@pytest.mark.needs("gpu", "triton")
@pytest.mark.parametrize("dtype", DTYPES)
def test_triton_compiles_trls_log_probabilities(dtype, measured):
    """The first GRPO step on any GPU compiles this kernel, which takes a C compiler and Python's headers."""
    from trl.kernels import ChunkedLogProbFunction

    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(rows, 64, generator=generator) / 4 for rows in (100, 3000))
    targets = torch.randint(0, 3000, (100,), generator=generator)
    rounded = [tensor.to("cuda", getattr(torch, dtype)) for tensor in (hidden, weight)]
    computed = ChunkedLogProbFunction.apply(*rounded, None, targets.cuda(), 1.0, 1024)[0]
    logits = rounded[0].cpu().double() @ rounded[1].cpu().double().T
    exact = logits.log_softmax(-1)[torch.arange(100), targets]
    error = float((computed.cpu().double() - exact).abs().max())
    # The tiles of logits are in the number format of the weights.
    bound = MAX_KERNEL_ERROR + MAX_ERROR[dtype]
    measured("error of TRL's kernel (nats)", error, at_most=bound, page="ptxas-and-sm_121a")

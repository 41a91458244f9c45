"""Whether an operation takes a kernel."""

import torch
from torch import Tensor

from bass.kernels.support import Unsupported, runs_kernels, triton_unsupported, unsupported

__all__ = [
    "Unsupported",
    "few_rows",
    "has_gradient",
    "hopper",
    "runs_kernels",
    "triton_unsupported",
    "unsupported",
    "use_kernels",
]

MOST_ROWS = 512  # of a step; those of a prefill are more, and bound by arithmetic
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def use_kernels(x: Tensor) -> bool:
    """Whether kernels serve the tensor: it is on a CUDA device on which they run."""
    return x.is_cuda and runs_kernels(x.device)


def hopper(x: Tensor) -> bool:
    """Whether the kernels in Gluon serve the tensor: on a Hopper GPU, with Triton 3.6."""
    if not x.is_cuda:
        return False
    from bass.kernels.triton import launch  # it needs Triton

    return launch.gluon(x.device)


def few_rows(x: Tensor, *weights: Tensor | None) -> bool:
    """Whether kernels serve the rows of a decoding step on their way through a layer.

    They compute in float32 what is stored in 32 bits or fewer.
    """
    return (
        use_kernels(x)
        and x.dtype in DTYPES
        and x.numel() <= MOST_ROWS * x.shape[-1]
        and not has_gradient(x, *weights)
    )


def has_gradient(*tensors: Tensor | None) -> bool:
    """Whether torch records a gradient of any of them, which kernels do not have."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)

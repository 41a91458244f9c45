"""Whether an operation takes a kernel."""

from torch import Tensor

from bass.kernels.support import Unsupported, runs_kernels, triton_unsupported, unsupported

__all__ = ["Unsupported", "runs_kernels", "triton_unsupported", "unsupported", "use_kernels"]


def use_kernels(x: Tensor) -> bool:
    """Whether kernels serve the tensor: it is on a CUDA device on which they run."""
    return x.is_cuda and runs_kernels(x.device)

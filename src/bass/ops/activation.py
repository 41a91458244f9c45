"""Activation functions by their names in checkpoints, and the gate of a gated MLP."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from bass.kernels import triton as kernels
from bass.ops import dispatch

Activation = Callable[[Tensor], Tensor]
SLOPE, LIMIT = 1.702, 7.0  # of gpt-oss


def relu_squared(x: Tensor) -> Tensor:
    """max(x, 0)² (So et al., 2021)."""
    return F.relu(x).square()


_tanh_gelu = partial(F.gelu, approximate="tanh")


def clamped_silu(x: Tensor) -> Tensor:
    """The gate of gpt-oss: x sigmoid(1.702 x) of x up to 7; its ups are limited too, and one larger
    (`gate`).
    """
    x = x.clamp(max=LIMIT)
    return x * torch.sigmoid(SLOPE * x)


ACTIVATIONS: dict[str, Activation] = {
    "silu": F.silu,
    "swish": F.silu,
    "relu": F.relu,
    "relu2": relu_squared,
    "gelu": F.gelu,
    "gelu_new": _tanh_gelu,
    "gelu_fast": _tanh_gelu,
    "gelu_pytorch_tanh": _tanh_gelu,
    "clamped_silu": clamped_silu,
}
# activations that kernels support, with their names there
IN_KERNELS: dict[Activation, str] = {
    F.silu: "silu",
    F.gelu: "gelu",
    _tanh_gelu: "gelu_tanh",
    F.relu: "relu",
    clamped_silu: "clamped_silu",
    relu_squared: "relu2",
}


def gate(y: Float[Tensor, "*rows twice"], act: Activation) -> Float[Tensor, "*rows inner"]:
    """act(gate) · up, where the first half of a row's numbers are the gates (Shazeer, 2020)."""
    if (
        act in IN_KERNELS
        and dispatch.use_kernels(y)
        and y.dtype in dispatch.DTYPES
        and not dispatch.has_gradient(y)
    ):
        parts = y.reshape(1, -1, y.shape[-1])
        out = kernels.small_m_gemm.gate(parts, IN_KERNELS[act], y.dtype)
        return out.view(*y.shape[:-1], -1)
    gates, up = y.chunk(2, -1)
    if act is clamped_silu:
        up = up.clamp(-LIMIT, LIMIT) + 1
    return act(gates) * up

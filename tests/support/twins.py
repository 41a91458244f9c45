"""Operations in plain torch and float64: what kernels must equal."""

from functools import partial

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

ACTS = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}


def linear(
    x: Float[Tensor, "rows in"], w: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None
) -> Float[Tensor, "rows out"]:
    """x wᵀ + b."""
    y = x.double() @ w.double().T
    return y if bias is None else y + bias.double()


def gated(
    x: Float[Tensor, "rows in"], w: Float[Tensor, "twice in"], act: str
) -> Float[Tensor, "rows inner"]:
    """act(gate) · up, where the first half of w's rows makes the gates."""
    gate, up = linear(x, w, None).chunk(2, -1)
    return ACTS[act](gate) * up


def add_norm(
    stream: Float[Tensor, "rows size"],
    parts: Float[Tensor, "splits rows size"] | None,
    weight: Float[Tensor, " size"],
    eps: float,
) -> tuple[Float[Tensor, "rows size"], Float[Tensor, "rows size"]]:
    """s' = s + Σ parts, rounded as the stream is; and s' / sqrt(mean(s'²) + eps) · weight."""
    summed = stream if parts is None else (stream.double() + parts.double().sum(0)).to(stream.dtype)
    wide = summed.double()
    return summed, wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()

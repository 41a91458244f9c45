"""The pieces that decoders share. Parameters are left empty: `weights.load_decoder` or a trainer fills them.

Layers define `__call__` themselves: that of `nn.Module` looks for hooks first, which is 5 % of a small decoder's step on a CPU.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn


class Linear(nn.Module):
    """y = x Wᵀ, without a bias; the weight has shape [out, in]."""

    def __init__(self, in_features: int, out_features: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))

    def __call__(self, x: Float[Tensor, "*rows in"]) -> Float[Tensor, "*rows out"]:
        return F.linear(x, self.weight)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) * weight (Zhang and Sennrich, 2019), the statistics in float32 at least.

    On a CPU `torch.rms_norm` is nine operations, four of which are enough: x * sqrt(n) / hypot(|x|, sqrt(n * eps)) * weight.
    """

    def __init__(self, size: int, eps: float, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, device=device, dtype=dtype))
        self.eps = eps
        wide = torch.promote_types(dtype, torch.float32)
        self.zero, self.floor = torch.tensor([0.0, (size * eps) ** 0.5], dtype=wide).unbind()  # used on a CPU alone, so no buffers

    def __call__(self, x: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows hidden"]:
        if not x.is_cpu:
            return torch.rms_norm(x, self.weight.shape, self.weight, self.eps)
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=self.floor.dtype)
        unit = torch.addcdiv(self.zero, x, torch.hypot(size, self.floor), value=x.shape[-1] ** 0.5)
        return unit.to(x.dtype) * self.weight


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)), with gate and up in one product (Shazeer, 2020)."""

    def __init__(self, hidden: int, inner: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate_up = Linear(hidden, 2 * inner, device, dtype)
        self.down = Linear(inner, hidden, device, dtype)

    def __call__(self, x: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows hidden"]:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class Rotary(nn.Module):
    """Rotary position embedding in the half-split convention (Su et al., 2021).

    Both tables hold head_dim columns, the sine with its sign, so that rotating is `x * cos + roll(x) * sin`.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, head_dim: int, max_positions: int, theta: float, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        exponent = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * (theta**-exponent)
        cos = angles.cos().repeat(1, 2)
        sin = torch.cat((-angles.sin(), angles.sin()), -1)
        self.register_buffer("cos", cos.to(device, dtype), persistent=False)
        self.register_buffer("sin", sin.to(device, dtype), persistent=False)

    def __call__(self, positions: Int[Tensor, "batch window"]) -> tuple[Tensor, Tensor]:
        """Angles [B,W,1,D] of each position; those of position -1 ("no token") are never used."""
        index = positions.clamp(min=0)
        return self.cos[index].unsqueeze(-2), self.sin[index].unsqueeze(-2)


def rotate(x: Float[Tensor, "batch window heads dim"], angles: tuple[Tensor, Tensor]) -> Float[Tensor, "batch window heads dim"]:
    """`x` turned by the angles of its positions."""
    cos, sin = angles
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)

"""Norms, as modules with their weights. Statistics are in float32 or wider."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class UnitRMS:
    """x / sqrt(mean(x²) + eps), in float32 or wider.

    On a CPU `torch.rms_norm` runs nine operations; three are enough: x * sqrt(n) / hypot(|x|,
    sqrt(n * eps)).
    """

    def __init__(self, size: int, eps: float, dtype: torch.dtype) -> None:
        self.size, self.eps, self.wide = size, eps, torch.promote_types(dtype, torch.float32)
        # used only on a CPU
        self.zero, self.floor = torch.tensor([0.0, (size * eps) ** 0.5], dtype=self.wide).unbind()

    def __call__(self, x: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows hidden"]:
        if not x.is_cpu:
            return torch.rms_norm(x.to(self.wide), (self.size,), None, self.eps)
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=self.wide)
        return torch.addcdiv(self.zero, x, torch.hypot(norm, self.floor), value=self.size**0.5)


def scaled(unit: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """`unit` rounded to `dtype`, then times the weights."""
    return unit.to(dtype) * weight


def offset_scaled(unit: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """`unit` times 1 + the weights, then rounded to `dtype`."""
    return torch.addcmul(unit, unit, weight).to(dtype)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) * weight (Zhang and Sennrich, 2019)."""

    def __init__(self, size: int, eps: float, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, device=device, dtype=dtype))
        self.unit = UnitRMS(size, eps, dtype)

    def __call__(self, x: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows hidden"]:
        if not x.is_cpu:
            return torch.rms_norm(x, self.weight.shape, self.weight, self.unit.eps)
        return scaled(self.unit(x), self.weight, x.dtype)


class OffsetRMSNorm(nn.Module):
    """RMSNorm with weights stored as their distance from 1, applied before rounding (Gemma)."""

    def __init__(self, size: int, eps: float, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, device=device, dtype=dtype))
        self.unit = UnitRMS(size, eps, dtype)

    def __call__(self, x: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows hidden"]:
        return offset_scaled(self.unit(x), self.weight, x.dtype)


class HeadNorm(nn.Module):
    """RMSNorm of each head of q and k. The heads of q share their weights, and so do those of k.

    The weights are repeated for every head, so q and k need one operation.
    """

    def __init__(
        self,
        heads: int,
        head_dim: int,
        eps: float,
        device: torch.device,
        dtype: torch.dtype,
        scale: Callable[..., Tensor] = scaled,
    ) -> None:
        """`heads`: those of q and k together. `scale`: `scaled` or `offset_scaled`."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads * head_dim, device=device, dtype=dtype))
        self.shape, self.unit, self.scale = (heads, head_dim), UnitRMS(head_dim, eps, dtype), scale

    def __call__(
        self, x: Float[Tensor, "batch window heads dim"]
    ) -> Float[Tensor, "batch window heads dim"]:
        return self.scale(self.unit(x), self.weight.view(self.shape), x.dtype)


class ProjectionNorm(nn.Module):
    """RMSNorm of all heads of q together, and of all heads of k together (OLMo 2).

    Kernels complete single heads, so `project_qkv` applies it before them.
    """

    def __init__(
        self,
        heads: tuple[int, int, int],
        eps: float,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """`heads`: query heads, key-value heads, dimensions of each."""
        super().__init__()
        count, kv_count, dim = heads
        self.sizes = count * dim, kv_count * dim, kv_count * dim
        self.q_norm = RMSNorm(count * dim, eps, device, dtype)
        self.k_norm = RMSNorm(kv_count * dim, eps, device, dtype)

    def __call__(self, qkv: Float[Tensor, "*rows qkv"]) -> Float[Tensor, "*rows qkv"]:
        q, k, v = qkv.split_with_sizes(self.sizes, -1)
        return torch.cat((self.q_norm(q), self.k_norm(k), v), -1)


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias (Ba et al., 2016)."""

    def __init__(
        self,
        size: int,
        eps: float,
        device: torch.device,
        dtype: torch.dtype,
        affine: bool = True,
        bias: bool = True,
    ) -> None:
        """`affine`: whether there are weights; `bias`: whether they have a bias (Cohere: none)."""
        super().__init__()
        self.shape, self.eps = (size,), eps
        self.weight, self.bias = (
            nn.Parameter(torch.empty(size, device=device, dtype=dtype)) if there else None
            for there in (affine, affine and bias)
        )

    def __call__(self, x: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows hidden"]:
        return F.layer_norm(x, self.shape, self.weight, self.bias, self.eps)

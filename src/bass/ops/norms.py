"""Norms, as modules with their weights. Statistics are in float32 or wider."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from bass.kernels.values import Norm


def rms_normed(
    x: Float[Tensor, "*rows size"], weight: Float[Tensor, "*_ size"], eps: float, offset: bool
) -> Float[Tensor, "*rows size"]:
    """x / sqrt(mean(x²) + eps), rounded to x's type, times the weight; `offset`: times 1 + weight,
    then rounded.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    unit = torch.rms_norm(wide, x.shape[-1:], None, eps)
    return torch.addcmul(unit, unit, weight).to(x.dtype) if offset else unit.to(x.dtype) * weight


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) * weight (Zhang and Sennrich, 2019)."""

    def __init__(self, size: int, eps: float, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.empty(size, device=device, dtype=dtype)), eps

    def __call__(self, x: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows hidden"]:
        return torch.rms_norm(x, self.weight.shape, self.weight, self.eps)


class OffsetRMSNorm(RMSNorm):
    """RMSNorm with weights stored as their distance from 1, applied before rounding (Gemma)."""

    def __call__(self, x: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows hidden"]:
        return rms_normed(x, self.weight, self.eps, offset=True)


class HeadNorm(nn.Module):
    """RMSNorm of each head of q and k. The heads of q share their weights, and so do those of k.

    The weights are repeated for every head, so q and k need one operation. `heads`: those of q and
    k together. `offset`: as in `OffsetRMSNorm`.
    """

    def __init__(
        self,
        heads: int,
        head_dim: int,
        eps: float,
        device: torch.device,
        dtype: torch.dtype,
        offset: bool = False,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads * head_dim, device=device, dtype=dtype))
        self.shape, self.eps, self.offset = (heads, head_dim), eps, offset

    def __call__(
        self, x: Float[Tensor, "batch window heads dim"]
    ) -> Float[Tensor, "batch window heads dim"]:
        return rms_normed(x, self.weight.view(self.shape), self.eps, self.offset)


class ProjectionNorm(nn.Module):
    """RMSNorm of all heads of q together, and of all heads of k together (OLMo 2).

    Kernels complete single heads, so `project_qkv` applies it before them.
    """

    def __init__(
        self, heads: tuple[int, int, int], eps: float, device: torch.device, dtype: torch.dtype
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


def kernel_norm(norm: Any) -> Norm | None:
    """The norm as kernels take it. None: they do not compute it, nor any subclass."""
    if type(norm) is LayerNorm:
        return Norm(norm.weight, norm.eps, "layer", norm.bias)
    if type(norm) is HeadNorm:
        return Norm(norm.weight, norm.eps, "offset_rms" if norm.offset else "rms")
    kind = {RMSNorm: "rms", OffsetRMSNorm: "offset_rms"}.get(type(norm))
    return None if kind is None else Norm(norm.weight, norm.eps, kind)

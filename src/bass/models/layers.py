"""The pieces that decoders share. Parameters are left empty: `weights.load_decoder` or a trainer
fills them.

Layers define `__call__` themselves: that of `nn.Module` looks for hooks first, which is 5 % of a
small decoder's step on a CPU.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from bass.interfaces import Attend
from bass.models.rope import Angles, rotate
from bass.ops import dispatch

_tanh_gelu = partial(F.gelu, approximate="tanh")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "swish": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": _tanh_gelu,
    "gelu_fast": _tanh_gelu,
    "gelu_pytorch_tanh": _tanh_gelu,
}


def embedding(
    tokens: Int[Tensor, "*rows"], table: Float[Tensor, "vocab size"]
) -> Float[Tensor, "*rows size"]:
    """The rows of the table that the tokens name; on a GPU by a kernel, which for few tokens takes
    a fifth of torch's time.

    A table that is being trained is looked up by torch: the kernel has no gradient.
    """
    if dispatch.use_kernels(table) and not (table.requires_grad and torch.is_grad_enabled()):
        from bass.kernels.triton.residual_norm import embedded

        return embedded(table, tokens)
    return F.embedding(tokens, table)


class Linear(nn.Module):
    """y = x Wᵀ + b; the weight has shape [out, in], the bias is None unless asked for."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        device: torch.device,
        dtype: torch.dtype,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            torch.empty(out_features, in_features, device=device, dtype=dtype)
        )
        self.bias = (
            nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        )

    def __call__(self, x: Float[Tensor, "*rows in"]) -> Float[Tensor, "*rows out"]:
        return F.linear(x, self.weight, self.bias)


class UnitRMS:
    """x / sqrt(mean(x²) + eps), in float32 at least.

    On a CPU `torch.rms_norm` is nine operations, three of which are enough: x * sqrt(n) /
    hypot(|x|, sqrt(n * eps)).
    """

    def __init__(self, size: int, eps: float, dtype: torch.dtype) -> None:
        self.size, self.eps, self.wide = size, eps, torch.promote_types(dtype, torch.float32)
        # used on a CPU alone
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
    """x / sqrt(mean(x²) + eps) * weight (Zhang and Sennrich, 2019), the statistics in float32 at
    least.
    """

    def __init__(self, size: int, eps: float, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, device=device, dtype=dtype))
        self.unit = UnitRMS(size, eps, dtype)

    def __call__(self, x: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows hidden"]:
        if not x.is_cpu:
            return torch.rms_norm(x, self.weight.shape, self.weight, self.unit.eps)
        return scaled(self.unit(x), self.weight, x.dtype)


class OffsetRMSNorm(nn.Module):
    """RMSNorm whose weights are stored as their distance from 1, and multiplied in before rounding
    (Gemma).
    """

    def __init__(self, size: int, eps: float, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, device=device, dtype=dtype))
        self.unit = UnitRMS(size, eps, dtype)

    def __call__(self, x: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows hidden"]:
        return offset_scaled(self.unit(x), self.weight, x.dtype)


class HeadNorm(nn.Module):
    """Each head of q and k normalised by itself; those of q share their weights, and those of k.

    The weights stand here once for every head (`qk_norm_sources` repeats them), so that q and k
    take one product together.
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


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias (Ba et al., 2016)."""

    def __init__(
        self, size: int, eps: float, device: torch.device, dtype: torch.dtype, affine: bool = True
    ) -> None:
        super().__init__()
        self.shape, self.eps = (size,), eps
        self.weight, self.bias = (
            nn.Parameter(torch.empty(size, device=device, dtype=dtype)) if affine else None
            for _ in range(2)
        )

    def __call__(self, x: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows hidden"]:
        return F.layer_norm(x, self.shape, self.weight, self.bias, self.eps)


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)), with gate and up in one product (Shazeer, 2020)."""

    def __init__(
        self,
        hidden: int,
        inner: int,
        act: str,
        device: torch.device,
        dtype: torch.dtype,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.gate_up = Linear(hidden, 2 * inner, device, dtype, bias)
        self.down = Linear(inner, hidden, device, dtype, bias)
        self.act = ACTIVATIONS[act]

    def __call__(self, x: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows hidden"]:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(self.act(gate) * up)


class MLP(nn.Module):
    """down(act(up(x)))."""

    def __init__(
        self,
        hidden: int,
        inner: int,
        act: str,
        device: torch.device,
        dtype: torch.dtype,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.up = Linear(hidden, inner, device, dtype, bias)
        self.down = Linear(inner, hidden, device, dtype, bias)
        self.act = ACTIVATIONS[act]

    def __call__(self, x: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows hidden"]:
        return self.down(self.act(self.up(x)))


class Attention(nn.Module):
    """Queries, keys and values in one product; turned by their positions if there are angles;
    attended; projected back.
    """

    def __init__(
        self,
        hidden: int,
        heads: tuple[int, int, int],
        device: torch.device,
        dtype: torch.dtype,
        bias: bool = False,
        out_bias: bool = False,
        qk_norm: HeadNorm | None = None,
    ) -> None:
        """`heads`: of queries, of keys and values, and the dimensions of each.

        `qk_norm`: what q and k go through before they turn.
        """
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads
        self.qkv = Linear(
            hidden, (self.heads + 2 * self.kv_heads) * self.head_dim, device, dtype, bias
        )
        self.out = Linear(self.heads * self.head_dim, hidden, device, dtype, out_bias)
        self.qk_norm = qk_norm

    def __call__(
        self,
        x: Float[Tensor, "batch window hidden"],
        angles: Angles | None,
        attend: Attend,
        layer: int,
    ) -> Float[Tensor, "batch window hidden"]:
        batch, window, _ = x.shape
        qkv = self.qkv(x).view(batch, window, -1, self.head_dim)
        qk, v = qkv.split_with_sizes((self.heads + self.kv_heads, self.kv_heads), -2)
        if self.qk_norm is not None:
            qk = self.qk_norm(qk)
        if angles is not None:
            qk = rotate(qk, angles)
        q, k = qk.split_with_sizes((self.heads, self.kv_heads), -2)
        return self.out(attend(layer, q, k, v).flatten(-2))


class PreNorm(nn.Module):
    """A block that normalises what each of its halves reads, and adds what they give to the
    stream.
    """

    def __init__(
        self, attention_norm: nn.Module, attention: nn.Module, mlp_norm: nn.Module, mlp: nn.Module
    ) -> None:
        super().__init__()
        self.attention_norm, self.attention, self.mlp_norm, self.mlp = (
            attention_norm,
            attention,
            mlp_norm,
            mlp,
        )

    def __call__(
        self,
        x: Float[Tensor, "batch window hidden"],
        angles: Angles | None,
        attend: Attend,
        layer: int,
    ) -> Tensor:
        x = x + self.attention(self.attention_norm(x), angles, attend, layer)
        return x + self.mlp(self.mlp_norm(x))


class Parallel(nn.Module):
    """A block both of whose halves read what enters it: x + attention(norm(x)) + mlp(norm(x)), with
    one norm or two.
    """

    def __init__(
        self,
        attention_norm: nn.Module,
        attention: nn.Module,
        mlp_norm: nn.Module | None,
        mlp: nn.Module,
    ) -> None:
        """`mlp_norm` is None where the halves share `attention_norm`."""
        super().__init__()
        self.attention_norm, self.attention, self.mlp_norm, self.mlp = (
            attention_norm,
            attention,
            mlp_norm,
            mlp,
        )

    def __call__(
        self,
        x: Float[Tensor, "batch window hidden"],
        angles: Angles | None,
        attend: Attend,
        layer: int,
    ) -> Tensor:
        read = self.attention_norm(x)
        read_by_mlp = read if self.mlp_norm is None else self.mlp_norm(x)
        return x + self.attention(read, angles, attend, layer) + self.mlp(read_by_mlp)


class SandwichNorm(nn.Module):
    """A block that normalises what each of its halves reads and what it gives, before that is added
    to the stream (Gemma 2).
    """

    def __init__(
        self,
        attention_norm: nn.Module,
        attention: nn.Module,
        attention_out_norm: nn.Module,
        mlp_norm: nn.Module,
        mlp: nn.Module,
        mlp_out_norm: nn.Module,
    ) -> None:
        super().__init__()
        self.attention_norm, self.attention, self.attention_out_norm = (
            attention_norm,
            attention,
            attention_out_norm,
        )
        self.mlp_norm, self.mlp, self.mlp_out_norm = mlp_norm, mlp, mlp_out_norm

    def __call__(
        self,
        x: Float[Tensor, "batch window hidden"],
        angles: Angles | None,
        attend: Attend,
        layer: int,
    ) -> Tensor:
        x = x + self.attention_out_norm(
            self.attention(self.attention_norm(x), angles, attend, layer)
        )
        return x + self.mlp_out_norm(self.mlp(self.mlp_norm(x)))

"""The pieces that decoders share. Parameters are left empty: `weights.load_decoder` or a trainer fills them.

Layers define `__call__` themselves: that of `nn.Module` looks for hooks first, which is 5 % of a small decoder's step on a CPU.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from bass.interfaces import Attend
from bass.models.rope import Angles, rotate

_tanh_gelu = partial(F.gelu, approximate="tanh")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": _tanh_gelu,
    "gelu_fast": _tanh_gelu,
    "gelu_pytorch_tanh": _tanh_gelu,
}


class Linear(nn.Module):
    """y = x Wᵀ + b; the weight has shape [out, in], the bias is None unless asked for."""

    def __init__(self, in_features: int, out_features: int, device: torch.device, dtype: torch.dtype, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None

    def __call__(self, x: Float[Tensor, "*rows in"]) -> Float[Tensor, "*rows out"]:
        return F.linear(x, self.weight, self.bias)


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


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias (Ba et al., 2016)."""

    def __init__(self, size: int, eps: float, device: torch.device, dtype: torch.dtype, affine: bool = True) -> None:
        super().__init__()
        self.shape, self.eps = (size,), eps
        self.weight, self.bias = (nn.Parameter(torch.empty(size, device=device, dtype=dtype)) if affine else None for _ in range(2))

    def __call__(self, x: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows hidden"]:
        return F.layer_norm(x, self.shape, self.weight, self.bias, self.eps)


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)), with gate and up in one product (Shazeer, 2020)."""

    def __init__(self, hidden: int, inner: int, act: str, device: torch.device, dtype: torch.dtype, bias: bool = False) -> None:
        super().__init__()
        self.gate_up = Linear(hidden, 2 * inner, device, dtype, bias)
        self.down = Linear(inner, hidden, device, dtype, bias)
        self.act = ACTIVATIONS[act]

    def __call__(self, x: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows hidden"]:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(self.act(gate) * up)


class MLP(nn.Module):
    """down(act(up(x)))."""

    def __init__(self, hidden: int, inner: int, act: str, device: torch.device, dtype: torch.dtype, bias: bool = True) -> None:
        super().__init__()
        self.up = Linear(hidden, inner, device, dtype, bias)
        self.down = Linear(inner, hidden, device, dtype, bias)
        self.act = ACTIVATIONS[act]

    def __call__(self, x: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows hidden"]:
        return self.down(self.act(self.up(x)))


class Attention(nn.Module):
    """Queries, keys and values in one product; turned by their positions if there are angles; attended; projected back."""

    def __init__(
        self,
        hidden: int,
        heads: tuple[int, int, int],
        device: torch.device,
        dtype: torch.dtype,
        bias: bool = False,
        out_bias: bool = False,
    ) -> None:
        """`heads`: of queries, of keys and values, and the dimensions of each."""
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads
        self.qkv = Linear(hidden, (self.heads + 2 * self.kv_heads) * self.head_dim, device, dtype, bias)
        self.out = Linear(self.heads * self.head_dim, hidden, device, dtype, out_bias)

    def __call__(
        self, x: Float[Tensor, "batch window hidden"], angles: Angles | None, attend: Attend, layer: int
    ) -> Float[Tensor, "batch window hidden"]:
        batch, window, _ = x.shape
        qkv = self.qkv(x).view(batch, window, -1, self.head_dim)
        qk, v = qkv.split_with_sizes((self.heads + self.kv_heads, self.kv_heads), -2)
        if angles is not None:
            qk = rotate(qk, angles)
        q, k = qk.split_with_sizes((self.heads, self.kv_heads), -2)
        return self.out(attend(layer, q, k, v).flatten(-2))


class PreNorm(nn.Module):
    """A block that normalises what each of its halves reads, and adds what they give to the stream."""

    def __init__(self, attention_norm: nn.Module, attention: nn.Module, mlp_norm: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.attention_norm, self.attention, self.mlp_norm, self.mlp = attention_norm, attention, mlp_norm, mlp

    def __call__(self, x: Float[Tensor, "batch window hidden"], angles: Angles | None, attend: Attend, layer: int) -> Tensor:
        x = x + self.attention(self.attention_norm(x), angles, attend, layer)
        return x + self.mlp(self.mlp_norm(x))

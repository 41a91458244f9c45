"""A decoder's blocks by fused kernels, for the few rows of a decoding step on a GPU."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bass.interfaces import Attend
from bass.models.decoder import CausalDecoder
from bass.models.layers import ACTIVATIONS, Attention, GatedMLP, PreNorm, RMSNorm
from bass.models.rope import Angles

_ACTS = {ACTIVATIONS["silu"]: "silu", ACTIVATIONS["gelu"]: "gelu", ACTIVATIONS["gelu_new"]: "gelu_tanh"}


@final
@dataclass(frozen=True)
class Stream:
    """The residual stream between two blocks, the last block's contribution not added yet: the next norm does that as it reads."""

    base: Float[Tensor, "rows hidden"]
    parts: Float[Tensor, "splits rows hidden"]
    shape: torch.Size

    def added(self) -> Float[Tensor, "batch window hidden"]:
        return (self.base + self.parts.sum(0)).to(self.base.dtype).view(self.shape)


@final
class FusedPreNorm(nn.Module):
    """Llama's block in eight launches. Its weights are those of `block`, which serves where there are many rows, as in a prefill."""

    def __init__(self, block: PreNorm) -> None:
        super().__init__()
        self.block = block

    def __call__(self, x: Tensor | Stream, angles: Angles, attend: Attend, layer: int) -> Tensor | Stream:
        from bass.kernels.dense import MOST_ROWS, gated, linear
        from bass.kernels.stream import add_norm, turn

        shape = x.shape
        rows = shape[0] * shape[1]
        if rows > MOST_ROWS:
            return self.block(x.added() if isinstance(x, Stream) else x, angles, attend, layer)
        b = self.block
        a, mlp = b.attention, b.mlp
        stream, parts = (x.base, x.parts) if isinstance(x, Stream) else (x.view(rows, -1), None)
        stream, normed = add_norm(stream, parts, b.attention_norm.weight, b.attention_norm.unit.eps)
        turning, heads = a.heads + a.kv_heads, a.heads + 2 * a.kv_heads
        qkv = linear(normed, a.qkv.weight, a.qkv.bias).view(-1, rows, heads, a.head_dim)
        cos, sin = (angle.expand(*shape[:2], 1, -1).reshape(rows, -1) for angle in angles)
        turned = turn(qkv, turning, cos, sin, normed.dtype).view(*shape[:2], heads, a.head_dim)
        q, k, v = turned.split_with_sizes((a.heads, a.kv_heads, a.kv_heads), 2)
        attended = attend(layer, q, k, v).reshape(rows, -1)
        stream, normed = add_norm(stream, _stack(linear(attended, a.out.weight, a.out.bias)), b.mlp_norm.weight, b.mlp_norm.unit.eps)
        inner = gated(normed, mlp.gate_up.weight, _ACTS[mlp.act])
        return Stream(stream, _stack(linear(inner, mlp.down.weight, mlp.down.bias)), shape)


@final
class FusedNorm(nn.Module):
    """The last norm."""

    def __init__(self, norm: RMSNorm) -> None:
        super().__init__()
        self.norm = norm

    def __call__(self, x: Tensor | Stream) -> Tensor:
        from bass.kernels.stream import add_norm

        if not isinstance(x, Stream):
            return self.norm(x)
        return add_norm(x.base, x.parts, self.norm.weight, self.norm.unit.eps)[1].view(x.shape)


def fuse(decoder: CausalDecoder) -> None:
    """Let the kernels serve the decoder's blocks, in place, if they are all of Llama's kind."""
    if all(_fits(block) for block in decoder.blocks) and type(decoder.norm) is RMSNorm:
        decoder.blocks = nn.ModuleList(FusedPreNorm(block) for block in decoder.blocks)
        decoder.norm = FusedNorm(decoder.norm)


def _fits(block: nn.Module) -> bool:
    return (
        isinstance(block, PreNorm)
        and type(block.attention_norm) is type(block.mlp_norm) is RMSNorm
        and isinstance(block.attention, Attention)
        and block.attention.qk_norm is None
        and isinstance(block.mlp, GatedMLP)
        and block.mlp.gate_up.bias is None
        and block.mlp.act in _ACTS
    )


def _stack(y: Tensor) -> Tensor:
    return y if y.ndim == 3 else y[None]

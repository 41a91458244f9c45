"""A decoder's blocks by fused kernels, for the few rows of a decoding step on a GPU."""

from dataclasses import dataclass
from typing import cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bass.interfaces import Attend
from bass.kernels import obstacle
from bass.models.decoder import CausalDecoder
from bass.models.layers import ACTIVATIONS, Attention, GatedMLP, PreNorm, RMSNorm
from bass.models.rope import Angles

ACTS = {ACTIVATIONS["silu"]: "silu", ACTIVATIONS["gelu"]: "gelu", ACTIVATIONS["gelu_new"]: "gelu_tanh"}


@final
@dataclass(frozen=True)
class Stream:
    """The residual stream between two blocks, the last block's share not added yet: the next norm does that as it reads."""

    base: Float[Tensor, "rows hidden"]
    parts: Float[Tensor, "splits rows hidden"]
    shape: torch.Size  # batch, window, hidden

    def added(self) -> Float[Tensor, "batch window hidden"]:
        """As a block without kernels wants it."""
        return (self.base + self.parts.sum(0)).to(self.base.dtype).view(self.shape)


@final
class FusedPreNorm(nn.Module):
    """Llama's block in six launches beside the attention's. `block` has the weights, and serves many rows, as in a prefill."""

    def __init__(self, block: PreNorm) -> None:
        super().__init__()
        self.block = block
        self.norms = cast(RMSNorm, block.attention_norm), cast(RMSNorm, block.mlp_norm)
        self.attention, self.mlp = cast(Attention, block.attention), cast(GatedMLP, block.mlp)
        self.act = ACTS[self.mlp.act]

    def __call__(self, x: Tensor | Stream, angles: Angles | None, attend: Attend, layer: int) -> Tensor | Stream:
        from bass.kernels.dense import MOST_ROWS, gated, linear
        from bass.kernels.stream import add_norm, turn

        shape, a = x.shape, self.attention
        batch, window, rows = shape[0], shape[1], shape[0] * shape[1]
        if rows > MOST_ROWS or angles is None:
            return self.block(x.added() if isinstance(x, Stream) else x, angles, attend, layer)
        stream, parts = (x.base, x.parts) if isinstance(x, Stream) else (x.reshape(rows, -1), None)
        stream, normed = add_norm(stream, parts, self.norms[0].weight, self.norms[0].unit.eps)
        heads = a.heads + 2 * a.kv_heads
        qkv = linear(normed, a.qkv.weight, a.qkv.bias).view(-1, rows, heads, a.head_dim)
        cos, sin = (angle.reshape(rows, -1) for angle in angles)
        turned = turn(qkv, a.heads + a.kv_heads, cos, sin, normed.dtype).view(batch, window, heads, a.head_dim)
        q, k, v = turned.split_with_sizes((a.heads, a.kv_heads, a.kv_heads), 2)
        attended = attend(layer, q, k, v).reshape(rows, -1)
        stream, normed = add_norm(stream, linear(attended, a.out.weight, a.out.bias), self.norms[1].weight, self.norms[1].unit.eps)
        inner = gated(normed, self.mlp.gate_up.weight, self.act)
        return Stream(stream, linear(inner, self.mlp.down.weight, self.mlp.down.bias), shape)


@final
class FusedNorm(nn.Module):
    """The last norm, which adds the last block's share."""

    def __init__(self, norm: RMSNorm) -> None:
        super().__init__()
        self.norm = norm

    def __call__(self, x: Tensor | Stream) -> Tensor:
        from bass.kernels.stream import add_norm

        if not isinstance(x, Stream):
            return self.norm(x)
        return add_norm(x.base, x.parts, self.norm.weight, self.norm.unit.eps)[1].view(x.shape)


def fuse(decoder: CausalDecoder) -> CausalDecoder:
    """Let the kernels serve the decoder's blocks, in place, where they can: blocks of Llama's kind, on a CUDA device.

    A block's products, norms and turns are made in float32 from the stored weights and rounded once, so that results differ from
    those of the plain blocks by rounding.
    """
    if obstacle(decoder.embed.device) is None and type(decoder.norm) is RMSNorm and all(map(fits, decoder.blocks)):
        decoder.blocks = nn.ModuleList(FusedPreNorm(cast(PreNorm, block)) for block in decoder.blocks)
        decoder.norm = FusedNorm(decoder.norm)
    return decoder


def fits(block: nn.Module) -> bool:
    """Whether the kernels know all parts of a block."""
    return (
        isinstance(block, PreNorm)
        and type(block.attention_norm) is type(block.mlp_norm) is RMSNorm
        and type(block.attention) is Attention
        and block.attention.qk_norm is None
        and type(block.mlp) is GatedMLP
        and block.mlp.gate_up.bias is None
        and block.mlp.act in ACTS
    )

"""A decoder's blocks by fused kernels, for the few rows of a decoding step on a GPU."""

from dataclasses import dataclass
from functools import cached_property
from typing import cast, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Num
from torch import Tensor, nn

from bass.interfaces import Attend, RotaryAttend
from bass.kernels import obstacle
from bass.models.decoder import CausalDecoder, RotaryDecoder
from bass.models.layers import ACTIVATIONS, Attention, GatedMLP, Linear, PreNorm, RMSNorm
from bass.models.quantized import QuantizedLinear, scaled_product
from bass.models.rope import Angles, Rotary, rotate
from bass.records import Unturned

Matrix = Linear | QuantizedLinear
MOST_ROWS = 512  # of a step; a prefill's are more, and its products are bound by arithmetic
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
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
@dataclass(frozen=True)
class Places:
    """Positions, and the cosines and sines of all positions there are."""

    positions: Int[Tensor, "batch window"]
    tables: Angles  # [positions, D]

    @cached_property
    def angles(self) -> Angles:
        """As a block without kernels wants them [B,W,1,D]."""
        cos, sin = (F.embedding(self.positions.clamp(min=0), table)[:, :, None] for table in self.tables)
        return cos, sin


@final
class TabledRotary(nn.Module):
    """Rotary positions that are looked up."""

    def __init__(self, rotary: Rotary, length: int) -> None:
        super().__init__()
        cos, sin = rotary(torch.arange(length, device=rotary.speed.device)[None])
        self.tables = cos[0, :, 0].contiguous(), sin[0, :, 0].contiguous()

    def __call__(self, positions: Int[Tensor, "batch window"]) -> Places:
        return Places(positions, self.tables)


@final
class FusedPreNorm(nn.Module):
    """Llama's block in seven launches or eight. `block` has the weights, and serves long windows, as in a prefill.

        stream + parts -> norm -> qkv -> turn, store, attend -> out -> stream + parts -> norm -> gate, up, act -> down -> stream + parts

    A cache without a kernel for that is given turned keys and values.
    """

    def __init__(self, block: PreNorm) -> None:
        super().__init__()
        self.block = block
        self.norms = cast(RMSNorm, block.attention_norm), cast(RMSNorm, block.mlp_norm)
        self.attention, self.mlp = cast(Attention, block.attention), cast(GatedMLP, block.mlp)
        self.act = ACTS[self.mlp.act]

    def __call__(self, x: Tensor | Stream, places: Places, attend: Attend, layer: int) -> Tensor | Stream:
        shape, a = x.shape, self.attention
        batch, window, rows = shape[0], shape[1], shape[0] * shape[1]
        if rows > MOST_ROWS:
            return self.block(x.added() if isinstance(x, Stream) else x, places.angles, attend, layer)
        stream, parts = (x.base, x.parts) if isinstance(x, Stream) else (x.reshape(rows, -1), None)
        stream, normed = normalised(stream, parts, self.norms[0], a.qkv)
        qkv = product(normed, a.qkv, stream.dtype).view(-1, batch, window, a.heads + 2 * a.kv_heads, a.head_dim)
        attended = attend.rotary(layer, Unturned(qkv, *places.tables)) if isinstance(attend, RotaryAttend) else None
        if attended is None:
            attended = attend(layer, *turned(qkv, places.angles, a.heads, a.kv_heads, stream.dtype))
        out = product(activations(attended.reshape(rows, -1), a.out), a.out, stream.dtype)
        stream, normed = normalised(stream, out, self.norms[1], self.mlp.gate_up)
        inner = gated_product(normed, self.mlp.gate_up, self.act, stream.dtype)
        return Stream(stream, product(activations(inner, self.mlp.down), self.mlp.down, stream.dtype), shape)


def turned(
    parts: Float[Tensor, "parts batch window every dim"], angles: Angles, heads: int, kv_heads: int, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """q, k and v [B, W, heads, D], for a cache that does not do it itself."""
    qk, v = parts.sum(0, dtype=torch.float32).split_with_sizes((heads + kv_heads, kv_heads), 2)
    cos, sin = angles
    q, k = rotate(qk, (cos.float(), sin.float())).split_with_sizes((heads, kv_heads), 2)
    return q.to(dtype), k.to(dtype), v.to(dtype)


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


@final
class FusedHead(nn.Module):
    """The head, tied or not, whose product of few rows is the kernel's."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    def __call__(self, x: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocab"]:
        from bass.kernels import dense

        rows = x.reshape(-1, x.shape[-1])
        if len(rows) > dense.MOST_ROWS:
            return F.linear(x, self.weight, self.bias)
        return dense.added(dense.linear(rows, self.weight, self.bias), x.dtype).view(*x.shape[:-1], -1)


@dataclass(frozen=True)
class Rows:
    """What enters a product: numbers, or quantized ones with a scale for each row."""

    x: Num[Tensor, "rows size"]
    scale: Float[Tensor, " rows"] | None = None


def normalised(
    stream: Float[Tensor, "rows hidden"], parts: Float[Tensor, "splits rows hidden"] | None, norm: RMSNorm, into: Matrix
) -> tuple[Float[Tensor, "rows hidden"], Rows]:
    """The stream with `parts` added; and its norm, as the layer wants it."""
    from bass.kernels.stream import add_norm

    stream, normed, scale = add_norm(stream, parts, norm.weight, norm.unit.eps, quantized(into))
    return stream, Rows(normed, scale)


def activations(x: Float[Tensor, "rows in"], into: Matrix) -> Rows:
    """The rows as the layer wants them."""
    from bass.kernels.quantize import quantize_rows

    kind = quantized(into)
    return Rows(x) if kind is None else Rows(*quantize_rows(x, kind))


def quantized(layer: Matrix) -> torch.dtype | None:
    """The type that a layer quantizes what it reads to, if it does."""
    return layer.activations if isinstance(layer, QuantizedLinear) else None


def product(rows: Rows, layer: Matrix, dtype: torch.dtype) -> Float[Tensor, "splits rows out"]:
    """The summands of the layer's product: by the kernel for few rows, in one piece by the libraries' for more."""
    from bass.kernels.dense import MOST_ROWS, linear

    if len(rows.x) <= MOST_ROWS:
        return linear(rows.x, layer.weight, layer.bias, rows.scale, scale_of(layer), dtype)
    return whole(rows, layer, dtype)[None]


def gated_product(rows: Rows, layer: Matrix, act: str, dtype: torch.dtype) -> Float[Tensor, "rows inner"]:
    """act(gate) · up."""
    from bass.kernels.dense import MOST_ROWS, gated
    from bass.kernels.stream import gate

    if len(rows.x) <= MOST_ROWS:
        return gated(rows.x, layer.weight, act, rows.scale, scale_of(layer), dtype)
    return gate(whole(rows, layer, dtype), act)


def whole(rows: Rows, layer: Matrix, dtype: torch.dtype) -> Float[Tensor, "rows out"]:
    """The product by a library."""
    if rows.scale is None:
        return layer(rows.x)
    assert isinstance(layer, QuantizedLinear)
    return scaled_product(rows.x, layer.weight, rows.scale, layer.scale, layer.bias, dtype)


def scale_of(layer: Matrix) -> Float[Tensor, " out"] | None:
    """Of the weight's rows."""
    return layer.scale if isinstance(layer, QuantizedLinear) else None


def fuse(decoder: CausalDecoder) -> CausalDecoder:
    """Let the kernels serve the decoder's blocks, in place, where they can: blocks of Llama's kind, on a CUDA device.

    A block's products, norms and turns are made in float32 from the stored weights and rounded once, so that results differ from
    those of the plain blocks by rounding.
    """
    able = obstacle(decoder.embed.device) is None and decoder.embed.dtype in DTYPES
    if able and isinstance(decoder, RotaryDecoder) and type(decoder.norm) is RMSNorm and all(map(fits, decoder.blocks)):
        decoder.rotary = TabledRotary(cast(Rotary, decoder.rotary), decoder.shape.max_positions)
        decoder.blocks = nn.ModuleList(FusedPreNorm(cast(PreNorm, block)) for block in decoder.blocks)
        decoder.norm = FusedNorm(decoder.norm)
        head = cast(Linear | None, decoder.head)
        decoder.head = FusedHead(decoder.embed, decoder.head_bias) if head is None else FusedHead(head.weight, head.bias)
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
        and all(isinstance(x, Matrix) for x in (block.attention.qkv, block.attention.out, block.mlp.gate_up, block.mlp.down))
    )

"""A decoder's blocks by fused kernels, for the few rows of a decoding step on a GPU."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, cast, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Num
from torch import Tensor, nn

from bass.interfaces import Attend, RotaryAttend
from bass.models.decoder import CausalDecoder, RotaryDecoder
from bass.models.layers import ACTIVATIONS, Attention, GatedMLP, Linear, PreNorm, RMSNorm
from bass.models.quantized import QuantizedLinear, scaled_product
from bass.models.rope import Angles, Rotary, rotate
from bass.ops.dispatch import unsupported
from bass.records import Unturned

Matrix = Linear | QuantizedLinear
MOST_ROWS = 512  # of a step; a prefill's are more, and its products are bound by arithmetic
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
ACTS = {
    ACTIVATIONS["silu"]: "silu",
    ACTIVATIONS["gelu"]: "gelu",
    ACTIVATIONS["gelu_new"]: "gelu_tanh",
}


@final
@dataclass(frozen=True)
class Stream:
    """The residual stream between two blocks, the last block's share not added yet: the next norm
    does that as it reads.
    """

    base: Float[Tensor, "rows hidden"]
    parts: Float[Tensor, "splits rows hidden"]
    shape: torch.Size  # batch, window, hidden

    def added(self) -> Float[Tensor, "batch window hidden"]:
        """As a block without kernels wants it."""
        return (self.base + self.parts.sum(0)).to(self.base.dtype).view(self.shape)


@final
@dataclass(frozen=True)
class Carried:
    """The residual stream between two blocks, whole, and what the next norm is made of."""

    left: Any  # `Added` of kernels/gemm_residual.py
    weight: Float[Tensor, " hidden"]  # of the norm that it is left for
    shape: torch.Size  # batch, window, hidden

    @property
    def base(self) -> Float[Tensor, "rows hidden"]:
        """The stream."""
        return self.left.stream

    def added(self) -> Float[Tensor, "batch window hidden"]:
        """As a block without kernels wants it."""
        return self.base.view(self.shape)


@final
@dataclass(frozen=True)
class Places:
    """Positions, and the cosines and sines of all positions there are."""

    positions: Int[Tensor, "batch window"]
    tables: Angles  # [positions, D]

    @cached_property
    def angles(self) -> Angles:
        """As a block without kernels wants them [B,W,1,D]."""
        cos, sin = (
            F.embedding(self.positions.clamp(min=0), table)[:, :, None] for table in self.tables
        )
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
    """Llama's block in seven launches or eight, two more where activations are quantized. `block`
    has the weights, and serves long windows.

        stream + parts -> norm -> qkv -> turn, store, attend -> out -> stream + parts -> norm ->
        gate, up, act -> down -> stream + parts

    In five, or six for the first block, where Hopper's kernels (`kernels/ahead*.py`) serve all its
    matrices and its cache, up to 16 rows:

        norm, qkv -> turn, store, attend -> stream + out -> norm, gate, up, act -> stream + down

    A cache without a kernel for that is given turned keys and values.
    """

    def __init__(self, block: PreNorm) -> None:
        super().__init__()
        self.block = block
        self.norms = cast(RMSNorm, block.attention_norm), cast(RMSNorm, block.mlp_norm)
        self.attention, self.mlp = cast(Attention, block.attention), cast(GatedMLP, block.mlp)
        self.act = ACTS[self.mlp.act]
        # the weight of the next block's first norm, which is no parameter of this one
        self.after: tuple[Tensor, ...] = ()

    def __call__(
        self, x: Tensor | Stream | Carried, places: Places, attend: Attend, layer: int
    ) -> Tensor | Stream | Carried:
        shape, a = x.shape, self.attention
        rows = shape[0] * shape[1]
        if rows > MOST_ROWS:
            return self.block(
                x if isinstance(x, Tensor) else x.added(), places.angles, attend, layer
            )
        if in_five(x, rows, (a.qkv, a.out, self.mlp.gate_up, self.mlp.down)):
            return self._in_five(x, places, attend, layer)
        stream, normed = normalised(x, self.norms[0], a.qkv)
        attended = self._attended(
            product(normed, a.qkv, stream.dtype), shape, stream.dtype, places, attend, layer
        )
        out = product(activations(attended, a.out), a.out, stream.dtype)
        stream, normed = normalised(Stream(stream, out, shape), self.norms[1], self.mlp.gate_up)
        inner = gated_product(normed, self.mlp.gate_up, self.act, stream.dtype)
        return Stream(
            stream, product(activations(inner, self.mlp.down), self.mlp.down, stream.dtype), shape
        )

    def _attended(
        self,
        qkv: Float[Tensor, "parts rows out"],
        shape: torch.Size,
        dtype: torch.dtype,
        places: Places,
        attend: Attend,
        layer: int,
    ) -> Float[Tensor, "rows heads_dim"]:
        a = self.attention
        qkv = qkv.view(-1, shape[0], shape[1], a.heads + 2 * a.kv_heads, a.head_dim)
        attended = (
            attend.rotary(layer, Unturned(qkv, *places.tables))
            if isinstance(attend, RotaryAttend)
            else None
        )
        if attended is None:
            attended = attend(layer, *turned(qkv, places.angles, a.heads, a.kv_heads, dtype))
        return attended.reshape(shape[0] * shape[1], -1)

    def _in_five(
        self, x: Tensor | Stream | Carried, places: Places, attend: Attend, layer: int
    ) -> Stream | Carried:
        from bass.kernels.hopper.gemm import Squares, gated, linear
        from bass.kernels.hopper.gemm_residual import added

        a, (first, second), (gate_up, down) = (
            self.attention,
            self.norms,
            (self.mlp.gate_up, self.mlp.down),
        )
        if isinstance(x, Carried) and x.weight is first.weight:
            stream, normed, squares = x.base, x.left.weighted, Squares(x.left.sums, first.unit.eps)
        else:
            stream, entering = normalised(x, first, a.qkv)
            normed, squares = entering.x, None
        qkv = linear(normed, a.qkv.weight, a.qkv.bias, squares, None, stream.dtype)
        attended = self._attended(qkv, x.shape, stream.dtype, places, attend, layer)
        left = added(attended, a.out.weight, a.out.bias, stream, second.weight)
        inner = gated(
            left.weighted,
            gate_up.weight,
            self.act,
            Squares(left.sums, second.unit.eps),
            None,
            stream.dtype,
        )
        if not self.after:
            return Stream(
                left.stream,
                linear(inner, down.weight, down.bias, None, None, stream.dtype),
                x.shape,
            )
        (after,) = self.after
        return Carried(added(inner, down.weight, down.bias, left.stream, after), after, x.shape)


def turned(
    parts: Float[Tensor, "parts batch window every dim"],
    angles: Angles,
    heads: int,
    kv_heads: int,
    dtype: torch.dtype,
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

    def __call__(self, x: Tensor | Stream | Carried) -> Tensor:
        from bass.kernels.triton.residual_norm import add_norm

        if not isinstance(x, Stream):
            return self.norm(x if isinstance(x, Tensor) else x.added())
        return add_norm(x.base, x.parts, self.norm.weight, self.norm.unit.eps)[1].view(x.shape)


@final
class FusedHead(nn.Module):
    """The head, tied or not, whose product of few rows is the kernel's."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    def __call__(self, x: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocab"]:
        from bass.kernels.triton import small_m_gemm

        rows = x.reshape(-1, x.shape[-1])
        if len(rows) > small_m_gemm.MOST_ROWS:
            return F.linear(x, self.weight, self.bias)
        return small_m_gemm.added(small_m_gemm.linear(rows, self.weight, self.bias), x.dtype).view(
            *x.shape[:-1], -1
        )


@dataclass(frozen=True)
class Rows:
    """What enters a product: numbers, or quantized ones with a scale for each row."""

    x: Num[Tensor, "rows size"]
    scale: Float[Tensor, " rows"] | None = None


def in_five(x: Tensor | Stream | Carried, rows: int, matrices: tuple[nn.Module, ...]) -> bool:
    """Whether Hopper's products, which take norms along, are for these rows and all of a block's
    matrices.
    """
    base = x if isinstance(x, Tensor) else x.base
    # rows before their norm may be too large for float16
    if not base.is_cuda or base.dtype != torch.bfloat16:
        return False
    from bass.kernels.triton.launch import gluon

    if not gluon(base.device):
        return False
    from bass.kernels.hopper import gemm, gemm_residual

    qkv, out, gate_up, down = (
        layer.weight if isinstance(layer, Linear) else None for layer in matrices
    )
    if qkv is None or out is None or gate_up is None or down is None:
        return False
    alike = qkv.dtype == gate_up.dtype == base.dtype and gemm.takes(qkv) and gemm.takes(gate_up)
    return alike and gemm_residual.knows(rows, out) and gemm_residual.knows(rows, down)


def normalised(
    x: Tensor | Stream | Carried, norm: RMSNorm, into: Matrix
) -> tuple[Float[Tensor, "rows hidden"], Rows]:
    """The stream with what is to be added to it; and its norm, as the layer wants it."""
    from bass.kernels.triton.residual_norm import add_norm

    stream = x.reshape(-1, x.shape[-1]) if isinstance(x, Tensor) else x.base
    parts = x.parts if isinstance(x, Stream) else None
    stream, normed, scale = add_norm(stream, parts, norm.weight, norm.unit.eps, quantized(into))
    return stream, Rows(normed, scale)


def activations(x: Float[Tensor, "rows in"], into: Matrix) -> Rows:
    """The rows as the layer wants them."""
    from bass.kernels.triton.quantize import quantize_rows

    kind = quantized(into)
    return Rows(x) if kind is None else Rows(*quantize_rows(x, kind))


def quantized(layer: Matrix) -> torch.dtype | None:
    """The type that a layer quantizes what it reads to, if it does."""
    return layer.activations if isinstance(layer, QuantizedLinear) else None


def product(rows: Rows, layer: Matrix, dtype: torch.dtype) -> Float[Tensor, "splits rows out"]:
    """The summands of the layer's product: by the kernel for few rows, in one piece by the
    libraries' for more.
    """
    from bass.kernels.triton.small_m_gemm import MOST_ROWS, linear

    if len(rows.x) <= MOST_ROWS:
        return linear(rows.x, layer.weight, layer.bias, rows.scale, scale_of(layer), dtype)
    return whole(rows, layer, dtype)[None]


def gated_product(
    rows: Rows, layer: Matrix, act: str, dtype: torch.dtype
) -> Float[Tensor, "rows inner"]:
    """act(gate) · up."""
    from bass.kernels.triton.residual_norm import gate
    from bass.kernels.triton.small_m_gemm import MOST_ROWS, gated

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
    """Let the kernels serve the decoder's blocks, in place, where they can: blocks of Llama's kind,
    on a CUDA device.

    A block's products, norms and turns are made in float32 from the stored weights and rounded
    once, so that results differ from those of the plain blocks by rounding.
    """
    able = unsupported(decoder.embed.device) is None and decoder.embed.dtype in DTYPES
    if (
        able
        and isinstance(decoder, RotaryDecoder)
        and type(decoder.norm) is RMSNorm
        and all(map(fits, decoder.blocks))
    ):
        decoder.rotary = TabledRotary(cast(Rotary, decoder.rotary), decoder.shape.max_positions)
        blocks = [FusedPreNorm(cast(PreNorm, block)) for block in decoder.blocks]
        for block, after in pairwise(blocks):
            block.after = (after.norms[0].weight,)
        decoder.blocks = nn.ModuleList(blocks)
        decoder.norm = FusedNorm(decoder.norm)
        if decoder.head is None:
            decoder.head = FusedHead(decoder.embed, decoder.head_bias)
        elif isinstance(decoder.head, Linear):
            decoder.head = FusedHead(decoder.head.weight, decoder.head.bias)
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
        and all(
            isinstance(x, Matrix)
            for x in (block.attention.qkv, block.attention.out, block.mlp.gate_up, block.mlp.down)
        )
    )

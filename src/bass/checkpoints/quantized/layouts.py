"""How a quantized matrix is stored: the tensors of each layout, and how they are unpacked.

    layout      codes                            scales                       others
    EightBits   .weight e4m3 or int8 [out, in]   .weight_scale(_inv) [],      .weight_zero_point
                                                 [out, 1], [out, groups] or
                                                 [blocks, blocks]
    Packed      .weight_packed [out, in/8]       .weight_scale [out, groups]  .weight_zero_point,
                                                                              .weight_g_idx
    GPTQ        .qweight [in/8, out]             .scales [groups, out]        .qzeros, .g_idx
    AWQ         .qweight [in, out/8]             .scales [groups, out]        .qzeros
    MXFP4       _blocks [.., out, in/32, 16]     _scales [.., out, in/32]

Words of 32 bits hold 8 codes of 4 bits (or 4 of 8), the first in the low bits; AWQ interleaves
the columns of a word.

Each layout has the role of its codes (`codes`), the roles that must be next to them (`required`),
`shape`, the matrix's shape by its tensors, `wanted`, the types and shapes that its tensors may have
by the config, and `weight`, which unpacks the values.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Num
from safetensors import safe_open
from torch import Tensor

from bass.checkpoints.quantized.weight import QuantizedStack, QuantizedWeight
from bass.checkpoints.shards import Stored
from bass.errors import CheckpointError

Parts = Mapping[str, Tensor]  # values by role, the end of their tensor's name
Tensors = Mapping[str, Stored]  # by role, too
Shape = tuple[int, ...]
Wanted = dict[str, tuple[str, list[Shape]]]  # role -> types, shapes
FLOATS = "F32 F16 BF16"
AWQ_COLUMNS = (0, 4, 1, 5, 2, 6, 3, 7)  # of column c of eight, in its word
MXFP4_GROUP = 32


@dataclass(frozen=True)
class EightBits:
    """e4m3 or int8 with a scale for the matrix, for each row, for groups of each row, or for blocks
    (`block`: rows and columns). activations: x is quantized, too.
    """

    kind: str  # of the file
    activations: bool = False
    block: tuple[int, int] | None = None
    group: int | None = None
    required: tuple[str, ...] = ()
    codes: ClassVar[str] = "weight"

    def shape(self, stored: Tensors) -> Shape:
        return stored["weight"].shape

    def wanted(self, shape: Shape) -> Wanted:
        out, size = shape
        rows, columns = self.block or (1, min(self.group or size, size))
        scales: list[Shape] = [(-(-out // rows), -(-size // columns))]
        if self.block is None and self.group is None:
            scales += [(), (1,), (1, 1), (out,)]
        scale = f"{FLOATS} F8_E8M0", scales
        codes = self.kind, [shape]
        return {"weight": codes, "weight_scale": scale, "weight_scale_inv": scale}

    def weight(self, parts: Parts, shape: Shape) -> QuantizedWeight:
        codes, scale, (out, size) = parts["weight"], _scale_of(parts), shape
        single = scale.numel() == 1 and self.block is None and self.group is None
        rows, columns = self.block or (out if single else 1, min(self.group or size, size))

        def by_input(values: Tensor) -> Tensor:
            values = values.reshape(-(-out // rows), -(-size // columns))
            return values.repeat_interleave(rows, 0)[:out].T

        scale = scale if scale.dtype.itemsize > 1 else scale.float()
        zero = parts.get("weight_zero_point")
        zero = None if zero is None or not (zero.is_meta or zero.any()) else by_input(zero)
        both = self.activations and columns == size and zero is None
        kind, scale = "e4m3" if self.kind == "F8_E4M3" else "int8", by_input(scale)
        activations = codes.dtype if both else None
        return QuantizedWeight(kind, codes, scale, zero, columns, activations=activations)


@dataclass(frozen=True)
class Packed:
    """Words of compressed-tensors along the inputs. The last word of a row may be filled up."""

    bits: int
    group: int | None
    required: tuple[str, ...] = ("weight_scale",)
    codes: ClassVar[str] = "weight_packed"

    def shape(self, stored: Tensors) -> Shape:
        if (numbers := stored.get("weight_shape")) is not None:  # read with the headers
            with safe_open(numbers.path, "pt") as file:
                return tuple(file.get_tensor(numbers.name).tolist())
        out, words = stored["weight_packed"].shape
        return out, words * 32 // self.bits

    def wanted(self, shape: Shape) -> Wanted:
        (out, size), groups = shape, _groups(shape[1], self.group)
        zeros = [(-(-out * self.bits // 32), groups), (out, groups)]
        return {
            "weight_packed": ("I32", [(out, -(-size * self.bits // 32))]),
            "weight_scale": (FLOATS, [(out, groups)]),
            "weight_zero_point": ("I32 I8", zeros),
        }

    def weight(self, parts: Parts, shape: Shape) -> QuantizedWeight:
        codes = unpacked_words(parts["weight_packed"], self.bits)[:, : shape[1]]
        scale, zero = parts["weight_scale"], parts.get("weight_zero_point")
        if zero is not None and zero.dtype == torch.int32:  # packed along the rows
            zero = _signed(unpacked_words(zero.T, self.bits)[:, : len(codes)], self.bits)
        elif zero is not None:
            zero = (zero.T + 8).to(torch.uint8) if self.bits == 4 else zero.T
        group = self.group or shape[1]
        order = _order(parts.get("weight_g_idx"), group, scale.shape[1])
        codes = _signed(codes, self.bits)
        return QuantizedWeight(f"int{self.bits}", codes, scale.T, zero, group, order)


@dataclass(frozen=True)
class GPTQ:
    """Words along the inputs. The stored zero points are smaller by `offset`.

    ordered: `g_idx` orders the inputs. symmetric: all zero points are the middle of the codes.
    """

    bits: int
    group: int | None
    symmetric: bool = False
    ordered: bool = False
    offset: int = 1
    required: tuple[str, ...] = ("scales", "qzeros")
    codes: ClassVar[str] = "qweight"

    def shape(self, stored: Tensors) -> Shape:
        words, out = stored["qweight"].shape
        return out, words * 32 // self.bits

    def wanted(self, shape: Shape) -> Wanted:
        (out, size), groups = shape, _groups(shape[1], self.group)
        return {
            "qweight": ("I32", [(size * self.bits // 32, out)]),
            "scales": (FLOATS, [(groups, out)]),
            "qzeros": ("I32", [(groups, out * self.bits // 32)]),
        }

    def weight(self, parts: Parts, shape: Shape) -> QuantizedWeight:
        codes = _signed(unpacked_words(parts["qweight"].T, self.bits), self.bits)
        stored = unpacked_words(parts["qzeros"], self.bits)
        zero: Tensor | None = None
        if not self.symmetric:  # wraps around, as the codes do
            zero = _signed(stored + self.offset & (1 << self.bits) - 1, self.bits)
        elif not stored.is_meta:
            self._check_middle(stored)
        scales, group = parts["scales"], self.group or shape[1]
        order = _order(parts.get("g_idx"), group, len(scales), self.ordered)
        return QuantizedWeight(f"int{self.bits}", codes, scales, zero, group, order)

    def _check_middle(self, stored: Num[Tensor, "groups out"]) -> None:
        """Raise `CheckpointError` for zero points that are the middle in neither version of GPTQ,
        though `symmetric` says so. Warns if they are it in the other version.
        """
        low, high = (int(value) for value in stored.aminmax())
        middle, wanted = 1 << self.bits - 1, (1 << self.bits - 1) - self.offset
        if low != high or low not in (middle - 1, middle):
            raise CheckpointError(
                f"its quantization_config says that it is symmetric (`sym`), and its zero points "
                f"are {low} to {high} instead of {wanted}: correct `sym`, or use another "
                "quantization."
            )
        if low != wanted:
            warnings.warn(
                "A GPTQ checkpoint that is symmetric (`sym`) stores its zero points as the other "
                f"version of the format does ({low} instead of {wanted}): its weights are computed "
                f"with the middle of the codes, {middle}; correct its `checkpoint_format`.",
                stacklevel=2,
            )


@dataclass(frozen=True)
class AWQ:
    """Words along the outputs, of 4 bits: the version `gemm`."""

    group: int | None
    required: ClassVar[tuple[str, ...]] = ("scales", "qzeros")
    codes: ClassVar[str] = "qweight"
    bits: ClassVar[int] = 4

    def shape(self, stored: Tensors) -> Shape:
        size, words = stored["qweight"].shape
        return words * 8, size

    def wanted(self, shape: Shape) -> Wanted:
        (out, size), groups = shape, _groups(shape[1], self.group)
        return {
            "qweight": ("I32", [(size, out // 8)]),
            "scales": (FLOATS, [(groups, out)]),
            "qzeros": ("I32", [(groups, out // 8)]),
        }

    def weight(self, parts: Parts, shape: Shape) -> QuantizedWeight:
        words = (unpacked_words(parts[role], 4) for role in ("qweight", "qzeros"))
        codes, zero = (w.unflatten(-1, (-1, 8))[..., list(AWQ_COLUMNS)].flatten(-2) for w in words)
        return QuantizedWeight("int4", codes.T, parts["scales"], zero, self.group or shape[1])


@dataclass(frozen=True)
class MXFP4:
    """A stack of matrices, which is [.., in, out] if not quantized.

    Two codes of a byte are neighbours, the first in the low bits.
    """

    required: ClassVar[tuple[str, ...]] = ("scales",)
    codes: ClassVar[str] = "blocks"
    group: ClassVar[int] = MXFP4_GROUP

    def shape(self, stored: Tensors) -> Shape:
        *stack, out, groups, _ = stored["blocks"].shape
        return (*stack, groups * MXFP4_GROUP, out)

    def wanted(self, shape: Shape) -> Wanted:
        *stack, size, out = shape
        groups = (*stack, out, size // MXFP4_GROUP)
        return {"blocks": ("U8", [(*groups, 16)]), "scales": ("U8", [groups])}

    def weight(self, parts: Parts, shape: Shape) -> QuantizedStack:
        return QuantizedStack(parts["blocks"], parts["scales"])


Layout = EightBits | Packed | GPTQ | AWQ | MXFP4
# the end of the name of a matrix's codes -> the roles of its other tensors
ROLES: dict[str, tuple[str, ...]] = {
    ".qweight": ("scales", "qzeros", "g_idx"),
    ".weight_packed": ("weight_scale", "weight_zero_point", "weight_g_idx", "weight_shape"),
    ".weight": ("weight_scale", "weight_scale_inv", "weight_zero_point", "weight_shape"),
    "_blocks": ("scales",),
}


def misfit(layout: Layout, stored: Tensors) -> str:
    """What contradicts that the tensors of a matrix have this layout; empty if nothing does."""
    for role in (layout.codes, *layout.required):
        if role not in stored:
            return f"it lacks its `{role}`"
    for role, (kinds, shapes) in layout.wanted(layout.shape(stored)).items():
        has = stored.get(role)
        if has is not None and (has.kind not in kinds.split() or has.shape not in shapes):
            wanted = f"{' or '.join(kinds.split())} {' or '.join(str([*s]) for s in shapes)}"
            return f"its `{role}` is {has.kind} {[*has.shape]} instead of {wanted}"
    return ""


def in_words(layout: Layout, shape: Shape, stored: Tensors) -> str:
    """The codes of a matrix, and what has a scale, for people."""
    if isinstance(layout, EightBits):
        kind = "e4m3" if layout.kind == "F8_E4M3" else "int8"
        if layout.block is not None:
            return f"{kind}, a scale for blocks of {layout.block[0]} x {layout.block[1]}"
        if layout.group is None and math.prod(_scale_of(stored).shape) == 1 < shape[0]:
            return f"{kind}, one scale each"
    else:
        kind = "e2m1" if isinstance(layout, MXFP4) else f"int{layout.bits}"
    return f"{kind}, a scale for " + (f"groups of {layout.group}" if layout.group else "each row")


def unpacked_words(words: Num[Tensor, "*rest words"], bits: int) -> Num[Tensor, "*rest codes"]:
    """The unsigned codes in words of 32 bits, the first in the low bits."""
    shifts = torch.arange(0, 32, bits, device=words.device, dtype=torch.int32)
    return (words[..., None] >> shifts & (1 << bits) - 1).to(torch.uint8).flatten(-2)


def _signed(codes: Num[Tensor, "*shape"], bits: int) -> Num[Tensor, "*shape"]:
    """Codes of 8 bits around 0; those of 4 bits stay around 8."""
    return codes if bits == 4 else (codes.to(torch.int16) - 128).to(torch.int8)


def _groups(size: int, group: int | None) -> int:
    return -(-size // (group or size))


def _scale_of(parts: Mapping[str, Any]) -> Any:
    return parts["weight_scale_inv" if "weight_scale_inv" in parts else "weight_scale"]


def _order(stored: Tensor | None, group: int, groups: int, ordered: bool = True) -> Tensor | None:
    """The group of each input; None where they are in order (without values: not `ordered`)."""
    if stored is None or groups == 1:
        return None
    if stored.is_meta:
        return stored if ordered else None
    in_order = torch.arange(len(stored), device=stored.device) // group
    is_none = torch.equal(stored.long(), in_order) or bool((stored == -1).all())
    return None if is_none else stored

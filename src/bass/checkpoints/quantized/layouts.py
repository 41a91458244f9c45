"""How a quantized matrix is stored: the tensors of each format, and how they are unpacked.

    format      codes                            scales                       others
    eight-bit   .weight e4m3 or int8 [out, in]   .weight_scale(_inv) [],      .weight_zero_point
                                                 [out, 1], [out, groups] or
                                                 [blocks, blocks]
    packed      .weight_packed [out, in/8]       .weight_scale [out, groups]  .weight_zero_point,
                                                                              .weight_g_idx
    gptq        .qweight [in/8, out]             .scales [groups, out]        .qzeros, .g_idx
    awq         .qweight [in, out/8]             .scales [groups, out]        .qzeros
    mxfp4       _blocks [.., out, in/32, 16]     _scales [.., out, in/32]

Words of 32 bits hold 8 codes of 4 bits (or 4 of 8), the first in the low bits; AWQ interleaves
the columns of a word. Two codes of a byte of MXFP4 are neighbours, the first in the low bits.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Num
from safetensors import safe_open
from torch import Tensor

from bass.checkpoints.quantized.weight import QuantizedStack, QuantizedWeight
from bass.checkpoints.shards import Stored

Parts = Mapping[str, Tensor]  # values by role, the end of their tensor's name
Tensors = Mapping[str, Stored]  # by role, too
Shape = tuple[int, ...]
AWQ_COLUMNS = [0, 4, 1, 5, 2, 6, 3, 7]  # of column c of eight, in its word
MXFP4_GROUP = 32
# format -> the role of the codes, and the roles that are always next to them
FORMATS: dict[str, tuple[str, tuple[str, ...]]] = {
    "eight-bit": ("weight", ()),
    "packed": ("weight_packed", ("weight_scale",)),
    "gptq": ("qweight", ("scales", "qzeros")),
    "awq": ("qweight", ("scales", "qzeros")),
    "mxfp4": ("blocks", ("scales",)),
}
# the end of the name of a matrix's codes -> the roles of its other tensors
ROLES: dict[str, tuple[str, ...]] = {
    ".qweight": ("scales", "qzeros", "g_idx"),
    ".weight_packed": ("weight_scale", "weight_zero_point", "weight_g_idx", "weight_shape"),
    ".weight": ("weight_scale", "weight_scale_inv", "weight_zero_point", "weight_shape"),
    "_blocks": ("scales",),
}


@dataclass(frozen=True)
class Layout:
    """A matrix as the config of a checkpoint describes it.

    format: one of `FORMATS`. kind: of the codes, "int4", "int8", "e4m3" or "e2m1". group: the
    inputs of a row with one scale; None: all. block: rows and columns with one scale. required:
    further roles that it has. activations: x is quantized, too. symmetric: all zero points are the
    middle of the codes. ordered: `g_idx` orders the inputs. offset: how much smaller the stored
    zero points of GPTQ are.
    """

    format: str
    kind: str
    group: int | None = None
    block: tuple[int, int] | None = None
    required: tuple[str, ...] = ()
    activations: bool = False
    symmetric: bool = False
    ordered: bool = True
    offset: int = 1

    @property
    def codes(self) -> str:
        """The role of the codes."""
        return FORMATS[self.format][0]

    @property
    def bits(self) -> int:
        """The bits of a code."""
        return 4 if self.kind in ("int4", "e2m1") else 8

    def shape(self, stored: Tensors) -> Shape:
        """The shape of the matrix by its tensors; a stack of MXFP4 is [.., in, out]."""
        codes, per_word = stored[self.codes].shape, 32 // self.bits
        if self.format == "mxfp4":
            *stack, out, groups, _ = codes
            return (*stack, groups * MXFP4_GROUP, out)
        if self.format == "gptq":
            return codes[1], codes[0] * per_word
        if self.format == "awq":
            return codes[1] * per_word, codes[0]
        if self.format == "packed":
            if (numbers := stored.get("weight_shape")) is not None:  # read with the headers
                with safe_open(numbers.path, "pt") as file:
                    return tuple(file.get_tensor(numbers.name).tolist())
            return codes[0], codes[1] * per_word
        return codes

    def scales(self, shape: Shape) -> list[Shape]:
        """The shapes that the scales of such a matrix may have."""
        if self.format == "mxfp4":
            *stack, size, out = shape
            return [(*stack, out, size // MXFP4_GROUP)]
        out, size = shape
        rows, columns = self.block or (1, min(self.group or size, size))
        grid = -(-out // rows), -(-size // columns)
        if self.format in ("gptq", "awq"):
            return [grid[::-1]]
        single = self.format == "eight-bit" and self.block is None and self.group is None
        return [grid, (), (1,), (1, 1), (out,)] if single else [grid]

    def misfit(self, stored: Tensors) -> str:
        """What contradicts that the tensors of a matrix have this layout; empty if nothing does."""
        for role in (self.codes, *FORMATS[self.format][1], *self.required):
            if role not in stored:
                return f"it lacks its `{role}`"
        kind = {"e4m3": "F8_E4M3", "e2m1": "U8"}.get(self.kind, "I32")
        kind = "I8" if self.format == "eight-bit" and self.kind == "int8" else kind
        if stored[self.codes].kind != kind:
            return f"its `{self.codes}` is {stored[self.codes].kind} instead of {kind}"
        role, scale = _scale_of(stored)
        if scale.shape not in (shapes := self.scales(self.shape(stored))):
            wanted = " or ".join(str([*shape]) for shape in shapes)
            return f"its `{role}` is {scale.kind} {[*scale.shape]} instead of {wanted}"
        return ""

    def weight(self, parts: Parts, shape: Shape) -> QuantizedWeight | QuantizedStack:
        """The matrix of this shape, unpacked from the values of its tensors."""
        if self.format == "mxfp4":
            return QuantizedStack(parts["blocks"], parts["scales"])
        if self.format == "eight-bit":
            return self._eight_bit(parts, shape)
        group, order = self.group or shape[1], None
        scale, zero = _scale_of(parts)[1], None
        if self.format == "packed":
            codes = unpacked_words(parts["weight_packed"], self.bits)[:, : shape[1]]
            scale, stored = scale.T, parts.get("weight_zero_point")
            if stored is not None and stored.dtype == torch.int32:  # packed along the rows
                zero = self._signed(unpacked_words(stored.T, self.bits)[:, : len(codes)])
            elif stored is not None:
                zero = (stored.T + 8).to(torch.uint8) if self.bits == 4 else stored.T
            order = _order(parts.get("weight_g_idx"), group, len(scale))
        elif self.format == "gptq":
            codes = unpacked_words(parts["qweight"].T, self.bits)
            if not self.symmetric:  # wraps around, as the codes do
                zero = unpacked_words(parts["qzeros"], self.bits) + self.offset
                zero = self._signed(zero & (1 << self.bits) - 1)
            order = _order(parts.get("g_idx"), group, len(scale), self.ordered)
        else:
            words = (unpacked_words(parts[role], 4) for role in ("qweight", "qzeros"))
            codes, zero = (w.unflatten(-1, (-1, 8))[..., AWQ_COLUMNS].flatten(-2) for w in words)
            codes = codes.T
        return QuantizedWeight(self.kind, self._signed(codes), scale, zero, group, order)

    def _eight_bit(self, parts: Parts, shape: Shape) -> QuantizedWeight:
        codes, (_, scale), (out, size) = parts["weight"], _scale_of(parts), shape
        single = scale.numel() == 1 and self.block is None and self.group is None
        rows, columns = self.block or (out if single else 1, min(self.group or size, size))

        def by_input(values: Tensor) -> Tensor:
            values = values.reshape(-(-out // rows), -(-size // columns))
            return values.repeat_interleave(rows, 0)[:out].T

        scale = by_input(scale if scale.dtype.itemsize > 1 else scale.float())
        zero = parts.get("weight_zero_point")
        zero = None if zero is None or not (zero.is_meta or zero.any()) else by_input(zero)
        both = self.activations and columns == size and zero is None
        activations = codes.dtype if both else None
        return QuantizedWeight(self.kind, codes, scale, zero, columns, activations=activations)

    def _signed(self, codes: Num[Tensor, "*shape"]) -> Num[Tensor, "*shape"]:
        """Codes of 8 bits around 0; those of 4 bits stay around 8."""
        return codes if self.bits == 4 else (codes.to(torch.int16) - 128).to(torch.int8)

    def in_words(self, shape: Shape, stored: Tensors) -> str:
        """The codes of a matrix, and what has a scale, for people."""
        if self.block is not None:
            return f"{self.kind}, a scale for blocks of {self.block[0]} x {self.block[1]}"
        if math.prod(_scale_of(stored)[1].shape) == 1 < shape[0]:
            return f"{self.kind}, one scale each"
        group = MXFP4_GROUP if self.format == "mxfp4" else self.group
        return f"{self.kind}, a scale for " + (f"groups of {group}" if group else "each row")


def unpacked_words(words: Num[Tensor, "*rest words"], bits: int) -> Num[Tensor, "*rest codes"]:
    """The unsigned codes in words of 32 bits, the first in the low bits."""
    shifts = torch.arange(0, 32, bits, device=words.device, dtype=torch.int32)
    return (words[..., None] >> shifts & (1 << bits) - 1).to(torch.uint8).flatten(-2)


def _scale_of(parts: Mapping[str, Any]) -> tuple[str, Any]:
    """The role of the scales, and their tensor."""
    role = next(r for r in ("weight_scale_inv", "weight_scale", "scales") if r in parts)
    return role, parts[role]


def _order(stored: Tensor | None, group: int, groups: int, ordered: bool = True) -> Tensor | None:
    """The group of each input; None where they are in order (without values: not `ordered`)."""
    if stored is None or groups == 1:
        return None
    if stored.is_meta:
        return stored if ordered else None
    in_order = torch.arange(len(stored), device=stored.device) // group
    is_none = torch.equal(stored.long(), in_order) or bool((stored == -1).all())
    return None if is_none else stored

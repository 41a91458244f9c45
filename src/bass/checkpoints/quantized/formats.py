"""How each method stores a matrix: the names, types and shapes of its tensors.

    method               codes                            scales
    fp8                  .weight e4m3 [out, in]           .weight_scale_inv [out/128, in/128]
    compressed-tensors   .weight e4m3 or int8 [out, in]   .weight_scale [], [1], [out, 1], [out, g]
                         .weight_packed [out, in/8]       .weight_scale [out, groups]
    gptq                 .qweight [in/8, out]             .scales [groups, out]
    awq                  .qweight [in, out/8]             .scales [groups, out]
    mxfp4                _blocks [.., out, in/32, 16]     _scales [.., out, in/32]

Words of 32 bits hold 8 codes of 4 bits (or 4 of 8), the first in the low bits; AWQ interleaves
the columns of a word.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Num
from torch import Tensor

from bass.checkpoints.quantized.weight import QuantizedStack, QuantizedWeight
from bass.checkpoints.shards import Stored
from bass.errors import CheckpointError
from bass.ops.quantize import E4M3

Parts = Mapping[str, Tensor]  # tensors by their role, the end of their name
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # of column c of eight, in its word
EIGHT_BITS = {"F8_E4M3": "e4m3", "I8": "int8"}
FLOATS = ("F32", "F16", "BF16")
MXFP4_GROUP = 32


def unpacked_words(words: Num[Tensor, "*rest words"], bits: int) -> Num[Tensor, "*rest codes"]:
    """The unsigned codes in words of 32 bits, the first in the low bits."""
    shifts = torch.arange(0, 32, bits, device=words.device, dtype=torch.int32)
    return (words[..., None] >> shifts & (1 << bits) - 1).to(torch.uint8).flatten(-2)


def _signed(codes: Num[Tensor, "*shape"], bits: int) -> Num[Tensor, "*shape"]:
    """Codes of 8 bits around 0; those of 4 bits stay around 8."""
    return codes if bits == 4 else (codes.to(torch.int16) - 128).to(torch.int8)


def _kind(bits: int) -> str:
    return "int4" if bits == 4 else "int8"


@dataclass(frozen=True)
class EightBits:
    """`.weight` in e4m3 or int8, with a scale for the matrix, for each row, for groups of each row,
    or for blocks (`block`: rows and columns) of the matrix.
    """

    activations: bool = False
    block: tuple[int, int] | None = None
    group: int | None = None

    codes: ClassVar[str] = ".weight"

    def shape(self, name: str, parts: Mapping[str, Stored]) -> tuple[int, ...]:
        """The matrix's shape; raises `CheckpointError` for parts that do not fit it."""
        codes, scale = parts["weight"], _scale_of(parts)
        _check(len(codes.shape) == 2, name, codes)
        _check(scale.kind in (*FLOATS, "F8_E8M0"), name, scale)
        self._grid(codes.shape, scale.shape, name, scale)
        if (zero := parts.get("weight_zero_point")) is not None:
            fits = zero.kind == "I8" and zero.shape == scale.shape and codes.kind == "I8"
            _check(fits and len(self._grid(codes.shape, scale.shape, name, scale)) == 2, name, zero)
        return codes.shape

    def weight(self, parts: Parts) -> QuantizedWeight:
        """The matrix from its tensors."""
        codes, scale = parts["weight"], _scale_of(parts)
        out, size = codes.shape
        rows, columns = self._grid(codes.shape, tuple(scale.shape), "", None)

        def by_input(values: Tensor) -> Tensor:
            values = values.reshape(-(-out // rows), -(-size // columns))
            return values.repeat_interleave(rows, 0)[:out].T

        scale = scale if scale.dtype.itemsize > 1 else scale.float()
        zero = parts.get("weight_zero_point")
        whole = columns == size
        kind = "int8" if codes.dtype == torch.int8 else "e4m3"
        activations = (torch.int8 if kind == "int8" else E4M3) if self.activations else None
        zeros = None if zero is None or not (zero.is_meta or zero.any()) else by_input(zero)
        return QuantizedWeight(
            kind, codes, by_input(scale), zeros, columns,
            activations=activations if whole and zeros is None else None,
        )  # fmt: skip

    def _grid(
        self, codes: tuple[int, ...], scale: tuple[int, ...], name: str, at: Stored | None
    ) -> tuple[int, int]:
        """Rows and columns of the part of the matrix that a scale belongs to."""
        out, size = codes
        if scale in ((), (1,), (1, 1)) and self.block is None:
            return out, size
        if scale in ((out,), (out, 1)) and self.block is None:
            return 1, size
        rows, columns = self.block or (1, self.group or -(-size // max(1, scale[-1])))
        if scale != (-(-out // rows), -(-size // columns)):
            raise _misfit(name, at)
        return rows, columns


@dataclass(frozen=True)
class PackedRows:
    """`.weight_packed` of compressed-tensors, with `.weight_zero_point` and `.weight_g_idx`."""

    bits: int
    group: int | None

    codes: ClassVar[str] = ".weight_packed"

    def shape(self, name: str, parts: Mapping[str, Stored]) -> tuple[int, ...]:
        """The matrix's shape; raises `CheckpointError` for parts that do not fit it."""
        codes, scale = parts["weight_packed"], parts["weight_scale"]
        _check(codes.kind == "I32" and len(codes.shape) == 2, name, codes)
        out, size = codes.shape[0], codes.shape[1] * 32 // self.bits
        fits = len(scale.shape) == 2 and scale.shape[0] == out and scale.kind in FLOATS
        _check(fits and scale.shape[1] == -(-size // self._group(size, scale.shape)), name, scale)
        if (zero := parts.get("weight_zero_point")) is not None:
            packed_rows = -(-out * self.bits // 32)
            fits = (zero.kind, zero.shape) in (
                ("I32", (packed_rows, scale.shape[1])),
                ("I8", scale.shape),
            )
            _check(fits, name, zero)
        _check_groups(name, parts.get("weight_g_idx"), size)
        return out, size

    def weight(self, parts: Parts) -> QuantizedWeight:
        """The matrix from its tensors."""
        codes, scale = unpacked_words(parts["weight_packed"], self.bits), parts["weight_scale"]
        zero = parts.get("weight_zero_point")
        if zero is not None:
            if zero.dtype == torch.int32:  # packed along the rows
                zero = _signed(unpacked_words(zero.T, self.bits)[:, : len(codes)], self.bits)
            else:
                zero = (zero.T + 8).to(torch.uint8) if self.bits == 4 else zero.T
        group = self._group(codes.shape[1], scale.shape)
        return QuantizedWeight(
            _kind(self.bits), _signed(codes, self.bits), scale.T, zero, group,
            _groups_of(parts.get("weight_g_idx"), group, scale.shape[1]),
        )  # fmt: skip

    def _group(self, size: int, scale: tuple[int, ...]) -> int:
        return size if scale[1] == 1 else self.group or -(-size // max(1, scale[1]))


@dataclass(frozen=True)
class GPTQ:
    """`.qweight`, `.qzeros`, `.scales` and `.g_idx`. The stored zero points are smaller by
    `offset`.
    """

    bits: int
    group: int | None
    symmetric: bool = False
    ordered: bool = False  # by activations
    offset: int = 1

    codes: ClassVar[str] = ".qweight"

    def shape(self, name: str, parts: Mapping[str, Stored]) -> tuple[int, ...]:
        """The matrix's shape; raises `CheckpointError` for parts that do not fit it."""
        codes, scale, zero = parts["qweight"], parts["scales"], parts["qzeros"]
        _check(codes.kind == "I32" and len(codes.shape) == 2, name, codes)
        size, out = codes.shape[0] * 32 // self.bits, codes.shape[1]
        groups = -(-size // (self.group or size))
        _check(scale.kind in FLOATS and scale.shape == (groups, out), name, scale)
        _check(zero.kind == "I32" and zero.shape == (groups, out * self.bits // 32), name, zero)
        _check_groups(name, parts.get("g_idx"), size)
        return out, size

    def weight(self, parts: Parts) -> QuantizedWeight:
        """The matrix from its tensors."""
        codes = _signed(unpacked_words(parts["qweight"].T, self.bits), self.bits)
        # wraps around, as the codes do
        zero: Tensor | None = unpacked_words(parts["qzeros"], self.bits) + self.offset
        zero = _signed(zero & (1 << self.bits) - 1, self.bits)
        middle = 8 if self.bits == 4 else 0
        if self.symmetric and (zero.is_meta or bool((zero == middle).all())):
            zero = None
        group, groups = self.group or codes.shape[1], len(parts["scales"])
        return QuantizedWeight(
            _kind(self.bits), codes, parts["scales"], zero, group,
            _groups_of(parts.get("g_idx"), group, groups, self.ordered),
        )  # fmt: skip


@dataclass(frozen=True)
class AWQ:
    """`.qweight`, `.qzeros` and `.scales` in the layout `gemm`, of 4 bits."""

    group: int | None

    codes: ClassVar[str] = ".qweight"

    def shape(self, name: str, parts: Mapping[str, Stored]) -> tuple[int, ...]:
        """The matrix's shape; raises `CheckpointError` for parts that do not fit it."""
        codes, scale, zero = parts["qweight"], parts["scales"], parts["qzeros"]
        _check(codes.kind == "I32" and len(codes.shape) == 2, name, codes)
        size, out = codes.shape[0], codes.shape[1] * 8
        groups = -(-size // (self.group or size))
        _check(scale.kind in FLOATS and scale.shape == (groups, out), name, scale)
        _check(zero.kind == "I32" and zero.shape == (groups, out // 8), name, zero)
        return out, size

    def weight(self, parts: Parts) -> QuantizedWeight:
        """The matrix from its tensors."""
        codes, zero = (_columns(parts[role]) for role in ("qweight", "qzeros"))
        return QuantizedWeight("int4", codes.T, parts["scales"], zero, self.group or len(codes))


@dataclass(frozen=True)
class MXFP4:
    """`_blocks` and `_scales` of a stack of matrices, which is [.., in, out] if not quantized.

    Two codes of a byte are neighbours, the first in the low bits.
    """

    codes: ClassVar[str] = "_blocks"

    def shape(self, name: str, parts: Mapping[str, Stored]) -> tuple[int, ...]:
        """The stack's shape; raises `CheckpointError` for parts that do not fit it."""
        codes, scale = parts["blocks"], parts["scales"]
        _check(codes.kind == "U8" and len(codes.shape) in (3, 4) and codes.shape[-1] == 16,
               name, codes)  # fmt: skip
        _check(scale.kind == "U8" and scale.shape == codes.shape[:-1], name, scale)
        *stack, out, groups, _ = codes.shape
        return (*stack, groups * MXFP4_GROUP, out)

    def weight(self, parts: Parts) -> QuantizedStack:
        """The matrices of the stack, [out, in] each."""
        return QuantizedStack(parts["blocks"], parts["scales"])


Format = EightBits | PackedRows | GPTQ | AWQ | MXFP4
FormatOf = Callable[[str], Format]  # by the name of a module


def in_words(shape: tuple[int, ...], parts: Mapping[str, Stored]) -> str:
    """The type of a quantized matrix's numbers, and what has a scale."""
    role, codes = next(iter(parts.items()))
    scale = next(part for name, part in parts.items() if "scale" in name)
    count, scales, out = math.prod(shape), math.prod(scale.shape), shape[0]
    if role == "weight":
        kind = EIGHT_BITS.get(codes.kind, codes.kind)
    elif role == "blocks":
        kind = "e2m1"
    else:
        kind = f"int{8 * (codes.stop - codes.start) // max(1, count)}"
    if scales == 1:
        return f"{kind}, one scale each"
    if scales == out:
        return f"{kind}, a scale for each row"
    if role == "weight" and scale.shape[0] < out:
        sides = (-(-side // n) for side, n in zip(shape, scale.shape, strict=True))
        return f"{kind}, a scale for blocks of {' x '.join(map(str, sides))}"
    return f"{kind}, a scale for groups of {count // max(1, scales)}"


def _columns(words: Num[Tensor, "rows words"]) -> Num[Tensor, "rows columns"]:
    """AWQ's columns in their order."""
    codes = unpacked_words(words, 4).unflatten(-1, (-1, 8))
    return codes[..., list(AWQ_PLACES)].flatten(-2)


def _scale_of(parts: Mapping[str, Any]) -> Any:
    return parts["weight_scale_inv" if "weight_scale_inv" in parts else "weight_scale"]


def _groups_of(
    stored: Tensor | None, group: int, groups: int, ordered: bool = True
) -> Tensor | None:
    """The group of each input; None where they are in order (without values: not `ordered`)."""
    if stored is None or groups == 1:
        return None
    if stored.is_meta:
        return stored if ordered else None
    if int(stored.min()) < 0:  # -1: without order
        return None
    if int(stored.max()) >= groups:
        raise CheckpointError(
            f"The checkpoint has an input in group {int(stored.max())} of {groups} (`g_idx`): "
            "download it again."
        )
    in_order = torch.arange(len(stored), device=stored.device) // group
    return None if torch.equal(stored.long(), in_order) else stored


def _check_groups(name: str, stored: Stored | None, size: int) -> None:
    if stored is not None:
        _check(stored.kind in ("I32", "I64") and stored.shape == (size,), name, stored)


def _check(fits: bool, name: str, part: Stored) -> None:
    if not fits:
        raise _misfit(name, part)


def _misfit(name: str, part: Stored | None) -> CheckpointError:
    what = "" if part is None else f" {part.kind} {list(part.shape)}"
    return CheckpointError(
        f"A tensor of the quantized `{name[:100]}`{what} has another type or shape than "
        "quantization_config says: the files do not belong together."
    )

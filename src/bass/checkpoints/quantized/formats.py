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

import numpy as np
import torch
from jaxtyping import Num
from torch import Tensor

from bass.checkpoints.quantized.damaged import check_codes
from bass.checkpoints.quantized.weight import QuantizedStack, QuantizedWeight
from bass.checkpoints.shards import Stored
from bass.errors import CheckpointError
from bass.files import open_regular
from bass.ops.quantize import E4M3

Parts = Mapping[str, Tensor]  # tensors by their role, the end of their name
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # of column c of eight, in its word
EIGHT_BITS = {"F8_E4M3": "e4m3", "I8": "int8"}
FLOATS = ("F32", "F16", "BF16")
Needs = tuple[tuple[str, str], ...]  # roles that a config requires, and the field that does
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

    kind: str  # of the file
    activations: bool = False
    block: tuple[int, int] | None = None
    group: int | None = None
    needs: Needs = ()

    codes: ClassVar[str] = ".weight"

    def shape(self, prefix: str, parts: Mapping[str, Stored]) -> tuple[int, ...]:
        """The matrix's shape; raises `CheckpointError` for parts that do not fit it."""
        codes, scale = _matrix(prefix, "weight", parts, self.kind), _scale_of(parts)
        role = next(role for role, part in parts.items() if part is scale)
        out, size = codes.shape
        if self.block is not None:
            rows, columns = self.block
            wanted = f"[{-(-out // rows)}, {-(-size // columns)}] (blocks of {rows} x {columns})"
        elif self.group is not None:
            wanted = f"[{out}, {-(-size // self.group)}] (groups of {self.group} of {size} inputs)"
        else:
            wanted = f"[] or [{out}, 1]"
        fits = self._grid(codes.shape, scale.shape) is not None
        _check(fits and scale.kind in (*FLOATS, "F8_E8M0"), prefix, role, scale,
               f"{_any(FLOATS)} {wanted}")  # fmt: skip
        if (zero := parts.get("weight_zero_point")) is not None:
            fits = (zero.kind, zero.shape, self.kind) == ("I8", scale.shape, "I8")
            _check(fits, prefix, "weight_zero_point", zero,
                   f"I8 {list(scale.shape)}, of int8 alone")  # fmt: skip
        if (said := _stored_shape(prefix, parts)) is not None:
            _check(said == codes.shape, prefix, "weight", codes,
                   f"{list(said)} (by its `weight_shape`)")  # fmt: skip
        return codes.shape

    def weight(self, parts: Parts, shape: tuple[int, ...]) -> QuantizedWeight:
        """The matrix of this shape from its tensors."""
        codes, scale = parts["weight"], _scale_of(parts)
        out, size = shape
        grid = self._grid((out, size), tuple(scale.shape))
        assert grid is not None  # by `shape`
        rows, columns = grid
        if codes.dtype == E4M3:
            check_codes(codes)

        def by_input(values: Tensor) -> Tensor:
            values = values.reshape(-(-out // rows), -(-size // columns))
            return values.repeat_interleave(rows, 0)[:out].T

        scale = scale if scale.dtype.itemsize > 1 else scale.float()
        zero = parts.get("weight_zero_point")
        whole = columns == size
        activations = codes.dtype if self.activations and whole else None
        zeros = None if zero is None or not (zero.is_meta or zero.any()) else by_input(zero)
        return QuantizedWeight(
            EIGHT_BITS[self.kind], codes, by_input(scale), zeros, columns,
            activations=activations if zeros is None else None,
        )  # fmt: skip

    def _grid(self, codes: tuple[int, ...], scale: tuple[int, ...]) -> tuple[int, int] | None:
        """Rows and columns of the part of the matrix that a scale belongs to; None: the scales do
        not fit.
        """
        out, size = codes
        if self.block is None and self.group is None:
            if scale in ((), (1,), (1, 1)):
                return out, size
            return (1, size) if scale in ((out,), (out, 1)) else None
        rows, columns = self.block or (1, min(self.group or size, size))
        return (rows, columns) if scale == (-(-out // rows), -(-size // columns)) else None


@dataclass(frozen=True)
class PackedRows:
    """`.weight_packed` of compressed-tensors, with `.weight_zero_point` and `.weight_g_idx`."""

    bits: int
    group: int | None
    needs: Needs = ()

    codes: ClassVar[str] = ".weight_packed"

    @property
    def per_word(self) -> int:
        """Codes in a word."""
        return 32 // self.bits

    def shape(self, prefix: str, parts: Mapping[str, Stored]) -> tuple[int, ...]:
        """The matrix's shape; raises `CheckpointError` for parts that do not fit it."""
        codes, scale = _matrix(prefix, "weight_packed", parts, "I32"), parts["weight_scale"]
        out, size = _stored_shape(prefix, parts) or (codes.shape[0], codes.shape[1] * self.per_word)
        _check(codes.shape == (out, -(-size // self.per_word)), prefix, "weight_packed", codes,
               f"I32 [{out}, {-(-size // self.per_word)}] (by its `weight_shape`)")  # fmt: skip
        groups = -(-size // (self.group or size))
        _check(scale.kind in FLOATS and scale.shape == (out, groups), prefix, "weight_scale", scale,
               f"{_any(FLOATS)} [{out}, {groups}] ({_in_groups(self.group, size)})")  # fmt: skip
        if (zero := parts.get("weight_zero_point")) is not None:
            words = (-(-out * self.bits // 32), groups)
            fits = (zero.kind, zero.shape) in (("I32", words), ("I8", scale.shape))
            _check(fits, prefix, "weight_zero_point", zero,
                   f"I32 {list(words)} or I8 {list(scale.shape)}")  # fmt: skip
        _check_groups(prefix, "weight_g_idx", parts, size)
        return out, size

    def weight(self, parts: Parts, shape: tuple[int, ...]) -> QuantizedWeight:
        """The matrix of this shape from its tensors; the last word of a row may be filled up."""
        codes, scale = unpacked_words(parts["weight_packed"], self.bits), parts["weight_scale"]
        codes = codes[:, : shape[1]]
        zero = parts.get("weight_zero_point")
        if zero is not None:
            if zero.dtype == torch.int32:  # packed along the rows
                zero = _signed(unpacked_words(zero.T, self.bits)[:, : len(codes)], self.bits)
            else:
                zero = (zero.T + 8).to(torch.uint8) if self.bits == 4 else zero.T
        group = self.group or shape[1]
        return QuantizedWeight(
            _kind(self.bits), _signed(codes, self.bits), scale.T, zero, group,
            _groups_of(parts.get("weight_g_idx"), group, scale.shape[1]),
        )  # fmt: skip


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
    needs: Needs = ()

    codes: ClassVar[str] = ".qweight"

    def shape(self, prefix: str, parts: Mapping[str, Stored]) -> tuple[int, ...]:
        """The matrix's shape; raises `CheckpointError` for parts that do not fit it."""
        codes = _matrix(prefix, "qweight", parts, "I32")
        size, out = codes.shape[0] * 32 // self.bits, codes.shape[1]
        _check_by_groups(prefix, parts, self.group, size, out, out * self.bits // 32)
        _check_groups(prefix, "g_idx", parts, size)
        return out, size

    def weight(self, parts: Parts, shape: tuple[int, ...]) -> QuantizedWeight:
        """The matrix of this shape from its tensors."""
        codes = _signed(unpacked_words(parts["qweight"].T, self.bits), self.bits)
        # wraps around, as the codes do
        zero: Tensor | None = unpacked_words(parts["qzeros"], self.bits) + self.offset
        zero = _signed(zero & (1 << self.bits) - 1, self.bits)
        middle = 8 if self.bits == 4 else 0
        if self.symmetric and (zero.is_meta or bool((zero == middle).all())):
            zero = None
        group, groups = self.group or shape[1], len(parts["scales"])
        return QuantizedWeight(
            _kind(self.bits), codes, parts["scales"], zero, group,
            _groups_of(parts.get("g_idx"), group, groups, self.ordered),
        )  # fmt: skip


@dataclass(frozen=True)
class AWQ:
    """`.qweight`, `.qzeros` and `.scales` in the layout `gemm`, of 4 bits."""

    group: int | None

    codes: ClassVar[str] = ".qweight"
    needs: ClassVar[Needs] = ()

    def shape(self, prefix: str, parts: Mapping[str, Stored]) -> tuple[int, ...]:
        """The matrix's shape; raises `CheckpointError` for parts that do not fit it."""
        codes = _matrix(prefix, "qweight", parts, "I32")
        size, out = codes.shape[0], codes.shape[1] * 8
        _check_by_groups(prefix, parts, self.group, size, out, out // 8)
        return out, size

    def weight(self, parts: Parts, shape: tuple[int, ...]) -> QuantizedWeight:
        """The matrix of this shape from its tensors."""
        codes, zero = (_columns(parts[role]) for role in ("qweight", "qzeros"))
        return QuantizedWeight("int4", codes.T, parts["scales"], zero, self.group or shape[1])


@dataclass(frozen=True)
class MXFP4:
    """`_blocks` and `_scales` of a stack of matrices, which is [.., in, out] if not quantized.

    Two codes of a byte are neighbours, the first in the low bits.
    """

    codes: ClassVar[str] = "_blocks"
    needs: ClassVar[Needs] = ()

    def shape(self, prefix: str, parts: Mapping[str, Stored]) -> tuple[int, ...]:
        """The stack's shape; raises `CheckpointError` for parts that do not fit it."""
        codes, scale = parts["blocks"], parts["scales"]
        fits = codes.kind == "U8" and len(codes.shape) in (3, 4) and codes.shape[-1] == 16
        _check(fits, prefix, "blocks", codes, "U8 of three or four axes, the last of 16")
        fits = scale.kind == "U8" and scale.shape == codes.shape[:-1]
        _check(fits, prefix, "scales", scale, f"U8 {list(codes.shape[:-1])}")
        *stack, out, groups, _ = codes.shape
        return (*stack, groups * MXFP4_GROUP, out)

    def weight(self, parts: Parts, shape: tuple[int, ...]) -> QuantizedStack:
        """The matrices of the stack of this shape, [out, in] each."""
        return QuantizedStack(parts["blocks"], parts["scales"])


Format = EightBits | PackedRows | GPTQ | AWQ | MXFP4
FormatsOf = Callable[[list[str]], dict[str, Format]]  # by the names of modules


def in_words(form: Format, shape: tuple[int, ...], parts: Mapping[str, Stored]) -> str:
    """The type of a quantized matrix's numbers, and what has a scale."""
    if isinstance(form, MXFP4):
        return f"e2m1, a scale for groups of {MXFP4_GROUP}"
    block, group = None, form.group
    if isinstance(form, EightBits):
        kind, block = EIGHT_BITS[form.kind], form.block
    else:
        kind = "int4" if isinstance(form, AWQ) else _kind(form.bits)
    if block is not None:
        return f"{kind}, a scale for blocks of {' x '.join(map(str, block))}"
    if group is not None:
        return f"{kind}, a scale for groups of {group}"
    scale = next(part for name, part in parts.items() if "scale" in name)
    single = math.prod(scale.shape) == 1 < shape[0]
    return f"{kind}, one scale each" if single else f"{kind}, a scale for each row"


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
    low, high = (int(value) for value in stored.aminmax())
    if (low, high) == (-1, -1):  # without order
        return None
    if low < 0 or high >= groups:
        raise CheckpointError(
            f"its `g_idx` puts an input into group {low if low < 0 else high}, and its groups are "
            f"0 to {groups - 1} (or -1 for all inputs): download the checkpoint again."
        )
    in_order = torch.arange(len(stored), device=stored.device) // group
    return None if torch.equal(stored.long(), in_order) else stored


def _matrix(prefix: str, role: str, parts: Mapping[str, Stored], kind: str) -> Stored:
    """The codes, if they are a matrix of this type."""
    codes = parts[role]
    fits = codes.kind == kind and len(codes.shape) == 2 and 0 not in codes.shape
    _check(fits, prefix, role, codes, f"{kind} of two axes")
    return codes


def _check_by_groups(
    prefix: str, parts: Mapping[str, Stored], group: int | None, size: int, out: int, words: int
) -> None:
    """`scales` and `qzeros` of GPTQ and AWQ."""
    scale, zero = parts["scales"], parts["qzeros"]
    groups, said = -(-size // (group or size)), _in_groups(group, size)
    _check(scale.kind in FLOATS and scale.shape == (groups, out), prefix, "scales", scale,
           f"{_any(FLOATS)} [{groups}, {out}] ({said})")  # fmt: skip
    _check(zero.kind == "I32" and zero.shape == (groups, words), prefix, "qzeros", zero,
           f"I32 [{groups}, {words}] ({said})")  # fmt: skip


def _check_groups(prefix: str, role: str, parts: Mapping[str, Stored], size: int) -> None:
    if (stored := parts.get(role)) is not None:
        fits = stored.kind in ("I32", "I64") and stored.shape == (size,)
        _check(fits, prefix, role, stored, f"I32 [{size}]")


def _stored_shape(prefix: str, parts: Mapping[str, Stored]) -> tuple[int, ...] | None:
    """The numbers of `weight_shape`, which are read with the headers."""
    if (stored := parts.get("weight_shape")) is None:
        return None
    fits = stored.kind in ("I32", "I64") and stored.shape == (2,)
    _check(fits, prefix, "weight_shape", stored, "I64 [2]")
    with open_regular(stored.path) as file:
        file.seek(stored.start)
        raw = file.read(stored.stop - stored.start)
    return tuple(np.frombuffer(raw, f"<i{len(raw) // 2}").tolist())


def _in_groups(group: int | None, size: int) -> str:
    return f"{size} inputs in " + ("one group" if group is None else f"groups of {group}")


def _any(kinds: tuple[str, ...]) -> str:
    return f"{', '.join(kinds[:-1])} or {kinds[-1]}"


def _check(fits: bool, prefix: str, role: str, part: Stored, wanted: str) -> None:
    if not fits:
        raise CheckpointError(
            f"`{prefix[:100]}{role}` in `{part.path.name}` is {part.kind} {list(part.shape)}, and "
            f"its quantization_config requires {wanted}: correct the config, or download the "
            "checkpoint again."
        )

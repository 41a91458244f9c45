"""A matrix of a quantized checkpoint, unpacked."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int, Num, UInt8
from torch import Tensor, nn

from bass.ops.group_quantized import GroupQuantizedLinear, e2m1, e8m0, packed
from bass.ops.linear import QuantizedLinear
from bass.ops.quantize import widened


@dataclass(frozen=True)
class QuantizedWeight:
    """w[n, k] = (codes[n, k] - zero[g, n]) scale[g, n], with g = k // group, or groups_of[k].

    kind: "int4" (codes 0..15), "e2m1" (codes of 4 bits, scales e8m0), "int8" or "e4m3".
    activations: the type to which the method quantizes x, or None.
    """

    kind: str
    codes: Num[Tensor, "out in"]
    scale: Num[Tensor, "groups out"]
    zero: Num[Tensor, "groups out"] | None
    group: int
    groups_of: Int[Tensor, " in"] | None = None
    activations: torch.dtype | None = None

    def dense(self) -> Float[Tensor, "out in"]:
        """The matrix in float32."""
        size = self.codes.shape[1]
        of = self.groups_of
        if of is None:
            of = torch.arange(size, device=self.codes.device) // self.group
        scale, of = e8m0(self.scale) if self.kind == "e2m1" else self.scale.float(), of.long()
        if self.kind == "e2m1":
            value = e2m1(self.codes, torch.float32)
        else:
            value = widened(self.codes, torch.float32)
        if self.zero is not None:
            value = value - self.zero.float()[of].T
        elif self.kind == "int4":
            value = value - 8
        return value * scale[of].T

    def permuted(self, rows: np.ndarray | None) -> "QuantizedWeight":
        """Its rows in this order."""
        if rows is None:
            return self
        index = torch.as_tensor(rows, device=self.codes.device)
        zero = None if self.zero is None else self.zero[:, index]
        return replace(self, codes=self.codes[index], scale=self.scale[:, index], zero=zero)

    def layer(self, bias: Float[Tensor, " out"] | None) -> nn.Module | None:
        """A linear layer that keeps it quantized, of the tensors of `stacked`, which are copies;
        None if its groups have different sizes.
        """
        if len(self.scale) == 1 and self.zero is None and self.kind in ("int8", "e4m3"):
            scale = self.scale[0].float()
            return QuantizedLinear(self.codes.contiguous(), scale, bias, self.activations)
        if self.codes.shape[1] % 2 and self.kind in ("int4", "e2m1"):
            return None
        codes, order = self.codes, None
        if self.groups_of is not None and len(self.scale) > 1:
            order = self.groups_of.argsort(stable=True)
            even = torch.arange(len(order), device=order.device) // self.group
            if not order.is_meta and not torch.equal(self.groups_of[order].long(), even):
                return None
            codes, order = codes[:, order], order.to(torch.int32)
        weight = packed(codes) if self.kind in ("int4", "e2m1") else codes.contiguous()
        zero = None if self.zero is None else self.zero.contiguous()
        scale = self.scale.contiguous()
        return GroupQuantizedLinear(weight, scale, zero, self.group, bias, order)


@dataclass(frozen=True)
class QuantizedStack:
    """Matrices of experts in MXFP4, [out, in] each, which are stored [*stack, in, out] if not
    quantized.

    A byte of a block holds two codes, the first in the low bits; a scale is that of a block.
    """

    blocks: UInt8[Tensor, "*stack out groups half_group"]
    scales: UInt8[Tensor, "*stack out groups"]

    def matrices(self) -> Iterator[QuantizedWeight]:
        """One after the other: unpacked codes take twice the bytes."""
        group = 2 * self.blocks.shape[-1]
        blocks = self.blocks.reshape(-1, *self.blocks.shape[-3:])
        scales = self.scales.reshape(-1, *self.scales.shape[-2:])
        for block, scale in zip(blocks, scales, strict=True):
            codes = torch.stack((block & 15, block >> 4), -1).flatten(1)
            yield QuantizedWeight("e2m1", codes, scale.T, None, group)

    def dense(self) -> Float[Tensor, "*stack in out"]:
        """The matrices in float32, as they are stored if not quantized."""
        whole = torch.stack([matrix.dense().T for matrix in self.matrices()])
        return whole.reshape(*self.blocks.shape[:-3], *whole.shape[1:])

    def in_four_bits(
        self, rows: np.ndarray | None
    ) -> tuple[UInt8[Tensor, "rows half_in"], UInt8[Tensor, "groups rows"]]:
        """Codes and scales of all matrices, one below the other, in this order of rows, as
        `ops.group_quantized` has them.
        """
        codes, scales = self.blocks.flatten(-2).flatten(0, -2), self.scales.flatten(0, -2)
        if rows is not None:
            index = torch.as_tensor(rows, device=codes.device)
            codes, scales = codes[index], scales[index]
        low, high = codes.chunk(2, 1)
        even, odd = low & 15 | high << 4, low >> 4 | high & 0xF0
        scales = scales.T.clone(memory_format=torch.contiguous_format)  # may be the file itself
        return torch.stack((even, odd), -1).flatten(1), scales


def stacked(parts: Sequence[QuantizedWeight]) -> QuantizedWeight | None:
    """The matrices, one below the other, copied; None if they are quantized in different ways."""
    first = parts[0]
    if any(_form(part) != _form(first) or not _same_groups(part, first) for part in parts[1:]):
        return None
    zeros = [part.zero for part in parts if part.zero is not None]
    return replace(
        first,
        codes=torch.cat([part.codes for part in parts]),
        scale=torch.cat([part.scale for part in parts], 1),
        zero=torch.cat(zeros, 1) if zeros else None,
    )


def _form(part: QuantizedWeight) -> tuple[object, ...]:
    return (
        part.kind, part.group, part.activations, part.scale.dtype, len(part.scale),
        part.zero is None, part.groups_of is None,
    )  # fmt: skip


def _same_groups(one: QuantizedWeight, other: QuantizedWeight) -> bool:
    if one.groups_of is None or other.groups_of is None:
        return one.groups_of is other.groups_of
    return one.groups_of.is_meta or torch.equal(one.groups_of, other.groups_of)

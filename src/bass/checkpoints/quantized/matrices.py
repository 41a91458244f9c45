"""Quantized matrices of a checkpoint, unpacked, and the layers that keep them quantized."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int, Num, UInt8
from torch import Tensor, nn

from bass.checkpoints.shards import FLOATS, StoredQuantized, TensorFiles, TensorReader
from bass.models.sources import WeightSource
from bass.ops.experts import Experts
from bass.ops.linear import GroupQuantizedLinear, QuantizedLinear
from bass.ops.quantize import E4M3, numbers, packed

E4M3_FROM = (8, 9)  # the compute capability of GPUs with products of e4m3
WHOLE = 64  # inputs of two groups of MXFP4: each half of the inputs has whole groups


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
        of = self.groups_of
        if of is None:
            of = torch.arange(self.codes.shape[1], device=self.codes.device) // self.group
        return numbers(self.codes, self.scale, self.zero, of.long(), self.kind, torch.float32)

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
        """Codes and scales of all matrices in one, in this order of rows, as in `ops.quantize`."""
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
    forms = {(p.kind, p.group, p.activations, p.scale.dtype, len(p.scale)) for p in parts}
    orders = [part.groups_of for part in parts if part.groups_of is not None]
    zeros = [part.zero for part in parts if part.zero is not None]
    if len(forms) > 1 or any(0 < len(some) < len(parts) for some in (orders, zeros)):
        return None
    if not all(order.is_meta or torch.equal(order, orders[0]) for order in orders[1:]):
        return None
    return replace(
        first,
        codes=torch.cat([part.codes for part in parts]),
        scale=torch.cat([part.scale for part in parts], 1),
        zero=torch.cat(zeros, 1) if zeros else None,
    )


def keep_quantized(
    decoder: nn.Module, path: str, sources: Mapping[str, WeightSource], reader: TensorReader
) -> bool:
    """Replace a linear layer by one with the checkpoint's quantized matrix, if its parts are all
    quantized in one way, which the device computes.
    """
    source = sources[f"{path}.weight"]
    found = [reader.files.stored[tensor] for tensor in source.tensors]
    parts = [part for part in found if isinstance(part, StoredQuantized)]
    if len(parts) < len(found) or source.transposed:
        return False
    if (whole := stacked([reader.quantized(part) for part in parts])) is None:
        return False
    on_gpu_in_e4m3 = whole.codes.dtype == E4M3 and reader.device.type == "cuda"
    if on_gpu_in_e4m3 and torch.cuda.get_device_capability(reader.device) < E4M3_FROM:
        return False
    bias = decoder.get_submodule(path)._parameters.get("bias")
    if bias is not None:
        bias = torch.empty_like(bias, device=reader.device)
        own = sources[f"{path}.bias"]
        own.fill(bias, [reader[tensor] for tensor in own.tensors])
    if (layer := whole.permuted(source.rows).layer(bias)) is None:
        return False
    decoder.set_submodule(path, layer.requires_grad_(False).eval())
    return True


def keep_in_four_bits(
    module: nn.Module, own: str, source: WeightSource, reader: TensorReader
) -> bool:
    """Replace a matrix of experts by its codes and scales, if the checkpoint has it in MXFP4."""
    stored = reader.files.stored[source.tensors[0]]
    if not (isinstance(module, Experts) and isinstance(stored, StoredQuantized)):
        return False
    if stored.layout.format != "mxfp4" or getattr(module, own).shape[1] % WHOLE:
        return False
    codes, scales = reader.quantized(stored).in_four_bits(source.rows)
    setattr(module, own, nn.Parameter(codes, requires_grad=False))
    setattr(module, f"{own}_scale", nn.Parameter(scales, requires_grad=False))
    return True


def without_zero_biases(names: Sequence[str], files: TensorFiles) -> list[str]:
    """The names but for biases of zeros of quantized matrices, which old exports of GPTQ add."""
    reader = TensorReader(files, torch.device("cpu"))

    def is_zero_bias(name: str) -> bool:
        matrix = files.stored.get(f"{name.removesuffix('.bias')}.weight")
        added = name.endswith(".bias") and isinstance(matrix, StoredQuantized)
        return added and files.stored[name].kind in FLOATS and not bool(reader[name].any())

    return [name for name in names if not is_zero_bias(name)]

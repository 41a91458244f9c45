"""Rows of the residual stream in float32: embedded tokens, and norms after an added product."""

import math
from typing import no_type_check

import torch
from jaxtyping import Float
from torch import Tensor

from bass.kernels.cpu.runtime import compiled, empty, floats, own_share, unpacked
from bass.kernels.values import Norm

KINDS = ("rms", "offset_rms", "layer")


@compiled
@no_type_check
def _embedded(argument):
    table, tokens, out, rows, size, vocab, threads = unpacked(argument, "FIFiiii")
    for row in own_share(rows, threads):
        known, first = 0 <= tokens[row] < vocab, tokens[row] * size
        for i in range(size):
            out[row * size + i] = table[first + i] if known else math.nan


def embedded(table: Tensor, tokens: Tensor) -> Tensor:
    """The rows of the table for the tokens; NaN for an invalid token."""
    (vocab, size), tokens = table.shape, tokens.contiguous()
    out = empty(*tokens.shape, size)
    _embedded(0, table, tokens, out, tokens.numel(), size, vocab)
    return out


@compiled
@no_type_check
def _copied(argument):
    part, out, rows, size, first, whole, threads = unpacked(argument, "FFiiiii")
    for row in own_share(rows, threads):
        for i in range(size):
            out[row * whole + first + i] = part[row * size + i]


def joined(*parts: Tensor) -> Tensor:
    """The parts of each row, one after the other."""
    rows, sizes = parts[0].shape[:-1], [part.shape[-1] for part in parts]
    out = empty(*rows, sum(sizes))
    for i, part in enumerate(parts):
        whole = part.contiguous()
        _copied(0, whole, out, rows.numel(), sizes[i], sum(sizes[:i]), sum(sizes))
    return out


@compiled
@no_type_check
def _added(argument):
    x, y, out, size, threads = unpacked(argument, "FFFii")
    for i in own_share(size, threads):
        out[i] = x[i] + y[i]


def added(x: Tensor, y: Tensor) -> Tensor:
    """x + y, of equal shapes."""
    x, y = x.contiguous(), y.contiguous()
    out = torch.empty_like(x)
    _added(0, x, y, out, x.numel())
    return out


@compiled
@no_type_check
def _add_norm(argument):
    base, add, stream, y, weight, bias, rows, size, kind, eps, threads = unpacked(
        argument, "FiFFiiiiidi"
    )
    for row in own_share(rows, threads):
        first, last = row * size, (row + 1) * size
        if add:
            for i in range(first, last):
                stream[i] = base[i] + floats(add)[i]
        mean = 0.0
        if kind == 2:
            for i in range(first, last):
                mean += stream[i]
            mean /= size
        squares = 0.0
        for i in range(first, last):
            squares += (stream[i] - mean) ** 2
        scale = 1 / math.sqrt(squares / size + eps)
        for i in range(first, last):
            unit = (stream[i] - mean) * scale
            if weight:
                unit *= floats(weight)[i - first] + (1.0 if kind == 1 else 0.0)
            if bias:
                unit += floats(bias)[i - first]
            y[i] = unit


def add_norm(
    base: Float[Tensor, "*rows size"],
    product: Float[Tensor, "*rows size"] | None,
    norm: Norm,
) -> tuple[Float[Tensor, "*rows size"], Float[Tensor, "*rows size"]]:
    """s' = s + product and norm(s'), in one pass over each row."""
    base, size = base.contiguous(), base.shape[-1]
    add = None if product is None else product.contiguous()
    stream, y = base if add is None else torch.empty_like(base), torch.empty_like(base)
    _add_norm(
        0, base, add, stream, y, norm.weight, norm.bias, base.numel() // size, size,
        KINDS.index(norm.kind), float(norm.eps),
    )  # fmt: skip
    return stream, y

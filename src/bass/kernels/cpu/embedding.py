"""Looks up rows of a table in float32."""

import math
from typing import no_type_check

from jaxtyping import Float, Int
from torch import Tensor

from bass.kernels.cpu.runtime import compiled, empty, floats, integers, own_share


@compiled
@no_type_check
def _embedded(argument):
    a = integers(argument)
    table, tokens, out = floats(a[0]), integers(a[1]), floats(a[2])
    rows, size, vocab, threads = a[3], a[4], a[5], a[6]
    for row in own_share(rows, threads):
        known, first = 0 <= tokens[row] < vocab, tokens[row] * size
        for i in range(size):
            out[row * size + i] = table[first + i] if known else math.nan


def embedded(
    table: Float[Tensor, "vocab size"], tokens: Int[Tensor, "*rows"]
) -> Float[Tensor, "*rows size"]:
    """The rows of the table for the tokens; NaN for an invalid token."""
    (vocab, size), tokens = table.shape, tokens.contiguous()
    out = empty(*tokens.shape, size)
    _embedded(0, table, tokens, out, tokens.numel(), size, vocab)
    return out

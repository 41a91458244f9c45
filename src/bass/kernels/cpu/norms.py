"""A norm of the residual stream after the addition of a product, in float32.

s' = s + product ;  y = norm(s')        in one pass over each row
"""

import math
from typing import no_type_check

import torch
from jaxtyping import Float
from torch import Tensor

from bass.kernels.cpu.runtime import bits, compiled, double, floats, integers, own_share

KINDS = ("rms", "offset_rms", "layer")


@compiled
@no_type_check
def _add_norm(argument):
    a = integers(argument)
    base, add, stream, y = floats(a[0]), floats(a[1]), floats(a[2]), floats(a[3])
    weight, bias = floats(a[4]), floats(a[5])
    rows, size, kind, eps, threads = a[6], a[7], a[8], double(a[9]), a[10]
    for row in own_share(rows, threads):
        first, last = row * size, (row + 1) * size
        if a[1]:
            for i in range(first, last):
                stream[i] = base[i] + add[i]
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
            if a[4]:
                unit *= weight[i - first] + (1.0 if kind == 1 else 0.0)
            if a[5]:
                unit += bias[i - first]
            y[i] = unit


def add_norm(
    base: Float[Tensor, "*rows size"],
    product: Float[Tensor, "*rows size"] | None,
    weight: Float[Tensor, " size"] | None,
    bias: Float[Tensor, " size"] | None,
    eps: float,
    kind: str,
) -> tuple[Float[Tensor, "*rows size"], Float[Tensor, "*rows size"]]:
    """The stream with the product added, and its norm. `kind`: of `KINDS`."""
    base, size = base.contiguous(), base.shape[-1]
    add = None if product is None else product.contiguous()
    stream, y = base if add is None else torch.empty_like(base), torch.empty_like(base)
    _add_norm(
        0, base, add, stream, y, weight, bias, base.numel() // size, size, KINDS.index(kind),
        bits(eps),
    )  # fmt: skip
    return stream, y

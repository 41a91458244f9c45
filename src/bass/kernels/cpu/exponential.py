"""exp(x) of float32 without branches, so that a loop over it has vector instructions.

x = n log 2 + r with |r| <= log(2) / 2, and exp(x) = 2^n p(r) with a polynomial p (Cephes); within
2 units in the last place, and 0 below -87.
"""

from typing import Any, no_type_check

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

LOG2E = np.float32(1.44269504088896341)
HIGH, LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)  # of log 2
P0, P1, P2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
P3, P4, P5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
ONE, HALF = np.float32(1), np.float32(0.5)
LEAST = np.float32(-87)


@intrinsic
def _as_float(typing: Any, bits: Any) -> Any:
    """The float32 with these 32 bits."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), code


@njit(cache=True, error_model="numpy", inline="always")
@no_type_check
def exp(x):
    """exp(x) of x <= 0."""
    y = max(x, LEAST)
    n = np.floor(y * LOG2E + HALF)
    r = y - n * HIGH
    r = r - n * LOW
    p = ((((P0 * r + P1) * r + P2) * r + P3) * r + P4) * r + P5
    p = p * r * r + r + ONE
    scale = _as_float(np.int32((np.int32(n) + np.int32(127)) << np.int32(23)))
    return p * scale if x >= LEAST else np.float32(0)

"""Values that operations and kernels exchange: shapes, a norm's parameters, flags of rows.

Keys and values: `Padded`, every row with the same extent; `Pool`, position p of row b at
`starts[b] + p`; `Blocks`, position p of row b in block `table[b, p // block]`.
"""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

Queries = Float[Tensor, "batch window heads dim"]
Padded = Float[Tensor, "batch extent kv_heads dim"]
Pool = Float[Tensor, "pool kv_heads dim"]
Blocks = Float[Tensor, "blocks block kv_heads dim"]
Positions = Int[Tensor, "batch window"]
RowNumbers = Int[Tensor, " batch"]  # an integer of each row
Scores = Float[Tensor, "batch window vocab"]  # logits, or probabilities

# Bits of a row's flag for invalid distributions; 0 for a valid row. The low ones are of its draft,
# the others of the target's distributions: `TARGET` times a bit.
BITS = tuple(1 << i for i in range(6))
NOT_FINITE, NEGATIVE, NOT_ONE, UNKNOWN_TOKEN, NEGATIVE_LENGTH, IMPOSSIBLE_TOKEN = BITS
TARGET = 1 << len(BITS)
TOLERANCE = 1e-3  # of the sum of a distribution in float32, around 1


@dataclass(frozen=True)
class Norm:
    """The parameters of a norm, of rows or of the heads of q and k.

    rms          x / sqrt(mean(x²) + eps) · weight
    offset_rms   x / sqrt(mean(x²) + eps) · (1 + weight)
    layer        (x - mean(x)) / sqrt(var(x) + eps) · weight + bias
    """

    weight: Float[Tensor, " size"] | None
    eps: float
    kind: str = "rms"
    bias: Float[Tensor, " size"] | None = None

"""Shapes of attention: B rows, W queries of each, S positions.

`Padded`: every row with the same extent. `Pool`: position p of row b at `starts[b] + p`.
`Blocks`: position p of row b in block `table[b, p // block]`.
"""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

Queries = Float[Tensor, "batch window heads dim"]
Padded = Float[Tensor, "batch extent kv_heads dim"]
Pool = Float[Tensor, "pool kv_heads dim"]
Blocks = Float[Tensor, "blocks block kv_heads dim"]
Positions = Int[Tensor, "batch window"]

FUSED_DIMS = (64, 128, 256)  # of a head, that Hopper's attention supports


@dataclass(frozen=True)
class HeadNormArguments:
    """A norm of each head of q and k. `offset`: the weights are their distance from 1."""

    weight: Float[Tensor, " heads_dim"]
    eps: float
    offset: bool

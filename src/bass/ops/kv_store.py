"""Completing a projection and storing its keys and values in one launch.

The torch version is `KVCache.store`: `Projection.rotated`, then the cache's own `write`.
"""

from jaxtyping import Float, Int
from torch import Tensor

from bass.kernels import triton as kernels
from bass.ops import dispatch
from bass.records import Projection


def supports(projection: Projection, k: Tensor) -> bool:
    """Whether the kernel serves the projection of a decoding step: rotated heads, without norms."""
    parts = projection.partial_sums
    rows = parts.shape[1] * parts.shape[2]
    return (
        dispatch.use_kernels(k)
        and k.dtype in dispatch.DTYPES
        and rows <= dispatch.MOST_ROWS
        and projection.rotation is not None
        and projection.qk_norm is None
    )


def store(
    projection: Projection,
    positions: Int[Tensor, "batch window"],
    k: Float[Tensor, "*slots kv_heads dim"],
    v: Float[Tensor, "*slots kv_heads dim"],
    place: Int[Tensor, "batch ..."] | None = None,
    page: int | None = None,
) -> Float[Tensor, "batch window heads dim"]:
    """The queries, complete, of what the kernel `supports`. Nothing is written for position -1.

    Position p of row b goes to k[b, p]; with `place` to k[place[b] + p] of a pool; with `page` to
    k[place[b, p // page] + p % page].
    """
    assert projection.rotation is not None
    return kernels.kv_store.rotate_and_store(
        projection.partial_sums, *projection.rotation.tables, positions, k, v, place, page
    )

"""Completes a projection and stores its keys and values in one launch.

The torch version is `KVCache.store`: `Projection.rotated`, then the cache's own `write`.
"""

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from bass.kernels import shapes
from bass.kernels import triton as kernels
from bass.ops import dispatch
from bass.ops.norms import HeadNorm, offset_scaled, scaled
from bass.records import Projection

SCALES = (scaled, offset_scaled)  # of a norm of heads


def supports(projection: Projection, k: Tensor) -> bool:
    """Whether the kernel supports the projection."""
    parts, norm = projection.partial_sums, projection.qk_norm
    return (
        dispatch.use_kernels(k)
        and k.dtype in dispatch.DTYPES
        and parts.shape[4] % 2 == 0
        and known_norm(norm)
    )


def known_norm(norm: Any) -> bool:
    """Whether kernels compute this norm of heads; None: there is none."""
    return norm is None or (isinstance(norm, HeadNorm) and norm.scale in SCALES)


def norm_of(norm: Any) -> shapes.HeadNormArguments | None:
    """A known norm's parameters for a kernel."""
    if norm is None:
        return None
    return shapes.HeadNormArguments(norm.weight, norm.unit.eps, norm.scale is offset_scaled)


def store(
    projection: Projection,
    positions: Int[Tensor, "batch window"],
    k: Float[Tensor, "*slots kv_heads dim"],
    v: Float[Tensor, "*slots kv_heads dim"],
    place: Int[Tensor, "batch ..."] | None = None,
    page: int | None = None,
) -> Float[Tensor, "batch window heads dim"]:
    """The complete queries of a projection that the kernel `supports`. Nothing is written for
    position -1.

    Position p of row b goes to k[b, p]; with `place` to k[place[b] + p] of a pool; with `page` to
    k[place[b, p // page] + p % page].
    """
    norm, rotation = projection.qk_norm, projection.rotation
    return kernels.kv_store.rotate_and_store(
        projection.partial_sums,
        None if rotation is None else rotation.tables,
        norm_of(norm),
        positions,
        k,
        v,
        place,
        page,
    )

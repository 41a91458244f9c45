"""A window's attention in one kernel, on Hopper: normalises and rotates its queries and keys,
stores its keys and values, and prefetches old keys.

    q, k, v = Σ_i parts_i ;  the heads of q and k normalised and rotated by their positions, if the
    model does either; k and v to their slots, as `kv_store.rotate_and_store` does ;  then as
    `attention.ragged`:
    out[b, w, h] = Σ_p softmax_p(cap(scale q[b, w, h] · k[b, p, h // G])) v[b, p, h // G]

Keys and values from earlier passes do not depend on the previous kernel. So a program, one for each
row and key head, prefetches the first old keys and values before it waits for the window's product.
It stores the window's own keys and values, and uses them from registers.

    program     prefetch old keys | wait | sum, rotate, store | window's and first old keys | others

Keys are the rows of the first product and dimensions of values those of the second: an instruction
multiplies 16 rows by 8 queries, and drafts often have no more (heads of a group, of one token). All
loads of partial sums are vectors, so `part_size` must be known as a multiple of 16 numbers.

Rows are not split, so the span is at most MOST_SPAN. Positions of a row's window are consecutive.

The old keys, the positions and places are complete at the prefetch: each pass begins with a kernel
that lets the next one start only when all previous ones have ended (`embedding.embedded`, or a
kernel of torch), and no kernel of the pass writes them.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bass.kernels.hopper import attention_kernel
from bass.kernels.hopper.cut import rows_in_block
from bass.kernels.hopper.gemm import descriptor, multiprocessors
from bass.kernels.shapes import FUSED_DIMS, HeadNormArguments, Pool, Positions, Queries

KINDS = (torch.float16, torch.bfloat16)
# queries times heads of a group, by dimensions of a head; of more, three kernels take less time
MOST_ROWS = {64: 32, 128: 32, 256: 8}
MOST_SPAN = 512
KEYS = 64  # at a time
MOST_REGISTERS = 192  # of a thread, so that a product fits on the multiprocessor too
# warps of programs that fit in a multiprocessor's registers; a later program prefetches nothing
AT_ONCE = 8
# Tiles of old keys and values in flight, by dimensions of a head. Of large models, what a product
# of up to 8 rows leaves on a multiprocessor; with one, logits were not finite (docs/log).
STAGES = {64: 4, 128: 2, 256: 2}
SMALL_STAGES = {64: 4, 128: 4, 256: 2}  # products of small models leave more
SMALL = 2048  # numbers in all queries of a token


def supports(
    window: Float[Tensor, "parts batch window every dim"], k: Pool, v: Pool, span: int
) -> bool:
    """Whether the kernel supports this window, and keys and values in this layout."""
    _, batch, queries, every, dim = window.shape
    kv_heads = k.shape[1]
    rows = queries * (every // kv_heads - 2)
    placed = all(
        x.stride(2) == 1
        and x.stride(1) == dim
        and x.stride(0) * x.element_size() % 16 == 0
        and x.data_ptr() % 16 == 0
        for x in (k, v)
    )
    alike = k.dtype == v.dtype and k.shape == v.shape and every % kv_heads == 0
    known = (
        placed
        and alike
        and k.dtype in KINDS
        and dim in FUSED_DIMS
        and 1 <= rows <= MOST_ROWS[dim]
        and span <= MOST_SPAN
    )
    return known and kv_heads * batch * warps_for(rows, dim) <= AT_ONCE * multiprocessors(k.device)


def warps_for(rows: int, dim: int) -> int:
    """Warps of a program, for queries times heads of a group."""
    return 8 if rows > 16 or dim > 128 else 4


def stages_for(programs: int, heads: int, dim: int, processors: int) -> int:
    """Tiles of old keys and values in flight; a multiprocessor has room for two programs or one."""
    small = heads * dim <= SMALL and programs <= processors
    return (SMALL_STAGES if small else STAGES)[dim]


def ragged(
    window: Float[Tensor, "parts batch window every dim"],
    norm: HeadNormArguments | None,
    angles: tuple[Float[Tensor, "context dim"], Float[Tensor, "context dim"]] | None,
    k: Pool,
    v: Pool,
    starts: Int[Tensor, " batch"],
    positions: Positions,
    scale: float,
    rule_window: int | None,
    softcap: float | None,
    sinks: Float[Tensor, " heads"] | None = None,
) -> Queries:
    """`kv_store.rotate_and_store`, then `attention.ragged`, for inputs that it `supports`.

    Angles, places and positions must be complete before the previous kernel starts. All heads of q
    have the same weights in `norm`, and so have those of k.
    """
    cos, sin = (None, None) if angles is None else angles
    for x in (cos, sin, starts):  # a copy would be read before it is there
        assert x is None or x.is_contiguous()
    window = window.contiguous()
    parts, batch, queries, every, dim = window.shape
    kv_heads = k.shape[1]
    groups = every // kv_heads - 2
    out = k.new_empty(batch, queries, kv_heads * groups, dim)
    rows = rows_in_block(queries * groups)
    launch: Any = attention_kernel.attend_projection[(kv_heads, batch)]
    with torch.cuda.device_of(k):
        launch(
            *(descriptor(x.view(len(x), -1), KEYS, dim // 2) for x in (k, v)), window,
            None if norm is None else norm.weight, cos, sin, sinks, k, v, starts, positions, out,
            queries, window[0].numel(), k.stride(0), v.stride(0), *positions.stride(),
            0.0 if norm is None else norm.eps,
            NORM=norm is not None, OFFSET=norm is not None and norm.offset, ROTARY=cos is not None,
            SINKS=sinks is not None, SCALE=scale, WINDOW=rule_window, SOFTCAP=softcap,
            GROUPS=groups, HALF=dim // 2, ROWS=rows, OWN=max(16, rows_in_block(queries)),
            KEYS=KEYS, PARTS=parts, SIZE=k.element_size(),
            STAGES=stages_for(kv_heads * batch, kv_heads * groups, dim, multiprocessors(k.device)),
            num_warps=warps_for(rows, dim), maxnreg=MOST_REGISTERS, launch_pdl=True,
        )  # fmt: skip
    return out

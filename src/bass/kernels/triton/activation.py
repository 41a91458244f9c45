"""The gate of a gated MLP, after a product whose first half of columns are the gates."""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from bass.kernels.triton.launch import dependent, wait_for_inputs
from bass.kernels.triton.small_m_gemm import activated

WIDTH = 1024  # columns of one program


@triton.jit
@no_type_check
def _gate(
    y, out, part_size, size, PARTS: tl.constexpr, ACT: tl.constexpr, WIDTH: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    row, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    wait_for_inputs(PDL)
    gates = y + row * 2 * size
    gate, up = tl.zeros((WIDTH,), dtype=tl.float32), tl.zeros((WIDTH,), dtype=tl.float32)
    for part in tl.static_range(PARTS):
        at = gates + part * part_size + i
        gate += tl.load(at, mask=i < size, other=0.0).to(tl.float32)
        up += tl.load(at + size, mask=i < size, other=0.0).to(tl.float32)
    tl.store(out + row * size + i, activated(gate, up, ACT).to(out.dtype.element_ty), mask=i < size)


def gate(
    y: Float[Tensor, "parts rows twice"], act: str, dtype: torch.dtype
) -> Float[Tensor, "rows inner"]:
    """act(gate) · up, as `small_m_gemm.gated` computes it, of partial sums. act: as there."""
    y, (parts, rows, size) = y.contiguous(), y.shape
    size //= 2
    out = y.new_empty(rows, size, dtype=dtype)
    launch: Any = _gate[(rows, -(-size // WIDTH))]
    with torch.cuda.device_of(y):
        launch(
            y, out, 2 * rows * size, size, PARTS=parts, ACT=act, WIDTH=WIDTH, num_warps=4,
            **dependent(y),
        )  # fmt: skip
    return out

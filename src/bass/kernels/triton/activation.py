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
def _gate(y, out, size, ACT: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr):
    row, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    wait_for_inputs(PDL)
    gates = y + row * 2 * size
    gate = tl.load(gates + i, mask=i < size, other=0.0).to(tl.float32)
    up = tl.load(gates + size + i, mask=i < size, other=0.0).to(tl.float32)
    tl.store(out + row * size + i, activated(gate, up, ACT).to(out.dtype.element_ty), mask=i < size)


def gate(y: Float[Tensor, "rows twice"], act: str) -> Float[Tensor, "rows inner"]:
    """act(gate) · up, as `small_m_gemm.gated` computes it. act: as there."""
    y, rows, size = y.contiguous(), y.shape[0], y.shape[1] // 2
    out = y.new_empty(rows, size)
    launch: Any = _gate[(rows, -(-size // WIDTH))]
    with torch.cuda.device_of(y):
        launch(y, out, size, ACT=act, WIDTH=WIDTH, num_warps=4, **dependent(y))
    return out

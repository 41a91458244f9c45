"""Looks up rows of a table."""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from bass.kernels.triton.launch import dependent, wait_for_all

WIDTH = 1024  # numbers of one program


@triton.jit(do_not_specialize=["token_stride"])
@no_type_check
def _embedded(
    table, tokens, out, vocab, size, stride, token_stride, WIDTH: tl.constexpr, PDL: tl.constexpr
):
    row, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    wait_for_all(PDL)  # a pass begins here, and its kernels prefetch old keys before they wait
    token = tl.load(tokens + row * token_stride).to(tl.int64)
    value = tl.load(
        table + token * stride + i,
        mask=(i < size) & (token >= 0) & (token < vocab),
        other=float("nan"),
    )
    tl.store(out + row * size + i, value, mask=i < size)


def embedded(
    table: Float[Tensor, "vocab size"], tokens: Int[Tensor, "*rows"]
) -> Float[Tensor, "*rows size"]:
    """The rows of the table for the tokens; NaN for an invalid token."""
    out, flat, size = (
        table.new_empty(*tokens.shape, table.shape[1]),
        tokens.reshape(-1),
        table.shape[1],
    )
    launch: Any = _embedded[(len(flat), -(-size // WIDTH))]
    with torch.cuda.device_of(table):
        launch(
            table, flat, out, *table.shape, table.stride(0), flat.stride(0), WIDTH=WIDTH,
            num_warps=4, **dependent(table),
        )  # fmt: skip
    return out

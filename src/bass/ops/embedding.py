"""Looks up rows of a table."""

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from bass.kernels import triton as kernels
from bass.ops import dispatch


def embedding(
    tokens: Int[Tensor, "*rows"], table: Float[Tensor, "vocab size"]
) -> Float[Tensor, "*rows size"]:
    """The rows of the table for the tokens; on a GPU by a kernel, which for few tokens takes a
    fifth of torch's time, and for the few tokens of a step on a CPU, so that the pass consists
    of kernels (`bass.ops.recorded`).

    With a gradient, torch looks them up: the kernels have none.
    """
    if dispatch.use_kernels(table) and not dispatch.has_gradient(table):
        return kernels.embedding.embedded(table, tokens)
    cpu = dispatch.cpu_step_kernels(tokens[..., None], table)
    if cpu is not None:
        return cpu.rows.embedded(table, tokens)
    return F.embedding(tokens, table)

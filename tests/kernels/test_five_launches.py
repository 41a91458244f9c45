"""Tier 3: a decoder whose blocks are five launches is the decoder, also where blocks are left
out.
"""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bass.attention import TritonRagged
from bass.caches import SplitCache
from bass.engine.scorer import ModelScorer
from bass.kernels.triton.launch import INTERPRETED
from bass.models import fused
from bass.models.llama import Llama, LlamaConfig
from bass.records import CacheBudget, RowAssignment
from support.gluon import emulated

ahead: Any = pytest.importorskip("bass.kernels.hopper.gemm")  # needs the Gluon of Triton 3.6
ahead_added: Any = pytest.importorskip("bass.kernels.hopper.gemm_residual")


def model() -> Llama:
    torch.manual_seed(0)
    llama = Llama(LlamaConfig(96, 64, 144, 3, 4, 2, 16, 64), "cpu", torch.bfloat16).requires_grad_(
        False
    )
    for parameter in llama.parameters():
        parameter.normal_(
            0, parameter.shape[-1] ** -0.5
        ) if parameter.ndim == 2 else parameter.uniform_(0.5, 1.5)
    fused.fuse(llama)
    return llama


def logits(llama: Llama, left_out: int | None) -> torch.Tensor:
    """Of two passes of a window each."""
    if left_out is not None:
        llama = deepcopy(llama)
        llama.blocks = nn.ModuleList(block for i, block in enumerate(llama.blocks) if i != left_out)
    cache = SplitCache.allocate(
        llama.shape, CacheBudget.of(np.array([20, 20])), torch.device("cpu"), torch.bfloat16
    )
    cache.reserve(RowAssignment.of(np.array([20, 20])))
    scorer, found = ModelScorer(llama, cache, TritonRagged(), 2), []
    for begin in (0, 4):
        tokens = torch.arange(8).view(2, 4) * 11 % 96 + begin
        found.append(scorer(tokens, torch.arange(begin, begin + 4).repeat(2, 1), 16).double())
    return torch.cat(found, 1)


@pytest.mark.skipif(
    not INTERPRETED, reason="the kernels between the products need Triton's interpreter on a CPU"
)
@pytest.mark.parametrize("left_out", [None, 1, pytest.param(2, marks=pytest.mark.nightly)])
def test_blocks_in_five_launches_are_blocks(
    left_out: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    llama = model()
    expected, launched = logits(llama, left_out), []

    def in_five(x: Any, rows: int, matrices: Any) -> bool:
        assert all(ahead.takes(layer.weight) for layer in matrices)
        launched.append(type(x))
        return True

    monkeypatch.setattr(fused, "in_five", in_five)
    for module in (ahead, ahead_added):
        monkeypatch.setattr(module, "multiprocessors", lambda _: 5)
    with emulated(ahead), emulated(ahead_added):
        found = logits(llama, left_out)
    each = [torch.Tensor, *[fused.Carried] * (2 if left_out is None else 1)]
    assert launched == 2 * each
    assert (found - expected).norm() <= 0.03 * expected.norm()

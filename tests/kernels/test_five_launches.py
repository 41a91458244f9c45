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
from bass.models.llama import Llama, LlamaConfig
from bass.ops import dispatch
from bass.records import CacheBudget, RowAssignment, Window
from kernels.conftest import Choose
from support.gluon import emulated

gemm: Any = pytest.importorskip("bass.kernels.hopper.gemm")  # needs the Gluon of Triton 3.6
gemm_residual: Any = pytest.importorskip("bass.kernels.hopper.gemm_residual")


def model() -> Llama:
    torch.manual_seed(0)
    llama = Llama(LlamaConfig(96, 64, 144, 3, 4, 2, 16, 64), "cpu", torch.bfloat16).requires_grad_(
        False
    )
    for parameter in llama.parameters():
        parameter.normal_(
            0, parameter.shape[-1] ** -0.5
        ) if parameter.ndim == 2 else parameter.uniform_(0.5, 1.5)
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
        window = Window(tokens, torch.arange(begin, begin + 4).repeat(2, 1), 16)
        found.append(scorer(window).logits.double())
    return torch.cat(found, 1)


@pytest.mark.skipif(
    not INTERPRETED, reason="the kernels between the products need Triton's interpreter on a CPU"
)
@pytest.mark.parametrize("left_out", [None, 1, pytest.param(2, marks=pytest.mark.nightly)])
def test_blocks_in_five_launches_are_blocks(
    left_out: int | None, kernels: Choose, monkeypatch: pytest.MonkeyPatch
) -> None:
    llama, launched = model(), []
    kernels(True)
    expected = logits(llama, left_out)

    def counted(*arguments: Any) -> Any:
        launched.append(len(arguments[0]))
        return added(*arguments)

    added = gemm_residual.added
    monkeypatch.setattr(gemm_residual, "added", counted)
    monkeypatch.setattr(dispatch, "hopper", lambda _: True)
    for module in (gemm, gemm_residual):
        monkeypatch.setattr(module, "multiprocessors", lambda _: 5)
    with emulated(gemm), emulated(gemm_residual):
        found = logits(llama, left_out)
    blocks = 3 if left_out is None else 2
    # twice a block and pass; the last block's sum is the last norm's
    assert launched == [8] * 2 * (2 * blocks - 1)
    assert (found - expected).norm() <= 0.03 * expected.norm()

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
from bass.models.codegen import CodeGen, CodeGenConfig
from bass.models.cohere2 import Cohere2, Cohere2Config
from bass.models.gpt2 import GPT2, GPT2Config
from bass.models.llama import Llama, LlamaConfig
from bass.models.mixtral import Mixtral, MixtralConfig
from bass.models.nemotron import Nemotron, NemotronConfig
from bass.models.opt import OPT, OPTConfig
from bass.models.phi import Phi, PhiConfig
from bass.models.qwen3 import Qwen3, Qwen3Config
from bass.models.stablelm import StableLm, StableLmConfig
from bass.ops import dispatch
from bass.records import CacheBudget, RowAssignment, Window
from kernels.conftest import Choose
from support.gluon import emulated
from support.matrix import night

gemm: Any = pytest.importorskip("bass.kernels.hopper.gemm")  # needs the Gluon of Triton 3.6
gemm_residual: Any = pytest.importorskip("bass.kernels.hopper.gemm_residual")
BF16 = torch.bfloat16


# with the number of a block's products that add themselves: a parallel block adds both in one, and
# experts are added by the next norm
FAMILIES: dict[str, tuple[Any, int]] = {
    "llama": (lambda: Llama(LlamaConfig(96, 64, 144, 3, 4, 2, 16, 64), "cpu", BF16), 2),
    "qwen3": (lambda: Qwen3(Qwen3Config(96, 64, 144, 3, 4, 2, 16, 64), "cpu", BF16), 2),
    "opt": (lambda: OPT(OPTConfig(96, 64, 144, 3, 4), "cpu", BF16), 2),
    "gpt2": (lambda: GPT2(GPT2Config(96, 64, 3, 4), "cpu", BF16), 2),
    "phi": (lambda: Phi(PhiConfig(96, 64, 144, 3, 4), "cpu", BF16), 1),
    "nemotron": (lambda: Nemotron(NemotronConfig(96, 64, 144, 3, 4), "cpu", BF16), 2),
    "stablelm": (lambda: StableLm(StableLmConfig(96, 64, 144, 3, 4, 4), "cpu", BF16), 2),
    "codegen": (lambda: CodeGen(CodeGenConfig(96, 64, 3, 4, rotated=8), "cpu", BF16), 1),
    "cohere2": (lambda: Cohere2(Cohere2Config(96, 64, 144, 3, 4, 2, 16, 64), "cpu", BF16), 1),
    "mixtral": (lambda: Mixtral(MixtralConfig(96, 64, 144, 3, 4, 2, 16, 64), "cpu", BF16), 1),
}


def model(family: str) -> Any:
    torch.manual_seed(0)
    decoder = FAMILIES[family][0]().requires_grad_(False)
    for name, parameter in decoder.named_parameters():
        if parameter.ndim == 2:
            parameter.normal_(0, parameter.shape[-1] ** -0.5)
        elif name.endswith("bias"):
            parameter.normal_(0, 0.3)
        else:
            parameter.uniform_(0.5, 1.5)
    return decoder


def logits(decoder: Any, left_out: int | None) -> torch.Tensor:
    """Of two passes of a window each."""
    if left_out is not None:
        decoder = deepcopy(decoder)
        kept = (block for i, block in enumerate(decoder.blocks) if i != left_out)
        decoder.blocks = nn.ModuleList(kept)
    cache = SplitCache.allocate(
        decoder.shape, CacheBudget.of(np.array([20, 20])), torch.device("cpu"), torch.bfloat16
    )
    cache.reserve(RowAssignment.of(np.array([20, 20])))
    scorer, found = ModelScorer(decoder, cache, TritonRagged(), 2), []
    for begin in (0, 4):
        tokens = torch.arange(8).view(2, 4) * 11 % 96 + begin
        window = Window(tokens, torch.arange(begin, begin + 4).repeat(2, 1), 16)
        found.append(scorer(window).logits.double())
    return torch.cat(found, 1)


@pytest.mark.skipif(
    not INTERPRETED, reason="the kernels between the products need Triton's interpreter on a CPU"
)
@pytest.mark.parametrize(
    ("family", "left_out"),
    [
        ("llama", 1), night("llama", None), night("llama", 2), night("opt", None),
        ("codegen", None),
        night("cohere2", None),
        night("codegen", 1), night("qwen3", None), night("gpt2", None),
        night("phi", None), night("mixtral", None), night("nemotron", None),
        night("stablelm", None),
    ],
)  # fmt: skip
def test_blocks_in_five_launches_are_blocks(
    family: str, left_out: int | None, kernels: Choose, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, launched = model(family), []
    kernels(True)
    expected = logits(decoder, left_out)

    def counted(*arguments: Any) -> Any:
        launched.append(len(arguments[1]))
        return added(*arguments)

    added = gemm_residual.added
    monkeypatch.setattr(gemm_residual, "added", counted)
    monkeypatch.setattr(dispatch, "hopper", lambda _: True)
    for module in (gemm, gemm_residual):
        monkeypatch.setattr(module, "multiprocessors", lambda _: 5)
    with emulated(gemm), emulated(gemm_residual):
        found = logits(decoder, left_out)
    blocks = 3 if left_out is None else 2
    # in each of two passes; the last block's sum is the last norm's
    each, last = FAMILIES[family][1], 0 if family == "mixtral" else 1
    assert launched == [8] * 2 * (each * blocks - last)
    assert (found - expected).norm() <= 0.03 * expected.norm()

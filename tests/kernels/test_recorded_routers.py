"""A recorded router changes no output of a mixture, and keeps the choices that the kernels make."""

import torch

from bass.experiments.bench.experts import recorded_routers
from bass.kernels.triton import experts as grouped
from bass.models.layers import SparseMLP
from bass.ops.linear import Linear
from kernels.conftest import Choose


def test_the_choices_are_those_of_the_kernels(kernels: Choose, device: torch.device) -> None:
    torch.manual_seed(0)
    layer = SparseMLP(64, 32, "silu", 6, 2, True, device, torch.float32).requires_grad_(False)
    for parameter in layer.parameters():
        parameter.copy_(torch.randn(parameter.shape))
    x = torch.randn(2, 3, 64, device=device)
    kernels(True)
    expected = layer(x).tensor()
    with recorded_routers([layer]) as (router,):
        assert torch.allclose(layer(x).tensor(), expected, atol=1e-4)
    logits = layer.router(x).view(1, 6, 6)
    chosen = grouped.route(logits, 2, True, torch.float32).experts
    assert torch.equal(router.choices[0], chosen.long())
    assert type(layer.router) is Linear

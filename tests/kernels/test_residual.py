"""Tier 3: a stream's sums and norms by kernels are those of torch."""

from typing import Any

import pytest
import torch

from bass.kernels.triton.residual_norm import add_norm
from bass.kernels.values import Norm
from bass.ops.norms import LayerNorm, OffsetRMSNorm, RMSNorm

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SIZE = 130


def norms(dtype: torch.dtype, device: torch.device) -> dict[str, tuple[Norm, Any]]:
    """Each kind as the kernel takes it, and as torch computes it in float64."""
    made = {}
    draw = torch.Generator().manual_seed(7)
    for name, norm in {
        "rms": RMSNorm(SIZE, 1e-3, device, dtype),
        "offset_rms": OffsetRMSNorm(SIZE, 1e-3, device, dtype),
        "layer": LayerNorm(SIZE, 1e-3, device, dtype),
        "unbiased": LayerNorm(SIZE, 1e-3, device, dtype, bias=False),
        "bare": LayerNorm(SIZE, 1e-3, device, dtype, affine=False),
    }.items():
        for parameter in norm.requires_grad_(False).parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw))
        weight, bias = norm.weight, getattr(norm, "bias", None)
        of_layers = isinstance(norm, LayerNorm)
        numbers = Norm(weight, 1e-3, "layer" if of_layers else name, bias)
        kind = type(norm)
        wide: Any = (
            kind(SIZE, 1e-3, device, torch.float64, name != "bare", name == "layer")
            if of_layers
            else kind(SIZE, 1e-3, device, torch.float64)
        )
        wide.requires_grad_(False).load_state_dict(norm.state_dict())
        made[name] = numbers, wide
    return made


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("kind", ["rms", "offset_rms", "layer", "unbiased", "bare"])
@pytest.mark.parametrize("pending", ["none", "one", "two", "through", "scaled"])
def test_what_is_pending_is_added_and_normalised_as_torch_does_it(
    pending: str, kind: str, dtype: torch.dtype, device: torch.device
) -> None:
    draw = torch.Generator().manual_seed(0)
    made = norms(dtype, device)
    (numbers, norm), (inner_numbers, inner) = made[kind], made["offset_rms"]
    stream = torch.randn(5, SIZE, generator=draw).to(device, dtype)
    parts = torch.randn(2, 5, SIZE, generator=draw).to(device)
    more = torch.randn(3, 5, SIZE, generator=draw).to(device) if pending == "two" else None
    scale = 0.3 if pending == "scaled" else 1.0
    expected = stream.double()
    if pending != "none":
        y = parts.double().sum(0)
        expected = expected + scale * (inner(y) if pending == "through" else y)
    if more is not None:
        expected = expected + scale * more.double().sum(0)
    summed, normed, _ = add_norm(
        stream,
        None if pending == "none" else parts,
        numbers,
        None,
        more,
        scale,
        inner_numbers if pending == "through" else None,
    )
    assert summed.dtype == normed.dtype == dtype
    assert (summed.double() - expected).norm() <= TOLERANCE[dtype] * expected.norm()
    if pending != "none":
        through = inner_numbers if pending == "through" else None
        assert torch.equal(add_norm(stream, parts, None, None, more, scale, through)[0], summed)
    rounded = norm(summed.double())
    assert (normed.double() - rounded).norm() <= TOLERANCE[dtype] * rounded.norm()

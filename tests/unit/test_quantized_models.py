"""Quantized checkpoints, drafts and heads: loading them, and what is refused."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, final

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

import bass
from bass.interfaces import Quantization
from bass.models.gptj import GPTJ, GPTJConfig
from bass.ops import dispatch
from bass.ops.linear import Linear, QuantizedLinear, gated_linear, linear, project_qkv
from bass.ops.quantize import E4M3
from bass.ops.residual import Residual
from bass.quantization import Fp8, Int8, Int8Weight
from bass.quantization.apply import quantize_head
from unit.checkpoints import Pair
from unit.test_quantized import drawn

# error of a product of normal numbers, over the product's norm
NEAR = {"int8": 0.015, "fp8": 0.05, "int8-weight": 0.01}


def kinds(decoder: Any) -> set[torch.dtype | None]:
    return {m.activations for m in decoder.modules() if isinstance(m, QuantizedLinear)}


def test_the_draft_is_quantized_as_the_target_unless_said_otherwise(pair: Pair) -> None:
    ways: list[tuple[dict[str, Any], Any, Any]] = [
        ({}, set(), set()),
        ({"quantization": "int8"}, {torch.int8}, {torch.int8}),
        ({"quantization": {"class_path": "fp8"}, "draft_quantization": "none"}, {E4M3}, set()),
        ({"quantization": Int8Weight, "draft_quantization": Fp8()}, {None}, {E4M3}),
        ({"draft_quantization": "int8"}, set(), {torch.int8}),
    ]
    for options, target, draft in ways:
        models = bass.load(pair.target, pair.draft, **options).models
        assert (kinds(models.target), kinds(models.draft)) == (target, draft)


def test_the_head_of_a_draft_is_quantized_and_neither_its_embedding_nor_the_targets_head(
    pair: Pair,
) -> None:
    plain, models = (
        bass.load(pair.target, pair.draft, device="cpu", quantization=name).models
        for name in (None, "int8")
    )
    assert plain.draft is not None
    assert models.draft is not None
    assert isinstance(models.draft.head, QuantizedLinear)
    expected = Int8()(plain.draft.embed.detach(), None)
    assert torch.equal(models.draft.head.weight, expected.weight)
    assert torch.equal(models.draft.head.scale, expected.scale)
    assert torch.equal(models.draft.embed, plain.draft.embed)
    assert models.target.head is None
    none = bass.load(
        pair.target, pair.draft, device="cpu", quantization="int8", draft_quantization="none"
    ).models.draft
    assert none is not None
    assert none.head is None


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_is_quantized_with_its_bias(tied: bool, device: torch.device) -> None:
    decoder = GPTJ(
        GPTJConfig(
            vocab_size=40,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            rotated=4,
            tie_word_embeddings=tied,
        )
    )
    with torch.no_grad():
        for i, parameter in enumerate(decoder.parameters()):
            parameter.copy_(drawn(*parameter.shape, seed=i))
    plain, ours = deepcopy(decoder).to(device), quantize_head(decoder, Int8()).to(device)
    x = drawn(3, 2, 16, seed=7).to(device)
    assert (ours.unembed(x) - plain.unembed(x)).norm() <= NEAR["int8"] * plain.unembed(x).norm()
    assert torch.equal(ours.embed, plain.embed)


@final
@dataclass(frozen=True)
class InPlace(Quantization):
    """Overwrites what it is given, which is freed after it."""

    def __call__(
        self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None
    ) -> nn.Module:
        made = Int8()(weight, bias)
        weight.fill_(9)
        return made


def test_a_quantization_may_overwrite_what_it_is_given(pair: Pair) -> None:
    ours, theirs = (
        bass.load(pair.target, pair.draft, device="cpu", quantization=q).models.draft
        for q in (InPlace(), Int8())
    )
    assert ours is not None
    assert theirs is not None
    for (name, one), (_, other) in zip(
        ours.named_parameters(), theirs.named_parameters(), strict=True
    ):
        assert torch.equal(one, other), name


class Adapted(Linear):
    """Low-rank: its own idea of the product."""

    def __call__(self, x: Tensor) -> Tensor:
        return 2 * super().__call__(x)


class Doubled(torch.nn.Module):
    def __init__(self, layer: Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.layer(x)


@pytest.mark.parametrize("on", [False, True])
def test_another_module_in_the_place_of_a_linear_layer_is_called_as_it_is(
    on: bool, monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    """Also where kernels serve ours: a subclass may compute something else."""
    monkeypatch.setattr(dispatch, "use_kernels", lambda _: on)
    x, layer = drawn(2, 3, 16).to(device), Linear(16, 8, device, torch.float32)
    layer.requires_grad_(False).weight.copy_(drawn(8, 16, seed=1))
    adapted = Adapted(16, 8, device, torch.float32)
    adapted.load_state_dict(layer.state_dict())
    expected = 2 * (x @ layer.weight.T)
    for other in (Doubled(layer), adapted):
        torch.testing.assert_close(linear(x, other).tensor(), expected)
        qkv = project_qkv(x, other, (2, 1, 2)).partial_sums.sum(0)
        torch.testing.assert_close(qkv.flatten(2), expected)
        gates, up = expected.chunk(2, -1)
        gated = gated_linear(x, other, torch.relu)
        torch.testing.assert_close(gated, gates.relu() * up)
        stream = Residual(drawn(2, 3, 8, seed=2).to(device))
        found = stream.plus(linear(x, other)).tensor()
        torch.testing.assert_close(found, stream.tensor() + expected)

"""Linear layers in 8 bits: the arithmetic, the decoders made of them, and what they take."""

import gc
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

import bass
from bass.checkpoints.weights import load_decoder, read_index
from bass.engine.cost import pass_cost
from bass.interfaces import Quantization
from bass.ops.linear import Linear, QuantizedLinear
from bass.ops.quantize import E4M3, LARGEST, integer_product, quantized_rows, widened
from bass.policies import Fixed
from bass.quantization import QUANTIZATIONS, Int8
from bass.quantization.apply import quantize, quantize_head
from bass.records import CacheBudget, Window
from bass.testing.doubles import ByRow
from bass.testing.small_models import SmallLlama
from support.engines import FIRST_PAIRING, Setup, mixed_requests
from support.matrix import matrix
from unit.checkpoints import Pair

EIGHT_BITS = {name: cls() for name, cls in QUANTIZATIONS.items()}
KINDS = [torch.int8, E4M3]
# error of a product of normal numbers, over the product's norm
NEAR = {"int8": 0.015, "fp8": 0.05, "int8-weight": 0.01}


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)


def layer(
    quantization: Any, device: torch.device, dtype: torch.dtype = torch.float32, bias: bool = True
) -> QuantizedLinear:
    made = quantization(
        drawn(96, 256, dtype=dtype).to(device),
        drawn(96, seed=1, dtype=dtype).to(device) if bias else None,
    )
    assert isinstance(made, QuantizedLinear)
    return made


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_number_is_at_most_half_a_step_from_its_quantized_one(kind: torch.dtype) -> None:
    x = drawn(5, 3, 64) * 10.0 ** torch.arange(-2, 3)[:, None, None]
    q, scale = quantized_rows(x, kind)
    assert (q.dtype, scale.dtype, q.shape, scale.shape) == (
        kind,
        torch.float32,
        x.shape,
        x.shape[:-1],
    )
    assert (widened(q, torch.float32).abs().amax(-1) == LARGEST[kind]).all()
    error = (widened(q, torch.float64) * scale[..., None].double() - x.double()).abs()
    step = scale[..., None].double() * (1 if kind == torch.int8 else 2.0**-9)
    relative = torch.zeros_like(x) if kind == torch.int8 else x.abs() / 16
    assert (error <= 1.00001 * torch.maximum(step / 2, relative)).all()


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_an_integer_product_is_exact_where_float32_is_not(rows: int, device: torch.device) -> None:
    for out, inner in ((8, 3000), (24, 2048), (7, 33)):
        x, w = (torch.full((n, inner), 127, dtype=torch.int8) for n in (rows, out))
        x[:, ::3] = torch.randint(
            -127,
            128,
            x[:, ::3].shape,
            generator=torch.Generator().manual_seed(inner),
            dtype=torch.int8,
        )
        assert torch.equal(
            integer_product(x.to(device), w.to(device)).long().cpu(), x.long() @ w.long().T
        )


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str
)
@pytest.mark.parametrize("rows", [1, 7, 80])
@pytest.mark.parametrize("name", EIGHT_BITS)
def test_a_product_is_near_that_of_the_whole_weights(
    name: str, rows: int, dtype: torch.dtype, device: torch.device
) -> None:
    made, x = (
        layer(EIGHT_BITS[name], device, dtype),
        drawn(2, rows, 256, seed=2, dtype=dtype).to(device),
    )
    y = made(x)
    expected = (
        x.double().cpu() @ drawn(96, 256, dtype=dtype).double().T
        + drawn(96, seed=1, dtype=dtype).double()
    )
    assert (y.dtype, y.shape) == (dtype, (2, rows, 96))
    assert (y.double().cpu() - expected).norm() <= NEAR[name] * expected.norm()


@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_a_product_is_that_of_the_quantized_numbers(name: str, device: torch.device) -> None:
    made, x = layer(EIGHT_BITS[name], device), drawn(9, 256, seed=2).to(device)
    assert made.activations is not None
    q, scale = (t.double() for t in quantized_rows(x, made.activations))
    assert made.bias is not None
    expected = (q * scale[:, None]) @ (
        made.weight.double() * made.scale.double()[:, None]
    ).T + made.bias.double()
    # A GPU's tensor cores add products of e4m3 up with fewer bits than float32 has.
    close = 1e-3 if name == "fp8" and device.type == "cuda" else 1e-6
    assert (made(x).double() - expected).norm() <= close * expected.norm()


def world(quantization: Any, dtype: torch.dtype = torch.float32) -> SmallLlama:
    made = SmallLlama(dtype=dtype)
    made.models.update(
        {role: quantize(deepcopy(model), quantization) for role, model in made.models.items()}
    )
    quantize_head(made.models["draft"], quantization)
    return made


def logits(of: SmallLlama, device: torch.device) -> Tensor:
    tokens = torch.randint(0, of.vocab, (3, 20), generator=torch.Generator().manual_seed(5)).to(
        device
    )
    scorer = of.scorer("target", FIRST_PAIRING, CacheBudget.of(np.full(3, 32)), device)
    return scorer(Window(tokens, torch.arange(20, device=device).expand(3, 20), 32)).logits


@pytest.mark.parametrize("name", EIGHT_BITS)
def test_the_logits_of_a_quantized_decoder_are_near_those_of_the_plain_one(
    name: str, device: torch.device
) -> None:
    plain, ours = logits(SmallLlama(), device), logits(world(EIGHT_BITS[name]), device)
    assert 1e-4 < (ours - plain).norm() / plain.norm() < 4 * NEAR[name]


@matrix(strength=1, dtype=[torch.float32, torch.float64], name=EIGHT_BITS)
def test_greedy_drafts_change_no_token_of_a_quantized_target(
    name: str, dtype: torch.dtype, device: torch.device
) -> None:
    """Autoregressive decoding of one row at a time, against drafts of differing lengths in a batch.
    Rounding can move an activation to the next of its 255 or 253 numbers, and in float32 it does so
    once in some 1e5: that none moves a token here is a property of these seeds.
    """
    ours = world(EIGHT_BITS[name], dtype)
    requests = mixed_requests(ours)
    plain = Setup(ours, device, policy=Fixed(0), drafter="none", batch=1).outcome(requests)
    drafted = Setup(ours, device, policy=ByRow(), batch=3).outcome(requests)
    assert drafted.tokens == plain.tokens
    assert 0 < drafted.acceptance()[1] < drafted.acceptance()[0]


@final
@dataclass(frozen=True)
class Counting(Quantization):
    """Leaves weights as they are, and asks each time which layers are there in full."""

    full = 0

    def __call__(
        self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None
    ) -> nn.Module:
        there = sum(type(one) is Linear and not one.weight.is_meta for one in gc.get_objects())
        type(self).full = max(type(self).full, there)
        return Int8()(weight, bias)


def test_one_layer_at_a_time_is_there_in_full_while_a_checkpoint_is_loaded(pair: Pair) -> None:
    gc.collect()
    before = sum(type(one) is Linear and not one.weight.is_meta for one in gc.get_objects())
    decoder = read_index(pair.target).load(torch.device("cpu"), torch.float32, Counting())
    assert Counting.full == before + 1
    assert not [name for name, p in decoder.named_parameters() if p.is_meta or p.requires_grad]
    whole = quantize(load_decoder(pair.target, torch.device("cpu"), torch.float32), Int8())
    for (name, ours), (_, theirs) in zip(
        decoder.named_parameters(), whole.named_parameters(), strict=True
    ):
        assert torch.equal(ours, theirs), name


@pytest.mark.parametrize("name", ["none", *QUANTIZATIONS])
def test_the_bytes_of_weights_are_counted_as_they_are_held_and_the_work_as_before(
    pair: Pair, name: str
) -> None:
    llm, plain = (bass.load(pair.target, pair.draft, quantization=q) for q in (name, None))
    for role in ("target", "draft"):
        decoder = getattr(llm.models, role)
        ours, theirs = pass_cost(decoder), pass_cost(getattr(plain.models, role))
        layers = [m for m in decoder.modules() if isinstance(m, QuantizedLinear)]
        # of four bytes one is left; and a scale for each channel
        saved = sum(3 * m.weight.numel() - m.scale.nbytes for m in layers)
        assert (saved > 0) == (name != "none")
        separate = decoder.head is not None and not any(
            p is decoder.embed for p in decoder.head.parameters()
        )
        # of an embedding that is no head a few rows are read
        looked_up = decoder.embed.nbytes if separate else 0
        assert (
            ours.weight_bytes
            == theirs.weight_bytes - saved
            == sum(p.nbytes for p in decoder.parameters()) - looked_up
        )
        assert (ours.flops_per_token, ours.kv_bytes_per_position) == (
            theirs.flops_per_token,
            theirs.kv_bytes_per_position,
        )

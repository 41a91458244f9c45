"""Linear layers in 8 bits: the arithmetic, the decoders made of them, how they are asked for, and
what they take.
"""

import gc
import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

import bass
from bass.checkpoints.weights import load_decoder, read_index, save_decoder
from bass.drafters import ModelDraft
from bass.errors import CheckpointError, OptionError, StrategyError
from bass.interfaces import Quantization
from bass.models.gptj import GPTJ, GPTJConfig
from bass.models.llama import Llama, LlamaConfig
from bass.ops import dispatch
from bass.ops.linear import Linear, QuantizedLinear, gated_linear, linear, project_qkv
from bass.ops.quantize import E4M3, LARGEST, integer_product, quantized_rows, widened
from bass.ops.residual import Residual
from bass.policies import Fixed
from bass.quantization import (
    QUANTIZATIONS,
    Fp8,
    Int8,
    Int8Weight,
    NoQuantization,
    quantize,
    quantize_head,
)
from bass.records import CacheBudget, Window
from bass.testing.policies import ByRow
from bass.testing.worlds import LlamaWorld
from support.engines import FIRST_PAIRING, Setup, mixed_requests
from unit.checkpoints import Pair, Said

EIGHT_BITS = {name: cls() for name, cls in QUANTIZATIONS.items() if name != "none"}
KINDS = [torch.int8, E4M3]
# error of a product of normal numbers, over the product's norm
NEAR = {"int8": 0.015, "fp8": 0.05, "int8-weight": 0.01}
HERE = __name__


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


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_row_of_zeros_divides_nothing_by_zero(kind: torch.dtype) -> None:
    q, scale = quantized_rows(torch.zeros(2, 4), kind)
    assert q.float().abs().sum() == 0
    assert (scale > 0).all()


def test_every_e4m3_number_is_widened_to_itself() -> None:
    every = torch.arange(256, dtype=torch.uint8).view(E4M3)
    every = every[every.float().isfinite()]
    for dtype in (torch.float32, torch.float64):
        assert torch.equal(widened(every, dtype), every.to(dtype))


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


@pytest.mark.parametrize("name", EIGHT_BITS)
def test_powers_of_two_pass_through_a_product_exactly(name: str, device: torch.device) -> None:
    """A token's scale is its own, and so is an output channel's."""
    x, w = drawn(4, 256, seed=2).to(device), drawn(96, 256).to(device)
    by_token, by_channel = (2.0 ** torch.arange(-n, n, device=device)[:, None] for n in (2, 48))
    y = EIGHT_BITS[name](w, None)(x)
    assert torch.equal(EIGHT_BITS[name](w, None)(x * by_token), y * by_token)
    assert torch.equal(EIGHT_BITS[name](w * by_channel, None)(x), y * by_channel.T)


def test_a_row_by_itself_gives_the_integers_that_it_gives_in_a_batch(device: torch.device) -> None:
    made, x = layer(Int8(), device), drawn(33, 256, seed=2).to(device)
    assert torch.equal(torch.cat([made(row[None]) for row in x]), made(x))


def world(quantization: Any, dtype: torch.dtype = torch.float32) -> LlamaWorld:
    made = LlamaWorld(dtype=dtype)
    made.models.update(
        {role: quantize(deepcopy(model), quantization) for role, model in made.models.items()}
    )
    quantize_head(made.models["draft"], quantization)
    return made


def logits(of: LlamaWorld, device: torch.device) -> Tensor:
    tokens = torch.randint(0, of.vocab, (3, 20), generator=torch.Generator().manual_seed(5)).to(
        device
    )
    scorer = of.scorer("target", FIRST_PAIRING, CacheBudget.of(np.full(3, 32)), device)
    return scorer(Window(tokens, torch.arange(20, device=device).expand(3, 20), 32)).logits


@pytest.mark.parametrize("name", EIGHT_BITS)
def test_the_logits_of_a_quantized_decoder_are_near_those_of_the_plain_one(
    name: str, device: torch.device
) -> None:
    plain, ours = logits(LlamaWorld(), device), logits(world(EIGHT_BITS[name]), device)
    assert 1e-4 < (ours - plain).norm() / plain.norm() < 4 * NEAR[name]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", EIGHT_BITS)
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


def test_a_quantization_of_none_is_the_decoder_itself(device: torch.device) -> None:
    assert torch.equal(logits(world(NoQuantization()), device), logits(LlamaWorld(), device))


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


@pytest.mark.parametrize("name", QUANTIZATIONS)
def test_the_bytes_of_weights_are_counted_as_they_are_held_and_the_work_as_before(
    pair: Pair, name: str
) -> None:
    llm, plain = (bass.load(pair.target, pair.draft, quantization=q) for q in (name, None))
    costs, models = (llm._cost(), plain._cost()), llm.models
    for ours, theirs, decoder in (
        (*(c.target for c in costs), models.target),
        (*(c.draft for c in costs), models.draft),
    ):
        assert decoder is not None
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
            n_positions=32,
            n_embd=16,
            n_layer=1,
            n_head=2,
            rotary_dim=4,
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


@final
@dataclass(frozen=True)
class Fails(Quantization):
    """Knows no matrix."""

    def __call__(
        self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None
    ) -> nn.Module:
        raise ValueError("no such size")


@final
@dataclass(frozen=True)
class Nothing(Quantization):
    """Forgets to return a module."""

    def __call__(
        self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None
    ) -> nn.Module:
        return None  # type: ignore[return-value]


def test_what_cannot_be_is_refused_in_a_sentence(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OptionError, match=r"Unknown quantization `int7`. Did you mean `int8`"):
        bass.load(pair.target, pair.draft, quantization="int7")
    with pytest.raises(
        OptionError,
        match=r"`draft_quantization='int8'` would not be used: `Ngram` runs no draft model",
    ):
        bass.load(pair.target, drafter="ngram", draft_quantization="int8")
    with pytest.raises((StrategyError, TypeError)):  # beartype is first where it watches
        bass.load(pair.target, pair.draft, quantization=Nothing())
    with pytest.raises(
        StrategyError, match=r"`Fails` failed on a matrix of \d+ x \d+: ValueError: no such size"
    ):
        bass.load(pair.target, pair.draft, quantization=Fails())
    decoder = quantize(load_decoder(pair.target, torch.device("cpu"), torch.float32), Int8())
    with pytest.raises(CheckpointError, match="save it before"):
        save_decoder(decoder, tmp_path / "again")
    with pytest.raises(OptionError, match=r"`Llama` have no `bass.ops.linear.Linear`"):
        quantize(decoder, Int8())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(
        OptionError,
        match=r"`fp8` .* needs compute capability 8.9, and `cuda:0` has 8.0: give `int8-weight`",
    ):
        Fp8().check(torch.device("cuda:0"))
    Int8().check(torch.device("cuda:0"))


def test_plain_decoding_takes_a_quantization_of_a_draft_that_it_does_not_load(pair: Pair) -> None:
    """As it takes `draft`: one configuration for both, with and without drafts."""
    llm = bass.load(
        pair.target,
        pair.draft,
        num_speculative_tokens=0,
        quantization="int8",
        draft_quantization="fp8",
    )
    assert llm.models.draft is None
    assert ModelDraft().needs_draft


Command = Callable[..., Said]


def test_the_command_line_and_a_file_say_both(
    bass_command: Command, pair: Pair, tmp_path: Path
) -> None:
    ids = (
        "generate",
        "--target",
        str(pair.target),
        "--draft",
        str(pair.draft),
        "--token-ids",
        "[5,6,7]",
        "--max-new-tokens",
        "4",
    )
    told = bass_command(*ids, "--quantization", "int8", "--draft-quantization", "none")
    assert told.status == 0
    assert "target by Int8(), draft by NoQuantization()".replace("()", "") in " ".join(
        told.err.split()
    )
    file = tmp_path / "options.yaml"
    file.write_text("quantization: {class_path: fp8}\n", encoding="utf-8")
    told = bass_command(*ids, "--config", str(file))
    assert ", Fp8, " in " ".join(told.err.split())
    told = bass_command(*ids, "--quantization", "int9")
    assert (told.status, "Unknown quantization `int9`" in told.err) == (2, True)


@pytest.mark.parametrize("role", ["target", "draft"])
def test_info_tells_what_the_weights_would_take(
    role: str, bass_command: Command, pair: Pair
) -> None:
    """A draft's with its head quantized."""
    checkpoint = getattr(pair, role)
    told = bass_command(
        "info", str(pair.target), *(["--draft", str(pair.draft)] if role == "draft" else [])
    )
    lines = told.out.splitlines()
    figures = [line.split() for line in lines[lines.index("") if role == "draft" else 0 :]]
    [whole] = [float(words[1].replace(",", "")) for words in figures if words[:1] == ["weights"]]
    found = {words[0]: float(words[1]) for words in figures if words and words[0] in EIGHT_BITS}
    assert found.keys() == EIGHT_BITS.keys()
    for name, size in found.items():
        decoder = read_index(checkpoint).load(torch.device("cpu"), torch.float32, EIGHT_BITS[name])
        held = sum(
            p.nbytes
            for p in (
                quantize_head(decoder, EIGHT_BITS[name]) if role == "draft" else decoder
            ).parameters()
        )
        assert math.isclose(size, held / 2**20, abs_tol=0.006)
        # whose head, once the embedding again, is held twice
        assert size < whole or role == "draft"


def test_a_second_head_and_biases_are_loaded_with_a_quantization(tmp_path: Path) -> None:
    config = LlamaConfig(20, 16, 24, 2, 2, 2, 8, 32, attention_bias=True)
    decoder = Llama(config)
    with torch.no_grad():
        for i, parameter in enumerate(decoder.parameters()):
            parameter.copy_(drawn(*parameter.shape, seed=i))
    save_decoder(decoder, tmp_path, torch.float32)
    loaded = read_index(tmp_path).load(torch.device("cpu"), torch.float32, Int8Weight())
    assert loaded.head is not None
    assert type(loaded.head) is Linear
    assert torch.equal(loaded.head.weight, decoder.head.weight)  # type: ignore[union-attr]
    for ours, theirs in zip(loaded.blocks, decoder.blocks, strict=True):
        assert torch.equal(ours.attention.qkv.bias, theirs.attention.qkv.bias)  # type: ignore[union-attr]


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
    on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where kernels serve ours: a subclass may compute something else."""
    monkeypatch.setattr(dispatch, "use_kernels", lambda _: on)
    x, layer = drawn(2, 3, 16), Linear(16, 8, torch.device("cpu"), torch.float32)
    layer.requires_grad_(False).weight.copy_(drawn(8, 16, seed=1))
    adapted = Adapted(16, 8, torch.device("cpu"), torch.float32)
    adapted.load_state_dict(layer.state_dict())
    expected = 2 * (x @ layer.weight.T)
    for other in (Doubled(layer), adapted):
        torch.testing.assert_close(linear(x, other).tensor(), expected)
        qkv = project_qkv(x, other, (2, 1, 2)).partial_sums.sum(0)
        torch.testing.assert_close(qkv.flatten(2), expected)
        gates, up = expected.chunk(2, -1)
        gated = gated_linear(x, other, torch.relu)
        torch.testing.assert_close(gated, gates.relu() * up)
        stream = Residual(drawn(2, 3, 8, seed=2))
        found = stream.plus(linear(x, other)).tensor()
        torch.testing.assert_close(found, stream.tensor() + expected)

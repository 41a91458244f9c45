"""Tier 3: what a step does to its rows, each kernel beside the function that says what it means."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from bass.kernels.triton import batch_state, rejection_sampling, residual_norm, validity
from bass.ops import batch_state as ops
from bass.ops.verification import emit
from bass.records import Draft, Noise, Sequences, Verdict

EOS = [3, 7]


def integers(low: int, high: int, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def state(batch: int, seed: int) -> Sequences:
    """Rows of 1 to 12 tokens with room for as many more, a third of them idle."""
    rows = Sequences.empty(batch, 24, EOS, torch.device("cpu"))
    rows.tokens.copy_(integers(0, 9, rows.tokens.shape, seed))
    rows.lens.copy_(integers(1, 13, (batch,), seed + 1))
    rows.limits.copy_(rows.lens + integers(1, 10, (batch,), seed + 2))
    rows.active.copy_(integers(0, 3, (batch,), seed + 3) > 0)
    rows.steps.copy_(integers(0, 9, (batch,), seed + 4))
    return rows


def drafted(batch: int, k: int, seed: int) -> Draft:
    probs = torch.rand(batch, k, 9, generator=torch.Generator().manual_seed(seed))
    return Draft(integers(0, 9, (batch, k), seed), probs, integers(0, k + 1, (batch,), seed + 5))


def moved(value: Any, device: torch.device) -> Any:
    return replace(
        value,
        **{name: x.to(device) for name, x in vars(value).items() if isinstance(x, torch.Tensor)},
    )


def equal(ours: Any, theirs: Any) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.cpu(), other, rtol=0, atol=0, equal_nan=True)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validity, "CHUNK", 4)


shapes = given(st.integers(1, 5), st.integers(0, 17), st.integers(0, 10**6))


@shapes
def test_what_is_fed_equals_its_twin(device: torch.device, batch: int, k: int, seed: int) -> None:
    own, draft = state(batch, seed), drafted(batch, k, seed)
    there, tokens, lengths = moved(own, device), draft.tokens.to(device), draft.lengths.to(device)
    for count in (1, 2, k + 1):
        equal(batch_state.last(there.tokens, there.lens, there.active, count), ops.last(own, count))
    rows = (there.lens, there.limits, there.active), (own.lens, own.limits, own.active)
    equal([batch_state.clipped(lengths, *rows[0])], [ops.clipped(draft.lengths, *rows[1])])
    equal(
        batch_state.window(there.tokens, there.lens, there.active, tokens, lengths),
        ops.window(own, draft),
    )
    if k:
        equal(
            [batch_state.draft_positions(there.lens, lengths, k)],
            [ops.draft_positions(own.lens, draft.lengths, k)],
        )
        requested = integers(0, k + 1, (batch,), seed + 6)
        for probs in (draft.probs, None):
            twin, flags = ops.valid_part(requested, replace(draft, probs=probs), 9)
            there = None if probs is None else probs.to(device)
            cut, kept, found = validity.valid_part(requested.to(device), lengths, tokens, there, 9)
            equal([cut, kept[:, : twin.tokens.shape[1]], found], [twin.lengths, twin.tokens, flags])
            assert not kept[:, twin.tokens.shape[1] :].any()


@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 10**6))
@pytest.mark.usefixtures("small_chunks")
def test_invalid_drafts_have_the_flags_of_the_twin(
    device: torch.device, batch: int, k: int, seed: int
) -> None:
    """Every kind of damage, anywhere; chunks of 4 of 9 tokens."""
    tokens, lengths, probs = damaged(batch, k, seed)
    requested = integers(0, k + 1, (batch,), seed + 6)
    with np.errstate(all="ignore"):  # the interpreter's, which would warn
        answer = [x.to(device) for x in (requested, lengths, tokens, probs)]
        cut, kept, found = validity.valid_part(*answer, 9)
    twin, flags = ops.valid_part(requested, Draft(tokens, probs, lengths), 9)
    equal([cut, kept[:, : twin.tokens.shape[1]], found], [twin.lengths, twin.tokens, flags])


@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 10**6))
@pytest.mark.usefixtures("small_chunks")
def test_the_targets_distributions_have_the_flags_of_the_twin(
    device: torch.device, batch: int, window: int, seed: int
) -> None:
    """Those that count alone; a count may be negative, or more than there are."""
    _, _, probs = damaged(batch, window, seed)
    flags = integers(0, 64, (batch,), seed + 10)
    counted = integers(-1, window + 2, (batch,), seed + 6)
    with np.errstate(all="ignore"):
        found = validity.with_target_flags(*(x.to(device) for x in (flags, probs, counted)))
    equal([found], [ops.with_target_flags(flags, probs, counted)])


def damaged(batch: int, k: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, lengths and distributions of a draft."""
    random = np.random.default_rng(seed)
    tokens, lengths = integers(0, 9, (batch, k), seed), integers(-1, k + 1, (batch,), seed + 5)
    probs = torch.rand(batch, k, 9, generator=torch.Generator().manual_seed(seed)).softmax(2)
    for _ in range(random.integers(0, 4)):
        place = random.integers(0, batch), random.integers(0, k)
        value = random.choice([torch.nan, torch.inf, -torch.inf, -0.01, 2.0, 0.0])
        probs[(*place, random.integers(0, 9))] = value
        if random.random() < 0.5:
            tokens[place] = int(random.choice([-1, 9, 2**40]))
        else:
            probs[(*place, tokens[place].clamp(0, 8))] = random.choice([0.0, 1e-45])
    return tokens, lengths, probs


@shapes
def test_what_is_kept_equals_its_twin(device: torch.device, batch: int, k: int, seed: int) -> None:
    draft = drafted(batch, k, seed)
    kept = integers(0, 4, (batch, k), seed + 7) > 0
    equal(
        [batch_state.leading(kept.to(device), draft.lengths.to(device))],
        [ops.leading(kept, draft.lengths)],
    )
    accepted = torch.minimum(integers(0, k + 1, (batch,), seed + 8), draft.lengths)
    probs = torch.rand(batch, 9, generator=torch.Generator().manual_seed(seed))
    uniforms = torch.rand(
        batch, k + 1, 4, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64
    )
    noise = Noise(accepted, accepted, uniforms)
    ours = rejection_sampling.emit(
        draft.tokens.to(device), accepted.to(device), probs.to(device), noise.residual.to(device)
    )
    equal([ours], [emit(draft, accepted, probs, noise).tokens])


@shapes
def test_a_committed_verdict_and_its_report_equal_their_twins(
    device: torch.device, batch: int, k: int, seed: int
) -> None:
    own, draft = state(batch, seed), drafted(batch, k, seed)
    verdict = Verdict(
        integers(-1, 12, (batch, k + 1), seed + 9),  # some outside the vocabulary of 9
        torch.minimum(integers(0, k + 1, (batch,), seed + 8), draft.lengths),
    )
    logprobs = -torch.rand(batch, k + 1, generator=torch.Generator().manual_seed(seed))
    flags = integers(0, 32, (batch,), seed + 10)
    there, before = moved(deepcopy(own), device), deepcopy(own)
    inputs = verdict.tokens.to(device), verdict.accepted.to(device)
    rows = there.tokens, there.lens, there.limits, there.active, there.steps, there.end_tokens
    emitted = batch_state.commit(*rows, *inputs, 9)
    expected = ops.commit(own, verdict, 9)
    equal([emitted], [expected])
    for name in ("lens", "active", "steps"):
        equal([getattr(there, name)], [getattr(own, name)])
    equal([there.tokens[:, :-1]], [own.tokens[:, :-1]])  # the spare slot is nobody's
    assert torch.equal(there.limits.cpu(), before.limits)
    for probs in (draft.probs, None):
        numbers = draft.lengths.to(device), inputs[1], emitted, flags.to(device)
        told = (there.lens, there.active, *numbers, inputs[0], logprobs.to(device))
        ours = batch_state.pack_report(
            *told, draft.tokens.to(device), None if probs is None else probs.to(device)
        ).cpu()
        theirs = ops.pack_report(
            own, replace(draft, probs=probs), flags, verdict, expected, logprobs
        )
        for unpack in (ops.unpack_numbers, ops.unpack_tokens):
            for mine, other in zip(unpack(ours.numpy()), unpack(theirs.numpy()), strict=True):
                np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_looked_up_rows_are_the_tables(dtype: torch.dtype, device: torch.device) -> None:
    table = torch.randn(11, 1030, generator=torch.Generator().manual_seed(0)).to(device, dtype)[
        :, :1025
    ]
    tokens = torch.tensor([[3, 0], [10, 3], [7, 1]], device=device)
    for some in (tokens, tokens[:, :1], tokens[:, 1:], tokens.T):
        assert torch.equal(residual_norm.embedded(table, some), F.embedding(some, table))
    assert residual_norm.embedded(table, torch.tensor([-1, 11], device=device)).isnan().all()

"""A packed window has the tokens of the padded one, and a pass of it the same results."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bass.engine.packing import Packing
from bass.engine.scorer import ModelScorer
from bass.records import CacheBudget, RowAssignment, Window
from bass.testing.small_models import SmallLlama
from support.engines import EVERY_PAIRING, PAIRINGS

LLAMA = SmallLlama(layers=2).models["target"]
counts = st.lists(st.integers(0, 5), min_size=1, max_size=5)


def window_of(counts: list[int], width: int) -> Window:
    """Rows with so many tokens, which begin at different positions."""
    rows, ahead = torch.tensor(counts)[:, None], torch.arange(width)
    positions = torch.where(ahead < rows, torch.arange(len(counts))[:, None] + ahead, -1)
    tokens = torch.arange(positions.numel()).view_as(positions) % 13
    return Window(tokens, positions, 16)


@given(counts, st.integers(5, 7), st.none() | st.integers(0, 3))
def test_a_packed_window_has_the_tokens_of_each_row_in_order(
    counts: list[int], width: int, room: int | None
) -> None:
    """Counted, or by a bound that leaves some room."""
    padded, size = window_of(counts, width), sum(counts)
    if room is not None and size + room < padded.positions.numel():
        padded = replace(padded, most=size + room)
    packing = Packing.of(padded)
    if packing is None:
        assert size == 0 or -(-size // 4) * 4 > 7 / 8 * padded.positions.numel()
        return
    window, offsets = packing.window, packing.rows.offsets.tolist()
    for row, count in enumerate(counts):
        own = slice(offsets[row], offsets[row] + count)
        assert torch.equal(window.tokens[0, own], padded.tokens[row, :count])
        assert torch.equal(window.positions[0, own], padded.positions[row, :count])
    assert (window.positions[0, sum(counts) :] == -1).all()
    assert offsets[-1] == len(window.positions[0]) < padded.positions.numel()
    assert packing.rows.rows[:size].tolist() == [
        row for row, count in enumerate(counts) for _ in range(count)
    ]
    fed = padded.positions >= 0
    assert torch.equal(packing.unpacked(window.tokens.float())[fed], padded.tokens[fed].float())


def test_a_window_on_a_gpu_or_of_selected_rows_is_not_packed() -> None:
    padded = window_of([1, 0, 0], 4)
    assert Packing.of(Window(padded.tokens, padded.positions, 16, rows=torch.arange(3))) is None
    with torch.device("meta"):
        elsewhere = Window(torch.zeros(3, 4), torch.zeros(3, 4), 16)
    assert Packing.of(elsewhere) is None


def scorers(pair: str, device: torch.device) -> tuple[Any, ModelScorer, ModelScorer]:
    """A model, and two scorers of it with caches of four rows of 24 positions."""
    layout, backend = EVERY_PAIRING[pair]
    model, made = LLAMA.to(device), list[ModelScorer]()
    for _ in range(2):
        budget = CacheBudget.of(np.full(4, 24))
        cache: Any = layout.allocate(model.shape, budget, device, torch.float32)
        cache.reserve(RowAssignment(np.full(4, 24), np.arange(4), np.zeros(4, dtype=np.int64)))
        made.append(ModelScorer(model, cache, backend(), 4, (0, 2)))
    return model, *made


@pytest.mark.parametrize(
    ("pair", "most"),
    [*((pair, most) for pair in PAIRINGS for most in (None, 13))]
    + [(name, 13) for name, (_, backend) in EVERY_PAIRING.items() if backend.packs],
)
@torch.inference_mode()
def test_a_packed_pass_gives_what_the_padded_one_gives(
    pair: str, most: int | None, device: torch.device
) -> None:
    """Logits, states of layers, and what later windows see, in every layout and backend."""
    model, packed, padded = scorers(pair, device)
    lens, random = torch.zeros(4, dtype=torch.int64), torch.Generator().manual_seed(0)
    for step, own in enumerate(([5, 2, 1, 3], [1, 0, 4, 0], [0, 6, 0, 1], [3, 1, 0, 0])):
        ahead, count = torch.arange(6), torch.tensor(own)
        positions = torch.where(ahead < count[:, None], lens[:, None] + ahead, -1)
        tokens = torch.randint(0, 13, (4, 6), generator=random)
        window = Window(tokens.to(device), positions.to(device), 24)
        bounded = replace(window, most=most)
        assert (Packing.of(bounded) is not None) == (most is not None or device.type == "cpu")
        lens += count
        attend = padded.store.attend(window)
        if step:
            scored, expected = packed(bounded), padded._computed(window, attend)
            found = scored.logits, *scored.features
        else:  # a prefill
            found, expected = packed.fill(bounded), model.fill(window, attend, (0, 2))
        fed = window.positions >= 0
        for one, other in zip(found, expected, strict=True):
            assert torch.allclose(one[fed], other[fed], atol=1e-5)


@pytest.mark.parametrize(
    "pair", [*PAIRINGS, *(name for name, (_, backend) in EVERY_PAIRING.items() if backend.packs)]
)
@torch.inference_mode()
def test_a_pass_that_feeds_prompts_gives_what_two_passes_give(
    pair: str, device: torch.device
) -> None:
    """Logits and states of the window, states of the prompts, and what later windows see."""
    _, joined, apart = scorers(pair, device)
    ahead, counts, starts = torch.arange(4), *torch.tensor([[4, 3, 2], [0, 0, 4]])[..., None]
    positions = torch.where(ahead < counts, starts + ahead, -1).to(device)
    # while two rows decode, the others are fed three segments; then the other way round
    for own, rows in (([0, 4, 0, 2], [2, 0, 2]), ([3, 0, 4, 0], [1, 3, 1])):
        decoded = window_of(own, 5)
        window = Window(decoded.tokens.to(device), decoded.positions.to(device), 24)
        prompts = Window((positions + 5) % 13, positions, 24, rows=torch.tensor(rows).to(device))
        states, scored = apart.fill(prompts), joined(replace(window, prompts=prompts))
        expected = apart(window)
        found = scored.logits, *scored.features, *scored.of_prompts
        others = expected.logits, *expected.features, *states
        for one, other, of in zip(found, others, (window,) * 3 + (prompts,) * 2, strict=True):
            assert torch.allclose(one[of.positions >= 0], other[of.positions >= 0], atol=1e-5)

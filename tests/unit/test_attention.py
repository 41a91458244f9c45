"""Every backend, on its own layout, against dense attention in float64: ragged rows, grouped heads,
windows, poison.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bass.api.plan import backend_for, cache_for
from bass.attention import BACKENDS
from bass.engine.scorer import CachedAttend
from bass.errors import PairingError
from bass.records import AttentionRule, CacheBudget, DecoderShape, Projection
from bass.testing.small_models import dense_attention, poisoned
from support.engines import EVERY_PAIRING, PAIRINGS, SLOW

RULES = (
    AttentionRule(8**-0.5),
    AttentionRule(0.7, window=3),
    AttentionRule(0.4, 2, 1.5),
    AttentionRule(1.0, softcap=2.0),
)


@pytest.mark.parametrize("pairing", PAIRINGS)
@given(data=st.data())
def test_a_backend_equals_dense_causal_attention_of_each_row_alone(
    pairing: str, data: st.DataObject, device: torch.device
) -> None:
    compare_with_dense(pairing, data, device)


@pytest.mark.parametrize("pairing", SLOW)
@settings(max_examples=4)
@given(data=st.data())
def test_an_interpreted_backend_equals_dense_causal_attention_too(
    pairing: str, data: st.DataObject, device: torch.device
) -> None:
    compare_with_dense(pairing, data, device)


def compare_with_dense(pairing: str, data: st.DataObject, device: torch.device) -> None:
    """Each row has a past of its own length in a poisoned cache, then a window of its own number of
    tokens, perhaps none.
    """
    cache_type, backend = EVERY_PAIRING[pairing][0], EVERY_PAIRING[pairing][1]()
    batch, window = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    kv_heads, groups, dim = data.draw(
        st.sampled_from(((1, 1, 4), (2, 1, 8), (2, 2, 8), (1, 4, 16), (2, 3, 4)))
    )
    past = [data.draw(st.integers(0, 6)) for _ in range(batch)]
    used = [data.draw(st.integers(0, window)) for _ in range(batch)]
    capacities = np.array(
        [p + u + data.draw(st.integers(1, 3)) for p, u in zip(past, used, strict=True)]
    )
    span = data.draw(
        st.integers(max(p + u for p, u in zip(past, used, strict=True)) or 1, int(capacities.max()))
    )
    random = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    length = max(past) + window
    q, k, v = (
        torch.randn(batch, length, heads, dim, generator=random, dtype=torch.float64)
        for heads in (kv_heads * groups, kv_heads, kv_heads)
    )
    other, rule = (data.draw(st.sampled_from([AttentionRule(dim**-0.5), *RULES])) for _ in range(2))
    shape = DecoderShape(5, kv_heads * groups, kv_heads, dim, 64, (other, rule))
    cache = poisoned(cache_type.allocate(shape, CacheBudget.of(capacities), device, torch.float32))
    with_sinks = data.draw(st.booleans())
    sinks = torch.randn(kv_heads * groups, generator=random) if with_sinks else None

    def part(values: torch.Tensor, first: list[int], count: int) -> torch.Tensor:
        return (
            torch.stack([values[b, start : start + count] for b, start in enumerate(first)])
            .float()
            .to(device)
        )

    def attend(first: list[int], counts: list[int], width: int) -> torch.Tensor:
        places = [
            [first[b] + w if w < counts[b] else -1 for w in range(width)] for b in range(batch)
        ]
        positions = torch.tensor(places, device=device)
        run = CachedAttend(cache, backend, backend.plan(positions, span), positions, shape.rules)
        # another layer, which may have another rule
        projection = Projection.of(*(part(values, first, width) for values in (q, k, v)))
        run(0, projection)
        return run(1, replace(projection, sinks=None if sinks is None else sinks.to(device)))

    if max(past):
        attend([0] * batch, past, max(past))
    out = attend(past, used, window)
    assert out.isfinite().all()
    wide = None if sinks is None else sinks.double()
    for b in range(batch):
        if used[b]:
            end = past[b] + used[b]
            row = (values[b : b + 1, :end] for values in (q, k, v))
            expected = dense_attention(*row, rule, wide)[0, past[b] :]
            torch.testing.assert_close(
                out[b, : used[b]].double().cpu(), expected, rtol=1e-4, atol=1e-4
            )


@pytest.mark.parametrize("pairing", EVERY_PAIRING)
def test_what_lies_at_higher_positions_changes_no_bit_of_the_output(
    pairing: str, device: torch.device
) -> None:
    """Rejected keys may stay where they are: large, but finite."""
    cache_type, backend_type = EVERY_PAIRING[pairing]
    random, outs = torch.Generator().manual_seed(0), []
    q, k, v = (torch.randn(2, 3, heads, 8, generator=random).to(device) for heads in (4, 2, 2))
    for poison in (0.0, 1e4, -3e3):
        cache = cache_type.allocate(
            DecoderShape(5, 4, 2, 8, 64, RULES),
            CacheBudget.of(np.array([9, 9])),
            device,
            torch.float32,
        )
        cache.k.fill_(poison)
        cache.v.fill_(poison)
        backend, positions = backend_type(), torch.tensor([[0, 1, 2], [0, -1, -1]], device=device)
        outs.append(
            CachedAttend(cache, backend, backend.plan(positions, 8), positions, RULES)(
                0, Projection.of(q, k, v)
            )
        )
    for out in outs[1:]:
        assert torch.equal(out[0], outs[0][0])
        assert torch.equal(out[1, 0], outs[0][1, 0])


def test_every_backend_has_a_layout_and_every_other_pair_is_refused_by_name() -> None:
    from bass.caches import CACHES

    for backend in BACKENDS.values():
        assert any(cache.view_type is backend.view_type for cache in CACHES.values())
        for cache in CACHES.values():
            if cache.view_type is backend.view_type:
                assert cache_for("auto", backend(), torch.device("cpu")) is cache
                assert type(backend_for(backend(), cache, torch.device("cpu"))) is backend
            else:
                with pytest.raises(
                    PairingError, match=f"Cannot pair `{backend.__name__}` with `{cache.__name__}`"
                ):
                    backend_for(backend(), cache, torch.device("cpu"))

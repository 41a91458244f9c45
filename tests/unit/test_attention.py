"""Every backend, on its own layout, against dense attention in float64: ragged rows, grouped heads,
windows, sinks, poison.
"""

import pytest
import torch

from bass.api.plan import backend_for, cache_for
from bass.attention import BACKENDS
from bass.errors import PairingError
from bass.testing.checking import Checker
from bass.testing.properties_of_models import RULES, AttentionCase, attends, passes
from support.engines import EVERY_PAIRING, PAIRINGS, SLOW

# several queries of grouped heads, without what makes a backend leave its usual way
GROUPED = AttentionCase(
    (2, 2, 8), (9, 0, 20), (3, 3, 2), (0, 0, 0), 3, RULES[0], RULES[1], False, False, 0
)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_a_backend_equals_dense_causal_attention_of_each_row_alone(
    pairing: str, device: torch.device
) -> None:
    compare_with_dense(pairing, device, examples=60)


@pytest.mark.parametrize("pairing", SLOW)
def test_an_interpreted_backend_equals_dense_causal_attention_too(
    pairing: str, device: torch.device
) -> None:
    compare_with_dense(pairing, device, examples=2)


def compare_with_dense(pairing: str, device: torch.device, examples: int) -> None:
    layout, backend = EVERY_PAIRING[pairing]
    checker = Checker(pairing, examples)
    with checker.on(GROUPED):
        attends(checker, layout, backend(), GROUPED, device)
    checker.for_all(passes(), lambda case: attends(checker, layout, backend(), case, device))


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

"""`check_trim` finds trims that violate a property."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from bass.errors import OptionError
from bass.interfaces import DraftTrim
from bass.policies import Fixed
from bass.records import Drafted
from bass.testing import ExactnessError, check_trim
from bass.trims import Survival, Tetris
from support.matrix import by_day

pytestmark = pytest.mark.usefixtures("unchecked")  # as a user's pytest has it


def trim(call: Callable[[Drafted], Any], **declared: Any) -> DraftTrim:
    """A trim that is a function of the draft, with other class attributes."""
    body = {"__call__": lambda self, drafted: call(drafted), "__post_init__": lambda self: None}
    return type("Broken", (DraftTrim,), body | {"reads_probs": True} | declared)()


def sure(drafted: Drafted) -> Tensor:
    """Whether the draft model is sure of each slot; of all slots of a deterministic draft."""
    if drafted.probs is None:
        return torch.ones_like(drafted.tried, dtype=torch.bool)
    slots = torch.arange(drafted.tried.shape[1], device=drafted.lengths.device)
    return (slots >= drafted.lengths[:, None]) | (drafted.probs.amax(2) > 0.6)


def leading(drafted: Drafted, kept: Tensor) -> Tensor:
    return torch.minimum(kept.long().cumprod(1).sum(1), drafted.lengths)


def written(drafted: Drafted) -> Tensor:
    drafted.tried.add_(1)
    return drafted.lengths


def in_all_rows(drafted: Drafted) -> Tensor:
    shortest = drafted.lengths.min()
    return torch.minimum(drafted.lengths, shortest)


def beyond(drafted: Drafted) -> Tensor:
    known = torch.ones(()) if drafted.probs is None else drafted.probs[:, -1].amax(1) > 0.6
    return drafted.lengths * known.long()


def read(drafted: Drafted) -> Tensor:
    return drafted.lengths if drafted.tried.sum().item() > 3 else drafted.lengths // 2


BROKEN: dict[str, tuple[DraftTrim, str]] = {
    "truth values": (trim(lambda d: d.lengths > 1), "integers ["),
    "more than drafted": (trim(lambda d: d.lengths + 1), "integers ["),
    "writes": (trim(written), "not written to"),
    "more than `most`": (trim(lambda d: d.lengths, most=lambda self, rows, k: rows), "`most"),
    "more than the places": (trim(lambda d: d.lengths, reads_places=True), "`Drafted.places`"),
    "beyond its length": (trim(beyond), "beyond a row's own length"),
    "other rows": (trim(in_all_rows), "`batch_invariant`"),
    "a host read": (trim(read, batch_invariant=False), "on the host"),
    "the next slot": (trim(lambda d: leading(d, sure(d).roll(-1, 1))), "jointly"),
    "a length": (trim(lambda d: torch.where(d.lengths > 2, 0, d.lengths)), "jointly"),
    "half of a length": (trim(lambda d: d.lengths // 2), "jointly"),
    "another row": (
        trim(lambda d: torch.where(sure(d).all(1).flip(0), d.lengths, 0), batch_invariant=False),
        "jointly",
    ),
    "its own token": (
        type("Claims", (Tetris.__mro__[1],), dict(vars(Tetris)) | {"lossless": True})(1.0),
        "jointly",
    ),
}


@pytest.mark.parametrize(
    "name", by_day(BROKEN, ("more than `most`", "a host read", "its own token"))
)
def test_a_broken_trim_is_found(name: str) -> None:
    broken, words = BROKEN[name]
    with pytest.raises(ExactnessError) as error:
        check_trim(broken, examples=30)
    assert words in error.value.property


def test_what_is_no_trim_is_refused() -> None:
    with pytest.raises(OptionError, match="is no trim"):
        check_trim(Fixed(3))


def test_the_bound_of_a_budget_is_the_number_of_kept_tokens_that_it_allows() -> None:
    rows, k = 10, 4
    for tokens in (0.0, 0.1, 0.7, 1.1, 2.5, 9.0):
        drafted = Drafted(torch.full((rows,), k), torch.zeros(rows, k), torch.zeros(rows, k))
        kept = Survival(tokens)(drafted)
        assert int(kept.sum()) == Survival(tokens).most(rows, k)
        assert kept.max() - kept.min() <= 1

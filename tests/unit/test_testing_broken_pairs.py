"""The public kit finds out caches and backends that break a law, names it, and shows a small
case.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from bass.attention.sdpa import MaskPlan
from bass.errors import PairingError
from bass.interfaces import AttentionBackend, KVCache
from bass.ops.attention import padded
from bass.records import AttentionRule, PaddedView
from bass.testing import ExactnessError, check_pair
from bass.testing import laws_of_pairs as pairs
from bass.testing.runs import GREEDY
from support.matrix import night

pytestmark = pytest.mark.usefixtures("unchecked")


@dataclass(frozen=True)
class OwnView:
    """A view type that the library does not know."""

    k: Tensor
    v: Tensor


class Plain(AttentionBackend[Any, Any]):
    """Correct."""

    view_type: ClassVar[type] = PaddedView
    capturable: ClassVar[bool] = True

    def plan(self, positions: Tensor, span: int) -> MaskPlan:
        return MaskPlan(positions, span)

    def run(self, q: Tensor, view: Any, plan: MaskPlan, rule: AttentionRule) -> Tensor:
        return self.attended(q, view, plan.positions, plan.span, rule)

    def attended(
        self, q: Tensor, view: Any, positions: Tensor, span: int, rule: AttentionRule
    ) -> Tensor:
        return padded(q, view.k, view.v, positions, span, rule.scale, rule.window, rule.softcap)


class OneStaleKey(Plain):
    def attended(
        self, q: Tensor, view: Any, positions: Tensor, span: int, rule: AttentionRule
    ) -> Tensor:
        return super().attended(
            q, view, torch.where(positions < 0, -1, (positions + 1).clamp(max=span - 1)), span, rule
        )


class NotItself(Plain):
    def attended(
        self, q: Tensor, view: Any, positions: Tensor, span: int, rule: AttentionRule
    ) -> Tensor:
        return super().attended(
            q, view, torch.where(positions > 0, positions - 1, positions), span, rule
        )


class NoWindow(Plain):
    def attended(
        self, q: Tensor, view: Any, positions: Tensor, span: int, rule: AttentionRule
    ) -> Tensor:
        return super().attended(
            q, view, positions, span, AttentionRule(rule.scale, None, rule.softcap)
        )


class NoCap(Plain):
    def attended(
        self, q: Tensor, view: Any, positions: Tensor, span: int, rule: AttentionRule
    ) -> Tensor:
        return super().attended(q, view, positions, span, AttentionRule(rule.scale, rule.window))


class RowZero(Plain):
    """Reads the first row for all."""

    def attended(
        self, q: Tensor, view: Any, positions: Tensor, span: int, rule: AttentionRule
    ) -> Tensor:
        return super().attended(
            q,
            PaddedView(view.k[:1].expand_as(view.k), view.v[:1].expand_as(view.v)),
            positions,
            span,
            rule,
        )


class Overflowing(Plain):
    """Gives NaN for the second token of a window."""

    def attended(
        self, q: Tensor, view: Any, positions: Tensor, span: int, rule: AttentionRule
    ) -> Tensor:
        out = super().attended(q, view, positions, span, rule)
        out[:, 1:2] = torch.nan
        return out


class Leaking(Plain):
    """Dense within tolerance, but what lies above a query shows in the last bits."""

    def attended(
        self, q: Tensor, view: Any, positions: Tensor, span: int, rule: AttentionRule
    ) -> Tensor:
        return super().attended(q, view, positions, span, rule) + 1e-10 * view.v[:, :span].mean()


class Rows(KVCache[Any]):
    """Correct: keys and values [layers, B, extent + 1, kv_heads, head_dim]."""

    view_type: ClassVar[type] = PaddedView

    def __init__(self, k: Tensor, v: Tensor) -> None:
        self.k, self.v = k, v

    @classmethod
    def allocate(cls, shape: Any, budget: Any, device: Any, dtype: Any) -> Any:
        size = (
            shape.layers,
            budget.batch,
            int(budget.limits.max()) + 1,
            shape.kv_heads,
            shape.head_dim,
        )
        return cls(*(torch.zeros(size, device=device, dtype=dtype) for _ in range(2)))

    def write(self, layer: int, k: Tensor, v: Tensor, positions: Tensor) -> None:
        rows = torch.arange(len(positions))[:, None]
        self.k[layer, rows, positions], self.v[layer, rows, positions] = k, v

    def view(self, layer: int) -> Any:
        return self.view_type(self.k[layer, :, :-1], self.v[layer, :, :-1])

    def rows(self, start: int, stop: int) -> Any:
        return type(self)(self.k[:, start:stop], self.v[:, start:stop])

    def reserve(self, assignment: Any) -> None:
        pass

    def copy_rows(self, assignment: Any) -> None:
        for stored in (self.k, self.v):
            before = stored.clone()
            for row in assignment.followers:
                stored[:, row, : assignment.shared[row]] = before[
                    :, assignment.source[row], : assignment.shared[row]
                ]


class Forgetful(Rows):
    def reserve(self, assignment: Any) -> None:
        self.k.zero_()
        self.v.zero_()


class OneShort(Rows):
    """Followers take a position too few."""

    def copy_rows(self, assignment: Any) -> None:
        for stored in (self.k, self.v):
            before = stored.clone()
            for row in assignment.followers:
                stored[:, row, : assignment.shared[row] - 1] = before[
                    :, assignment.source[row], : assignment.shared[row] - 1
                ]


class FirstBlock(Rows):
    """Followers take 16 positions at most."""

    def copy_rows(self, assignment: Any) -> None:
        super().copy_rows(replace(assignment, shared=assignment.shared.clip(max=16)))


class NothingFar(Rows):
    """Loses what is written beyond position 45."""

    def write(self, layer: int, k: Tensor, v: Tensor, positions: Tensor) -> None:
        super().write(layer, k, v, torch.where(positions > 45, -1, positions))


class NoSpare(Rows):
    """Writes what is nobody's to the last position of the row."""

    def write(self, layer: int, k: Tensor, v: Tensor, positions: Tensor) -> None:
        super().write(layer, k, v, torch.where(positions < 0, self.k.shape[2] - 2, positions))


class FirstRows(Rows):
    """A range of rows is always the first ones."""

    def rows(self, start: int, stop: int) -> Any:
        return type(self)(self.k[:, : stop - start], self.v[:, : stop - start])


class Owned(Rows):
    view_type: ClassVar[type] = OwnView


class OwnedForgetful(Forgetful):
    view_type: ClassVar[type] = OwnView


class OwnBackend(Plain):
    view_type: ClassVar[type] = OwnView


@pytest.mark.parametrize(
    ("cache", "backend", "law"),
    [
        night("padded", OneStaleKey, pairs.DENSE),
        ("padded", NotItself, pairs.DENSE),
        night("padded", NoWindow, pairs.DENSE),
        night("padded", NoCap, pairs.DENSE),
        night("padded", RowZero, pairs.DENSE),
        night("padded", Overflowing, pairs.FINITE),
        night("padded", Leaking, pairs.ABOVE),
        (Forgetful, Plain(), pairs.DICTIONARY),
        (OneShort, "sdpa", pairs.DICTIONARY),
        (FirstBlock, "sdpa", pairs.DICTIONARY),
        (NothingFar, "sdpa", pairs.DICTIONARY),
        (NoSpare, "sdpa", pairs.DICTIONARY),
        (FirstRows, "sdpa", pairs.DICTIONARY),
        night(OwnedForgetful, OwnBackend, GREEDY),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_cache_or_a_backend_that_breaks_a_law_is_told_which_and_where(
    cache: Any, backend: Any, law: str
) -> None:
    with pytest.raises(ExactnessError) as error:
        check_pair(cache, backend, examples=40)
    broken = error.value
    assert broken.law == law
    assert len(str(broken).splitlines()) == 4
    assert broken.case.startswith(
        {
            pairs.DENSE: "rows with",
            pairs.FINITE: "rows with",
            pairs.ABOVE: "rows with",
            pairs.DICTIONARY: "room for rows",
        }.get(law, "")
    )
    assert len(broken.case) < 500


@pytest.mark.parametrize(
    ("cache", "backend"), [(Rows, Plain), night(Rows, "auto"), night(Owned, OwnBackend)]
)
def test_what_the_broken_ones_were_made_from_breaks_no_law(cache: type, backend: Any) -> None:
    check_pair(cache, backend, examples=12)


def test_two_view_types_are_refused_by_name() -> None:
    with pytest.raises(
        PairingError,
        match=(
            "Cannot pair `SDPA` with `Owned`: the backend reads PaddedView, the cache gives OwnView"
        ),
    ):
        check_pair(Owned, "sdpa")

"""`check_pair` and `check_family` find caches, backends and families that violate a property."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from bass.attention.kernels import SpanPlan
from bass.errors import PairingError
from bass.interfaces import AttentionBackend, KVCache
from bass.models.llama import Llama, LlamaConfig
from bass.ops.attention import reference
from bass.records import AttentionRule, PaddedView
from bass.testing import check_family, check_pair
from bass.testing import properties_of_models as properties
from bass.testing.engine import GREEDY
from support.matrix import night
from unit.test_testing_broken_drafters import violation

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

    def plan(self, positions: Tensor, span: int) -> SpanPlan:
        return SpanPlan(positions, span)

    def run(self, q: Tensor, view: Any, plan: SpanPlan, rule: AttentionRule, *sinks: Any) -> Tensor:
        of_rows = self.changed(view, plan.positions)
        return reference(q, *of_rows, plan.span, self.applied(rule), *sinks)

    def changed(self, view: Any, positions: Any) -> tuple[Any, Any]:
        return PaddedView(view.k, view.v), positions

    def applied(self, rule: AttentionRule) -> AttentionRule:
        return rule


def spoilt(name: str, **methods: Any) -> type[Plain]:
    """A `Plain` with other methods."""
    return type(name, (Plain,), methods)


def of_row_zero(self: Plain, view: Any, positions: Any) -> Any:
    return PaddedView(*(part[:1].expand_as(part) for part in (view.k, view.v))), positions


OneStaleKey = spoilt("OneStaleKey", changed=lambda self, v, p: (v, torch.where(p < 0, p, p + 1)))
NotItself = spoilt("NotItself", changed=lambda self, v, p: (v, torch.where(p > 0, p - 1, p)))
NoWindow = spoilt("NoWindow", applied=lambda self, rule: replace(rule, window=None))
NoCap = spoilt("NoCap", applied=lambda self, rule: replace(rule, softcap=None))
RowZero = spoilt("RowZero", changed=of_row_zero)


class Overflowing(Plain):
    """Gives NaN for the second token of a window."""

    def run(self, *given: Any) -> Tensor:
        out = super().run(*given)
        out[:, 1:2] = torch.nan
        return out


class Leaking(Plain):
    """Dense within tolerance, but what lies above a query shows in the last bits."""

    def run(self, q: Tensor, view: Any, plan: SpanPlan, *given: Any) -> Tensor:
        return super().run(q, view, plan, *given) + 1e-10 * view.v[:, : plan.span].mean()


class NoSinks(Plain):
    def run(self, q: Tensor, view: Any, plan: SpanPlan, rule: AttentionRule, *_: Any) -> Tensor:
        return super().run(q, view, plan, rule)


class Rows(KVCache[Any]):
    """Correct: keys and values [layers, B, extent + 1, kv_heads, head_dim]."""

    view_type: ClassVar[type] = PaddedView

    def __init__(self, k: Tensor, v: Tensor) -> None:
        self.k, self.v = k, v

    @classmethod
    def allocate(cls, shape: Any, budget: Any, device: Any, dtype: Any) -> Any:
        rows = budget.batch, int(budget.limits.max()) + 1
        size = shape.layers, *rows, shape.kv_heads, shape.head_dim
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
                shared = assignment.shared[row]
                stored[:, row, :shared] = before[:, assignment.source[row], :shared]


class Forgetful(Rows):
    def reserve(self, assignment: Any) -> None:
        self.k.zero_()
        self.v.zero_()


class OneShort(Rows):
    """Followers take a position too few."""

    def copy_rows(self, assignment: Any) -> None:
        super().copy_rows(replace(assignment, shared=assignment.shared - 1))


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


class ByReserve(Rows):
    """Correct: a row has storage once it is reserved."""

    def __init__(self, *stored: Tensor) -> None:
        super().__init__(*stored)
        self.has = [False] * stored[0].shape[1]

    def write(self, layer: int, k: Tensor, v: Tensor, positions: Tensor) -> None:
        super().write(layer, k, v, torch.where(torch.tensor(self.has)[:, None], positions, -1))

    def rows(self, start: int, stop: int) -> Any:
        part = super().rows(start, stop)
        part.has = self.has[start:stop]
        return part

    def reserve(self, assignment: Any) -> None:
        self.has[:] = [True] * len(self.has)


class WholeOnly(ByReserve):
    """`reserve` reaches no range of rows."""

    def rows(self, start: int, stop: int) -> Any:
        part = super().rows(start, stop)
        part.reserve = lambda assignment: None
        return part


class Owned(Rows):
    view_type: ClassVar[type] = OwnView


class OwnedForgetful(Forgetful):
    view_type: ClassVar[type] = OwnView


class OwnBackend(Plain):
    view_type: ClassVar[type] = OwnView


@pytest.mark.parametrize(
    ("cache", "backend", "property"),
    [
        night("padded", OneStaleKey, properties.DENSE),
        ("padded", NotItself, properties.DENSE),
        night("padded", NoWindow, properties.DENSE),
        night("padded", NoCap, properties.DENSE),
        night("padded", RowZero, properties.DENSE),
        night("padded", Overflowing, properties.FINITE),
        ("padded", NoSinks, properties.DENSE),
        night("padded", Leaking, properties.ABOVE),
        (Forgetful, Plain(), GREEDY),
        night(OneShort, "sdpa", GREEDY),
        night(FirstBlock, "sdpa", GREEDY),
        (NothingFar, "sdpa", properties.DENSE),
        (NoSpare, "sdpa", properties.DENSE),
        night(FirstRows, "sdpa", GREEDY),
        (WholeOnly, "sdpa", properties.DENSE),
        night(OwnedForgetful, OwnBackend, GREEDY),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_the_check_names_the_property_that_a_cache_or_backend_violates(
    cache: Any, backend: Any, property: str
) -> None:
    broken = violation(check_pair, cache, backend, examples=40)
    assert broken.property == property
    assert broken.case.startswith("" if property == GREEDY else "AttentionCase(")
    assert len(broken.case) < 500


@pytest.mark.parametrize(
    ("cache", "backend"),
    [(Rows, Plain), (ByReserve, "sdpa"), night(Rows, "auto"), night(Owned, OwnBackend)],
)
def test_the_pairs_that_these_are_made_from_violate_nothing(cache: type, backend: Any) -> None:
    check_pair(cache, backend, examples=12)


def test_two_view_types_are_refused_by_name() -> None:
    with pytest.raises(
        PairingError,
        match=(
            "Cannot pair `SDPA` with `Owned`: the backend reads PaddedView, the cache gives OwnView"
        ),
    ):
        check_pair(Owned, "sdpa")


LLAMA = LlamaConfig(13, 32, 48, 2, 4, 2, 8, max_position_embeddings=64)


class ByColumn(Llama):  # type: ignore[misc]
    """Rotates by the column of the window, not by the position."""

    def rotations(self, positions: Tensor) -> Any:
        return super().rotations(torch.arange(positions.shape[1]).expand_as(positions))


class Mixes(Llama):  # type: ignore[misc]
    """Adds the mean embedding of all rows of the batch, or of all tokens of the window."""

    over = 0

    def embedded(self, tokens: Tensor, positions: Tensor) -> Tensor:
        own = super().embedded(tokens, positions)
        return own + own.mean(self.over, keepdim=True)


class MixesTokens(Mixes):
    over = 1


@pytest.mark.parametrize("family", [ByColumn, Mixes, MixesTokens])
def test_a_family_is_checked_without_a_twin(family: Any) -> None:
    check_family(Llama, LLAMA, examples=4)
    broken = violation(check_family, family, LLAMA, examples=10)
    assert broken.property == properties.WHOLE

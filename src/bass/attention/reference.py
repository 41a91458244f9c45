"""Softmax attention in float64 for any dtype of the model: the reference of all other backends."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

from bass.attention.kernels import PositionBackend, SpanPlan
from bass.interfaces import View
from bass.ops import attention
from bass.ops.attention import Queries, Sinks
from bass.records import AttentionRule, PaddedView, PagedView, RaggedView


@dataclass(frozen=True)
class Float64(PositionBackend[View]):
    """Slow; needs memory for the keys of the whole span in float64."""

    paper: ClassVar[str] = "this project, in torch"

    def run(
        self, q: Queries, view: Any, plan: SpanPlan, rule: AttentionRule, sinks: Sinks = None
    ) -> Queries:
        return attention.reference(q, view, plan.positions, plan.span, rule, sinks)


@final
@dataclass(frozen=True)
class Reference(Float64[PaddedView]):
    """The reference over the padded layout."""

    view_type: ClassVar[type] = PaddedView


@final
@dataclass(frozen=True)
class ReferenceRagged(Float64[RaggedView]):
    """The reference over the split layout."""

    view_type: ClassVar[type] = RaggedView


@final
@dataclass(frozen=True)
class ReferencePaged(Float64[PagedView]):
    """The reference over the paged layout."""

    view_type: ClassVar[type] = PagedView

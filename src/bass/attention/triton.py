"""One Triton kernel for each layout, in one launch for the batch (`split`: one for each row)."""

from dataclasses import dataclass
from typing import ClassVar, final

from bass.attention.kernels import KernelBackend, SpanPlan
from bass.ops import attention
from bass.ops.attention import Queries, Sinks
from bass.records import AttentionRule, PaddedView, PagedView, RaggedView


@final
@dataclass(frozen=True)
class TritonPad(KernelBackend[PaddedView]):
    """BASS-PAD: one launch for the batch; each row reads all `span` positions."""

    paper: ClassVar[str] = "Qian et al., 2024"
    view_type: ClassVar[type] = PaddedView


@final
@dataclass(frozen=True)
class TritonSplit(KernelBackend[RaggedView]):
    """BASS-SPLIT: a launch for each row, which ends at the row's last position; no host read."""

    paper: ClassVar[str] = "Qian et al., 2024"
    view_type: ClassVar[type] = RaggedView
    reads_lengths: ClassVar[bool] = True

    def run(
        self, q: Queries, view: RaggedView, plan: SpanPlan, rule: AttentionRule, sinks: Sinks = None
    ) -> Queries:
        return attention.triton(q, view, plan.positions, plan.span, rule, sinks, each_row=True)


@final
@dataclass(frozen=True)
class TritonRagged(KernelBackend[RaggedView]):
    """Each row ends at its own length; several programs share the keys of a row, so that a small
    batch fills the GPU.
    """

    paper: ClassVar[str] = "Dao et al., 2023"
    view_type: ClassVar[type] = RaggedView
    reads_lengths: ClassVar[bool] = True
    packs: ClassVar[bool] = True
    fused = staticmethod(attention.by_hopper)


@final
@dataclass(frozen=True)
class TritonPaged(KernelBackend[PagedView]):
    """As `TritonRagged`, with keys addressed by the block table. No copies."""

    paper: ClassVar[str] = "Kwon et al., 2023"
    view_type: ClassVar[type] = PagedView
    reads_lengths: ClassVar[bool] = True
    packs: ClassVar[bool] = True

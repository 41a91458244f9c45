"""A small decoder drafts token by token."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

from jaxtyping import Int
from torch import Tensor

from bass.drafters.chain import Chain, Fed
from bass.drafters.heads import NamedDraft
from bass.interfaces import (
    Drafter,
    DrafterContext,
    DraftMethod,
    Draw,
    ForwardingRowStore,
    RowStore,
    Scorer,
    StopRule,
    Warp,
)
from bass.ops import batch_state
from bass.records import Draft, Noise, Sequences, Window


@final
@dataclass(frozen=True)
class ModelDraft(NamedDraft):
    """What the option `draft=` names: a separate draft model, or a head, by its own method."""

    paper: ClassVar[str] = "Leviathan et al., 2023"

    def with_head(self, head: Any, layers: int) -> DraftMethod:
        """The head's own method, if `draft=` names a head."""
        return self if head is None else head.method().with_head(head, layers)

    def build(self, context: DrafterContext) -> Drafter:
        return ModelDrafter(context.draft(), context.warp, context.draw, context.stop_rule)


@final
@dataclass(frozen=True)
class ModelDrafter(ForwardingRowStore, Drafter):
    """Draws from a model's warped distribution (Chen et al., 2023).

    Each step begins with the last *two* committed tokens: after a fully accepted draft the cache
    lacks the first of them, and to feed a token again changes nothing.

        step    0: [ lens-2, lens-1 ] -> d1     1: [ d1 ] -> d2     2: [ d2 ] -> d3 ...

    On a CPU, where the host reads lengths without waiting, it stops once every draft has ended and
    returns fewer columns.
    """

    scorer: Scorer
    warp: Warp
    draw: Draw
    stop_rule: StopRule | None = None
    model: str = "the draft model"  # its name in messages

    @property
    def label(self) -> str:
        return self.model

    @property
    def store(self) -> RowStore:
        return self.scorer

    def propose(
        self, sequences: Sequences, lengths: Int[Tensor, " batch"], k: int, noise: Noise, span: int
    ) -> Draft:
        first = batch_state.last(sequences, 2)

        def logits(fed: Fed | None) -> Tensor:
            tokens, positions = first if fed is None else fed
            return self.scorer(Window(tokens, positions, span)).logits[:, -1:]

        chain = Chain(self.warp, self.draw, self.stop_rule)
        return chain.drawn(logits, sequences, lengths, k, noise)

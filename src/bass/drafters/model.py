"""A small decoder drafts token by token."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bass.errors import PairingError
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
from bass.interfaces.answers import check_probs, check_tensor
from bass.models.heads import DraftHead
from bass.ops import batch_state
from bass.records import Draft, Noise, Sequences, Window

H = TypeVar("H", bound=DraftHead)


class NamedDraft(DraftMethod):
    """Drafts with what the option `draft=` names, and obeys stop rules."""

    needs_draft: ClassVar[bool] = True
    obeys_stop_rules: ClassVar[bool] = True

    def own_head(self, context: DrafterContext, kind: type[H], called: str) -> H:
        """The head that `draft=` names. Raises `PairingError` for one of another kind."""
        head = context.head()
        if not isinstance(head, kind):
            raise PairingError(
                f"`{type(self).__name__}` drafts with {called}, and `draft` names a "
                f"`{type(head).__name__}`: give the folder of such a head, or leave out `drafter`."
            )
        return head


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


Fed = tuple[Tensor, Tensor]  # the last drafted token of each row, and its position [batch, 1]


@final
@dataclass(frozen=True)
class Chain:
    """Draws a draft token by token, each from the distribution that the tokens before it give."""

    warp: Warp
    draw: Draw
    stop_rule: StopRule | None = None

    @classmethod
    def of(cls, context: DrafterContext) -> "Chain":
        return cls(context.warp, context.draw, context.stop_rule)

    def drawn(
        self,
        logits_after: Callable[[Fed | None], Float[Tensor, "batch 1 vocab"]],
        sequences: Sequences,
        lengths: Int[Tensor, " batch"],
        k: int,
        noise: Noise,
        behind: int = 0,
    ) -> Draft:
        """A draft of up to k tokens.

        logits_after: of the next token, after the last drafted token; None: after the committed
        ones. Positions are -1 in rows whose draft has ended, else `behind` before the token's own.
        """
        drafted, fed = sequences.tokens.new_empty(len(lengths), k), None
        probs: list[Tensor] = []
        lens = sequences.lens - behind if behind else sequences.lens
        later = batch_state.draft_positions(lens, lengths, k)
        for i in range(k):
            logits = logits_after(fed)
            warped = self.warp(logits, sequences.history(drafted[:, :i]))
            at = check_probs(self.warp, warped, logits)[:, 0]
            probs.append(at)
            drafted[:, i] = self.draw(at, noise, i)
            if self.stop_rule is not None:
                own = logits[:, 0].to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
                ends = self.stop_rule(own, i)
                what = f"The answer of `{type(self.stop_rule).__name__}`"
                check_tensor(ends, what, "truth values", own.shape[:1], own.device)
                lengths = torch.where(ends, lengths.clamp(max=i + 1), lengths)
                later = batch_state.draft_positions(lens, lengths, k)
            if lengths.device.type == "cpu" and int(lengths.max()) <= i + 1:
                break
            fed = drafted[:, i : i + 1], later[:, i : i + 1]
        return Draft(drafted[:, : len(probs)], torch.stack(probs, 1), lengths)

"""A small decoder drafts token by token."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Int
from torch import Tensor

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
from bass.ops import batch_state
from bass.records import Draft, Noise, Sequences, Window


@final
@dataclass(frozen=True)
class ModelDraft(DraftMethod):
    """A separate draft model, the option `draft=`."""

    paper: ClassVar[str] = "Leviathan et al., 2023"

    @property
    def needs_draft(self) -> bool:
        return True

    @property
    def obeys_stop_rules(self) -> bool:
        return True

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
        tokens, positions = batch_state.last(sequences, 2)
        drafted = tokens.new_empty(len(tokens), k)
        probs: list[Tensor] = []
        later = batch_state.draft_positions(sequences.lens, lengths, k)
        for i in range(k):
            logits = self.scorer(Window(tokens, positions, span)).logits[:, -1:]
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
                later = batch_state.draft_positions(sequences.lens, lengths, k)
            if lengths.device.type == "cpu" and int(lengths.max()) <= i + 1:
                break
            tokens = drafted[:, i : i + 1]
            positions = later[:, i : i + 1]
        return Draft(drafted[:, : len(probs)], torch.stack(probs, 1), lengths)

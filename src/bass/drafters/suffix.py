"""Drafts by suffix matches, weighed by how often each continuation occurred."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from bass.interfaces import Drafter, DrafterContext, DraftMethod
from bass.option import within
from bass.records import Draft, Noise, RowAssignment, Sequences

# Occurrences that are compared: the longest matches, then those in the row's own text, the latest.
MOST = 32


@final
@dataclass(frozen=True)
class Suffix(DraftMethod):
    """SuffixDecoding (Oliaro et al., 2024): proposes the most frequent continuation of the row's
    last tokens, longer after a longer match.

        a b x y .. a b x z .. a b x y .. a b |     of 3 matches of a b, 3 go on with x, 2 with x y

    For each match length p, up to `longest`, and each occurrence of the last p tokens, the score is
    the mean over all occurrences of how many tokens they share with this one's continuation, up to
    `factor` p tokens: the paper's sum of frequencies along a path. The best one is the draft, of
    equal ones that of the longest match, then of the latest occurrence. It ends where the committed
    tokens do. There is no model. Cost: one comparison of the searched tokens for each p.

    memory: texts that are kept for each row and searched by all rows, the present one included; 0:
    a row searches its own text alone. With 1, rows find what others write now; with more, also what
    earlier requests of the call wrote, but for the tokens of their last step.
    """

    paper: ClassVar[str] = "Oliaro et al., 2024 (SuffixDecoding)"

    longest: int = within("[1, inf)", 8)
    factor: float = within("(0, inf)", 4.0)
    memory: int = within("[0, inf)", 0)

    @property
    def batch_invariant(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.memory == 0

    def build(self, context: DrafterContext) -> Drafter:
        shape = context.batch, self.memory, context.capacity + 1
        texts = torch.zeros(shape, dtype=torch.int64, device=context.device)
        return SuffixDrafter(self.longest, self.factor, texts, torch.zeros_like(texts[..., 0]))


@final
@dataclass(frozen=True)
class SuffixDrafter(Drafter):
    """Searches on the device: of each row the present text first, then earlier ones."""

    longest: int
    factor: float
    texts: Int[Tensor, "batch memory slots"]
    ends: Int[Tensor, "batch memory"]  # their lengths

    def reserve(self, assignment: RowAssignment) -> None:
        """Keep the texts of rows that begin anew, and drop the oldest."""
        if self.ends.shape[1]:
            new = np.flatnonzero(~assignment.continuing & (assignment.capacities > 0))
            rows = torch.as_tensor(new, device=self.ends.device)
            for kept in (self.texts, self.ends):
                kept[rows] = kept[rows].roll(1, 1)

    def propose(
        self, sequences: Sequences, lengths: Int[Tensor, " batch"], k: int, noise: Noise, span: int
    ) -> Draft:
        texts, ends = self.searched(sequences, span)
        batch, count = len(lengths), texts[0].numel()
        row = torch.arange(batch, device=lengths.device)
        text = torch.arange(texts.shape[1], device=lengths.device)
        own = text // max(self.texts.shape[1], 1) == row[:, None]
        key = 2 * self.matched(sequences, texts, ends) + own[..., None]
        order = torch.arange(count, device=lengths.device)
        best = (key.flatten(1) * count + order).topk(min(MOST, count), 1)[0]
        matched, at = best // (2 * count), best % count  # [batch, occurrences]
        left = ends.expand(batch, -1).gather(1, at // texts.shape[2]) - at % texts.shape[2] - 1
        ahead = torch.arange(1, k + 1, device=lengths.device)
        index = (at[..., None] + ahead).clamp(max=count - 1)
        after = texts.flatten(1).expand(batch, -1).gather(1, index.flatten(1)).view(index.shape)

        # unknown tokens differ from all others
        unknown = -1 - torch.arange(best.shape[1], device=lengths.device)[:, None]
        after = torch.where(ahead <= left[..., None], after, unknown)
        same = after.mT[..., None] == after.mT[:, :, None]  # [batch, k, occurrences, occurrences]
        shared = same.cumprod(1, dtype=torch.float32).sum(1).minimum(left[..., None])

        p = torch.arange(self.longest, 0, -1, device=lengths.device)
        most = torch.minimum((p * self.factor).to(torch.int64), lengths[:, None])  # [batch, p]
        member = matched[:, None] >= p[:, None]  # [batch, p, occurrences]
        total = torch.minimum(shared[:, None], most[..., None, None]) * member[..., None]
        score = total.sum(2) / member.sum(2, keepdim=True).clamp(min=1)
        score, chosen = torch.where(member, score, 0).flatten(1).max(1)
        c = chosen % best.shape[1]
        length = torch.minimum(most[row, chosen // best.shape[1]], left[row, c])
        return Draft(after[row, c].clamp(min=0), None, torch.where(score > 0, length, 0))

    def searched(self, sequences: Sequences, span: int) -> tuple[Tensor, Tensor]:
        """The texts [batch or 1, texts, slots] that each row searches, and their lengths."""
        if not self.ends.shape[1]:
            return sequences.tokens[:, None, :span], sequences.lens[:, None]
        self.texts[:, 0], self.ends[:, 0] = sequences.tokens, sequences.lens
        # whole: the span holds the present texts, of which an earlier one may be longer
        return self.texts.flatten(0, 1)[None], self.ends.flatten()[None]

    def matched(
        self, sequences: Sequences, texts: Tensor, ends: Tensor
    ) -> Int[Tensor, "batch texts slots"]:
        """How many tokens up to each position are the row's last ones; 0 at the end of a text."""
        slots, longest = texts.shape[2], self.longest
        before = F.pad(texts, (longest - 1, 0), value=-1)
        same = torch.arange(slots, device=ends.device) < ends[..., None] - 1
        matched = torch.zeros_like(same, dtype=torch.int32)
        for back in range(longest):
            at = sequences.lens[:, None] - 1 - back
            last = torch.where(at >= 0, sequences.tokens.gather(1, at.clamp(min=0)), -2)
            shift = longest - 1 - back
            same = same & (before[..., shift : shift + slots] == last[..., None])
            matched = matched + same
        return matched

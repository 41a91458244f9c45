"""Several draft methods: each row uses the first one that proposes tokens."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from bass.drafters.several import Several, SeveralDrafters
from bass.drafters.validity import check_answer, in_int64
from bass.interfaces import Drafter, DrafterContext
from bass.ops import batch_state
from bass.records import Draft, Noise, Sequences, Window, copied


@final
@dataclass(frozen=True)
class Ensemble(Several):
    """Tries `methods` in order, each for the rows without a proposal so far."""

    paper: ClassVar[str] = "after Oliaro et al., 2024 (SuffixDecoding, its hybrid form)"

    def build(self, context: DrafterContext) -> Drafter:
        drafters, reads = self.drafters(context)
        return EnsembleDrafter(drafters, context.vocab_size, reads)


@final
@dataclass(frozen=True)
class EnsembleDrafter(SeveralDrafters):
    """Merges the drafts of its parts row by row, then feeds each part the drafts of the others.

    A part with a cache feeds it the last two committed tokens and its own drafts. If the verifier
    accepts the draft of another part, the cache lacks all its tokens except the last:

        position     ... lens-1   lens .. lens-2+n   lens-1+n      of a row with n drafted tokens
        fed          [   last      d1  ..   d(n-1) ]    dn         in the next step, if accepted
    """

    drafters: tuple[Drafter, ...]
    vocab_size: int
    reads: tuple[tuple[int, ...], ...]  # indices of each part's features

    def propose(
        self, sequences: Sequences, lengths: Int[Tensor, " batch"], k: int, noise: Noise, span: int
    ) -> Draft:
        requested, drafts = lengths, []
        for drafter in self.drafters:
            given = copied((requested, noise)) if drafter.writes_inputs else (requested, noise)
            answer = drafter.propose(sequences, given[0], k, given[1], span)
            check_answer(drafter, answer, requested, k, self.vocab_size)
            draft = widened(in_int64(drafter, answer, requested), requested, k)
            # the step reports a negative length
            requested = torch.where(draft.lengths != 0, 0, requested)
            drafts.append(draft)
        merged = merge(drafts)
        # The step reports a token outside of the vocabulary; here it is no valid index.
        known = merged.tokens.clamp(0, self.vocab_size - 1)
        for drafter, own in zip(self.drafters, drafts, strict=True):
            feed(drafter, sequences, known, merged.lengths - own.lengths, span)
        return merged


def widened(draft: Draft, requested: Int[Tensor, " batch"], k: int) -> Draft:
    """The draft with k columns; zeros beyond a row's length and beyond the requested length."""
    columns = draft.tokens.shape[1]
    lengths, missing = torch.minimum(draft.lengths, requested).clamp(max=columns), k - columns
    tokens = F.pad(draft.tokens, (0, missing))
    probs = None if draft.probs is None else F.pad(draft.probs, (0, 0, 0, missing))
    return Draft(torch.where(counts(lengths, k), tokens, 0), probs, lengths)


def counts(lengths: Int[Tensor, " batch"], k: int) -> Tensor:
    """Bool [B,k]: which columns are within a row's length."""
    return torch.arange(k, device=lengths.device) < lengths[:, None]


def merge(drafts: list[Draft]) -> Draft:
    """One draft from several, of which at most one has tokens for each row.

    A token without a distribution gets a one-hot distribution.
    """
    tokens, lengths = drafts[0].tokens, drafts[0].lengths
    for draft in drafts[1:]:
        tokens, lengths = tokens + draft.tokens, lengths + draft.lengths
    probs = None
    for draft in drafts:
        if draft.probs is not None:
            known = tokens.clamp(0, draft.probs.shape[2] - 1)[..., None]
            base = torch.zeros_like(draft.probs).scatter(2, known, 1.0) if probs is None else probs
            probs = torch.where(
                counts(draft.lengths, tokens.shape[1])[..., None], draft.probs, base
            )
    return Draft(tokens, probs, lengths)


def feed(
    drafter: Drafter,
    sequences: Sequences,
    drafted: Int[Tensor, "batch k"],
    lengths: Int[Tensor, " batch"],
    span: int,
) -> None:
    """Feed a part the first `lengths[b]` of each row's last committed and drafted tokens.

    On a CPU this is skipped if all lengths are 0.
    """
    if lengths.device.type == "cpu" and not bool(lengths.any()):
        return
    last, position = batch_state.last(sequences, 1)
    window = torch.cat((last, drafted[:, :-1]), 1)
    ahead = torch.arange(window.shape[1], device=window.device)
    fed = (ahead < lengths[:, None]) & (position >= 0)
    drafter.fill(Window(window, torch.where(fed, position + ahead, -1), span))

"""Several ways to draft: for each row the first that has something to propose."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, ClassVar, TypeVar, final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from bass.drafters.model import ModelDraft
from bass.drafters.ngram import Ngram
from bass.drafters.validity import built, check_answer, check_columns, named
from bass.errors import OptionError
from bass.interfaces import Drafter, DrafterContext, DraftMethod
from bass.ops import batch_state
from bass.records import Draft, Features, Noise, RowAssignment, Sequences, Window

T = TypeVar("T")


@final
@dataclass(frozen=True)
class Ensemble(DraftMethod):
    """Asks `methods` in order, each for the rows in which none before it proposed anything."""

    paper: ClassVar[str] = "after Oliaro et al., 2024 (SuffixDecoding, its hybrid form)"

    methods: Sequence[DraftMethod] = (Ngram(), ModelDraft())

    def __post_init__(self) -> None:
        if not self.methods:
            raise OptionError("`Ensemble(methods=...)` is empty: give one way to draft or more.")
        object.__setattr__(self, "methods", tuple(self.methods))

    @property
    def batch_invariant(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return all(method.batch_invariant for method in self.methods)

    @property
    def needs_draft(self) -> bool:
        return any(method.needs_draft for method in self.methods)

    @property
    def target_layers(self) -> int:
        return max(method.target_layers for method in self.methods)

    @property
    def target_features(self) -> tuple[int, ...]:
        return tuple(sorted({i for method in self.methods for i in method.target_features}))

    @property
    def obeys_stop_rules(self) -> bool:
        return any(method.obeys_stop_rules for method in self.methods)

    def build(self, context: DrafterContext) -> Drafter:
        all_layers = self.target_features
        return EnsembleDrafter(
            tuple(built(method, context) for method in self.methods),
            context.vocab_size,
            tuple(
                tuple(all_layers.index(layer) for layer in method.target_features)
                for method in self.methods
            ),
        )


@final
@dataclass(frozen=True)
class EnsembleDrafter(Drafter):
    """Merges the drafts of its parts row by row, then tells each part what another one proposed in
    its place. Each part has its own copy of what the ensemble is given: see `lent`.

    A part with a cache feeds it the last two committed tokens, and the tokens that it drafts
    itself. Of a draft that another part made and the verifier kept, it would lack all but the last:

        position     ... lens-1   lens .. lens-2+n   lens-1+n      of a row with n drafted tokens
        told         [   last      d1  ..   d(n-1) ]    dn         fed in the next step, if kept
    """

    drafters: tuple[Drafter, ...]
    vocab_size: int
    reads: tuple[tuple[int, ...], ...] = ()  # of each part, its places in the features

    def __post_init__(self) -> None:
        if not self.reads:
            object.__setattr__(self, "reads", ((),) * len(self.drafters))

    @property
    def label(self) -> str:
        return " or ".join(map(named, self.drafters))

    def reserve(self, assignment: RowAssignment) -> None:
        for drafter, own in zip(self.drafters, self.lent(assignment), strict=True):
            drafter.reserve(own)

    def fill(self, window: Window) -> Features:
        for drafter, own in zip(self.drafters, self.lent(window), strict=True):
            drafter.fill(own)
        return ()

    @property
    def observes(self) -> bool:
        return any(drafter.observes for drafter in self.drafters)

    def observe(
        self, window: Window, features: Features, accepted: Int[Tensor, " batch"] | None
    ) -> None:
        parts = zip(self.drafters, self.reads, strict=True)
        observing = [(drafter, reads) for drafter, reads in parts if drafter.observes]
        given = lent((window, features, accepted), len(observing))
        for (drafter, reads), (seen, all_features, counts) in zip(observing, given, strict=True):
            drafter.observe(seen, tuple(all_features[i] for i in reads), counts)

    def copy_rows(self, assignment: RowAssignment) -> None:
        for drafter, own in zip(self.drafters, self.lent(assignment), strict=True):
            drafter.copy_rows(own)

    def propose(
        self, sequences: Sequences, lengths: Int[Tensor, " batch"], k: int, noise: Noise, span: int
    ) -> Draft:
        asked, drafts = lengths, []
        for drafter, own in zip(self.drafters, self.lent(noise), strict=True):
            # a part may write to its lengths
            answer = drafter.propose(sequences, asked.clone(), k, own, span)
            draft = check_answer(drafter, answer, asked, k, self.vocab_size)
            if asked.device.type == "cpu":
                check_columns(drafter, draft, asked)
            draft = widened(draft, asked, k)
            # a negative length is an error of the step, which sees it
            asked = torch.where(draft.lengths != 0, 0, asked)
            drafts.append(draft)
        merged = merge(drafts)
        # A token outside of the vocabulary is an error of the step, which sees it, and no index
        # here.
        known = merged.tokens.clamp(0, self.vocab_size - 1)
        for drafter, own in zip(self.drafters, drafts, strict=True):
            tell(drafter, sequences, known, merged.lengths - own.lengths, span)
        return merged

    def lent(self, given: T) -> Iterator[T]:
        """What each part is given."""
        return lent(given, len(self.drafters))


def lent(given: T, parts: int) -> Iterator[T]:
    """What is given, for each part that may write to it: copies, and for the last part the
    ensemble's own, which no one reads after it.
    """
    for _ in range(parts - 1):
        yield copied(given)
    if parts:
        yield given


def copied(value: Any) -> Any:
    """A copy of the tensors and arrays in a value, in tuples and in records."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, tuple):
        return tuple(map(copied, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{name: copied(part) for name, part in vars(value).items()})
    return value


def widened(draft: Draft, asked: Int[Tensor, " batch"], k: int) -> Draft:
    """The draft as k columns, with zeros for what is beyond a row's length or beyond what it was
    asked for.
    """
    columns = draft.tokens.shape[1]
    lengths, missing = torch.minimum(draft.lengths, asked).clamp(max=columns), k - columns
    tokens = F.pad(draft.tokens, (0, missing))
    probs = None if draft.probs is None else F.pad(draft.probs, (0, 0, 0, missing))
    return Draft(torch.where(counts(lengths, k), tokens, 0), probs, lengths)


def counts(lengths: Int[Tensor, " batch"], k: int) -> Tensor:
    """Bool [B,k]: which columns are within a row's length."""
    return torch.arange(k, device=lengths.device) < lengths[:, None]


def merge(drafts: list[Draft]) -> Draft:
    """One draft of several, no two of which have tokens for the same row.

    A token without a distribution gets a one-hot.
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


def tell(
    drafter: Drafter,
    sequences: Sequences,
    drafted: Int[Tensor, "batch k"],
    lengths: Int[Tensor, " batch"],
    span: int,
) -> None:
    """Feed the first `lengths[b]` of each row's last committed and drafted tokens.

    On a CPU nothing is done where all are 0.
    """
    if lengths.device.type == "cpu" and not bool(lengths.any()):
        return
    last, position = batch_state.last(sequences, 1)
    window = torch.cat((last, drafted[:, :-1]), 1)
    ahead = torch.arange(window.shape[1], device=window.device)
    fed = (ahead < lengths[:, None]) & (position >= 0)
    drafter.fill(Window(window, torch.where(fed, position + ahead, -1), span))

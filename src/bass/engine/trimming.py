"""Applies a trim in a step, and keeps the acceptance of the rows' past drafts for it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from bass.interfaces import DraftTrim, StopRule
from bass.interfaces.answers import check_tensor
from bass.records import Draft, Drafted, Sequences, Verdict

KEPT = 0.9  # of a count, in each step of its row: it remembers about ten steps


@final
@dataclass(frozen=True)
class Recorder(StopRule):
    """Follows `rule`, if there is one, and keeps the distributions of the step that it is asked
    about.
    """

    rule: StopRule | None
    probs: list[Tensor] = field(default_factory=list)

    def __call__(
        self, draft_probs: Float[Tensor, "batch vocab"], so_far: int
    ) -> Bool[Tensor, " batch"]:
        del self.probs[so_far:]
        self.probs.append(draft_probs)
        if self.rule is not None:
            return self.rule(draft_probs, so_far)
        return torch.zeros(len(draft_probs), dtype=torch.bool, device=draft_probs.device)

    def take(self, k: int) -> Float[Tensor, "batch k vocab"] | None:
        """The distributions of the first k slots, zeros where none was asked about."""
        found = torch.stack(self.probs[:k], 1) if self.probs else None
        self.probs.clear()
        return None if found is None else F.pad(found, (0, 0, 0, k - found.shape[1]))


@final
@dataclass(frozen=True)
class Trimming:
    """A trim with its counts of the rows, by slot: see `Drafted`. They are updated in place."""

    trim: DraftTrim
    tried: Float[Tensor, "batch slots"]  # device
    accepted: Float[Tensor, "batch slots"]
    recorder: Recorder | None

    @classmethod
    def of(
        cls, trim: DraftTrim | None, rows: Sequences, longest: int, rule: StopRule | None
    ) -> "Trimming | None":
        """The trim, if there is one, for these rows with drafts of up to `longest` tokens. rule:
        that of the drafter, as `recorded` makes it.
        """
        if trim is None:
            return None
        with torch.inference_mode(False):  # writable inside and outside of it
            size = len(rows.lens), min(longest, rows.capacity)
            tried, accepted = torch.zeros((2, *size), device=rows.lens.device).unbind()
        return cls(trim, tried, accepted, rule if isinstance(rule, Recorder) else None)

    def __call__(self, rows: Sequences, draft: Draft, is_first: Callable[[str], bool]) -> Draft:
        """The part of the draft to verify. The type and shape of the first answer are checked."""
        fading = torch.where(rows.active, torch.where(rows.steps > 0, KEPT, 0.0), 1.0)[:, None]
        self.tried.mul_(fading)
        self.accepted.mul_(fading)
        k = draft.tokens.shape[1]
        if not k:
            return draft
        probs = None if self.recorder is None else self.recorder.take(k)
        tokens = draft.tokens if self.trim.reads_tokens else None
        counts = self.tried[:, :k], self.accepted[:, :k]
        kept = self.trim(Drafted(draft.lengths, *counts, probs, tokens))
        if is_first("trim"):
            what = f"The answer of `{type(self.trim).__name__}`"
            check_tensor(kept, what, "integers", draft.lengths.shape, draft.lengths.device)
        within = torch.minimum(kept.to(torch.int64), draft.lengths).clamp(min=0)
        return replace(draft, lengths=within)

    def learn(self, kept: Draft, verdict: Verdict) -> None:
        """Count what the verdict says of the slots of the rows."""
        k = kept.tokens.shape[1]
        slots, accepted = torch.arange(k, device=self.tried.device), verdict.accepted[:, None]
        self.tried[:, :k] += slots < torch.minimum(accepted + 1, kept.lengths[:, None])
        self.accepted[:, :k] += slots < torch.minimum(accepted, kept.lengths[:, None])


def recorded(rule: StopRule | None, trim: DraftTrim | None) -> StopRule | None:
    """The stop rule of a drafter, which a trim that reads distributions listens to."""
    return Recorder(rule) if trim is not None and trim.reads_probs else rule

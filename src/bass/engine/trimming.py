"""Applies a trim in a step, and keeps for it the acceptance of the rows' past drafts."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bass.interfaces import DraftTrim, StopRule
from bass.interfaces.answers import check_tensor
from bass.records import Draft, Drafted, Sequences, Verdict

TOO_MANY = -1  # in the report of a row
KEPT = 0.9  # of a count, in each step of its row: it remembers about ten steps


@final
@dataclass(frozen=True)
class Recorder(StopRule):
    """Follows `rule`, if there is one, and keeps the distributions that it receives."""

    rule: StopRule | None
    probs: list[Tensor] = field(default_factory=list)

    def __call__(
        self, draft_probs: Float[Tensor, "batch vocab"], so_far: int
    ) -> Bool[Tensor, " batch"]:
        del self.probs[so_far:]
        self.probs.append(draft_probs)
        return draft_probs[:, 0] < 0 if self.rule is None else self.rule(draft_probs, so_far)

    def take(self, k: int) -> Float[Tensor, "batch k vocab"] | None:
        """Those of the first k slots of a step, zeros for those that it did not receive."""
        found = torch.stack(self.probs[:k], 1) if self.probs else None
        self.probs.clear()
        return None if found is None else F.pad(found, (0, 0, 0, k - found.shape[1]))


@final
@dataclass(frozen=True)
class Trimming:
    """A trim, with `tried` and `accepted` of `Drafted` for the rows, which are updated in place,
    and its `cost` by drafter and length of the draft, 0 until it is measured.
    """

    trim: DraftTrim
    recorder: Recorder | None
    counts: Float[Tensor, "two batch slots"]  # device
    costs: Float[Tensor, "drafters lengths"]  # device

    @classmethod
    def of(
        cls, parts: Any, rows: Sequences, rule: StopRule | None, drafters: int
    ) -> "Trimming | None":
        """The trim of these strategies, if there is one. rule: of the drafter."""
        if parts.trim is None:
            return None
        size = len(rows.lens), min(int(parts.policy.max_length), rows.capacity)
        with torch.inference_mode(False):  # writable inside and outside of it
            counts = torch.zeros((2, *size), device=rows.lens.device)
            lengths = 1 + int(parts.policy.max_length)
            costs = torch.zeros((drafters, lengths), device=rows.lens.device)
        return cls(parts.trim, rule if isinstance(rule, Recorder) else None, counts, costs)

    def __call__(
        self,
        rows: Sequences,
        draft: Draft,
        drafter: int,
        packed: int | None,
        is_first: Callable[[str], bool],
    ) -> tuple[Draft, Int[Tensor, " batch"]]:
        """The part of the draft of this drafter to verify, and how many tokens of each row are not,
        or `TOO_MANY` if more are kept than fit in a packed window of this size; then none is
        verified.

        The type and shape of the first answer are checked.
        """
        fading = torch.where(rows.active, torch.where(rows.steps > 0, KEPT, 0.0), 1.0)
        self.counts.mul_(fading[:, None])
        if not (k := draft.tokens.shape[1]):
            return draft, torch.zeros_like(draft.lengths)
        probs = None if self.recorder is None else self.recorder.take(k)
        tokens = draft.tokens if self.trim.reads_tokens else None
        tried, accepted = self.counts[:, :, :k]
        room = None
        if packed is not None and self.trim.reads_places:
            room = packed - rows.active.sum()
        cost = self.costs[drafter, k] if self.trim.reads_cost else None
        kept = self.trim(Drafted(draft.lengths, tried, accepted, probs, tokens, room, cost))
        if is_first("trim"):
            what = f"The answer of `{type(self.trim).__name__}`"
            check_tensor(kept, what, "integers", draft.lengths.shape, draft.lengths.device)
        kept = torch.minimum(kept.long(), draft.lengths).clamp(min=0)
        trimmed = draft.lengths - kept
        if packed is not None:
            fits = (kept + rows.active).sum() <= packed
            kept, trimmed = torch.where(fits, kept, 0), torch.where(fits, trimmed, TOO_MANY)
        return replace(draft, lengths=kept), trimmed

    def learn(self, kept: Draft, verdict: Verdict) -> None:
        """Count what the verdict says of the slots."""
        slots = torch.arange(k := kept.tokens.shape[1], device=self.counts.device)
        judged = torch.stack((verdict.accepted + 1, verdict.accepted))
        self.counts[:, :, :k] += slots < torch.minimum(judged, kept.lengths)[..., None]

"""Ends a draft where the draft model's entropy is high."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bass.interfaces import StopRule
from bass.option import within


@final
@dataclass(frozen=True)
class Svip(StopRule):
    """SVIP (Zhang et al., 2024): end after a position where sqrt(H) > `threshold`, H being the
    draft's entropy in nats.

    The authors' program ends a draft at sqrt(0.15 H) > 0.3, which is the default here: sqrt(H) >
    0.3 / sqrt(0.15), 0.6 nats.
    """

    paper: ClassVar[str] = "Zhang et al., 2024 (SVIP)"

    threshold: float = within("[0, inf)", 0.775)

    def __call__(
        self, draft_probs: Float[Tensor, "batch vocab"], so_far: int
    ) -> Bool[Tensor, " batch"]:
        return torch.special.entr(draft_probs).sum(-1).sqrt() > self.threshold

"""Ends a draft where an entropy bound on its acceptance is low."""

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bass.interfaces import StopRule
from bass.option import within


@final
@dataclass(frozen=True)
class Entropy(StopRule):
    """AdaEDL (Agrawal et al., 2024): end after a position where 1 - sqrt(gamma * H) < `threshold`.

    H is the entropy of the draft's distribution in nats; the left side estimates a lower bound of
    the probability that the token is accepted, with the paper's gamma. The paper adapts the
    threshold to the observed acceptance; here it is fixed, and its default is of this project: a
    draft ends at more than 0.8 nats.
    """

    paper: ClassVar[str] = "Agrawal et al., 2024 (AdaEDL), with a fixed threshold"

    threshold: float = within("(-inf, 1)", 0.6)
    gamma: float = within("(0, inf)", 0.2)

    def __call__(
        self, draft_probs: Float[Tensor, "batch vocab"], so_far: int
    ) -> Bool[Tensor, " batch"]:
        return (
            1 - math.sqrt(self.gamma) * torch.special.entr(draft_probs).sum(-1).sqrt()
            < self.threshold
        )

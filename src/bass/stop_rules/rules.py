"""Rules that end a draft by the draft model's own distribution, one class for each method."""

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
class Confidence(StopRule):
    """End after a position whose largest draft probability is below `threshold`.

    Hugging Face's `assistant_confidence_threshold` compares the probability of the drawn token. At
    temperature 0 that is the largest one; at any other the two differ. A rule here does not see the
    token, so it cannot retract an improbable one, which would bias the output.
    """

    paper: ClassVar[str] = "Hugging Face, assisted generation"

    threshold: float = within("(0, 1]", 0.4)

    def __call__(
        self, draft_probs: Float[Tensor, "batch vocab"], so_far: int
    ) -> Bool[Tensor, " batch"]:
        return draft_probs.amax(-1) < self.threshold


@final
@dataclass(frozen=True)
class Entropy(StopRule):
    """AdaEDL (Agrawal et al., 2024): end after a position where 1 - sqrt(gamma * H) < `threshold`.

    H is the entropy of the draft's distribution in nats; the left side estimates a lower bound of
    the probability that the token is accepted, with the paper's gamma. The paper adapts the
    threshold to the observed acceptance; here it is fixed, and its default is of this project: a
    draft ends at more than 0.8 nats. SVIP (Zhang et al., 2024) is the same rule with another
    scale: its authors' program ends a draft at sqrt(0.15 H) > 0.3, that is at 0.6 nats, as with a
    `threshold` of 0.6536.
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

"""Ends a draft where an entropy bound on its acceptance is low."""

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bass.errors import OptionError, is_finite
from bass.interfaces import StopRule


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

    threshold: float = 0.6
    gamma: float = 0.2

    def __post_init__(self) -> None:
        if not (is_finite(self.threshold) and self.threshold < 1):
            raise OptionError(
                f"`Entropy(threshold={self.threshold!r})` is out of range: give a number below 1."
            )
        if not (is_finite(self.gamma) and self.gamma > 0):
            raise OptionError(
                f"`Entropy(gamma={self.gamma!r})` is out of range: give a number above 0."
            )

    def __call__(
        self, draft_probs: Float[Tensor, "batch vocab"], so_far: int
    ) -> Bool[Tensor, " batch"]:
        return (
            1 - math.sqrt(self.gamma) * torch.special.entr(draft_probs).sum(-1).sqrt()
            < self.threshold
        )

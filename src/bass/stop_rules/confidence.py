"""Ends a draft where no token has a high draft probability."""

from dataclasses import dataclass
from typing import ClassVar, final

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

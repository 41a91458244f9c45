"""Speculative rejection sampling, each row with its own draft length."""

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from bass.interfaces import Verifier
from bass.ops import verification
from bass.records import Draft, Noise, Verdict


@final
@dataclass(frozen=True)
class Rejection(Verifier):
    """Accept a drafted token with probability min(1, target/draft); replace the first rejected one
    from the residual.
    """

    lossless: ClassVar[bool] = True
    judges_jointly: ClassVar[bool] = False
    paper: ClassVar[str] = "Leviathan et al., 2023; Chen et al., 2023"

    def __call__(
        self, draft: Draft, target_probs: Float[Tensor, "batch window vocab"], noise: Noise
    ) -> Verdict:
        return verification.rejection(draft, target_probs, noise)

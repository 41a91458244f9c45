"""Compares drafts with a sample of the target."""

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from bass.interfaces import Verifier
from bass.ops.batch_state import leading
from bass.ops.sampling import draw
from bass.records import Draft, Noise, Verdict


@final
@dataclass(frozen=True)
class ExactMatch(Verifier):
    """Draw a token from the target at every slot, and accept the draft while it equals that token.

    It ignores the draft's distribution. It accepts a token with probability sum(target * draft),
    less than `Rejection` unless the draft is deterministic.
    """

    lossless: ClassVar[bool] = True
    judges_jointly: ClassVar[bool] = False
    paper: ClassVar[str] = "Miao et al., 2024 (naive sampling)"

    def __call__(
        self, draft: Draft, target_probs: Float[Tensor, "batch window vocab"], noise: Noise
    ) -> Verdict:
        tokens = draw(target_probs, noise.residual[:, : target_probs.shape[1]])
        return Verdict(tokens, leading(draft.tokens == tokens[:, :-1], draft.lengths))

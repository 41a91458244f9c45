"""Typical acceptance: the rule of Medusa (Cai et al., 2024)."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bass.interfaces import Verifier
from bass.ops.batch_state import leading
from bass.ops.verification import emit, target_after
from bass.option import within
from bass.records import Draft, Noise, Verdict


@final
@dataclass(frozen=True)
class Typical(Verifier):
    """Accept a drafted token whose target probability exceeds min(epsilon, delta * exp(-entropy of
    the target)). NOT lossless.

    It accepts the draft's choice among the target's plausible tokens, so the output has neither
    model's distribution. At temperature 0 it is the target's greedy output.
    """

    lossless: ClassVar[bool] = False
    judges_jointly: ClassVar[bool] = False
    caveat: ClassVar[str] = (
        "plausible tokens are accepted, so the text follows neither model's distribution"
    )
    paper: ClassVar[str] = "Cai et al., 2024 (Medusa)"

    epsilon: float = within("[0, 1)", 0.09)
    delta: float = within("[0, 1)", 0.3)

    def __call__(
        self, draft: Draft, target_probs: Float[Tensor, "batch window vocab"], noise: Noise
    ) -> Verdict:
        accepted = leading(typical(draft, target_probs, self.epsilon, self.delta), draft.lengths)
        return emit(draft, accepted, target_after(target_probs, accepted), noise)


def typical(
    draft: Draft, target_probs: Float[Tensor, "batch window vocab"], epsilon: float, delta: float
) -> Bool[Tensor, "batch k"]:
    """Whether each drafted token is plausible enough: the higher the target's entropy (in nats),
    the lower the threshold.
    """
    judged = target_probs[:, : draft.tokens.shape[1]].to(
        torch.promote_types(target_probs.dtype, torch.float32)
    )
    floor = (delta * (-torch.special.entr(judged).sum(2)).exp()).clamp(max=epsilon)
    return judged.gather(2, draft.tokens[..., None])[..., 0] > floor

"""Compares drafts with tokens of the target: a sample, or those that the seed determines (Daliri et
al., 2024).
"""

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from bass.interfaces import Verifier
from bass.ops.batch_state import leading
from bass.ops.noise import exponential_race
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
    ignores_draft: ClassVar[bool] = True
    judges_jointly: ClassVar[bool] = False
    paper: ClassVar[str] = "Miao et al., 2024 (naive sampling)"

    def __call__(
        self, draft: Draft, target_probs: Float[Tensor, "batch window vocab"], noise: Noise
    ) -> Verdict:
        tokens = draw(target_probs, noise.residual[:, : target_probs.shape[1]])
        return Verdict(tokens, leading(draft.tokens == tokens[:, :-1], draft.lengths))


@final
@dataclass(frozen=True)
class Coupled(Verifier):
    """The token at position t is argmax of log target + Gumbel noise of (row, t); a draft is
    accepted while it equals that token.

    So a seed determines the tokens, for every drafter, policy, length and temperature, and without
    drafts. Acceptance is sum(target * draft) for a drafter with independent noise, and at least
    (1 - d) / (1 + d) for one with the same exponential race (`bass.ops.noise.exponential_race`),
    with d the total variation between target and draft.
    """

    lossless: ClassVar[bool] = True
    ignores_draft: ClassVar[bool] = True
    judges_jointly: ClassVar[bool] = False
    coupled: ClassVar[bool] = True
    paper: ClassVar[str] = "Daliri et al., 2024"

    def __call__(
        self, draft: Draft, target_probs: Float[Tensor, "batch window vocab"], noise: Noise
    ) -> Verdict:
        tokens = exponential_race(target_probs, noise.keys, noise.first)
        return Verdict(tokens, leading(draft.tokens == tokens[:, :-1], draft.lengths))

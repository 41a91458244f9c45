"""Drafts compared with the tokens that a seed and the target have determined (Daliri et al.,
2024).
"""

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from bass.interfaces import Verifier
from bass.ops.batch_state import leading
from bass.ops.noise import exponential_race
from bass.records import Draft, Noise, Verdict


@final
@dataclass(frozen=True)
class Coupled(Verifier):
    """The token at position t is argmax of log target + Gumbel noise of (row, t); a draft is kept
    while it is that token.

    So one seed gives the same tokens with every drafter, policy and length, and without any, at
    every temperature. A drafter with noise of its own is right with probability sum(target *
    draft); one that runs the same race (`bass.ops.noise.exponential_race`) is right with (1 - d) /
    (1 + d) or more, d the total variation between the two.
    """

    lossless: ClassVar[bool] = True
    judges_jointly: ClassVar[bool] = False
    coupled: ClassVar[bool] = True
    paper: ClassVar[str] = "Daliri et al., 2024"

    def __call__(
        self, draft: Draft, target_probs: Float[Tensor, "batch window vocab"], noise: Noise
    ) -> Verdict:
        tokens = exponential_race(target_probs, noise.keys, noise.first)
        return Verdict(tokens, leading(draft.tokens == tokens[:, :-1], draft.lengths))

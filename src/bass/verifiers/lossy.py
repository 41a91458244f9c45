"""Verifiers that are not lossless: by rates, for benchmarks, whose TEXT MEANS NOTHING; and typical
acceptance.
"""

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
class Synthetic(Verifier):
    """Accept drafted token i with probability rates[i], given all before it, WHATEVER THE TOKENS
    ARE. NOT lossless.

    One number applies to every position, and the last of several to all later ones. It measures the
    speed of a drafter with a known acceptance. It ignores tokens and probabilities; only the token
    after the accepted ones comes from the target. Use it with `ignore_eos`: a drafted end of
    sequence means nothing here.
    """

    lossless: ClassVar[bool] = False
    judges_jointly: ClassVar[bool] = False
    caveat: ClassVar[str] = "drafted tokens are accepted at fixed rates, so THE TEXT MEANS NOTHING"
    paper: ClassVar[str] = "this project, for benchmarks"

    rates: float | tuple[float, ...] = within("[0, 1]", 0.8)

    def rate(self, i: int) -> float:
        """Acceptance of the drafted token i = 0, 1 ..."""
        return (
            self.rates[min(i, len(self.rates) - 1)] if isinstance(self.rates, tuple) else self.rates
        )

    def __call__(
        self, draft: Draft, target_probs: Float[Tensor, "batch window vocab"], noise: Noise
    ) -> Verdict:
        if isinstance(self.rates, tuple):
            passes = torch.empty_like(draft.tokens, dtype=torch.bool)
            # a tensor of rates would be a copy from the host, which a CUDA graph cannot capture
            for i in range(passes.shape[1]):
                passes[:, i] = noise.accept[:, i] < self.rate(i)
        else:
            passes = noise.accept[:, : draft.tokens.shape[1]] < self.rates
        accepted = leading(passes, draft.lengths)
        return emit(draft, accepted, target_after(target_probs, accepted), noise)


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

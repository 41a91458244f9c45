"""What keeps a prefix of a draft, and what makes probabilities of logits."""

from abc import ABC, abstractmethod
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from bass.records import Draft, History, Noise, Verdict


class Verifier(ABC):
    """Accepts a prefix of each row's draft and adds one token. `lossless`: the output law is
    exactly the target's.

    Its arguments are read-only: after the call the engine reads `draft.probs` and `target_probs`
    again, for its checks and for what a run reports.
    `coupled`: it draws with the noise of positions, and keeps the most of a draft that was drawn
    with the same noise.
    `judges_jointly`: whether it keeps a token may depend on the target's distributions after it, so
    that one of them which is none (not finite, say) ends the run. False where it cannot.
    `caveat`: what a run's summary says of the text where it is not lossless.
    """

    lossless: ClassVar[bool]
    coupled: ClassVar[bool] = False
    judges_jointly: ClassVar[bool] = True
    caveat: ClassVar[str] = ""
    paper: ClassVar[str] = ""

    @abstractmethod
    def __call__(
        self, draft: Draft, target_probs: Float[Tensor, "batch window vocab"], noise: Noise
    ) -> Verdict: ...


class Warp(ABC):
    """Logits to probabilities: temperature, top-k, top-p, min-p, penalties.

    Draft and target go through the same one. It makes distributions (finite, nowhere negative, of
    sum 1) of logits of which one is finite and none is NaN or +inf: else the run ends.
    """

    @abstractmethod
    def __call__(
        self, logits: Float[Tensor, "batch window vocab"], history: History
    ) -> Float[Tensor, "batch window vocab"]: ...

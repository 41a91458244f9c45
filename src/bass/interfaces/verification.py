"""The contracts of verifiers, of trims, and of warps from logits to probabilities."""

from abc import ABC, abstractmethod
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from bass.option import Ranged
from bass.records import Draft, Drafted, History, Noise, Verdict


class Verifier(Ranged, ABC):
    """Accepts a prefix of each row's draft and adds one token.

    Its arguments are read-only: after the call the engine reads them again.
    `lossless`: the output has exactly the target's distribution.
    `coupled`: its noise is keyed by position; it accepts the most of a draft that was drawn with
    the same noise.
    `ignores_draft`: its tokens are the target's whatever was drafted, so any `DraftTrim` is exact.
    `judges_jointly`: whether it accepts a token may depend on the target's distributions at later
    positions, so an invalid one there (such as NaN) ends the run.
    `writes_inputs`: it writes to the draft or the noise, and gets copies of both.
    `caveat`: the warning in a run's summary if the verifier is not lossless.
    """

    lossless: ClassVar[bool]
    coupled: ClassVar[bool] = False
    ignores_draft: ClassVar[bool] = False
    judges_jointly: ClassVar[bool] = True
    writes_inputs: ClassVar[bool] = False
    caveat: ClassVar[str] = ""
    paper: ClassVar[str] = ""

    @abstractmethod
    def __call__(
        self, draft: Draft, target_probs: Float[Tensor, "batch window vocab"], noise: Noise
    ) -> Verdict:
        """The accepted lengths and the emitted tokens of all rows."""


class DraftTrim(Ranged, ABC):
    """Decides after drafting, on the device, how many drafted tokens of each row are verified.

    `lossless`: slot j of a row is kept by nothing but what is known before its token is drawn: the
    row's distributions up to slot j, its tokens before it, and what other rows reveal by slots that
    come earlier (docs/correctness.md has the theorem). `batch_invariant`: a row's length does not
    depend on other rows. `reads_probs`, `reads_tokens`: what it reads of `Drafted`.
    `reads_places`: it keeps at most `Drafted.places` tokens, so that a GPU's packed window can be
    as large as earlier steps needed, and not as `most` says. `reads_cost`: it reads
    `Drafted.cost`, which the engine then measures once, as the step times of `auto`.
    """

    paper: ClassVar[str] = ""
    lossless: ClassVar[bool] = True
    batch_invariant: ClassVar[bool] = True
    reads_probs: ClassVar[bool] = False
    reads_tokens: ClassVar[bool] = False
    reads_places: ClassVar[bool] = False
    reads_cost: ClassVar[bool] = False

    def most(self, rows: int, k: int) -> int:
        """An upper bound on the tokens that all rows together keep of drafts of up to k tokens. A
        GPU's packed windows have room for that many.
        """
        return rows * k

    @abstractmethod
    def __call__(self, drafted: Drafted) -> Int[Tensor, " batch"]:
        """The kept lengths, each from 0 to the row's own, without a write to the argument.

        It runs in the CUDA graph of a step: no host read, no shape that depends on values.
        """


class Warp(ABC):
    """Maps logits to probabilities: temperature, top-k, top-p, min-p, penalties.

    Draft and target use the same one. Its results must be distributions (finite, nowhere negative,
    summing to 1) if one logit is finite and none is NaN or +inf; otherwise the run ends. `history`
    holds the rows of the run themselves: read-only.
    """

    @abstractmethod
    def __call__(
        self, logits: Float[Tensor, "batch window vocab"], history: History
    ) -> Float[Tensor, "batch window vocab"]: ...

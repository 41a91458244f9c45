"""The drafter of autoregressive decoding."""

from dataclasses import dataclass
from typing import final

from jaxtyping import Int
from torch import Tensor

from bass.interfaces import Drafter
from bass.records import Draft, Noise, Sequences


@final
@dataclass(frozen=True)
class NoDrafter(Drafter):
    """Proposes nothing: every step is autoregressive.

    It has no state and no cost.
    """

    def propose(
        self, sequences: Sequences, lengths: Int[Tensor, " batch"], k: int, noise: Noise, span: int
    ) -> Draft:
        return Draft(
            sequences.tokens.new_zeros(len(lengths), k), None, lengths.new_zeros(len(lengths))
        )

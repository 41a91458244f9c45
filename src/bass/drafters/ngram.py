"""Drafts by prompt lookup."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from bass.interfaces import Drafter
from bass.option import within
from bass.records import Draft, Noise, Sequences


@final
@dataclass(frozen=True)
class Ngram(Drafter):
    """Prompt lookup (Saxena, 2023): proposes the tokens that followed an earlier occurrence of the
    row's last tokens.

        tokens   a b c x y z ... a b c |      a b c occurred before: x y z is the draft
                       ^ at            ^ lens

    It searches for the last `longest` committed tokens first, then one fewer, down to `shortest`;
    of several occurrences the latest counts. The draft ends at the end of the committed tokens. A
    row whose last tokens are new has no draft. There is no model and no state. Cost: one comparison
    of the batch's tokens for each length.
    """

    paper: ClassVar[str] = "Saxena, 2023 (prompt lookup)"

    longest: int = within("[1, inf)", 3)
    shortest: int = within("[1, {longest}]", 1)

    def propose(
        self, sequences: Sequences, lengths: Int[Tensor, " batch"], k: int, noise: Noise, span: int
    ) -> Draft:
        lens, at = sequences.lens, self.latest(sequences, span)
        ahead = torch.arange(1, k + 1, device=lens.device)
        positions = (at[:, None] + ahead).clamp(max=sequences.capacity)
        known = torch.where(at >= 0, lens - 1 - at, 0)
        return Draft(sequences.tokens.gather(1, positions), None, torch.minimum(lengths, known))

    def latest(self, sequences: Sequences, span: int) -> Int[Tensor, " batch"]:
        """The last earlier occurrence of the row's longest matching suffix: the position of its
        last token, or -1.
        """
        tokens, lens = sequences.tokens[:, :span], sequences.lens
        position = torch.arange(tokens.shape[1], device=lens.device)
        same = position < lens[:, None] - 1  # the end of an occurrence before the row's own end
        at = torch.full_like(lens, -1)
        for back in range(min(self.longest, tokens.shape[1])):
            wanted = sequences.tokens.gather(1, (lens[:, None] - 1 - back).clamp(min=0))
            same = same & F.pad(tokens[:, : tokens.shape[1] - back] == wanted, (back, 0))
            if back + 1 >= self.shortest:
                found = torch.where(same, position, -1).amax(1)
                at = torch.where(found >= 0, found, at)
        return at

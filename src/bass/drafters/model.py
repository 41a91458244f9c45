"""A small decoder that drafts token by token."""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from bass.interfaces import Drafter, Scorer, StopRule, Warp
from bass.records import Draft, History, Noise, Sequences
from bass.sampling import draw


@final
@dataclass(frozen=True)
class ModelDrafter(Drafter):
    """Samples from the draft model's warped distribution (Chen et al., 2023).

    Each step begins with the last *two* committed tokens: after a fully accepted draft the cache lacks the first of
    them, and feeding a token again changes nothing.

        step    0: [ lens-2, lens-1 ] -> d1     1: [ d1 ] -> d2     2: [ d2 ] -> d3 ...
    """

    scorer: Scorer
    warp: Warp
    stop_rule: StopRule | None = None

    def reserve(self, extents: np.ndarray) -> None:
        self.scorer.reserve(extents)

    def fill(self, tokens: Int[Tensor, "some window"], positions: Int[Tensor, "some window"], span: int, start: int) -> None:
        self.scorer.fill(tokens, positions, span, start)

    def copy_rows(self, source: np.ndarray) -> None:
        self.scorer.copy_rows(source)

    def propose(self, sequences: Sequences, lengths: Int[Tensor, " batch"], k: int, noise: Noise, span: int) -> Draft:
        tokens, positions = sequences.last(2)
        drafted = tokens.new_zeros(len(tokens), k)
        probs: list[Tensor] = []
        for i in range(k):
            logits = self.scorer(tokens, positions, span)[:, -1:]
            at = self.warp(logits, History(sequences.tokens, sequences.lens, drafted[:, :i]))[:, 0]
            probs.append(at)
            drafted[:, i] = draw(at, noise.draft[:, i])
            if self.stop_rule is not None:
                lengths = torch.where(self.stop_rule(at, i), lengths.clamp(max=i + 1), lengths)
            tokens = drafted[:, i : i + 1]
            here = sequences.lens[:, None] + i
            positions = torch.where((i + 1 < lengths)[:, None], here, -1)
        return Draft(drafted, torch.stack(probs, 1), lengths)

"""Drafters for tests, with the target's output known in advance, and a stop rule."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bass.interfaces import Drafter, StopRule
from bass.records import Draft, Noise, Sequences


@final
@dataclass(frozen=True)
class Scripted(Drafter):
    """Replays each row's known output (by its noise key), with an error wherever `errs(key,
    position)` is true.

    With `soft`, it reports a one-hot distribution, else None, which is equivalent. Beyond a row's
    length its tokens are right, so a test detects code that counts them.
    """

    outputs: dict[int, list[int]]
    errs: Callable[[int, int], bool]
    vocab: int
    soft: bool = False

    def propose(
        self, sequences: Sequences, lengths: Int[Tensor, " batch"], k: int, noise: Noise, span: int
    ) -> Draft:
        rows: list[list[int]] = []
        for key, length in zip(sequences.keys.tolist(), sequences.lens.tolist(), strict=True):
            known = self.outputs.get(key, [])
            right = [known[p] if p < len(known) else 0 for p in range(length, length + k)]
            rows.append(
                [
                    (t + 1) % self.vocab if self.errs(key, length + i) else t
                    for i, t in enumerate(right)
                ]
            )
        tokens = torch.tensor(rows, dtype=torch.int64, device=lengths.device).reshape(len(rows), k)
        return Draft(
            tokens, F.one_hot(tokens, self.vocab).to(torch.float32) if self.soft else None, lengths
        )


@final
@dataclass(frozen=True)
class Unsure(StopRule):
    """Ends a draft if no token's probability exceeds `threshold`, or if the most probable token id
    is a multiple of three.

    The second condition also ends the drafts of one-hot distributions. The rule never sees the
    drawn token.
    """

    threshold: float = 0.6

    def __call__(
        self, draft_probs: Float[Tensor, "batch vocab"], so_far: int
    ) -> Bool[Tensor, " batch"]:
        return (draft_probs.amax(-1) < self.threshold) | (draft_probs.argmax(-1) % 3 == 2)

"""Strategies for tests: policies of mixed lengths, a scripted drafter and a stop rule."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bass.interfaces import Drafter, DraftLengthPolicy, StopRule
from bass.records import Draft, Feedback, Noise, Sequences


@final
@dataclass(frozen=True)
class OwnPast(DraftLengthPolicy[np.ndarray]):
    """Scrambled lengths 0..max_length; each row's is a function of its own accepted counts."""

    max_length: int = 4

    def init(self, batch_size: int) -> np.ndarray:
        return np.full(batch_size, 3)

    def lengths(self, state: np.ndarray) -> np.ndarray:
        return ((state * 2654435761 % 1000003) % (self.max_length + 1)).astype(np.int32)

    def update(self, state: np.ndarray, feedback: Feedback) -> np.ndarray:
        return (state * 31 + feedback.accepted + 7) % 9973

    def reset(self, state: np.ndarray, rows: np.ndarray) -> np.ndarray:
        fresh = state.copy()
        fresh[rows] = 3
        return fresh


class ByStep(DraftLengthPolicy[tuple[int, int]]):
    """The base of policies whose lengths depend on the row's index and the step's number.

    A state is (batch, step).
    """

    def init(self, batch_size: int) -> tuple[int, int]:
        return batch_size, 0

    def update(self, state: tuple[int, int], feedback: Feedback) -> tuple[int, int]:
        return state[0], state[1] + 1


@final
@dataclass(frozen=True)
class ByRow(ByStep):
    """Every length 0..max_length in every batch and step: row b's is (b + step) modulo max_length +
    1.

    every: only every so many rows have these lengths, and the others `max_length`, so that many
    samples reach the last slots of a draft.
    """

    max_length: int = 3
    every: int = 1

    def lengths(self, state: tuple[int, int]) -> np.ndarray:
        batch, step = state
        rows = np.arange(batch)
        own = (rows // self.every + step) % (self.max_length + 1)
        return np.where(rows % self.every, self.max_length, own).astype(np.int32)


@final
@dataclass(frozen=True)
class Cycle(ByStep):
    """One length for the batch, from a repeated list with runs of zeros between drafts."""

    cycle: tuple[int, ...] = (3, 0, 0, 2, 0, 4)

    @property
    def max_length(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return max(self.cycle)

    def lengths(self, state: tuple[int, int]) -> np.ndarray:
        batch, step = state
        return np.full(batch, self.cycle[step % len(self.cycle)], dtype=np.int32)


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
            at = range(length, length + k)
            right = [known[p] if p < len(known) else 0 for p in at]
            rows.append(
                [(t + self.errs(key, p)) % self.vocab for t, p in zip(right, at, strict=True)]
            )
        tokens = torch.tensor(rows, dtype=torch.int64, device=lengths.device).reshape(len(rows), k)
        probs = F.one_hot(tokens, self.vocab).to(torch.float32) if self.soft else None
        return Draft(tokens, probs, lengths)


@final
@dataclass(frozen=True)
class Unsure(StopRule):
    """Ends a draft if no token's probability exceeds `threshold`, or if the most probable token id
    is a multiple of three plus two.

    The second condition also ends the drafts of one-hot distributions. The rule never sees the
    drawn token.
    """

    threshold: float = 0.6

    def __call__(
        self, draft_probs: Float[Tensor, "batch vocab"], so_far: int
    ) -> Bool[Tensor, " batch"]:
        return (draft_probs.amax(-1) < self.threshold) | (draft_probs.argmax(-1) % 3 == 2)

"""The values that live on the host: they need NumPy alone, no torch."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class AttentionRule:
    """How one layer attends: softmax(cap(scale * q·k)) over the visible positions.

    window: a query sees the last so many positions, its own included; None: all of them. softcap:
    scores are softcap * tanh(score / softcap); None: as they are.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None


@dataclass(frozen=True)
class DecoderShape:
    """What caches, backends and reports need to know of a decoder. `rules`: one per layer."""

    vocab_size: int
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    rules: tuple[AttentionRule, ...]

    @property
    def layers(self) -> int:
        """The number of layers."""
        return len(self.rules)


@dataclass(frozen=True)
class CacheBudget:
    """What the rows of a run may need, on the host:

    `batch` at a time, each of them one of R requests.
    """

    batch: int
    limits: np.ndarray  # int [R], positions of each request
    # int [R], its first positions, which requests of the same group have in common
    shared: np.ndarray
    groups: np.ndarray  # int [R]

    @classmethod
    def of(cls, capacities: np.ndarray) -> "CacheBudget":
        """As many rows as there are extents, with nothing in common."""
        return cls(
            len(capacities), capacities, np.zeros_like(capacities), np.arange(len(capacities))
        )

    @property
    def longest(self) -> np.ndarray:
        """The most that rows of their own need at a time, int [B]: a row holds one request.

        In order where there is a row for each.
        """
        return (
            self.limits.copy()
            if len(self.limits) == self.batch
            else np.sort(self.limits)[::-1][: self.batch].copy()
        )


@dataclass(frozen=True)
class RowAssignment:
    """Which room each row has, and with which row's first positions it begins, on the host.

    A row goes on with what it holds (its own index, all its positions), begins anew (0 positions),
    or follows another one, which goes on or begins anew itself.
    """

    capacities: np.ndarray  # int [B], positions; 0 for an idle row
    source: np.ndarray  # int [B], the row to begin with; its own index for none other
    shared: np.ndarray  # int [B], how many of the source's positions to take

    @classmethod
    def of(cls, capacities: np.ndarray) -> "RowAssignment":
        """Rows of these extents that go on, and take nothing from each other."""
        return cls(capacities, np.arange(len(capacities)), capacities)

    def __getattr__(self, name: str) -> Any:
        new = {"extents": "capacities", "going_on": "continuing"}.get(name)
        raise AttributeError(
            f"`RowAssignment` has no `{name}`" + (f": it is now `{new}`." if new else ".")
        )

    @property
    def continuing(self) -> np.ndarray:
        """Bool [B], the rows that keep what they hold."""
        return (self.source == np.arange(len(self.source))) & (self.shared > 0)

    @property
    def followers(self) -> np.ndarray:
        """Indices of the rows that take something from another."""
        return np.flatnonzero((self.source != np.arange(len(self.source))) & (self.shared > 0))


@dataclass(frozen=True)
class Feedback:
    """What a policy learns from a step, on the host. Rows that were not active report zeros.

    `accepted` counts committed draft tokens, the bonus or correction not included.
    """

    drafted: np.ndarray  # int [B]
    accepted: np.ndarray  # int [B]
    active: np.ndarray  # bool [B], rows that took part in the step
    seconds: float  # wall time of the step

"""Records that live on the host: they need NumPy, but no torch."""

from dataclasses import dataclass

import numpy as np

OWN_ENDS = ("eos", "stop", "length")  # finish reasons of samples that ended by themselves


@dataclass(frozen=True)
class AttentionRule:
    """How one layer attends: softmax(cap(scale * q·k)) over the visible positions.

    window: a query sees the last `window` positions, its own included; None: all of them. softcap:
    scores become softcap * tanh(score / softcap); None: unchanged. sinks: each head has a learned
    score that takes a share of the softmax and has no value (`Projection.sinks`).
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False


@dataclass(frozen=True)
class DecoderShape:
    """The shape of a decoder, for caches, backends and reports. `rules`: one per layer."""

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
    """The storage that a run's rows may need, on the host: R requests, `batch` at a time.

    limits: int [R], positions of each request. shared: int [R], the number of first positions that
    requests of the same group share. groups: int [R].
    """

    batch: int
    limits: np.ndarray
    shared: np.ndarray
    groups: np.ndarray

    @classmethod
    def of(cls, capacities: np.ndarray) -> "CacheBudget":
        """One row per capacity, int [B], without shared positions."""
        return cls(
            len(capacities), capacities, np.zeros_like(capacities), np.arange(len(capacities))
        )

    @property
    def longest(self) -> np.ndarray:
        """Int [B], the largest positions that the rows may need at a time; a row holds one request.

        The order is that of the requests if each has a row, else descending.
        """
        if len(self.limits) == self.batch:
            return self.limits.copy()
        return np.sort(self.limits)[::-1][: self.batch].copy()


@dataclass(frozen=True)
class RowAssignment:
    """The capacity of each row, and the row whose first positions it starts with, on the host.

    A row continues (its own index, all its positions), starts empty (0 positions), or copies from
    another row, which itself continues or starts empty.

    capacities: int [B], positions; 0 for an idle row. source: int [B], the row to copy from; its
    own index for none. shared: int [B], positions to take from the source.
    """

    capacities: np.ndarray
    source: np.ndarray
    shared: np.ndarray

    @classmethod
    def of(cls, capacities: np.ndarray) -> "RowAssignment":
        """Rows of these capacities, int [B], that continue and copy nothing."""
        return cls(capacities, np.arange(len(capacities)), capacities)

    @property
    def continuing(self) -> np.ndarray:
        """Bool [B], the rows that continue with their contents."""
        return (self.source == np.arange(len(self.source))) & (self.shared > 0)

    @property
    def followers(self) -> np.ndarray:
        """Int [followers], the rows that copy from another row."""
        return np.flatnonzero((self.source != np.arange(len(self.source))) & (self.shared > 0))


@dataclass(frozen=True)
class Feedback:
    """What a policy learns from a step, on the host. Inactive rows have zeros.

    drafted: int [B]. accepted: int [B], committed draft tokens, without bonus or correction.
    active: bool [B], rows that took part in the step. seconds: wall time of the step. queued: the
    number of requests that wait for a row. lens: int [B], tokens of each row before the step, its
    prompt included; None in a caller that has none.
    """

    drafted: np.ndarray
    accepted: np.ndarray
    active: np.ndarray
    seconds: float
    queued: int = 0
    lens: np.ndarray | None = None

    @property
    def active_rows(self) -> int:
        """The number of rows that took part in the step."""
        return int(self.active.sum())

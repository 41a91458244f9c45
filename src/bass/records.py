"""The values that travel between the parts.

B = batch, W = window, V = vocabulary, C = capacity of a row.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


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
class Room:
    """What the rows of a run may need, on the host:

    `batch` at a time, each of them one of R requests.
    """

    batch: int
    limits: np.ndarray  # int [R], positions of each request
    # int [R], its first positions, which requests of the same group have in common
    shared: np.ndarray
    groups: np.ndarray  # int [R]

    @classmethod
    def of(cls, extents: np.ndarray) -> "Room":
        """As many rows as there are extents, with nothing in common."""
        return cls(len(extents), extents, np.zeros_like(extents), np.arange(len(extents)))

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
class Seats:
    """Which room each row has, and with which row's first positions it begins, on the host.

    A row goes on with what it holds (its own index, all its positions), begins anew (0 positions),
    or follows another one, which goes on or begins anew itself.
    """

    extents: np.ndarray  # int [B], positions; 0 for an idle row
    source: np.ndarray  # int [B], the row to begin with; its own index for none other
    shared: np.ndarray  # int [B], how many of the source's positions to take

    @classmethod
    def of(cls, extents: np.ndarray) -> "Seats":
        """Rows of these extents that go on, and take nothing from each other."""
        return cls(extents, np.arange(len(extents)), extents)

    @property
    def going_on(self) -> np.ndarray:
        """Bool [B], the rows that keep what they hold."""
        return (self.source == np.arange(len(self.source))) & (self.shared > 0)

    @property
    def followers(self) -> np.ndarray:
        """Indices of the rows that take something from another."""
        return np.flatnonzero((self.source != np.arange(len(self.source))) & (self.shared > 0))


@dataclass(frozen=True)
class Sequences:
    """The rows in flight, on the device, updated in place so that their addresses never change.

    tokens  [ prompt | committed | free | spare ]      limits: the length at which the row is
                       complete
                       lens-1 ^   ^ lens               spare: one slot, for tokens that are nobody's
    """

    tokens: Int[Tensor, "batch slots"]
    lens: Int[Tensor, " batch"]
    limits: Int[Tensor, " batch"]
    active: Bool[Tensor, " batch"]
    keys: Int[Tensor, " batch"]  # of the row's noise
    steps: Int[Tensor, " batch"]  # steps the row itself has taken
    eos: Int[Tensor, " eos"]  # token ids that end a row

    @classmethod
    def empty(cls, batch: int, capacity: int, eos: list[int], device: torch.device) -> "Sequences":
        """`batch` idle rows of `capacity` tokens each."""

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            tokens=zeros(batch, capacity + 1),
            lens=zeros(batch),
            limits=zeros(batch),
            active=zeros(batch, dtype=torch.bool),
            keys=zeros(batch),
            steps=zeros(batch),
            eos=torch.tensor(eos, dtype=torch.int64, device=device),
        )

    @property
    def capacity(self) -> int:
        """Tokens that a row has room for."""
        return self.tokens.shape[1] - 1


@dataclass(frozen=True)
class History:
    """What precedes each logit: the committed tokens, then drafted ones.

    Of logits [B,W,V], logit w follows `drafted[:, : n - W + 1 + w]`, where n is the number of
    drafted columns.
    """

    tokens: Int[Tensor, "batch slots"]
    lens: Int[Tensor, " batch"]
    drafted: Int[Tensor, "batch drafted"]


@dataclass(frozen=True)
class Noise:
    """All the randomness of one step: uniforms in (0, 1), one per row, slot and stream, each used
    once.

    Slot i decides the token at position `first + i`; what a row's position shall determine,
    whatever the step in which it is reached, can be made of `keys` and positions alone.
    """

    keys: Int[Tensor, " batch"]
    first: Int[Tensor, " batch"]
    uniforms: Float[Tensor, "batch slots streams"]

    @property
    def draft(self) -> Float[Tensor, "batch slots"]:
        return self.uniforms[..., 0]

    @property
    def accept(self) -> Float[Tensor, "batch slots"]:
        return self.uniforms[..., 1]

    @property
    def residual(self) -> Float[Tensor, "batch slots"]:
        return self.uniforms[..., 2]


@dataclass(frozen=True)
class Draft:
    """Proposed tokens, the distributions they were drawn from, and how many of them count in each
    row.

    `probs` is None for a deterministic drafter, which puts all its mass on its token.
    """

    tokens: Int[Tensor, "batch k"]
    probs: Float[Tensor, "batch k vocab"] | None
    lengths: Int[Tensor, " batch"]


@dataclass(frozen=True)
class Verdict:
    """Row b emits `tokens[b, : accepted[b] + 1]`: the accepted draft, then one token of the
    verifier's own.
    """

    tokens: Int[Tensor, "batch window"]
    accepted: Int[Tensor, " batch"]


@dataclass(frozen=True)
class Feedback:
    """What a policy learns from a step, on the host. Rows that were not active report zeros.

    `accepted` counts committed draft tokens, the bonus or correction not included.
    """

    drafted: np.ndarray  # int [B]
    accepted: np.ndarray  # int [B]
    active: np.ndarray  # bool [B], rows that took part in the step
    seconds: float  # wall time of the step


@dataclass(frozen=True)
class PaddedView:
    """One layer's keys and values, every row with the same extent."""

    k: Float[Tensor, "batch extent kv_heads dim"]
    v: Float[Tensor, "batch extent kv_heads dim"]


@dataclass(frozen=True)
class RaggedView:
    """One layer's keys and values in a flat pool; position p of row b is at `starts[b] + p`."""

    k: Float[Tensor, "pool kv_heads dim"]
    v: Float[Tensor, "pool kv_heads dim"]
    starts: Int[Tensor, " batch"]


@dataclass(frozen=True)
class PagedView:
    """One layer's keys and values in a pool of blocks; position p of row b is in block `table[b, p
    // block]` at `p % block`.

    Entries of the table beyond a row's extent name the spare block, which is the pool's last.
    """

    k: Float[Tensor, "blocks block kv_heads dim"]
    v: Float[Tensor, "blocks block kv_heads dim"]
    table: Int[Tensor, "batch entries"]


@dataclass(frozen=True)
class Unturned:
    """A window's queries, keys and values as their product leaves them: summands, to be added up
    and turned by their positions.

    y at position p turns into y cos[p] + (y with its halves swapped) sin[p], where the sign of the
    first half's sine is in `sin`.
    """

    parts: Float[Tensor, "parts batch window heads dim"]  # the heads of q, of k, of v
    cos: Float[Tensor, "context dim"]
    sin: Float[Tensor, "context dim"]

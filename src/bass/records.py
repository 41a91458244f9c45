"""The values that travel between the parts.

B = batch, W = window, V = vocabulary, C = capacity of a row.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bass.host_records import AttentionRule, CacheBudget, DecoderShape, Feedback, RowAssignment
from bass.renamed import renamed

__all__ = [
    "AttentionRule",
    "CacheBudget",
    "DecoderShape",
    "Draft",
    "Feedback",
    "History",
    "Noise",
    "PaddedView",
    "PagedView",
    "RaggedView",
    "RowAssignment",
    "Sequences",
    "Unturned",
    "Verdict",
]


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


__getattr__ = renamed(
    __name__,
    {"Room": "bass.records.CacheBudget", "Seats": "bass.records.RowAssignment"},
)

"""The values that the parts exchange.

B = batch, W = window, V = vocabulary, C = capacity of a row.
"""

from collections.abc import Callable
from dataclasses import dataclass, is_dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from bass.host_records import AttentionRule as AttentionRule
from bass.host_records import CacheBudget as CacheBudget
from bass.host_records import DecoderShape as DecoderShape
from bass.host_records import Feedback as Feedback
from bass.host_records import RowAssignment as RowAssignment
from bass.sampling_params import Sampling


@dataclass(frozen=True)
class Sequences:
    """The rows of a batch, on the device, updated in place so that their addresses never change.

        tokens  [ prompt | committed | free | spare ]
                               lens-1 ^   ^ lens

    limits: the length at which the row is complete. spare: one slot for writes that are never read.
    Of all strategies, only drafters and warps receive these tensors, for reading: the engine alone
    writes to them.
    """

    tokens: Int[Tensor, "batch slots"]
    lens: Int[Tensor, " batch"]
    limits: Int[Tensor, " batch"]
    active: Bool[Tensor, " batch"]
    keys: Int[Tensor, " batch"]  # of the row's noise
    steps: Int[Tensor, " batch"]  # number of steps of the row itself
    prompt_lens: Int[Tensor, " batch"]
    end_tokens: Int[Tensor, "batch ends"]  # token ids that end the row, -1 as padding
    sampling: Float64[Tensor, "batch options"]  # columns: `Sampling`

    @classmethod
    def empty(
        cls,
        batch: int,
        capacity: int,
        eos: list[int],
        device: torch.device,
        most_end_tokens: int = 0,
    ) -> "Sequences":
        """`batch` idle rows of `capacity` tokens each, with the end tokens `eos`.

        most_end_tokens: the number of end tokens that a row can hold, if more than `eos`.
        """

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            tokens=zeros(batch, capacity + 1),
            lens=zeros(batch),
            limits=zeros(batch),
            active=zeros(batch, dtype=torch.bool),
            keys=zeros(batch),
            steps=zeros(batch),
            prompt_lens=zeros(batch),
            end_tokens=torch.tensor(
                eos + [-1] * (most_end_tokens - len(eos)), dtype=torch.int64, device=device
            ).repeat(batch, 1),
            sampling=torch.tensor(Sampling(), dtype=torch.float64, device=device).repeat(batch, 1),
        )

    def first(self, batch: int) -> "Sequences":
        """The first `batch` rows, in the same storage."""
        return Sequences(*(tensor[:batch] for tensor in vars(self).values()))

    def history(self, drafted: Int[Tensor, "batch drafted"]) -> "History":
        """The history of the rows: their tokens and options, and these drafted tokens."""
        return History(
            self.tokens, self.lens, drafted, self.prompt_lens, self.end_tokens, self.sampling
        )

    @property
    def capacity(self) -> int:
        """The number of tokens that a row can hold."""
        return self.tokens.shape[1] - 1


@dataclass(frozen=True)
class Window:
    """The tokens of one forward pass, on the device, for the rows from `start` on.

    positions: -1 where there is no token. span: an upper bound on the positions in use, on the
    host. rows: of a prefill's CUDA graph, the row of each, on the device, in the place of `start`;
    a row may have several. most: a bound on the host on the tokens that are there, if it is known
    to be much less than there is place for. prompts: of other rows, which the same pass feeds.
    """

    tokens: Int[Tensor, "batch window"]
    positions: Int[Tensor, "batch window"]
    span: int
    start: int = 0
    rows: Int[Tensor, " batch"] | None = None
    most: int | None = None
    prompts: "Window | None" = None

    @property
    def index(self) -> "slice | Tensor":
        """What indexes a tensor of all rows by those of the window."""
        own = slice(self.start, self.start + len(self.tokens))
        return own if self.rows is None else self.rows


@dataclass(frozen=True)
class PackedRows:
    """The rows of a packed window, which holds the tokens of all rows one after the other.

    Those of row b are at `offsets[b]` to `offsets[b + 1]`; the last ones, at position -1, are of
    the last row. places: of each token in the flattened padded window. longest: the width of that.
    """

    positions: Int[Tensor, "1 tokens"]
    offsets: Int[Tensor, " rows_and_one"]
    places: Int[Tensor, " tokens"]
    longest: int

    @cached_property
    def rows(self) -> Int[Tensor, " tokens"]:
        """The row of each token."""
        return self.places // self.longest


Features = tuple[Float[Tensor, "batch window hidden"], ...]


@dataclass(frozen=True)
class Scored:
    """The output of a model for a window: the logits of each next token, and the hidden states that
    the drafter reads (`DraftMethod.target_features`), also those of `Window.prompts`.
    """

    logits: Float[Tensor, "batch window vocab"]
    features: Features = ()
    of_prompts: tuple[Float[Tensor, "segments columns hidden"], ...] = ()


@dataclass(frozen=True)
class Observation:
    """What a pass of the target says of committed tokens, for a drafter.

    window: its tokens and positions; a position is -1 where the token was not committed, and in
    idle rows. following: the committed token after each token of the window, of no meaning at -1.
    features: one tensor for each entry of `DraftMethod.target_features`, in its order, in the
    target's dtype; `features[i][b, w]` is the state at `window.positions[b, w]`. accepted: None in
    a prefill; after a step the number of each row's drafted tokens that were committed, int64 on
    the device, 0 for an idle row.
    """

    window: Window
    following: Int[Tensor, "batch window"]
    features: Features
    accepted: Int[Tensor, " batch"] | None = None


@dataclass(frozen=True)
class History:
    """What a warp reads of the rows: the committed tokens, then drafted ones, and the sampling
    options.

    `Sequences.history` makes it. Of logits [B,W,V], logit w follows `drafted[:, : n - W + 1 + w]`,
    where n is the number of drafted columns. `prompt_lens`, `end_tokens` and `sampling` are those
    of `Sequences`.
    """

    tokens: Int[Tensor, "batch slots"]
    lens: Int[Tensor, " batch"]
    drafted: Int[Tensor, "batch drafted"]
    prompt_lens: Int[Tensor, " batch"]
    end_tokens: Int[Tensor, "batch ends"]
    sampling: Float64[Tensor, "batch options"]


@dataclass(frozen=True)
class Noise:
    """All the randomness of one step: uniforms in (0, 1), one per row, slot and stream, each used
    once.

    Slot i decides the token at position `first + i`. Noise that depends on a row and position
    alone, not on the step, derives from `keys` and positions.
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
    """Proposed tokens, the distributions they were drawn from, and the draft length of each row.

    `probs` is None for a deterministic drafter, which puts all its mass on its token.
    """

    tokens: Int[Tensor, "batch k"]
    probs: Float[Tensor, "batch k vocab"] | None
    lengths: Int[Tensor, " batch"]


@dataclass(frozen=True)
class Drafted:
    """What a `DraftTrim` reads of a draft.

    lengths: of the rows' drafts, 0 of an idle row; values beyond them have no meaning. tried,
    accepted: how often the row's earlier steps judged the slot after nothing but accepted tokens,
    and accepted it; a count fades by a tenth a step, and is 0 when a request begins. probs: the
    draft model's own distributions, before any warp, as a `StopRule` sees them; None of a drafter
    without, and unless the trim has `reads_probs`. tokens: None unless it has `reads_tokens`.
    places: how many drafted tokens of all rows the step has room for, which was chosen before the
    draft; None: all of them, or unless the trim has `reads_places`. cost: what a step of this
    length takes longer if it verifies one more token of each row, as a share of its time without
    any, measured before the run; None unless the trim has `reads_cost`.
    """

    lengths: Int[Tensor, " batch"]
    tried: Float[Tensor, "batch k"]
    accepted: Float[Tensor, "batch k"]
    probs: Float[Tensor, "batch k vocab"] | None = None
    tokens: Int[Tensor, "batch k"] | None = None
    places: Int[Tensor, ""] | None = None
    cost: Float[Tensor, ""] | None = None


@dataclass(frozen=True)
class Verdict:
    """Row b emits `tokens[b, : accepted[b] + 1]`: accepted ones, then one of the verifier."""

    tokens: Int[Tensor, "batch window"]
    accepted: Int[Tensor, " batch"]


@dataclass(frozen=True)
class PaddedView:
    """One layer's keys and values, padded: all rows have the same extent."""

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


Angles = tuple[Tensor, Tensor]  # cosines, signed sines


@dataclass(frozen=True)
class Rotation:
    """Rotary embedding of one window (Su et al., 2021), shared by the layers of a pass.

    y at position p becomes y cos[p] + (y with its halves swapped) sin[p], where `sin` holds the
    sign of the first half's sine.
    """

    rotary: Any  # a `bass.models.rope.Rotary`
    positions: Int[Tensor, "batch window"]

    @property
    def tables(self) -> Angles:
        """The angles of every position [context, dim], for kernels that look positions up."""
        return self.rotary.tables

    @cached_property
    def angles(self) -> Angles:
        """The angles of the window [batch, window, 1, dim]; those of position -1 are not read."""
        return self.rotary.angles(self.positions)

    def rotate(
        self, y: Float[Tensor, "batch window heads dim"]
    ) -> Float[Tensor, "batch window heads dim"]:
        """Rotate the heads by their positions."""
        cos, sin = self.angles
        if y.dtype != cos.dtype:
            cos, sin = cos.to(y.dtype), sin.to(y.dtype)
        return torch.addcmul(y * cos, y.roll(y.shape[-1] // 2, -1), sin)


@dataclass(frozen=True)
class Projection:
    """A window's queries, keys and values as their matrix product leaves them.

        y = Σ partial_sums ;  q, k = rotation(qk_norm(y's first heads)) ;  v = y's last heads

    The cache and the attention backend complete it, in their kernels or by `rotated`.
    """

    # all_heads: the heads of q, then k, then v
    partial_sums: Float[Tensor, "splits batch window all_heads dim"]
    heads: int
    kv_heads: int
    dtype: torch.dtype  # of q, k and v
    qk_norm: Callable[[Tensor], Tensor] | None = None  # of the heads of q and k
    rotation: Rotation | None = None  # None: positions are learned, or unused in this layer
    # a score of each query head that takes a share of the softmax (Xiao et al., 2024)
    sinks: Float[Tensor, " heads"] | None = None

    @classmethod
    def of(
        cls,
        q: Float[Tensor, "batch window heads dim"],
        k: Float[Tensor, "batch window kv_heads dim"],
        v: Float[Tensor, "batch window kv_heads dim"],
    ) -> "Projection":
        """A projection of heads that are already complete."""
        return cls(torch.cat((q, k, v), 2)[None], q.shape[2], k.shape[2], q.dtype)

    def rotated(
        self,
    ) -> tuple[
        Float[Tensor, "batch window heads dim"],
        Float[Tensor, "batch window kv_heads dim"],
        Float[Tensor, "batch window kv_heads dim"],
    ]:
        """Complete q, k and v: sum, norm, rotation."""
        parts = self.partial_sums
        y = parts[0] if len(parts) == 1 else parts.sum(0, dtype=torch.float32)
        qk, v = y.split_with_sizes((self.heads + self.kv_heads, self.kv_heads), 2)
        if self.qk_norm is not None:
            qk = self.qk_norm(qk)
        if self.rotation is not None:
            qk = self.rotation.rotate(qk)
        q, k = qk.split_with_sizes((self.heads, self.kv_heads), 2)
        return q.to(self.dtype), k.to(self.dtype), v.to(self.dtype)


def copied(value: Any) -> Any:
    """A copy of the tensors and arrays in a value, in tuples and in records."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, tuple):
        return tuple(map(copied, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{name: copied(part) for name, part in vars(value).items()})
    return value

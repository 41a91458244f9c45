"""The whole design: what a part promises to the others.

Two rules hold everywhere and replace most of the bookkeeping:

    A query at absolute position p attends to cache positions 0..p of its own row, and to nothing
    else. The last committed token of a row has not yet been fed to the target.

So one step of row b, whose `lens` tokens are committed, looks like this, and a rejected token needs
no clean-up: its key lies at or above the first position of the next window, and is overwritten
before any query can see it.

    position     0 ............ lens-2   lens-1   lens .. lens-1+k
    target       [ keys in the cache ] [ last    d1    ..   dk    ]   the window; -1: no token here
    gives                                lens  lens+1 .. lens+k       k+1 distributions, of the
                                                                      positions that follow

Subclass the protocols explicitly: an incomplete class then fails when it is constructed. A strategy
is a final frozen dataclass of hyper-parameters; state that evolves is a separate value. To change
one behaviour, wrap. `paper` says where a method comes from, for `bass list`.

B = batch, W = window (k+1 when verifying), V = vocabulary, S = span: an upper bound on the
positions in use.
"""

from abc import abstractmethod
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bass.records import (
    AttentionRule,
    DecoderShape,
    Draft,
    Feedback,
    History,
    Noise,
    Room,
    Seats,
    Sequences,
    Unturned,
    Verdict,
)

State = TypeVar("State")
View = TypeVar("View")
Plan = TypeVar("Plan")


@runtime_checkable
class Attend(Protocol):
    """Stores a layer's keys and values, then attends. Given to the decoder as an argument."""

    @abstractmethod
    def __call__(
        self,
        layer: int,
        q: Float[Tensor, "batch window heads dim"],
        k: Float[Tensor, "batch window kv_heads dim"],
        v: Float[Tensor, "batch window kv_heads dim"],
    ) -> Float[Tensor, "batch window heads dim"]: ...


@runtime_checkable
class RotaryAttend(Protocol):
    """What an `Attend` may have beside: it takes what has not been turned."""

    @abstractmethod
    def rotary(
        self, layer: int, window: Unturned
    ) -> Float[Tensor, "batch window heads dim"] | None:
        """None where neither the backend nor the cache has a kernel for it."""
        ...


@runtime_checkable
class Decoder(Protocol):
    """Knows weights and positions; nothing of caches, batches in flight, or sampling."""

    @property
    @abstractmethod
    def shape(self) -> DecoderShape: ...

    @abstractmethod
    def hidden(
        self,
        tokens: Int[Tensor, "batch window"],
        positions: Int[Tensor, "batch window"],
        attend: Attend,
    ) -> Float[Tensor, "batch window hidden"]: ...

    @abstractmethod
    def unembed(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocab"]: ...


@runtime_checkable
class Quantization(Protocol):
    """Holds the matrices of a decoder's blocks, and a draft's head, in fewer bytes.

    Each is given once it is loaded, and freed after it.
    """

    paper: ClassVar[str] = ""

    def check(self, device: torch.device) -> None:
        """Raise an `OptionError` where the device cannot compute with it."""

    @abstractmethod
    def __call__(
        self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None
    ) -> torch.nn.Module:
        """A module that takes x [*rows, in] to about x weightᵀ + bias [*rows, out], in x's dtype,
        each row by itself.

        What it holds are parameters: their bytes are what a pass is counted to read.
        """
        ...


@runtime_checkable
class KVCache(Protocol[View]):
    """Storage addressed by (row, position).

    It stores no lengths; a write at position -1 goes to a spare slot.
    """

    view_type: ClassVar[type]
    paper: ClassVar[str] = ""

    @classmethod
    @abstractmethod
    def allocate(
        cls, shape: DecoderShape, room: Room, device: torch.device, dtype: torch.dtype
    ) -> "KVCache[View]":
        """Storage for all that a run's rows may hold at a time.

        Where they share something, a `reserve` comes before the first write.
        """
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of all its tensors, and of the caches that it wraps."""
        return sum(
            value.nbytes
            for value in vars(self).values()
            if isinstance(value, Tensor) or KVCache in type(value).__mro__
        )

    @abstractmethod
    def write(
        self,
        layer: int,
        k: Float[Tensor, "batch window kv_heads dim"],
        v: Float[Tensor, "batch window kv_heads dim"],
        positions: Int[Tensor, "batch window"],
    ) -> None: ...

    @abstractmethod
    def view(self, layer: int) -> View: ...

    @abstractmethod
    def rows(self, start: int, stop: int) -> "KVCache[View]":
        """The same storage, limited to a range of rows."""
        ...

    @abstractmethod
    def reserve(self, seats: Seats) -> None:
        """Give row b room for `seats.extents[b]` positions; what rows hold that go on is kept."""
        ...

    @abstractmethod
    def copy_rows(self, seats: Seats) -> None:
        """Row b takes the first `seats.shared[b]` positions of row `seats.source[b]`: one prefill,
        many samples.

        Follows a `reserve` of the same seats, after which the source's prompt was written.
        """
        ...


@runtime_checkable
class RotaryStore(Protocol):
    """What a cache may have beside: one kernel that adds up and turns a window, and writes its keys
    and values.
    """

    @abstractmethod
    def write_turned(
        self, layer: int, window: Unturned, positions: Int[Tensor, "batch window"]
    ) -> Float[Tensor, "batch window heads dim"]:
        """As `write`. Returns the queries, turned."""
        ...


@runtime_checkable
class AttentionBackend(Protocol[View, Plan]):
    """Attends to a cache's view.

    `capturable`: no host read in `plan` or `run`, so a CUDA graph can hold them.
    """

    view_type: ClassVar[type]
    capturable: ClassVar[bool]
    paper: ClassVar[str] = ""

    def check(self, device: torch.device) -> None:
        """Raise a `PairingError` where the backend cannot run on the device."""

    @abstractmethod
    def plan(self, positions: Int[Tensor, "batch window"], span: int) -> Plan:
        """What all layers of one forward pass share."""
        ...

    @abstractmethod
    def run(
        self,
        q: Float[Tensor, "batch window heads dim"],
        view: View,
        plan: Plan,
        rule: AttentionRule,
    ) -> Float[Tensor, "batch window heads dim"]:
        """Attend in one layer, whose scale, window and soft cap are `rule`'s."""
        ...


@runtime_checkable
class RotaryBackend(Protocol):
    """What a backend may have beside: one kernel that also does what a `RotaryStore` does."""

    @abstractmethod
    def run_turned(
        self, window: Unturned, view: Any, plan: Any, rule: AttentionRule
    ) -> Float[Tensor, "batch window heads dim"] | None:
        """As `write_turned`, then `run`;

        None, and nothing written, for what the kernel does not serve.
        """
        ...


@runtime_checkable
class RowStore(Protocol):
    """Something that keeps state per row, to be filled with prompts.

    Without state, the defaults will do.
    """

    def reserve(self, seats: Seats) -> None:
        """Give row b room for `seats.extents[b]` positions."""

    def fill(
        self,
        tokens: Int[Tensor, "some window"],
        positions: Int[Tensor, "some window"],
        span: int,
        start: int,
    ) -> None:
        """Take in prompt tokens for the rows from `start` on."""

    def copy_rows(self, seats: Seats) -> None:
        """Row b takes the state that row `seats.source[b]` has of its first `seats.shared[b]`
        positions.
        """


@runtime_checkable
class Scorer(RowStore, Protocol):
    """A decoder, its cache and its attention backend behind plain tensors."""

    @abstractmethod
    def __call__(
        self, tokens: Int[Tensor, "batch window"], positions: Int[Tensor, "batch window"], span: int
    ) -> Float[Tensor, "batch window vocab"]: ...


@runtime_checkable
class DraftLengthPolicy(Protocol[State]):
    """How many tokens to draft for each row. Host only and pure: NumPy, no torch.

    `steady`: lengths are always the same, so that a step may be launched before the report of the
    one before.
    """

    max_length: int
    steady: ClassVar[bool] = False
    paper: ClassVar[str] = ""

    @abstractmethod
    def init(self, batch_size: int) -> State: ...

    @abstractmethod
    def lengths(self, state: State) -> np.ndarray:
        """int32 [B], each in 0..max_length; 0 is plain decoding."""
        ...

    @abstractmethod
    def update(self, state: State, feedback: Feedback) -> State: ...

    def reset(self, state: State, rows: np.ndarray) -> State:
        """The rows (indices) that were given a new prompt start afresh; a batch-wide policy keeps
        its state.
        """
        return state


@runtime_checkable
class StopRule(Protocol):
    """Ends a row's draft early, inside the draft loop, on the device.

    It sees the draft model's own distribution at a position (before any warp, so that it means the
    same at temperature 0), never the token drawn there, and keeps that token: the draft ends
    *after* it. Retracting the token because it turned out improbable would bias the output.
    `so_far`: tokens drafted before this one.
    """

    paper: ClassVar[str] = ""

    @abstractmethod
    def __call__(
        self, draft_probs: Float[Tensor, "batch vocab"], so_far: int
    ) -> Bool[Tensor, " batch"]: ...


@runtime_checkable
class Workbench(Protocol):
    """What a run offers to the drafter that is made for it.

    `warp`: the request's, through which drafts go too. `draw`: how drafted tokens are drawn, so
    that the verifier keeps the most.
    """

    warp: "Warp"
    draw: "Draw"
    stop_rule: StopRule | None

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the run is."""
        ...

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Token ids go from 0 to one below it."""
        ...

    @abstractmethod
    def draft(self) -> Scorer:
        """The draft model, behind a cache of its own."""
        ...

    @abstractmethod
    def first_layers(self, count: int) -> Scorer:
        """The target's first layers with its norm and head, on the target's own cache."""
        ...


@runtime_checkable
class Draw(Protocol):
    """A token from each row's distribution, for slot `i` of the step, by its noise."""

    @abstractmethod
    def __call__(
        self, probs: Float[Tensor, "batch vocab"], noise: Noise, i: int
    ) -> Int[Tensor, " batch"]: ...


@runtime_checkable
class DraftMethod(Protocol):
    """A way to draft: hyper-parameters, from which a run's drafter is made.

    `batch_invariant`: what a row drafts depends on nothing of the other rows. False of a batch-wide
    drafter, such as one that learns from the committed tokens of all rows: the output law is the
    target's all the same, but the tokens that a seed gives a row depend on its batch, which a run's
    summary says.
    """

    paper: ClassVar[str] = ""
    batch_invariant: ClassVar[bool] = True

    @property
    def needs_draft(self) -> bool:
        """It asks the workbench for a draft model, so a checkpoint has to be loaded."""
        return False

    @property
    def target_layers(self) -> int:
        """It asks the workbench for so many of the target's first layers."""
        return 0

    @property
    def obeys_stop_rules(self) -> bool:
        """It runs a draft loop that a stop rule can end; where it does not, one is refused."""
        return False

    @abstractmethod
    def build(self, bench: Workbench) -> "Drafter": ...


@runtime_checkable
class Drafter(DraftMethod, RowStore, Protocol):
    """Proposes tokens, and tells the truth about the distribution they were drawn from.

    One that needs no model and keeps no state of a run is its own method; any other is built by
    one.
    """

    @property
    def label(self) -> str:
        """How a message names it."""
        return f"`{type(self).__name__}`"

    def build(self, bench: Workbench) -> "Drafter":
        return self

    @abstractmethod
    def propose(
        self, sequences: Sequences, lengths: Int[Tensor, " batch"], k: int, noise: Noise, span: int
    ) -> Draft:
        """Draft up to `lengths[b] <= k` tokens for row b; what stands beyond a row's length is
        never looked at.

        Within it, tokens must be in the vocabulary, and distributions finite, nowhere negative, of
        sum 1: else the run ends.
        """
        ...


@runtime_checkable
class Verifier(Protocol):
    """Accepts a prefix of each row's draft and adds one token. `lossless`: the output law is
    exactly the target's.

    `coupled`: it draws with the noise of positions, and keeps the most of a draft that was drawn
    with the same noise.
    `judges_jointly`: whether it keeps a token depends on the target's distributions after it too,
    so that one of them which is not finite ends the run.
    `caveat`: what a run's summary says of the text where it is not lossless.
    """

    lossless: ClassVar[bool]
    coupled: ClassVar[bool] = False
    judges_jointly: ClassVar[bool] = False
    caveat: ClassVar[str] = ""
    paper: ClassVar[str] = ""

    @abstractmethod
    def __call__(
        self, draft: Draft, target_probs: Float[Tensor, "batch window vocab"], noise: Noise
    ) -> Verdict: ...


@runtime_checkable
class Warp(Protocol):
    """Logits to probabilities: temperature, top-k, top-p, min-p, penalties.

    Draft and target go through the same one.
    """

    @abstractmethod
    def __call__(
        self, logits: Float[Tensor, "batch window vocab"], history: History
    ) -> Float[Tensor, "batch window vocab"]: ...

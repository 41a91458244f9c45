"""What proposes tokens: drafters, what they are made of and for, and what ends a draft."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bass.interfaces.cache import RowStore, takes_window
from bass.interfaces.verification import Warp
from bass.records import Draft, Features, Noise, Scored, Sequences, Window


class Scorer(RowStore):
    """A decoder, its cache and its attention backend behind plain tensors."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        takes_window(cls, "__call__")

    @abstractmethod
    def __call__(self, window: Window) -> Scored:
        """Take in a window of all rows, and score what follows each of its tokens."""
        ...


class StopRule(ABC):
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


class Draw(ABC):
    """A token from each row's distribution, for slot `i` of the step, by its noise."""

    @abstractmethod
    def __call__(
        self, probs: Float[Tensor, "batch vocab"], noise: Noise, i: int
    ) -> Int[Tensor, " batch"]: ...


class DrafterContext(ABC):
    """What a run offers to the drafter that is made for it.

    `warp`: the request's, through which drafts go too. `draw`: how drafted tokens are drawn, so
    that the verifier keeps the most. `batch`: the run's rows; `capacity`:
    positions that a row may have.
    """

    warp: "Warp"
    draw: "Draw"
    stop_rule: StopRule | None
    batch: int
    capacity: int

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


class DraftMethod(ABC):
    """A way to draft: hyper-parameters, from which a run's drafter is made.

    `batch_invariant`: what a row drafts depends on nothing of the other rows. False of a batch-wide
    drafter, such as one that learns from the committed tokens of all rows: the output law is the
    target's all the same, but the tokens that a seed gives a row depend on its batch, which a run's
    summary says. It is built for each call; the drafter of another method, for which CUDA graphs
    are captured, serves later calls too, whose prompts begin in rows that `reserve` gives them.
    """

    paper: ClassVar[str] = ""
    batch_invariant: ClassVar[bool] = True

    @property
    def needs_draft(self) -> bool:
        """It asks the context for a draft model, so a checkpoint has to be loaded."""
        return False

    @property
    def target_layers(self) -> int:
        """It asks the context for so many of the target's first layers."""
        return 0

    @property
    def target_features(self) -> tuple[int, ...]:
        """The states of the target that its `observe` is given: i for the residual stream that
        enters layer i, counted from 0, the number of layers for the final state after the last
        norm.
        """
        return ()

    @property
    def obeys_stop_rules(self) -> bool:
        """It runs a draft loop that a stop rule can end; where it does not, one is refused."""
        return False

    @abstractmethod
    def build(self, context: DrafterContext) -> "Drafter": ...


class Drafter(DraftMethod, RowStore):
    """Proposes tokens, and tells the truth about the distribution they were drawn from.

    One that needs no model and keeps no state of a run is its own method; any other is built by
    one.
    """

    @property
    def label(self) -> str:
        """How a message names it."""
        return f"`{type(self).__name__}`"

    def build(self, context: DrafterContext) -> "Drafter":
        return self

    @abstractmethod
    def propose(
        self, sequences: Sequences, lengths: Int[Tensor, " batch"], k: int, noise: Noise, span: int
    ) -> Draft:
        """Draft up to `lengths[b] <= k` tokens for row b; what stands beyond a row's length is
        never looked at.

        Within it, tokens must be in the vocabulary and have a probability above 0, and
        distributions be finite, nowhere negative, of sum 1: else the run ends.
        """
        ...

    @property
    def observes(self) -> bool:
        """Whether its `observe` does anything."""
        return type(self).observe is not Drafter.observe

    def observe(
        self, window: Window, features: Features, accepted: Int[Tensor, " batch"] | None
    ) -> None:
        """Read what the target computed of committed tokens: its `target_features`.

        Called after each window of a prefill (`accepted` is None), and at the end of each step,
        also of one in which nothing was drafted, with the number of accepted tokens. The position
        is -1 of what was not committed. The last token of a prompt, and the last committed one
        after each step, come with the next step's window. Rows that share a prompt get what was
        observed of it by `copy_rows`. In a step it runs in the CUDA graph: no host read.
        """

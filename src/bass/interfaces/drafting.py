"""The contracts of drafters, of what they are built from, and of stop rules."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bass.interfaces.cache import RowStore
from bass.interfaces.verification import Warp
from bass.option import Ranged
from bass.records import Draft, Features, Noise, Scored, Sequences, Window


class Scorer(RowStore):
    """A decoder with its cache and attention backend. Callers see only windows and scores."""

    @abstractmethod
    def __call__(self, window: Window) -> Scored:
        """Process a window of all rows, and score the token after each of its tokens."""


class StopRule(Ranged, ABC):
    """Ends a row's draft early, inside the draft loop, on the device.

    It sees the draft model's own distribution at a position, before any warp, so it means the same
    at temperature 0. It never sees the token drawn there, and the draft ends *after* that token:
    to retract an improbable token would bias the output. `so_far`: tokens drafted before this one.
    """

    paper: ClassVar[str] = ""

    @abstractmethod
    def __call__(
        self, draft_probs: Float[Tensor, "batch vocab"], so_far: int
    ) -> Bool[Tensor, " batch"]: ...


# Draws a token from each row's distribution [batch, vocab], for slot `i` of the step, with its
# noise.
Draw = Callable[[Tensor, Noise, int], Tensor]


class DrafterContext(ABC):
    """What a run provides to build its drafter.

    `warp`: the request's; it applies to drafts too. `draw`: draws drafted tokens so that the
    verifier accepts the most. `batch`: rows of the run. `capacity`: positions of each row.
    `vocab_size`: number of token ids, which start at 0.
    """

    warp: "Warp"
    draw: Draw
    stop_rule: StopRule | None
    batch: int
    capacity: int
    vocab_size: int
    device: torch.device

    @abstractmethod
    def draft(self) -> Scorer:
        """The draft model with its own cache."""

    @abstractmethod
    def first_layers(self, count: int) -> Scorer:
        """The target's first layers with its norm and head, on the target's own cache."""


class DraftMethod(Ranged, ABC):
    """Hyper-parameters of a way to draft, from which each run builds its drafter.

    `batch_invariant`: a row's draft does not depend on the other rows. False for a batch-wide
    drafter, such as one that learns from the committed tokens of all rows. Its output still has the
    target's distribution, but the tokens of a row and seed depend on the batch; a run's summary
    says so. With CUDA graphs a batch-invariant drafter is built once for each size of batch, and
    serves later calls too, whose prompts begin in rows that `reserve` assigns; any other is built
    for each call.
    """

    paper: ClassVar[str] = ""
    batch_invariant: ClassVar[bool] = True

    @property
    def needs_draft(self) -> bool:
        """Whether `build` uses the draft model, so that a checkpoint has to be loaded."""
        return False

    @property
    def target_layers(self) -> int:
        """How many of the target's first layers `build` uses; 0 for none."""
        return 0

    @property
    def target_features(self) -> tuple[int, ...]:
        """Which hidden states of the target `observe` receives, each once and in any order: i for
        the residual stream that enters layer i, counted from 0; the number of layers for the final
        state after the last norm.
        """
        return ()

    @property
    def obeys_stop_rules(self) -> bool:
        """Whether a stop rule can end its draft loop. If not, a stop rule is an error."""
        return False

    @abstractmethod
    def build(self, context: DrafterContext) -> "Drafter": ...


class Drafter(DraftMethod, RowStore):
    """Proposes tokens, and returns the distributions that they were drawn from.

    A drafter without a model and without state is its own `DraftMethod`; any other is built by one.
    """

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"`{type(self).__name__}`"

    def build(self, context: DrafterContext) -> "Drafter":
        return self

    @abstractmethod
    def propose(
        self, sequences: Sequences, lengths: Int[Tensor, " batch"], k: int, noise: Noise, span: int
    ) -> Draft:
        """Draft up to `lengths[b] <= k` tokens for row b. Values beyond a row's length are unused.

        Within it, tokens must be in the vocabulary and have a probability above 0; distributions
        must be finite, nowhere negative, and sum to 1. Otherwise the run ends with an error.
        `sequences` are the rows of the run themselves. They are read-only, now and later, and so
        are all other arguments unless `writes_inputs` is True: a run does not notice a write,
        `bass.testing.check_drafter` does.
        """

    @property
    def observes(self) -> bool:
        """Whether its `observe` does anything."""
        return type(self).observe is not Drafter.observe

    def observe(
        self, window: Window, features: Features, accepted: Int[Tensor, " batch"] | None
    ) -> None:
        """Read the target's hidden states of committed tokens.

        window: tokens and positions [batch, window]; positions that were not committed are -1, and
        so are those of idle rows. features: one tensor [batch, window, hidden] for each entry of
        `target_features`, in its order, in the target's dtype; `features[i][b, w]` is the state at
        `window.positions[b, w]`, and has no meaning at -1. accepted: None in a prefill; in a step
        [batch], int64 on the device, the number of each row's drafted tokens that were committed, 0
        for an idle row.

        The engine calls it after each window of a prefill, for the rows from `window.start` on, and
        at the end of each step for all rows, also if nothing was drafted. The window of a step is
        the last committed token and the draft. The last token of a prompt, and the last committed
        token after each step, come with the next step's window. Rows that share a prompt receive
        its state by `copy_rows`. In a step it runs in the CUDA graph: no host read.
        """

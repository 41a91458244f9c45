"""The contracts of drafters, of what they are built from, and of stop rules."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from bass.interfaces.cache import RowStore
from bass.interfaces.model import Attend
from bass.interfaces.verification import Warp
from bass.option import Ranged
from bass.records import DecoderShape, Draft, Noise, Observation, Scored, Sequences, Window


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


class LayerCache(RowStore):
    """Keys and values of a drafter's own layers, in the layout and with the backend of the run."""

    @abstractmethod
    def attend(self, window: Window, visible: Int[Tensor, "batch window"] | None = None) -> Attend:
        """The attention of one pass over a window, as a `DecoderBlock` calls it.

        It writes the keys and values of the window at its positions. A query sees the positions up
        to its own, or up to `visible`, which may be later ones of the window.
        """

    def replayed(
        self, name: str, run: Callable[..., tuple[Tensor, ...]], window: Window, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        """`run(window, *inputs)`, which a CPU may record and replay if it consists of kernels.

        It must depend on the window and the inputs alone, do the same work for windows of one
        shape, and read no value on the host. name: of the pass among those on this cache.
        """
        return run(window, *inputs)


class DrafterContext(ABC):
    """What a run provides to build its drafter.

    `warp`: the request's; it applies to drafts too. `draw`: draws drafted tokens so that the
    verifier accepts the most. `batch`: rows of the run. `capacity`: positions of each row.

    Of the target: `vocab_size`, the number of token ids, which start at 0; `hidden_size`;
    `layers`; `embed`, its embedding table [vocab, hidden]; `norm`, its final norm; `dtype`.
    """

    warp: "Warp"
    draw: Draw
    stop_rule: StopRule | None
    batch: int
    capacity: int
    vocab_size: int
    layers: int
    embed: Tensor
    device: torch.device
    dtype: torch.dtype

    @property
    @abstractmethod
    def hidden_size(self) -> int: ...

    @property
    @abstractmethod
    def norm(self) -> nn.Module: ...

    @abstractmethod
    def unembed(
        self, hidden: Float[Tensor, "*rows hidden"], head: nn.Module | None = None
    ) -> Float[Tensor, "*rows ids"]:
        """The target's logits of final states, as its last norm leaves them, or those of the
        drafter's own matrix `head`. Bytes and FLOPs are counted, as those of the next drafted
        tokens.
        """

    @abstractmethod
    def head(self) -> nn.Module:
        """The head that `draft=` names, with its weights."""

    @abstractmethod
    def cache(self, shape: DecoderShape) -> LayerCache:
        """A cache for the drafter's own layers."""

    @abstractmethod
    def state(self, *size: int, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor [batch, *size] for what the drafter keeps of each row, zeros at first; by
        default of the target's type. Drafters that are built for the same rows share it.
        """

    @abstractmethod
    def count(
        self,
        modules: Sequence[nn.Module],
        fed: range | None = None,
        last: int = -1,
        shape: DecoderShape | None = None,
    ) -> None:
        """Count the bytes and FLOPs of a pass of these modules in the step.

        A head that reads token i and drafts token i + 1 counts `count((cell,), range(i, i + 1))`
        for i = 0, 1 ...; token 0 is the last committed one, and the last drafted one is not read.

        fed: the tokens of the pass, so numbered; None: the committed ones that `observe` receives.
        Of a row that drafts n tokens, those up to `n + last` count, or none if n is 0. shape: of
        the layers among the modules, whose queries read the keys and values up to their own
        position.
        """

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

    `needs_draft`: `build` uses what `draft=` names, a draft model or a head. `draft_in_target`: by
    default that is the MTP layer in the target's folder. `target_layers`: how many of the target's
    first layers `build` uses. `target_features`: which hidden states of the target `observe`
    receives, each once and in any order: i for the residual stream that enters layer i, counted
    from 0; the number of layers for the stream that leaves the last layer; -1 for the final state,
    after the last norm. `obeys_stop_rules`: a stop rule can end its draft loop; if not, one is an
    error. All may be properties.
    """

    paper: ClassVar[str] = ""
    batch_invariant: ClassVar[bool] = True
    needs_draft: ClassVar[bool] = False
    draft_in_target: ClassVar[bool] = False
    target_layers: ClassVar[int] = 0
    target_features: ClassVar[tuple[int, ...]] = ()
    obeys_stop_rules: ClassVar[bool] = False

    def with_head(self, head: nn.Module | None, layers: int) -> "DraftMethod":
        """The method for what `draft=` names, a head or (None) no head, and a target of this many
        layers. It is called before `target_features` is read.
        """
        return self

    @abstractmethod
    def build(self, context: DrafterContext) -> "Drafter": ...


class Drafter(DraftMethod, RowStore):
    """Proposes tokens, and returns the distributions that they were drawn from.

    A drafter without a model and without state is its own `DraftMethod`; any other is built by one.

    On a GPU `propose` and `observe` run in the CUDA graph of a step, whose Python runs at capture
    alone: no host read, no shape that depends on values; state is updated in place.
    """

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"`{type(self).__name__}`"

    @property
    def choices(self) -> tuple["Drafter", ...]:
        """The drafters of which `DraftLengthPolicy.drafter` chooses one in each step.

        The others only observe the step. Before one drafts, `fill` feeds it the tokens that it
        lacks of the rows that draft: all but the last two.
        """
        return (self,)

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

    def observe(self, seen: Observation) -> None:
        """Read the target's hidden states of committed tokens.

        The engine calls it after each window of a prefill, for the rows from `window.start` on, and
        at the end of each step for all rows, also if nothing was drafted. The window of a step is
        the last committed token and the draft. The last token of a prompt, and the last committed
        token after each step, come with the next step's window. Rows that share a prompt receive
        its state by `copy_rows`.
        """

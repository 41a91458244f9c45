"""Combines a decoder, a cache and an attention backend into a function of tokens and positions."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from bass.engine.joined import Joined
from bass.engine.packing import Packing
from bass.errors import PairingError
from bass.interfaces import (
    Attend,
    AttentionBackend,
    Decoder,
    ForwardingRowStore,
    KVCache,
    LayerCache,
    RowStore,
    Scorer,
)
from bass.ops.recorded import Pass, RecordedPasses
from bass.records import (
    AttentionRule,
    Features,
    Projection,
    Rotation,
    RowAssignment,
    Scored,
    Window,
)


@final
@dataclass(frozen=True)
class CachedAttend(Attend):
    """Stores the window's keys and values in a cache, then lets its queries attend to it.

    in_turn: all keys and values are stored before any query attends. Queries may see later
    positions than their own, for which the plan is, or those of other rows of the window.
    """

    cache: KVCache[Any]
    backend: AttentionBackend[Any, Any]
    plan: Any
    positions: Int[Tensor, "batch window"]
    rules: tuple[AttentionRule, ...]
    in_turn: bool = False

    def __call__(
        self, layer: int, projection: Projection
    ) -> Float[Tensor, "batch window heads dim"]:
        attend = AttentionBackend.attend if self.in_turn else type(self.backend).attend
        given = self.cache, layer, projection, self.positions, self.plan, self.rules[layer]
        return attend(self.backend, *given)

    def store(self, layer: int, projection: Projection) -> None:
        self.cache.store(layer, projection, self.positions)


@final
@dataclass(frozen=True)
class PackedAttend(Attend):
    """Attention of a packed window, by the backend itself or by way of the padded window."""

    packing: Packing
    padded: CachedAttend
    plan: Any  # of the packed positions

    @classmethod
    def of(cls, packing: Packing, padded: CachedAttend) -> "PackedAttend":
        window = packing.window
        return cls(packing, padded, padded.backend.plan(window.positions, window.span))

    def __call__(self, layer: int, projection: Projection) -> Float[Tensor, "1 tokens heads dim"]:
        own, rows = self.padded, self.packing.rows
        given = own.cache, layer, projection, rows, self.plan, own.rules[layer]
        out = own.backend.attend_packed(*given)
        if out is None:
            out = own(layer, self._padded(projection)).flatten(0, 1)[rows.places][None]
        return out

    def store(self, layer: int, projection: Projection) -> None:
        self.padded.store(layer, self._padded(projection))

    def _padded(self, projection: Projection) -> Projection:
        sums, rotation = projection.partial_sums, projection.rotation
        if rotation is not None:
            rotation = Rotation(rotation.rotary, self.padded.positions)
        sums = torch.stack([self.packing.unpacked(one) for one in sums])
        return replace(projection, partial_sums=sums, rotation=rotation)


@final
@dataclass(frozen=True)
class CachedLayers(LayerCache):
    """A cache of layers with these rules: row b of a window is row `index[b]` of the cache.

    passes: of few rows on a CPU.
    """

    cache: KVCache[Any]
    backend: AttentionBackend[Any, Any]
    rules: tuple[AttentionRule, ...]
    batch: int
    passes: RecordedPasses = field(init=False, compare=False, default_factory=RecordedPasses)

    def reserve(self, assignment: RowAssignment) -> None:
        self.cache.reserve(assignment)

    def copy_rows(self, assignment: RowAssignment) -> None:
        self.cache.copy_rows(assignment)

    def attend(
        self, window: Window, visible: Int[Tensor, "batch window"] | None = None
    ) -> CachedAttend:
        start, stop = window.start, window.start + len(window.positions)
        if window.rows is not None:
            own = self.cache.selected(window.rows)
        else:
            own = self.cache if (start, stop) == (0, self.batch) else self.cache.rows(start, stop)
        plan = self.backend.plan(window.positions if visible is None else visible, window.span)
        in_turn = visible is not None or window.rows is not None
        return CachedAttend(own, self.backend, plan, window.positions, self.rules, in_turn)

    def replayed(self, name: str, run: Pass, window: Window, *inputs: Tensor) -> tuple[Tensor, ...]:
        if not self.backend.replayable or not RecordedPasses.supports(window.tokens):
            return run(window, *inputs)

        def recorded(tokens: Tensor, positions: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
            return run(replace(window, tokens=tokens, positions=positions), *inputs)

        kind = name, window.start
        return self.passes(recorded, kind, window.tokens, window.positions, *inputs)


@final
@dataclass(frozen=True)
class ModelScorer(ForwardingRowStore, Scorer):
    """Scores windows with a decoder over a cache, of which the first `batch` rows."""

    decoder: Decoder
    cache: KVCache[Any]
    backend: AttentionBackend[Any, Any]
    batch: int
    feature_ids: tuple[int, ...] = ()  # of the states it returns: `DraftMethod.target_features`

    @cached_property
    def store(self) -> CachedLayers:  # pyright: ignore[reportIncompatibleMethodOverride]
        return CachedLayers(self.cache, self.backend, self.decoder.shape.rules, self.batch)

    def fill(self, window: Window) -> Features:
        packing = Packing.of(window)
        if packing is None:
            return self._complete(self.decoder.fill(window, self._attend(window), self.feature_ids))
        attend = PackedAttend.of(packing, self._attend(window))
        found = self._complete(self.decoder.fill(packing.window, attend, self.feature_ids))
        return tuple(map(packing.unpacked, found))

    def __call__(self, window: Window) -> Scored:
        if window.prompts is not None:
            return self._joined(replace(window, prompts=None), window.prompts)
        packing = Packing.of(window)
        if packing is None:
            logits, *features = self._outputs(
                "score", lambda own: self._computed(own, self._attend(own)), window
            )
            return Scored(logits, tuple(features))

        def run(own: Window, offsets: Tensor) -> tuple[Tensor, ...]:
            rows = replace(packing.rows, positions=own.positions, offsets=offsets)
            packed = replace(packing, window=own, rows=rows)
            return self._computed(own, PackedAttend.of(packed, self._attend(window)))

        name = f"score {len(packing.rows.offsets) - 1} packed rows"
        outputs = self._outputs(name, run, packing.window, packing.rows.offsets)
        logits, *features = map(packing.unpacked, outputs)
        return Scored(logits, tuple(features))

    def _joined(self, window: Window, prompts: Window) -> Scored:
        """The scores of a window, in a pass that feeds prompts to other rows too."""
        both = Joined((window, prompts), (self._attend(window), self._attend(prompts)))
        hidden, features = self.decoder.hidden(both.window, both, self.feature_ids)
        states = [both.split(one) for one in self._complete(features)]
        own, of_prompts = (tuple(one[i] for one in states) for i in range(2))
        return Scored(self.decoder.unembed(both.split(hidden)[0]), own, of_prompts)

    def _attend(self, window: Window) -> CachedAttend:
        return self.store.attend(window)

    def _outputs(self, name: str, run: Pass, window: Window, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Those of a pass, replayed where it can be."""
        if not self.decoder.replayable:
            return run(window, *inputs)
        return self.store.replayed(name, run, window, *inputs)

    def _computed(self, window: Window, attend: Attend) -> tuple[Tensor, ...]:
        """Logits and features."""
        hidden, features = self.decoder.hidden(window, attend, self.feature_ids)
        return self.decoder.unembed(hidden), *self._complete(features)

    def _complete(self, features: Features) -> Features:
        """The states, if there is one for each id; raises `PairingError` otherwise."""
        if len(features) != len(self.feature_ids):
            raise PairingError(
                f"The drafter reads {len(self.feature_ids)} hidden states of the target, and "
                f"`{type(self.decoder).__name__}` returned {len(features)}: return one for each of "
                "`feature_ids` from `hidden` and `fill`, or choose a drafter that reads none."
            )
        return features


@final
@dataclass(frozen=True)
class WidenedScorer(ForwardingRowStore, Scorer):
    """A scorer over `vocab_size` token ids and any position around one with the first `known` ids
    and the positions of its `context` only.

    The other ids get the logit -inf, and are fed as the last known id; at other positions nothing
    is fed. A draft model with fewer ids or positions can thus draft for the target.
    """

    scorer: Scorer
    known: int
    context: int
    vocab_size: int

    @property
    def store(self) -> RowStore:
        return self.scorer

    def fill(self, window: Window) -> Features:
        return super().fill(self._known(window))

    def __call__(self, window: Window) -> Scored:
        scored = self.scorer(self._known(window))
        missing = self.vocab_size - self.known
        return replace(scored, logits=F.pad(scored.logits, (0, missing), value=float("-inf")))

    def _known(self, window: Window) -> Window:
        tokens, positions = window.tokens.clamp(max=self.known - 1), window.positions
        positions = positions.masked_fill(positions >= self.context, -1)
        return replace(window, tokens=tokens, positions=positions)

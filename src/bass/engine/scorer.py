"""A decoder, a cache and an attention backend made into one function of tokens and positions."""

import contextlib
import functools
from dataclasses import dataclass
from typing import Any, final

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from bass.errors import PairingError
from bass.interfaces import (
    Attend,
    AttentionBackend,
    Decoder,
    ForwardingRowStore,
    KVCache,
    RowStore,
    Scorer,
)
from bass.records import AttentionRule, Projection, RowAssignment


@final
@dataclass(frozen=True)
class CachedAttend(Attend):
    """Stores the window's keys and values in a cache, then lets its queries attend to it."""

    cache: KVCache[Any]
    backend: AttentionBackend[Any, Any]
    plan: Any
    positions: Int[Tensor, "batch window"]
    rules: tuple[AttentionRule, ...]

    def __call__(
        self, layer: int, projection: Projection
    ) -> Float[Tensor, "batch window heads dim"]:
        return self.backend.attend(
            self.cache, layer, projection, self.positions, self.plan, self._rule(layer)
        )

    def store(self, layer: int, projection: Projection) -> None:
        self.cache.store(layer, projection, self.positions)

    def _rule(self, layer: int) -> AttentionRule:
        return self.rules[layer]


class StopForward(Exception):
    """Ends a pass whose keys and values are all written: what would follow is nobody's."""


@final
@dataclass(frozen=True)
class FillAttend(Attend):
    """Attends in every layer but the last, whose output a prefill does not need."""

    attend: CachedAttend
    last_layer: int

    def __call__(
        self, layer: int, projection: Projection
    ) -> Float[Tensor, "batch window heads dim"]:
        if layer == self.last_layer:
            self.store(layer, projection)
            raise StopForward
        return self.attend(layer, projection)

    def store(self, layer: int, projection: Projection) -> None:
        self.attend.store(layer, projection)


@final
@dataclass(frozen=True)
class ModelScorer(Scorer):
    """Row b of the tokens is row b of the cache; a batch smaller than the cache's takes its first
    rows.
    """

    decoder: Decoder
    cache: KVCache[Any]
    backend: AttentionBackend[Any, Any]
    batch: int

    def __post_init__(self) -> None:
        check_pairing(type(self.cache), type(self.backend), ())

    @functools.cached_property
    def rules(self) -> tuple[AttentionRule, ...]:
        """How each layer attends; asked for once, since every pass needs it."""
        return self.decoder.shape.rules

    def reserve(self, assignment: RowAssignment) -> None:
        self.cache.reserve(assignment)

    def copy_rows(self, assignment: RowAssignment) -> None:
        self.cache.copy_rows(assignment)

    def fill(
        self,
        tokens: Int[Tensor, "some window"],
        positions: Int[Tensor, "some window"],
        span: int,
        start: int,
    ) -> None:
        with contextlib.suppress(StopForward):
            self.decoder.hidden(
                tokens,
                positions,
                FillAttend(self._attend(positions, span, start), len(self.rules) - 1),
            )

    def __call__(
        self, tokens: Int[Tensor, "batch window"], positions: Int[Tensor, "batch window"], span: int
    ) -> Float[Tensor, "batch window vocab"]:
        return self.decoder.unembed(
            self.decoder.hidden(tokens, positions, self._attend(positions, span, 0))
        )

    def _attend(self, positions: Tensor, span: int, start: int) -> CachedAttend:
        stop = start + len(positions)
        cache = self.cache if (start, stop) == (0, self.batch) else self.cache.rows(start, stop)
        return CachedAttend(
            cache, self.backend, self.backend.plan(positions, span), positions, self.rules
        )


@final
@dataclass(frozen=True)
class WidenedScorer(ForwardingRowStore, Scorer):
    """A scorer over `vocab_size` token ids, made of one that knows the first `known` of them alone.

    The others have no probability, and are fed as the last known one. So a draft model whose
    vocabulary is padded less than the target's drafts for the target's whole vocabulary.
    """

    scorer: Scorer
    known: int
    vocab_size: int

    @property
    def store(self) -> RowStore:
        return self.scorer

    def fill(
        self,
        tokens: Int[Tensor, "some window"],
        positions: Int[Tensor, "some window"],
        span: int,
        start: int,
    ) -> None:
        super().fill(tokens.clamp(max=self.known - 1), positions, span, start)

    def __call__(
        self, tokens: Int[Tensor, "batch window"], positions: Int[Tensor, "batch window"], span: int
    ) -> Float[Tensor, "batch window vocab"]:
        logits = self.scorer(tokens.clamp(max=self.known - 1), positions, span)
        return F.pad(logits, (0, self.vocab_size - self.known), value=float("-inf"))


def check_pairing(cache: type, backend: type, known: tuple[type, ...]) -> None:
    """Refuse a cache and a backend that speak different view types;

    `known` are the backends to name as a remedy.
    """
    if cache.view_type is not backend.view_type:  # pyright: ignore[reportAttributeAccessIssue]
        valid = [b.__name__ for b in known if b.view_type is cache.view_type]  # pyright: ignore[reportAttributeAccessIssue]
        raise PairingError(
            f"Cannot pair `{backend.__name__}` with `{cache.__name__}`: the backend reads "
            f"{backend.view_type.__name__}, "  # pyright: ignore[reportAttributeAccessIssue]
            f"the cache gives {cache.view_type.__name__}. Backends for `{cache.__name__}`: "
            f"{', '.join(valid) or 'none registered'}."  # pyright: ignore[reportAttributeAccessIssue]
        )

"""A decoder, a cache and an attention backend made into one function of tokens and positions."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from bass.errors import PairingError
from bass.interfaces import Attend, AttentionBackend, Decoder, KVCache, Scorer


@final
@dataclass(frozen=True)
class CachedAttend(Attend):
    """Writes the window's keys and values, then lets its queries attend to the cache."""

    cache: KVCache[Any]
    backend: AttentionBackend[Any, Any]
    plan: Any
    positions: Int[Tensor, "batch window"]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.cache.write(layer, k, v, self.positions)
        return self.backend.run(q, self.cache.view(layer), self.plan)


@final
@dataclass(frozen=True)
class ModelScorer(Scorer):
    """Row b of the tokens is row b of the cache; a batch smaller than the cache's takes its first rows."""

    decoder: Decoder
    cache: KVCache[Any]
    backend: AttentionBackend[Any, Any]
    batch: int

    def __post_init__(self) -> None:
        check_pairing(type(self.cache), type(self.backend), ())

    def reserve(self, extents: np.ndarray) -> None:
        self.cache.reserve(extents)

    def copy_rows(self, source: np.ndarray) -> None:
        self.cache.copy_rows(source)

    def fill(self, tokens: Int[Tensor, "some window"], positions: Int[Tensor, "some window"], span: int, start: int) -> None:
        self._hidden(tokens, positions, span, start)

    def __call__(
        self, tokens: Int[Tensor, "batch window"], positions: Int[Tensor, "batch window"], span: int
    ) -> Float[Tensor, "batch window vocab"]:
        return self.decoder.unembed(self._hidden(tokens, positions, span, 0))

    def _hidden(self, tokens: Tensor, positions: Tensor, span: int, start: int) -> Tensor:
        stop = start + len(tokens)
        cache = self.cache if (start, stop) == (0, self.batch) else self.cache.rows(start, stop)
        attend = CachedAttend(cache, self.backend, self.backend.plan(positions, span), positions)
        return self.decoder.hidden(tokens, positions, attend)


def check_pairing(cache: type, backend: type, known: tuple[type, ...]) -> None:
    """Refuse a cache and a backend that speak different view types; `known` are the backends to name as a remedy."""
    if cache.view_type is not backend.view_type:  # pyright: ignore[reportAttributeAccessIssue]
        valid = [b.__name__ for b in known if b.view_type is cache.view_type]  # pyright: ignore[reportAttributeAccessIssue]
        raise PairingError(
            f"Cannot pair `{backend.__name__}` with `{cache.__name__}`: the backend reads {backend.view_type.__name__}, "  # pyright: ignore[reportAttributeAccessIssue]
            f"the cache gives {cache.view_type.__name__}. Backends for `{cache.__name__}`: {', '.join(valid) or 'none registered'}."  # pyright: ignore[reportAttributeAccessIssue]
        )

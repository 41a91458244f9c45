"""Builds an engine (rows, caches, step) from a loaded pair, strategies and a request's needs."""

import functools
from dataclasses import dataclass, field
from typing import Any, final

import torch

from bass.drafters.ensemble import is_ours
from bass.drafters.validity import built
from bass.engine.cost import PassLog, pass_cost
from bass.engine.drafter_context import RunContext, check_features, draw_for
from bass.engine.graphs import GraphedStep
from bass.engine.scorer import ModelScorer
from bass.engine.shapes import StepShapes
from bass.engine.step import SpeculativeStep, Step
from bass.errors import RequestError
from bass.interfaces import (
    AttentionBackend,
    DraftLengthPolicy,
    DraftMethod,
    KVCache,
    StopRule,
    Verifier,
)
from bass.interfaces.policy import captured_lengths
from bass.models.decoder import CausalDecoder
from bass.records import CacheBudget, Sequences
from bass.sampling import RowSampling

MOST_SCORERS = 32  # of one storage, each with its recorded passes


@dataclass(frozen=True)
class ModelPair:
    """A target, and its draft if one is needed; on one device, computing in one type."""

    target: CausalDecoder
    draft: CausalDecoder | None
    device: torch.device
    dtype: torch.dtype

    @property
    def context(self) -> int:
        """The longest row in tokens: the smaller context of target and draft."""
        both = (self.target, self.draft)
        return min(model.shape.max_positions for model in both if model is not None)


@final
@dataclass(frozen=True)
class Strategies:
    """The strategies that a model pair runs with."""

    policy: DraftLengthPolicy[Any]
    cache: Any  # a class with `allocate`
    attention: AttentionBackend[Any, Any]
    verifier: Verifier
    drafter: DraftMethod
    stop_rule: StopRule | None = None


@final
@dataclass(frozen=True)
class Engine:
    """What a run needs in addition to its requests and its policy."""

    sequences: Sequences
    step: Step


@final
@dataclass
class Storage:
    """The rows' tokens and caches, which engines of up to `budget.batch` rows use in turn.

    end_tokens: the most end tokens of a row. Caches are allocated when a scorer first needs them:
    the target's comes first, then those of the drafter's models, in the order of their use.
    """

    models: ModelPair
    parts: Strategies
    budget: CacheBudget
    end_tokens: int
    caches: list[KVCache[Any]] = field(default_factory=list)
    # by the place of the cache and the number of rows, with their recorded passes
    _scorers: dict[tuple[int, int], ModelScorer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        device, capacity = self.models.device, int(self.budget.limits.max())
        self.sequences = Sequences.empty(
            self.budget.batch, capacity, [], device, max(self.end_tokens, 1)
        )

    def cache(self, place: int, decoder: CausalDecoder, batch: int) -> KVCache[Any]:
        """The cache at this place, limited to its first `batch` rows."""
        if place == len(self.caches):
            device, dtype = self.models.device, self.models.dtype
            layout = self.parts.cache
            self.caches.append(layout.allocate(decoder.shape, self.budget, device, dtype))
        whole = self.caches[place]
        return whole if batch == self.budget.batch else whole.rows(0, batch)

    def scorer(
        self, place: int, decoder: CausalDecoder, batch: int, layers: tuple[int, ...]
    ) -> ModelScorer:
        """The scorer on the first `batch` rows of the cache at this place."""
        found = self._scorers.get((place, batch))
        if found is None or found.decoder is not decoder or found.layers != layers:
            if len(self._scorers) >= MOST_SCORERS:
                self._scorers.clear()
            cache = self.cache(place, decoder, batch)
            found = ModelScorer(decoder, cache, self.parts.attention, batch, layers)
            self._scorers[place, batch] = found
        return found


def assemble(
    storage: Storage,
    batch: int,
    graphs: bool,
    pool: Any = None,
    sequences: Sequences | None = None,
) -> Engine:
    """Build an engine of `batch` rows on the storage.

    With `graphs`, its steps run as CUDA graphs in the memory pool `pool`. sequences: rows of its
    own; by default the first ones of the storage.
    """
    models, parts, used = storage.models, storage.parts, 0

    def scorer(decoder: CausalDecoder, layers: tuple[int, ...] = ()) -> ModelScorer:
        nonlocal used
        used += 1
        return storage.scorer(used - 1, decoder, batch, layers)

    sequences = storage.sequences.first(batch) if sequences is None else sequences
    target = scorer(models.target, check_features(parts.drafter, models.target.shape.layers))
    context = RunContext(
        target,
        None if models.draft is None else functools.partial(scorer, models.draft),
        warp := RowSampling(),
        draw_for(parts.verifier),
        parts.stop_rule,
        batch,
        sequences.capacity,
        PassLog(pass_cost(models.target)),
    )
    step: Step = SpeculativeStep(
        target, built(parts.drafter, context), parts.verifier, warp, context.vocab_size, context.log
    )
    if graphs:
        lengths, reads = captured_lengths(parts.policy), parts.attention.reads_lengths
        shapes = StepShapes.of(lengths, sequences.capacity, reads)
        step = GraphedStep(step, sequences, shapes, pool, is_ours(parts.drafter))
    return Engine(sequences, step)


def no_room(budget: CacheBudget, row_bytes: int, reason: str) -> RequestError:
    """The error for storage that cannot be allocated: its size, and what to lower.

    row_bytes: keys and values of one position.
    """
    longest = int(budget.limits.max())
    return RequestError(
        f"{budget.batch} rows of {longest} positions need "
        f"{budget.batch * longest * row_bytes / 1e9:.1f} GB for keys and values in addition "
        f"to weights and buffers, and there is not enough memory ({reason}): lower "
        "`max_batch_size`, `max_model_len` or `max_new_tokens`."
    )

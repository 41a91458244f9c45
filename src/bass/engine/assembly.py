"""Builds engines (rows, step, drafter) from a loaded pair and strategies, on storage that they
share.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Int
from torch import Tensor, nn

from bass.drafters.heads import DraftHead
from bass.drafters.several import is_ours
from bass.drafters.validity import built
from bass.engine.cost import (
    ALL,
    LoggedScorer,
    Pass,
    PassLog,
    head_cost,
    module_cost,
    pass_cost,
)
from bass.engine.graphs import GraphedStep
from bass.engine.prefill import (
    FED_SEGMENTS,
    MOST_JOINED,
    PrefillGraphs,
    SegmentGraphs,
    feeds_drafter,
    feeds_target,
)
from bass.engine.requests import RunStatus
from bass.engine.scorer import CachedLayers, ModelScorer, WidenedScorer
from bass.engine.shapes import StepShape, StepShapes, doubled
from bass.engine.step import SpeculativeStep, Step
from bass.engine.trimming import Recorder, Trimming
from bass.errors import PairingError
from bass.interfaces import (
    AttentionBackend,
    DrafterContext,
    DraftLengthPolicy,
    DraftMethod,
    DraftTrim,
    KVCache,
    LayerCache,
    Scorer,
    StopRule,
    Verifier,
)
from bass.interfaces.policy import captured_lengths
from bass.models.decoder import CausalDecoder, FirstLayers
from bass.ops.noise import exponential_race
from bass.ops.sampling import draw
from bass.option import PerPrompt
from bass.records import CacheBudget, DecoderShape, Noise, Sequences
from bass.sampling import RowSampling

MOST_SCORERS = 32  # of one storage, each with its recorded passes


@dataclass(frozen=True)
class ModelPair:
    """A target, and its draft if one is needed; on one device, computing in one type."""

    target: CausalDecoder
    draft: CausalDecoder | DraftHead | None
    device: torch.device
    dtype: torch.dtype

    @property
    def modules(self) -> list[CausalDecoder | DraftHead]:
        return [self.target] if self.draft is None else [self.target, self.draft]

    @property
    def decoders(self) -> list[CausalDecoder]:
        return [one for one in self.modules if isinstance(one, CausalDecoder)]

    @property
    def head(self) -> DraftHead | None:
        """The draft, if it is a head."""
        return self.draft if isinstance(self.draft, DraftHead) else None

    @property
    def context(self) -> int:
        """The longest row in tokens."""
        return self.target.shape.max_positions

    @property
    def draft_context(self) -> int:
        """The last position of a drafted token: a draft model's context may be the shorter one."""
        return self.decoders[-1].shape.max_positions

    @property
    def tensors(self) -> list[Tensor]:
        return [t for one in self.modules for t in (*one.parameters(), *one.buffers())]

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters and buffers; what target and draft share counts once."""
        storages = {s.data_ptr(): s.nbytes() for t in self.tensors for s in (t.untyped_storage(),)}
        return sum(storages.values())


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
    trim: DraftTrim | None = None

    def lossless_at(self, temperature: PerPrompt[float]) -> bool:
        """Whether the output has the target's distribution, for requests of up to this temperature,
        or of one for each prompt, which count as warm.

        At temperature 0, and where nothing is drafted, any trim leaves the target's own tokens.
        """
        exact = self.trim is None or self.trim.lossless or self.verifier.ignores_draft
        return self.verifier.lossless and (exact or not self.draws(temperature))

    def batch_invariant_at(self, temperature: PerPrompt[float]) -> bool:
        """Whether a row's tokens are independent of the other rows, apart from what the policy
        reads of them.
        """
        each = self.drafter.batch_invariant and (self.trim is None or self.trim.batch_invariant)
        return each or self.verifier.coupled or not self.draws(temperature)

    def draws(self, temperature: PerPrompt[float]) -> bool:
        """Whether the tokens of a draft, and so its length, may decide what is emitted."""
        return bool(temperature and self.policy.max_length)

    @property
    def caveat(self) -> str:
        """The warning if it is not lossless."""
        by_verifier = not self.verifier.lossless and self.verifier.caveat
        return by_verifier or "the text does not follow the target's distribution"

    def for_models(self, models: ModelPair) -> "Strategies":
        """The strategies with the drafter of these models."""
        drafter = self.drafter.with_head(models.head, models.target.shape.layers)
        return replace(self, drafter=drafter)


@final
@dataclass(frozen=True)
class Engine:
    """What a run needs in addition to its requests and its policy."""

    sequences: Sequences
    step: Step


def own_draw(probs: Tensor, noise: Noise, i: int) -> Int[Tensor, " batch"]:
    """Draw with the draft stream of the step's noise, which the verifier does not use."""
    return draw(probs, noise.draft[:, i])


def shared_draw(probs: Tensor, noise: Noise, i: int) -> Int[Tensor, " batch"]:
    """Draw with the noise of the token's position, which a coupled verifier shares (Daliri et al.,
    2025).
    """
    return exponential_race(probs[:, None], noise.keys, noise.first + i)[:, 0]


def check_features(method: DraftMethod, layers: int) -> tuple[int, ...]:
    """The target states that the drafter reads.

    Raises `PairingError` for a state that a target with `layers` layers does not have.
    """
    states = tuple(method.target_features)
    if bad := [i for i in states if i not in range(-1, layers + 1)]:
        raise PairingError(
            f"`{type(method).__name__}` reads state `{bad[0]}` of the target "
            f"(`target_features`), and the target has {layers} layers: give 0 to {layers - 1} for "
            f"the input of a layer, {layers} for what leaves the last one, or -1 for the final "
            "state, after the last norm."
        )
    return states


@final
class RunContext(DrafterContext):
    """The resources that one run of a loaded pair offers to its drafter."""

    def __init__(self, storage: "Storage", rows: Sequences) -> None:
        models, parts = storage.models, storage.parts
        self.storage, self.places, self.states = storage, itertools.count(), itertools.count()
        self.batch, self.capacity, self.device = len(rows.lens), rows.capacity, models.device
        self.vocab_size, self.layers = models.target.shape.vocab_size, models.target.shape.layers
        self.embed, self.dtype = models.target.embed, models.dtype
        self.warp, rule, trim = RowSampling(), parts.stop_rule, parts.trim
        self.stop_rule = Recorder(rule) if trim is not None and trim.reads_probs else rule
        # draws that the verifier accepts more often
        self.draw = shared_draw if parts.verifier.coupled else own_draw
        target, layers = models.target, models.target.shape.layers
        prompt = storage.cost_of(target, layers, has_head=False)
        self.log = PassLog(storage.cost_of(target), prompt)
        self.target = self.scorer_of(target, check_features(parts.drafter, layers))

    def scorer_of(self, decoder: CausalDecoder, feature_ids: tuple[int, ...] = ()) -> ModelScorer:
        """The scorer of a decoder, with a cache of its own."""
        return self.storage.scorer(next(self.places), decoder, self.batch, feature_ids)

    def draft(self) -> Scorer:
        decoder = self.storage.models.draft
        if not isinstance(decoder, CausalDecoder):
            raise PairingError(
                "The drafter requests a draft model, and none is loaded: declare "
                "`needs_draft = True` in its class."
            )
        scorer, cost_of = self.scorer_of(decoder), self.storage.cost_of
        fill_cost = cost_of(decoder, decoder.shape.layers - 1, has_head=False)
        logged = LoggedScorer(scorer, self.log, cost_of(decoder), fill_cost)
        shape = decoder.shape
        if shape.vocab_size == self.vocab_size and shape.max_positions >= self.capacity:
            return logged
        return WidenedScorer(logged, shape.vocab_size, shape.max_positions, self.vocab_size)

    @property
    def hidden_size(self) -> int:
        return self.storage.models.target.config.hidden_size

    @property
    def norm(self) -> nn.Module:
        return self.storage.models.target.norm

    def head(self) -> nn.Module:
        head = self.storage.models.head
        if head is None:
            raise PairingError(
                "The drafter requests a head, and `draft` names none: give the folder of a head; "
                'those of the embedded target are `draft="eagle3"` and `draft="block"`.'
            )
        return head

    def unembed(self, hidden: Tensor, head: nn.Module | None = None) -> Tensor:
        columns, storage = hidden.shape[1] if hidden.ndim > 2 else 1, self.storage
        if head is None:
            cost = storage.head_cost(storage.models.target)
        else:
            cost = storage.module_cost((head,), None, self.dtype)
        before = sum(one.columns for one in self.log.passes if one.cost == cost)
        self.log.passes.append(Pass(cost, columns, before))
        return storage.models.target.unembed(hidden) if head is None else head(hidden)

    def cache(self, shape: DecoderShape) -> LayerCache:
        return self.storage.layers(next(self.places), shape, self.batch)

    def state(self, *size: int, dtype: torch.dtype | None = None) -> Tensor:
        return self.storage.state(next(self.states), *size, dtype=dtype or self.dtype)[: self.batch]

    def count(
        self,
        modules: Sequence[nn.Module],
        fed: range | None = None,
        last: int = -1,
        shape: DecoderShape | None = None,
    ) -> None:
        cost = self.storage.module_cost(tuple(modules), shape, self.dtype)
        observed = Pass(cost, ALL, observed=True)
        one = observed if fed is None else Pass(cost, len(fed), fed.start, last)
        self.log.passes.append(one)

    def first_layers(self, count: int) -> Scorer:
        """A scorer of the target's first `count` layers, which shares the target's cache.

        The target overwrites its keys and values at drafted positions when it verifies them.
        """
        first = FirstLayers(self.storage.models.target, count)
        scorer = replace(self.target, decoder=first, feature_ids=())
        cost = self.storage.cost_of(first.decoder, count)
        return LoggedScorer(scorer, self.log, cost, None)


def selects(scorer: ModelScorer) -> bool:
    """Whether windows of any rows can be fed to its cache."""
    return type(scorer.cache).selected is not KVCache.selected


@final
class Storage:
    """Rows and caches, and the engines on them, of which one runs at a time.

    They are allocated once, for the most and the longest rows, so that no request moves what graphs
    hold the addresses of: one engine for each size of batch, and a request runs in the smallest one
    with a row for each sample. Without `graphs` each call has an engine and rows of its own. It
    shares caches with earlier calls, and their recorded passes, which hold the addresses of
    `weights` too.

    end_tokens: the most end tokens of a row. Caches are allocated when a scorer first needs them:
    the target's comes first, then those of the drafter's models, in the order of their use.
    """

    def __init__(
        self,
        models: ModelPair,
        parts: Strategies,
        budget: CacheBudget,
        end_tokens: int,
        graphs: bool,
    ) -> None:
        self.models, self.parts, self.budget, self.graphs = models, parts, budget, graphs
        self.end_tokens, self.capacity = end_tokens, int(budget.limits.max())
        self.sizes = doubled(1, budget.batch)
        self.pool = torch.cuda.graph_pool_handle() if graphs else None
        self.weights = [tensor.data_ptr() for tensor in models.tensors]
        self.windows_fed = False  # windows of all kinds, by a warm-up
        self.status = RunStatus(over=True)  # of the call that uses it
        self.cost_of, self.head_cost, self.module_cost = map(
            functools.cache, (pass_cost, head_cost, module_cost)
        )
        self._caches: list[KVCache[Any]] = []
        self._states: list[Tensor] = []
        self._engines: dict[int, Engine] = {}
        # by the place of the cache and the number of rows, with their recorded passes
        self._scorers: dict[tuple[int, int], ModelScorer | CachedLayers] = {}

    @functools.cached_property
    def prefills(self) -> PrefillGraphs | None:
        """The graphs that feed prompts and what a drafter lacks, for all engines; None if a part of
        a user's needs the host: a drafter, which may read what it is fed, or a cache without
        `selected`.
        """
        context = RunContext(self, self.sequences)
        if not (selects(context.target) and is_ours(self.parts.drafter)):
            return None
        drafter, log = built(self.parts.drafter, context), context.log
        return PrefillGraphs(
            SegmentGraphs(feeds_target(context.target, drafter), self.sequences, log),
            tuple(
                SegmentGraphs(feeds_drafter(one), self.sequences, log, optional=True)
                for one in drafter.choices
            ),
        )

    @functools.cached_property
    def sequences(self) -> Sequences:
        """The rows that the engines of graphs use in turn."""
        return self._rows(self.budget.batch, self.capacity, self.end_tokens)

    def fits(self, rows: int, positions: int, end_tokens: int) -> bool:
        """Whether requests of this size fit into it."""
        enough = rows <= self.budget.batch and positions <= self.capacity
        return enough and end_tokens <= self.end_tokens

    def engine(self, batch: int) -> Engine:
        """The smallest engine of at least `batch` rows, for graphs."""
        size = next(size for size in self.sizes if size >= batch)
        if size not in self._engines:
            self._engines[size] = self._assembled(self.sequences.first(size))
        return self._engines[size]

    def engine_for(self, budget: CacheBudget, end_tokens: int) -> Engine:
        """The engine of a call with these requests."""
        if not self.graphs:
            rows = self._rows(budget.batch, int(budget.limits.max()), end_tokens)
            return self._assembled(rows)
        engine = self.engine(budget.batch)
        engine.sequences.active.fill_(False)  # rows of a closed run
        return engine

    def shapes(self) -> list[tuple[Engine, StepShape]]:
        """Every engine with every shape of its steps, the largest first."""
        lengths, longest = range(1, self.capacity + 1), int(self.parts.policy.max_length)
        return [
            (engine, shape)
            for engine in map(self.engine, reversed(self.sizes))
            for shape in engine.step.shapes.needed(lengths, longest)
        ]

    def capture(self) -> Iterator[int]:
        """Capture every shape, and yield after each the number of those that are left."""
        work = [functools.partial(e.step.prepare, e.sequences, s) for e, s in self.shapes()]
        work += [self.engine(size).step.prepare_windows for size in reversed(self.sizes)]
        for i, prepare in enumerate(work, 1):
            with self.preparing():
                prepare()
            yield len(work) - i

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Within it, an error marks the storage: the next call drops it with all its graphs, so
        that smaller ones may fit.
        """
        try:
            with torch.inference_mode():
                yield
        except Exception:
            self.status.failed = True
            raise

    def _rows(self, batch: int, capacity: int, end_tokens: int) -> Sequences:
        with torch.inference_mode(False):  # writable inside and outside of it
            return Sequences.empty(batch, capacity, [], self.models.device, max(end_tokens, 1))

    def _assembled(self, sequences: Sequences) -> Engine:
        """An engine of these rows; with `graphs` its steps run as CUDA graphs."""
        parts, context = self.parts, RunContext(self, sequences)
        drafter = built(parts.drafter, context)
        step = SpeculativeStep(
            context.target,
            drafter,
            parts.verifier,
            context.warp,
            context.vocab_size,
            context.log,
            self.models.draft_context,
            trimming=Trimming.of(parts, sequences, context.stop_rule, len(drafter.choices)),
        )
        if not self.graphs:
            return Engine(sequences, step)
        lengths, attention = captured_lengths(parts.policy), parts.attention
        rows = len(sequences.lens) if attention.packs and selects(context.target) else 0
        # requests wait for rows in the largest engine alone
        joins = self.prefills is not None and len(sequences.lens) == self.budget.batch
        shapes = StepShapes.of(
            lengths,
            sequences.capacity,
            attention.reads_lengths,
            rows,
            len(step.drafter.choices),
            FED_SEGMENTS if joins else (),
            MOST_JOINED // len(sequences.lens) - 1,
        )
        how = shapes, self.pool, self.prefills
        return Engine(sequences, GraphedStep(step, sequences, *how))

    def scorer(
        self, place: int, decoder: CausalDecoder, batch: int, feature_ids: tuple[int, ...]
    ) -> ModelScorer:
        """The scorer on the first `batch` rows of the cache at this place."""
        cache = self.cache(place, decoder.shape, batch)
        backend = self.parts.attention
        new = functools.partial(ModelScorer, decoder, cache, backend, batch, feature_ids)
        return self._kept(place, batch, new)

    def layers(self, place: int, shape: DecoderShape, batch: int) -> CachedLayers:
        """The layers of a drafter on the first `batch` rows of the cache at this place."""
        cache = self.cache(place, shape, batch)
        new = functools.partial(CachedLayers, cache, self.parts.attention, shape.rules, batch)
        return self._kept(place, batch, new)

    def _kept(self, place: int, batch: int, new: Callable[[], Any]) -> Any:
        """What earlier calls made for these rows of this cache, with its recorded passes."""
        if (place, batch) not in self._scorers:
            if len(self._scorers) >= MOST_SCORERS:
                self._scorers.clear()
            self._scorers[place, batch] = new()
        return self._scorers[place, batch]

    def state(self, place: int, *size: int, dtype: torch.dtype) -> Tensor:
        """What a drafter keeps of each row, at this place among such tensors."""
        if place == len(self._states):
            shape = self.budget.batch, *size
            self._states.append(torch.zeros(shape, dtype=dtype, device=self.models.device))
        return self._states[place]

    def cache(self, place: int, shape: DecoderShape, batch: int) -> KVCache[Any]:
        """The first `batch` rows of the cache at this place."""
        if place == len(self._caches):
            device, dtype = self.models.device, self.models.dtype
            self._caches.append(self.parts.cache.allocate(shape, self.budget, device, dtype))
        whole = self._caches[place]
        return whole if batch == self.budget.batch else whole.rows(0, batch)

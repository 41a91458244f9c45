"""Builds an engine (rows, caches, step) from a loaded pair, strategies and a request's needs."""

import functools
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from bass.api.loading import Models
from bass.api.plan import Strategies
from bass.drafters.ensemble import is_ours
from bass.drafters.validity import built
from bass.engine.cost import pass_cost
from bass.engine.drafter_context import RunContext, check_features, draw_for
from bass.engine.graphs import GraphedStep
from bass.engine.passes import PassLog
from bass.engine.scorer import ModelScorer
from bass.engine.step import SpeculativeStep, Step
from bass.errors import RequestError
from bass.models.decoder import CausalDecoder
from bass.records import CacheBudget, Sequences
from bass.sampling import RowSampling

# a cached engine rounds its capacities up to multiples of these, so that later requests can use it
CAPACITY_STEP = 256
END_TOKENS_STEP = 8


@final
@dataclass(frozen=True)
class Engine:
    """What a run needs in addition to its requests and its policy."""

    sequences: Sequences
    step: Step
    budget: CacheBudget

    def serves(self, budget: CacheBudget, end_tokens: int) -> bool:
        """Whether this engine's storage, whose addresses graphs hold, is large enough for the
        requests.

        end_tokens: the most end tokens of a request.
        """
        ours, theirs = (np.sort(r.longest) for r in (self.budget, budget))
        return (
            len(ours) == len(theirs)
            and bool((theirs <= ours).all())
            and end_tokens <= self.sequences.end_tokens.shape[1]
        )


def assemble(
    models: Models,
    parts: Strategies,
    graphs: bool,
    budget: CacheBudget,
    end_tokens: int,
) -> Engine:
    """Allocate the caches and build the step, for rows of up to `end_tokens` end tokens.

    With `graphs` later requests reuse the engine: its capacity is rounded up, and no positions are
    shared between rows.
    """
    if graphs:
        limits = -(-budget.limits // CAPACITY_STEP) * CAPACITY_STEP
        budget = replace(budget, limits=limits, shared=np.zeros_like(budget.shared))

    def scorer(decoder: CausalDecoder, layers: tuple[int, ...] = ()) -> ModelScorer:
        cache = parts.cache.allocate(decoder.shape, budget, models.device, models.dtype)
        return ModelScorer(decoder, cache, parts.attention, budget.batch, layers)

    target = scorer(models.target, check_features(parts.drafter, models.target.shape.layers))
    make_draft = None if models.draft is None else functools.partial(scorer, models.draft)
    context = RunContext(
        target,
        make_draft,
        warp := RowSampling(),
        draw_for(parts.verifier),
        parts.stop_rule,
        budget.batch,
        capacity := int(budget.limits.max()),
        PassLog(pass_cost(models.target), copies=not is_ours(parts.drafter)),
    )
    most = -(-max(end_tokens, 1) // END_TOKENS_STEP) * END_TOKENS_STEP
    sequences = Sequences.empty(budget.batch, capacity, [], models.device, most)
    step = SpeculativeStep(
        target, built(parts.drafter, context), parts.verifier, warp, context.vocab_size, context.log
    )
    return Engine(sequences, GraphedStep(step, sequences) if graphs else step, budget)


def no_room(budget: CacheBudget, row_bytes: int, reason: str) -> RequestError:
    """The error for storage that cannot be allocated: its size, and what to lower.

    row_bytes: keys and values of one position.
    """
    longest = int(budget.limits.max())
    return RequestError(
        f"{budget.batch} rows of {longest} positions need "
        f"{budget.batch * longest * row_bytes / 1e9:.1f} GB for keys and values in addition "
        f"to weights and buffers, and there is not enough memory ({reason}): lower "
        "`max_batch_size` or `max_new_tokens`."
    )

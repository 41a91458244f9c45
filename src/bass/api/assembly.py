"""From a loaded pair, its strategies and a request's options to an engine: rows, caches, and a step
over them.
"""

import functools
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from bass.api.loading import Models
from bass.api.plan import Strategies
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

# an engine that is kept has room for the next multiple, so that the next request finds it large
# enough
CAPACITY_STEP = 256
END_TOKENS_STEP = 8


@final
@dataclass(frozen=True)
class Engine:
    """What a run needs beside its requests and its policy."""

    sequences: Sequences
    step: Step
    budget: CacheBudget

    def serves(self, budget: CacheBudget, end_tokens: int) -> bool:
        """Whether requests of this need, with up to so many end tokens, can be run with it: its
        storage is addressed by graphs, and can be used again.
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
    """Allocate the caches and put the step together, for rows of up to so many end tokens.

    With `graphs`, for later requests too: larger, and without what rows share.
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
        PassLog(pass_cost(models.target)),
    )
    most = -(-max(end_tokens, 1) // END_TOKENS_STEP) * END_TOKENS_STEP
    sequences = Sequences.empty(budget.batch, capacity, [], models.device, most)
    step = SpeculativeStep(
        target, built(parts.drafter, context), parts.verifier, warp, context.vocab_size, context.log
    )
    return Engine(sequences, GraphedStep(step, sequences) if graphs else step, budget)


def no_room(budget: CacheBudget, row_bytes: int, reason: str) -> RequestError:
    """What needed how much, and what to lower, when storage cannot be had.

    `row_bytes`: keys and values of one position.
    """
    longest = int(budget.limits.max())
    return RequestError(
        f"{budget.batch} rows of {longest} positions need "
        f"{budget.batch * longest * row_bytes / 1e9:.1f} GB for keys and values beside the "
        f"weights and the buffers of a step, and there is no room ({reason}): lower "
        "`max_batch_size` or "
        "`max_new_tokens`."
    )
